"""What broke, or could have, when everything around the gateway broke at once: ``python -m benchmarks.faults``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys

import httpx2
import pytest

from cardwise.adapters.http1.limits import Limits
from cardwise.adapters.http1.server import Server
from cardwise.engine.server import running
from cardwise.engine.settings import Settings as EngineSettings
from tests.gateway.world import INFER, echo, gateway, oip, service, until, upstream

POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
LARGE = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8388608\r\n\r\n" + bytes(2**23)


class Answering:
    """A handler that answers at once."""

    def on_head(self, exchange):
        pass

    def on_request(self, exchange):
        exchange.answer(200, exchange.body)


@contextlib.contextmanager
def idle_connections(port, number):
    held = []
    for _ in range(number):
        each = socket.socket()
        each.setblocking(False)
        each.connect_ex(("127.0.0.1", port))
        held.append(each)
    try:
        yield
    finally:
        for each in held:
            each.close()


async def said_to(port, data):
    """All that is told to a client that asks as soon as it is connected, as they do; nothing where it was reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        async with asyncio.timeout(40):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def sent_whole(port, data):
    """What is told to a client that reads only after it has sent all, as many do; a reset is an error to it."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as each:
        each.sendall(data)
        return each.recv(12)


async def test_a_connection_too_many_can_read_that_it_is():
    """Not a reset, which is what a client gets whose request is unread when its connection is closed."""
    server = Server(Answering(), Limits(connections=16))
    port = await server.listen("127.0.0.1", 0)
    with idle_connections(port, 16):
        await until(lambda: len(server.connections) == 16)
        assert await asyncio.to_thread(sent_whole, port, LARGE) == b"HTTP/1.1 503"
    await until(lambda: not server.connections)
    assert (await said_to(port, POST.replace(b"Host", b"Connection: close\r\nHost"))).startswith(b"HTTP/1.1 200")
    server.close()


async def test_who_is_turned_away_and_does_not_leave_is_left_after_a_while(monkeypatch):
    monkeypatch.setattr("cardwise.adapters.http1.connection._LINGER_S", 0.1)
    server = Server(Answering(), Limits(connections=16))
    port = await server.listen("127.0.0.1", 0)
    with idle_connections(port, 18):
        await until(lambda: server.turned_away)
        await until(lambda: not server.turned_away)
        assert len(server.connections) == 16
    server.close()


async def test_a_request_that_meets_the_end_of_its_kept_connection_is_answered():
    """Told to stop, the gateway gives kept connections a moment: what is on its way then hears 503, not nothing."""
    async with upstream(echo) as replica, gateway(service(replica.url)) as world:
        reader, writer = await world.connect()
        writer.write(POST)
        assert await reader.readuntil(b"body")
        draining = asyncio.create_task(world.gateway.drain())
        await until(lambda: world.gateway.server.is_draining)
        writer.write(POST)
        async with asyncio.timeout(20):
            got = await reader.read()
        assert got.startswith(b"HTTP/1.1 503")
        assert b"x-cardwise-reason: draining" in got
        await draining
        assert not world.gateway.server.connections
        writer.close()


async def test_before_it_stops_it_lets_its_clients_go_one_answer_at_a_time():
    """Within ``drain-delay-s``: who asks is answered, and told that the connection closes."""
    async with upstream(echo) as replica, gateway(service(replica.url), drain_delay_s=0.5) as world:
        reader, writer = await world.connect()
        draining = asyncio.create_task(world.gateway.drain())
        await until(lambda: world.gateway.front.is_leaving)
        writer.write(POST)
        got = await reader.read()
        assert got.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in got
        await draining
        writer.close()


@contextlib.asynccontextmanager
async def gateway_with_few_files(tmp_path, url, limit):
    path = tmp_path / "gateway.toml"
    path.write_text(
        'host = "127.0.0.1"\nport = 0\nadmin-host = "127.0.0.1"\nadmin-port = 0\n'
        f'[[services]]\nname = "s"\nkind = "pass"\nreplicas = ["{url}"]\nprobe-path = "/ready"\n'
        "probe-every-ms = 100\nkeep-alive-s = 0.1\n"
    )
    command = f"{limit}; exec {sys.executable} -m cardwise gateway --config {path}"
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        line = (await process.stdout.readline()).decode()
        ports = [int(port) for port in re.findall(r":(\d+)", line)]
        async with httpx2.AsyncClient(timeout=60) as client:
            while (await client.get(f"http://127.0.0.1:{ports[1]}/readyz")).status_code != 200:
                await asyncio.sleep(0.02)
        yield ports
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize(
    ("limit", "status"),
    [
        pytest.param("ulimit -Sn 128", 200, id="may have more, and takes them"),
        pytest.param("ulimit -n 128", 503, id="may not"),
    ],
)
async def test_clients_that_only_hold_connections_do_not_take_the_files_that_replicas_need(tmp_path, limit, status):
    """A gateway that cannot open a connection takes its replicas for dead, and the service is gone for everybody."""
    asked_at_once = POST.replace(b"Host", b"Connection: close\r\nHost")
    async with (
        upstream(echo) as replica,
        gateway_with_few_files(tmp_path, replica.url, limit) as (port, admin_port),
        httpx2.AsyncClient(timeout=60) as kept,
    ):
        url = f"http://127.0.0.1:{port}/"
        assert (await kept.post(url, content=b"x")).status_code == 200
        with idle_connections(port, 300):
            await asyncio.sleep(0.5)  # kept connections to the replica grow too old in this time
            for _ in range(5):
                assert (await kept.post(url, content=b"x")).status_code == 200
                await asyncio.sleep(0.15)
            assert (await kept.get(f"http://127.0.0.1:{admin_port}/readyz")).status_code == 200
            told = b""
            async with asyncio.timeout(20):
                while not told:  # beyond a share of those too many they are closed at once, which may be a reset
                    told = await said_to(port, asked_at_once)
            assert told[9:12] == b"%d" % status


async def test_that_there_is_no_file_for_a_connection_is_not_held_against_the_replica():
    """Others may give theirs back within the time for connecting."""
    async with upstream(echo) as replica, gateway(service(replica.url, keep_alive_s=0.05)) as world:
        reader, writer = await world.connect()
        await until(lambda: not world.replica.pool._all)
        async with asyncio.timeout(40):
            with no_files_left():
                writer.write(POST)
                await until(lambda: world.replica.in_flight)
                await asyncio.sleep(0.1)
            assert await reader.readuntil(b"body")
        assert world.replica.ready
        writer.close()


@contextlib.contextmanager
def no_files_left():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken[0], 1) + 64, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)


def batch_of(first, width):
    tensor = {"name": "x", "shape": [1, width], "datatype": "FP32", "data": [first, *([1] * (width - 1))]}
    return json.dumps({"inputs": [tensor]}).encode()


async def test_requests_that_fit_alone_are_answered_though_together_they_are_too_large_for_the_replica():
    """What a client sees must not depend on who else asks: 32 bodies of 1 MiB are more than many servers take."""
    async with running(EngineSettings(t0_ms=20)) as engine:
        settings = oip(engine.url, max_batch=32, depth=200, retries_per_s=0)  # places: each takes four
        async with gateway(settings) as world, world.client() as client:
            bodies = [batch_of(n, 400_000) for n in range(40)]
            answers = await asyncio.gather(*(client.post(INFER, content=body) for body in bodies))
            assert {answer.status_code for answer in answers} == {200}
            assert world.at_rest()


async def test_an_emulated_replica_says_when_it_wants_to_be_asked_again():
    """What the 503s of the benchmark need."""
    fault = {"kind": "status", "status": 503, "retry-after-s": 7}
    async with running(EngineSettings(test_doors=True)) as engine, httpx2.AsyncClient(base_url=engine.url) as client:
        assert (await client.post("/faults", json={"faults": [fault]})).status_code == 200
        answer = await client.post(INFER, content=batch_of(1, 2))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")


async def test_a_client_hears_when_a_busy_replica_wants_to_be_asked_again_whether_or_not_it_was_in_a_batch():
    async def busy(asked):
        if asked.path.startswith("/v2/health"):
            asked.answer(200)
        else:
            asked.answer(503, b'{"error": "busy"}', retry_after="7")

    async with upstream(busy) as replica:
        for settings in (oip(replica.url, fail_after=1000), service(replica.url, fail_after=1000)):
            async with gateway(settings) as world, world.client() as client:
                answer = await client.post(INFER, content=batch_of(1, 2))
                assert (answer.status_code, answer.headers.get("retry-after")) == (503, "7")


def test_a_gateway_that_is_told_twice_to_stop_still_ends_with_0(tmp_path):
    path = tmp_path / "gateway.toml"
    path.write_text(
        'host = "127.0.0.1"\nport = 0\nadmin-host = "127.0.0.1"\nadmin-port = 0\ndrain-delay-s = 0.3\n'
        '[[services]]\nname = "s"\nkind = "pass"\nreplicas = ["http://127.0.0.1:9"]\n'
    )
    command = [sys.executable, "-m", "cardwise", "gateway", "--config", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline().startswith(b"listening")
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        assert process.wait(60) == 0
