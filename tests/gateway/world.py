"""A gateway on a real socket, before replicas that do what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from dataclasses import dataclass

import httpx2
import msgspec

from cardwise.gateway.main import Gateway
from cardwise.gateway.settings import ServiceSettings, Settings, faults_of

INFER = "/v2/models/emulated/infer"


def told(more):
    return {key.replace("_", "-"): value for key, value in more.items()}


def service(*replicas, **more):
    given = {"name": "s", "kind": "pass", "probe_path": "/ready", "probe_every_ms": 200, **more}
    return msgspec.convert({**told(given), "replicas": list(replicas)}, ServiceSettings)


def oip(*replicas, **more):
    return service(*replicas, **{"kind": "oip", "probe_path": "", **more})


@dataclass
class World:
    gateway: Gateway
    port: int
    admin_port: int

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def service(self):
        return self.gateway.services[0]

    @property
    def replica(self):
        return self.service.replicas[0]

    def client(self, **more):
        limits = httpx2.Limits(max_connections=None)
        return httpx2.AsyncClient(base_url=self.url, timeout=60, limits=limits, **more)

    async def admin(self, path):
        async with httpx2.AsyncClient(timeout=60) as client:
            return await client.get(f"http://127.0.0.1:{self.admin_port}{path}")

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.port)

    def at_rest(self):
        """Nothing waits and nothing is in flight: all places have been given back."""
        each = self.service
        return not (each.backlog.queued or len(each.backlog) or each._again or each._aside) and all(
            not replica.in_flight for replica in each.replicas
        )


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def gateway(*services, ready=True, **more):
    given = {"host": "127.0.0.1", "port": 0, "admin_host": "127.0.0.1", "admin_port": 0, "drain_s": 5, **more}
    settings = msgspec.convert({**told(given), "services": [msgspec.to_builtins(each) for each in services]}, Settings)
    assert list(faults_of(settings)) == []
    built = Gateway.build(settings)
    async with built.running() as (port, admin_port):
        if ready:
            await until(lambda: all(each.ready for one in built.services for each in one.replicas))
        yield World(built, port, admin_port)


@dataclass
class Asked:
    """A request as a replica got it, and the way to answer it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    number: int

    def answer(self, status=200, body=b"{}", **headers):
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    def raw(self, data):
        self.writer.write(data)

    def reset(self):
        self.writer.transport.abort()


class Upstream:
    """A replica of a few lines: what it does with each request is a function of the test."""

    def __init__(self, serve):
        self.serve = serve
        self.asked = []
        self.lost = 0
        self.ready = True
        self.connections = set()
        self.numbers = itertools.count()
        self.url = ""

    async def listen(self, port=0):
        self.held = socket.socket()  # keeps the port from everybody else when this one has died, and does not listen
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind(("127.0.0.1", port))
        self.port = self.held.getsockname()[1]
        self.server = await asyncio.start_server(self.talk, "127.0.0.1", self.port)
        self.url = f"http://127.0.0.1:{self.port}"

    async def talk(self, reader, writer):
        self.connections.add(writer)
        try:
            while True:
                asked = await self.read(reader, writer)
                if asked.path == "/ready":
                    asked.answer(200 if self.ready else 503)
                    continue
                self.asked.append(asked)
                await self.serve(asked)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost += 1
        finally:
            self.connections.discard(writer)
            writer.close()

    async def read(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {}
        for line in head[1:-2]:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Asked(method, path, headers, body, writer, next(self.numbers))

    def die(self):
        """As a process that is killed: the port closes, and every connection with it."""
        self.server.close()
        for writer in tuple(self.connections):
            writer.transport.abort()

    def close(self):
        self.die()
        self.held.close()


@contextlib.asynccontextmanager
async def upstream(serve, port=0):
    replica = Upstream(serve)
    await replica.listen(port)
    try:
        yield replica
    finally:
        replica.close()


async def echo(asked):
    asked.answer(200, asked.body or b"-")
    await asked.writer.drain()


def number(text, name):
    """The value of a metric."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))
