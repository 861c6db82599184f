"""A real HTTP server on loopback whose behaviour is written down beforehand, and which counts what it was asked.

It runs in a process of its own: in the generator's process its work would be the generator's stall.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
import urllib.request
from dataclasses import asdict, dataclass

import httptools

from tests.conftest import ROOT


@dataclass(frozen=True)
class Script:
    """What the service does."""

    latency_s: float = 0.0
    latency_spread_s: float = 0.0
    """Beside the fixed part: exponential, with this mean."""
    capacity_per_s: float | None = None
    """A bucket: what comes beyond is answered 429 at once."""
    serial_s: float | None = None
    """A device that takes so long for each request, one after the other, with an endless queue."""
    retry_after: str | None = None
    stall: tuple[float, float] | None = None
    """From so many seconds after the first request that is no probe, for so many seconds, nothing is answered."""
    status: int = 200
    reset_every: int = 0
    cut_every: int = 0
    silent_every: int = 0
    garbage: bool = False
    close: bool = False
    undelimited: bool = False
    early_hints: bool = False
    slow_body_s: float = 0.0
    events: tuple[float, ...] | None = None
    """An OpenAI stream: pauses before each token."""
    usage: int | None = None
    done: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    window_s_per_ms: float = 0.0
    """Of header x-window: so much longer an answer takes."""


class Service:
    """State of all connections."""

    def __init__(self, script):
        self.script = script
        self.asked = 0
        self.statuses = {}
        self.paths = {}
        self.bodies = set()
        self.first_s = None
        self.free_s = 0.0
        self.level, self.filled_s = 0.0, None
        self.draw = random.Random(7)  # noqa: S311

    def admits(self, now_s):
        rate = self.script.capacity_per_s
        if rate is None:
            return True
        if self.filled_s is None:
            self.filled_s, self.level = now_s, max(1.0, rate * 0.05)
        self.level = min(self.level + (now_s - self.filled_s) * rate, max(1.0, rate * 0.05))
        self.filled_s = now_s
        if self.level < 1:
            return False
        self.level -= 1
        return True

    def delay_s(self, now_s, window_ms):
        script = self.script
        delay = script.latency_s + window_ms * script.window_s_per_ms
        if script.latency_spread_s:
            delay += self.draw.expovariate(1 / script.latency_spread_s)
        if script.serial_s is not None:
            self.free_s = max(self.free_s, now_s) + script.serial_s
            delay += self.free_s - now_s
        if script.stall is not None and self.first_s is not None:
            begin_s, end_s = self.first_s + script.stall[0], self.first_s + sum(script.stall)
            if begin_s <= now_s + delay < end_s:
                delay = end_s - now_s
        return delay


class Answering(asyncio.Protocol):
    def __init__(self, service):
        self.service, self.script = service, service.script
        self.parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.parser.feed_data(data)

    def on_message_begin(self):
        self.path, self.body, self.window_ms = b"", b"", 0.0

    def on_url(self, url):
        self.path += url

    def on_header(self, name, value):
        if name.lower() == b"x-window":
            self.window_ms = float(value)

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        if self.path == b"/counts":
            service = self.service
            told = {"asked": service.asked, "statuses": service.statuses, "paths": service.paths}
            self.write(200, json.dumps(told | {"bodies": len(service.bodies)}).encode())
            return
        if self.parser.get_method() == b"GET" and self.path == b"/v2/models/m":
            self.write(200, b'{"name":"m","inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}]}')
            return
        self.answer()

    def answer(self):
        service, script, now_s = self.service, self.script, time.monotonic()
        service.asked += 1
        path = self.path.decode()
        service.paths[path] = service.paths.get(path, 0) + 1
        if len(service.bodies) < 100:
            service.bodies.add(self.body)
        count = service.asked - 1  # the probe before the test is answered well
        if count and service.first_s is None:  # between the probe and the test is as long as a process takes to start
            service.first_s = now_s
        status = script.status if service.admits(now_s) or not count else 429
        service.statuses[str(status)] = service.statuses.get(str(status), 0) + 1
        loop = asyncio.get_running_loop()
        if count and script.silent_every and count % script.silent_every == 0:
            return
        delay_s = 0.0 if status != script.status else service.delay_s(now_s, self.window_ms)
        loop.call_later(delay_s, self.respond, status, count) if delay_s else self.respond(status, count)

    def respond(self, status, count):
        script = self.script
        if count and script.reset_every and count % script.reset_every == 0:
            self.transport.abort()
        elif count and script.cut_every and count % script.cut_every == 0:
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            self.transport.close()
        elif count and script.garbage:
            self.transport.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        elif script.events is not None and status == 200:
            self.task = asyncio.get_running_loop().create_task(self.stream())
        elif script.slow_body_s:
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nsl")
            asyncio.get_running_loop().call_later(script.slow_body_s, self.transport.write, b"ow")
        else:
            self.write(status, b"{}")

    def write(self, status, body):
        script = self.script
        if script.early_hints and self.path != b"/counts":
            self.transport.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        lines = [f"HTTP/1.1 {status} OK", *(f"{name}: {value}" for name, value in script.headers)]
        if status in {429, 503} and script.retry_after is not None:
            lines.append(f"Retry-After: {script.retry_after}")
        if not script.undelimited:
            lines.append(f"Content-Length: {len(body)}")
        if script.close or script.undelimited:
            lines.append("Connection: close")
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        if script.close or script.undelimited:
            self.transport.close()

    async def stream(self):
        script = self.script
        self.transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for pause_s in script.events:
            await asyncio.sleep(pause_s)
            self.event({"choices": [{"delta": {"content": "word "}}]})
        if script.usage is not None:
            self.event({"choices": [], "usage": {"completion_tokens": script.usage}})
        if script.done:
            self.chunk(b"data: [DONE]\n\n")
        self.transport.write(b"0\r\n\r\n")

    def event(self, value):
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data):
        self.transport.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def serve(script):
    service = Service(script)
    server = await asyncio.get_running_loop().create_server(lambda: Answering(service), "127.0.0.1", 0, backlog=2048)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


class Served:
    """The service, from outside."""

    def __init__(self, script):
        command = [sys.executable, "-m", "tests.loadtest.service", json.dumps(asdict(script))]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}/"

    def counts(self):
        with urllib.request.urlopen(f"{self.url}counts", timeout=10) as answer:  # noqa: S310
            return json.load(answer)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@contextlib.contextmanager
def serving(**script):
    served = Served(Script(**script))
    try:
        yield served
    finally:
        served.close()


if __name__ == "__main__":
    asyncio.run(serve(Script(**json.loads(sys.argv[1]))))
