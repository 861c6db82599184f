"""The program as a process: it starts by a file, drains when told to, and does not grow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from cardwise.engine.server import running
from cardwise.engine.settings import Settings as EngineSettings
from tests.conftest import ROOT
from tests.gateway.world import INFER, echo, upstream

TOML = """
host = "127.0.0.1"
port = 0
admin-host = "127.0.0.1"
admin-port = 0
{more}
[[services]]
name = "s"
kind = "{kind}"
replicas = ["{url}"]
{service}
"""

LONG_DRAIN = "drain-s = 120"  # so that only the test says when it is over


class Started:
    def __init__(self, process, port, admin_port):
        self.process, self.port, self.admin_port = process, port, admin_port
        self.client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)

    async def admin(self, path):
        async with httpx2.AsyncClient(timeout=60) as client:
            return (await client.get(f"http://127.0.0.1:{self.admin_port}{path}")).status_code

    async def says(self, status):
        """Wait until it says of itself that it is ready, or that it is not."""
        async with asyncio.timeout(60):
            while await self.admin("/readyz") != status:
                await asyncio.sleep(0.02)

    def rss_kib(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])


@contextlib.asynccontextmanager
async def started(tmp_path, url, *, kind="pass", more="drain-s = 5", service='probe-path = "/ready"'):
    path = tmp_path / "gateway.toml"
    path.write_text(TOML.format(url=url, kind=kind, more=more, service=service))
    command = [sys.executable, "-m", "cardwise", "gateway", "--config", str(path)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        line = (await process.stdout.readline()).decode()
        ports = re.findall(r":(\d+)", line)
        it = Started(process, *map(int, ports))
        async with it.client:
            await it.says(200)
            yield it
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_told_to_stop_it_finishes_what_is_in_flight_and_ends_with_0(tmp_path):
    go = asyncio.Event()

    async def held(asked):
        await go.wait()
        asked.answer(200, b"done")

    async with upstream(held) as replica, started(tmp_path, replica.url, more=LONG_DRAIN) as it:
        in_flight = asyncio.create_task(it.client.get("/"))
        while not replica.asked:
            await asyncio.sleep(0.01)
        it.process.send_signal(signal.SIGTERM)
        await it.says(503)
        assert await it.admin("/healthz") == 200
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", it.port)
        go.set()
        answer = await in_flight
        assert (answer.content, answer.headers["connection"]) == (b"done", "close")
        assert await it.process.wait() == 0


async def test_draining_does_not_take_longer_than_told(tmp_path):
    async def never(asked):
        await asyncio.Event().wait()

    async with upstream(never) as replica, started(tmp_path, replica.url) as it:
        (tmp_path / "gateway.toml").unlink()
        task = asyncio.create_task(it.client.get("/", timeout=600))
        while not replica.asked:
            await asyncio.sleep(0.01)
        start_s = time.monotonic()
        it.process.send_signal(signal.SIGTERM)
        assert await it.process.wait() == 0
        assert 4.5 < time.monotonic() - start_s < 60  # the client would have waited ten minutes
        with pytest.raises(httpx2.HTTPError):
            await task


async def test_before_draining_it_can_go_on_serving_while_it_says_that_it_is_not_ready(tmp_path):
    async with upstream(echo) as replica, started(tmp_path, replica.url, more="drain-delay-s = 6") as it:
        it.process.send_signal(signal.SIGTERM)
        await it.says(503)
        assert (await it.client.post("/", content=b"done")).content == b"done"
        assert await it.process.wait() == 0


async def test_memory_stays_flat_under_load_faults_and_hang_ups(tmp_path):
    """Also: what was executed was executed once, though a third of the answers was lost."""
    async with running(EngineSettings(test_doors=True, t0_ms=1, t1_ms=0.05)) as engine:
        service = 'model = "emulated"\nfail-after = 1000000\ndepth = 16'
        async with started(tmp_path, engine.url, kind="oip", service=service) as it:
            async with httpx2.AsyncClient() as direct:
                script = {"faults": [{"kind": "reset", "every": 7, "when": "after"}, {"kind": "cut", "every": 11}]}
                assert (await direct.post(f"{engine.url}/faults", json=script)).status_code == 200
            told, hung_up = [], 0

            async def caller(number, until_s):
                nonlocal hung_up
                turn = 0
                while time.monotonic() < until_s:
                    turn += 1
                    data = {"name": "row_id", "shape": [1], "datatype": "INT64", "data": [number * 10**6 + turn]}
                    x = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [number, turn]}
                    body = json.dumps({"inputs": [x, data]}).encode()
                    if turn % 9 == 0:
                        _, writer = await asyncio.open_connection("127.0.0.1", it.port)
                        head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
                        writer.write(head.encode() + body)
                        await asyncio.sleep(0.001)
                        writer.transport.abort()
                        hung_up += 1
                        continue
                    told.append((await it.client.post(INFER, content=body)).status_code)

            async def load(seconds, first):
                until_s = time.monotonic() + seconds
                await asyncio.gather(*(caller(first + n, until_s) for n in range(24)))

            await load(1.5, 100)
            before = it.rss_kib()
            await load(3, 200)
            assert it.rss_kib() - before < 4096
            assert {200, 502} <= set(told) <= {200, 429, 502, 503}
            assert hung_up > 10
            assert max(engine.replica.executed.begun.values()) == 1


@pytest.mark.parametrize("args", [["--check"], []])
def test_a_file_that_cannot_meet_its_own_target_is_refused_with_the_numbers(tmp_path, args):
    path = tmp_path / "gateway.toml"
    service = "target-p99-ms = 20\none-ms = 4.35\nfull-batch-ms = 15.2"
    path.write_text(TOML.format(url="http://127.0.0.1:1", kind="oip", more="", service=service))
    done = subprocess.run(
        [sys.executable, "-m", "cardwise", "gateway", "--config", str(path), *args],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "services.s.depth: per replica, depth 32 with max batch 32 takes up to 30.4 ms" in done.stderr
    assert "the target P99 is 20 ms" in done.stderr


def test_the_example_is_fine():
    command = [sys.executable, "-m", "cardwise", "gateway", "--check", "--config", "examples/gateway/gateway.toml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    *numbers, last = done.stdout.splitlines()
    assert [line.partition(": ")[0] for line in numbers] == [
        "emulated", "emulated, 22:00 to 06:00 Europe/Berlin", "chat", "plain",
    ]  # fmt: skip
    assert last == "examples/gateway/gateway.toml: 3 service(s), fine"


def test_what_is_seldom_meant_is_warned_of_and_no_error(tmp_path):
    path = tmp_path / "gateway.toml"
    service = "target-p99-ms = 100\none-ms = 70"
    path.write_text(TOML.format(url="http://127.0.0.1:1", kind="pass", more="", service=service))
    command = [sys.executable, "-m", "cardwise", "gateway", "--check", "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: services.s.one-ms: a request alone takes 70 ms")
    assert done.stdout.endswith("1 service(s), with warnings\n")
