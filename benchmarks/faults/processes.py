"""The programs as processes: started, frozen, killed, asked, weighed. What a killed one had done is kept.

Refuses to look into them: only what an operator sees, by HTTP, signals and /proc.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

from benchmarks.faults.client import Connection
from benchmarks.serving.procs import free_port

START_S = 30.0
_BUGS = re.compile(r"Traceback|cannot answer|\"level\": \"(?:error|critical)\"|never (?:retrieved|awaited)")


class Process:
    """One program of ours, and where it listens. ports: of what it prints first."""

    def __init__(self, name: str, folder: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        """Not started yet. Its stderr goes to a file in the folder."""
        self.name = name
        self.ports: list[int] = []
        self.log = folder / f"{name}.log"
        self._arguments = arguments
        self._env = {**os.environ, **(env or {})}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait for its address."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "cardwise", *self._arguments,
                stdout=asyncio.subprocess.PIPE, stderr=log, env=self._env,
            )  # fmt: skip
        assert self._process.stdout is not None  # noqa: S101
        async with asyncio.timeout(START_S):
            line = (await self._process.stdout.readline()).decode()
        self.ports = [int(port) for port in re.findall(r":(\d+)", line)]
        if not self.ports:
            raise RuntimeError(f"{self.name} did not start: {self.log.read_text()[-2000:]}")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def ended(self, most_s: float = START_S) -> int:
        """Its exit code."""
        async with asyncio.timeout(most_s):
            return await self.process.wait()

    async def end(self) -> None:
        """Make sure that it is gone."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The started one."""
        assert self._process is not None  # noqa: S101
        return self._process

    def rss_mib(self) -> float:
        """Memory that it holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None  # noqa: S101
        return int(found[1]) / 1024

    def fds(self) -> int:
        """Files and sockets that it holds open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def bugs(self) -> int:
        """Lines of its log that tell of a bug of ours."""
        return len(_BUGS.findall(self.log.read_text()))


class Engine(Process):
    """An emulated replica at a port that it keeps over its deaths."""

    def __init__(self, name: str, folder: Path, *costs: str) -> None:
        """Not started yet."""
        self.port = free_port()
        self.past: Counter[str] = Counter()
        """What its killed processes had begun, as far as they told."""
        self.deaths = 0
        super().__init__(name, folder, "engine", "--faults", "--port", str(self.port), *costs)

    async def script(self, script: dict[str, object]) -> None:
        """Let this go wrong from now on."""
        await ask(self.port, "POST", "/faults", json.dumps(script).encode())

    async def begun(self) -> Counter[str]:
        """How often the work of each identity was begun, over all its lives."""
        return self.past + Counter(await self._told())

    async def _told(self) -> dict[str, int]:
        told = json.loads(await ask(self.port, "GET", "/executed"))
        if told["forgotten"]:
            raise RuntimeError(f"{self.name} has forgotten {told['forgotten']} identities: take fewer minutes")
        begun: dict[str, int] = told["begun"]
        return begun

    async def kill(self) -> None:
        """SIGKILL, as soon as it has told what it had begun."""
        self.past += Counter(await self._told())
        self.send(signal.SIGKILL)
        await self.ended()
        self.deaths += 1


class Gateway(Process):
    """The gateway, and what it tells of itself."""

    def __init__(self, name: str, folder: Path, settings: str, env: dict[str, str] | None = None) -> None:
        """Not started yet. settings: TOML."""
        path = folder / f"{name}.toml"
        path.write_text(settings)
        super().__init__(name, folder, "gateway", "--config", str(path), env=env)

    @property
    def port(self) -> int:
        """Of requests."""
        return self.ports[0]

    async def metrics(self) -> Metrics:
        """What it counts."""
        return Metrics((await ask(self.ports[1], "GET", "/metrics")).decode())

    async def until_ready(self, replicas: int, most_s: float = START_S) -> None:
        """Until so many replicas get traffic, of all services together."""
        async with asyncio.timeout(most_s):
            while (await self.metrics()).total("replicas_ready") < replicas:
                await asyncio.sleep(0.05)

    async def at_rest(self, most_fds: int, most_s: float = 15.0) -> str:
        """Wait until nothing waits and nothing is in flight, and no more files are open; else what is left."""
        left = ""
        try:
            async with asyncio.timeout(most_s):
                while left := await self._left(most_fds):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            return left
        return ""

    async def _left(self, most_fds: int) -> str:
        metrics, fds = await self.metrics(), self.fds()
        places, queued = metrics.total("in_flight"), metrics.total("queue_length")
        if not places and not queued and fds <= most_fds:
            return ""
        return f"in_flight {places:.0f}, queue_length {queued:.0f}, {fds} files open (at most {most_fds})"


class Metrics:
    """Prometheus' text, read."""

    def __init__(self, text: str) -> None:
        """Of the gateway."""
        self._lines = text.splitlines()

    def total(self, name: str, *labels: str) -> float:
        """The sum over all series of a name that have all these labels."""
        begin = f"cardwise_gateway_{name}{{"
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in self._lines
            if line.startswith(begin) and all(label in line for label in labels)
        )


async def ask(port: int, method: str, path: str, body: bytes = b"") -> bytes:
    """The body of an answer that must be 200."""
    connection = await Connection.open(port)
    try:
        answer = await connection.ask(method, path, "localhost", body)
    finally:
        connection.abort()
    if answer.status != 200:
        raise RuntimeError(f"{method} {path} on port {port}: {answer.status} {answer.body[:200]!r}")
    return answer.body
