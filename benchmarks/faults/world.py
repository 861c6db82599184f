"""The cast: two engines with a door for faults, a gateway with three services before them, and what must hold."""

from __future__ import annotations

import math
import resource
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.load import MIX, Count, Load
from benchmarks.faults.processes import Engine, Gateway, Metrics

CALLERS = 32
REPLICAS = 2
SERVICES = 3
SPARE_FDS = 24
"""Files that a gateway at rest may have more than at its start: kept connections to replicas, the asking of metrics."""
RETRY_SHARE, RETRIES_PER_S, BUDGET_WINDOW_S = 0.2, 10.0, 10.0

SETTINGS = """
host = "127.0.0.1"
port = 0
admin-host = "127.0.0.1"
admin-port = 0
head-s = 1.5
body-s = 2.5
drain-s = 20
{services}
"""
SERVICE = """
[[services]]
name = "{name}"
kind = "{kind}"
hosts = ["{name}"]
replicas = [{replicas}]
timeout-ms = {timeout_ms}
silence-ms = {timeout_ms}
probe-every-ms = 300
probe-timeout-ms = 500
keep-alive-s = 1
{more}
"""


@dataclass(slots=True)
class Row:
    """What a phase showed. faults: claims that did not hold."""

    name: str
    count: Count
    seconds: float
    retries: int
    rss_mib: tuple[float, float]
    fds: int
    doubles: int
    lost: int
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


Act = Callable[["Stage", float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Phase:
    """What goes wrong, and who asks meanwhile."""

    act: Act
    services: tuple[str, ...] = MIX


@dataclass(slots=True)
class Stage:
    """What a phase works with. load: has begun, and is stopped after it."""

    world: World
    gateway: Gateway
    count: Count
    load: Load
    notes: list[str]

    @property
    def engines(self) -> list[Engine]:
        """The replicas."""
        return self.world.engines

    @property
    def callers(self) -> int:
        """Clients of the usual load."""
        return self.world.callers


class World:
    """All processes of a run."""

    def __init__(self, folder: Path, *, timeout_ms: int = 2000, callers: int = CALLERS) -> None:
        """Nothing runs yet. folder: for settings and logs. timeout_ms: of the gateway for a replica."""
        self.callers = callers
        self.folder = folder
        self.timeout_ms = timeout_ms
        self.engines = [Engine(f"engine-{number}", folder) for number in range(REPLICAS)]
        self.gateways: list[Gateway] = []
        self.gateway = self.another("gateway")
        self._base_fds = 0
        self._asked_before: Counter[str] = Counter()

    def another(self, name: str, more: str = "", env: dict[str, str] | None = None) -> Gateway:
        """A gateway before the same replicas, not started. more: settings of every batched service."""
        replicas = ", ".join(f'"http://127.0.0.1:{engine.port}"' for engine in self.engines)
        services = "".join(
            SERVICE.format(name=name, kind=kind, replicas=replicas, timeout_ms=self.timeout_ms, more=each)
            for name, kind, each in (
                ("once", "oip", f'model = "emulated"\n{more}'),
                ("again", "oip", f'model = "emulated"\nidempotent = true\n{more}'),
                ("chat", "openai", "first-limit = 8"),
            )
        )
        gateway = Gateway(name, self.folder, SETTINGS.format(services=services), env)
        self.gateways.append(gateway)
        return gateway

    async def start(self) -> None:
        """Start all."""
        for engine in self.engines:
            await engine.start()
        await self.begin(self.gateway)
        self._base_fds = self.gateway.fds()

    async def begin(self, gateway: Gateway) -> None:
        """Start a gateway, and wait until it has all its replicas."""
        await gateway.start()
        await gateway.until_ready(REPLICAS * SERVICES)

    async def end(self) -> None:
        """End all."""
        for process in (*self.gateways, *self.engines):
            await process.end()

    async def play(self, name: str, phase: Phase, seconds: float) -> Row:
        """One phase: load, what breaks, rest, and the claims."""
        gateway, count = self.gateway, Count()
        before, rss_mib, start_s = await gateway.metrics(), gateway.rss_mib(), time.monotonic()
        deaths = sum(engine.deaths for engine in self.engines)
        stage = Stage(self, gateway, count, Load(gateway.port, count, seed=len(name)), [])
        stage.load.start(self.callers, services=phase.services)
        try:
            await phase.act(stage, seconds)
        finally:
            await stage.load.stop()
        for engine in self.engines:
            await engine.script({})
        rest = await gateway.at_rest(self._base_fds + SPARE_FDS)
        await gateway.until_ready(REPLICAS * SERVICES)
        took_s, after = time.monotonic() - start_s, await gateway.metrics()
        retries = _retries(after) - _retries(before)
        began = await self.begun()
        row = Row(
            name, count, took_s, retries.total(), (rss_mib, gateway.rss_mib()), gateway.fds(),
            doubles=sum(began[each] > 1 for each in count.ids),
            lost=sum(any(each in began for each in asked.ids) for asked in count.unread),
            notes=stage.notes,
        )  # fmt: skip
        has_died = deaths < sum(engine.deaths for engine in self.engines)
        invented = 0 if has_died else sum(each not in began for asked in count.answered for each in asked.ids)
        row.faults = [
            *self._faults(row),
            *self._over_budget(count, retries, took_s),
            *_said(rest, "not at rest: "),
            *_counted(invented, "answers of no work"),
        ]
        self._asked_before = count.asked
        return row

    async def begun(self) -> Counter[str]:
        """How often the work of each identity was begun, in all replicas."""
        total: Counter[str] = Counter()
        for engine in self.engines:
            total.update(await engine.begun())
        return total

    def _faults(self, row: Row) -> list[str]:
        count = row.count
        sorted_out = count.ok + count.refused + count.failed + count.gone
        bugs = sum(process.bugs() for process in (*self.gateways, *self.engines))
        return [
            *_counted(abs(count.issued - sorted_out), "requests unaccounted for"),
            *_counted(count.wrong, "wrong answers"),
            *_counted(count.surplus, "connections with more than was asked for"),
            *_counted(row.doubles, "rows executed twice that may not be"),
            *_counted(row.lost, "answers lost: executed, and the connection closed without a byte"),
            *_counted(len(count.unread), "requests without an answer"),
            *_counted(bugs, "lines in the logs that tell of a bug of ours"),
        ]

    def _over_budget(self, count: Count, retries: Counter[str], took_s: float) -> list[str]:
        """A fifth of what was asked, also shortly before, and ten a second; of each service."""
        least = RETRIES_PER_S * BUDGET_WINDOW_S * math.ceil(took_s / BUDGET_WINDOW_S)
        asked = count.asked + self._asked_before
        return [
            f"{retried} retries of {service!r}, over its budget of {budget:.0f}"
            for service, retried in retries.items()
            if retried > (budget := RETRY_SHARE * asked[service] + least)
        ]


def _retries(metrics: Metrics) -> Counter[str]:
    return Counter({name: int(metrics.total("retries_total", f'service="{name}"')) for name in set(MIX)})


def _counted(number: int, what: str) -> list[str]:
    return [f"{number} {what}"] if number else []


def _said(what: str, before: str) -> list[str]:
    return [before + what] if what else []


def raise_limit(wanted: int) -> int:
    """Open files that this process and those it starts may have; as many as wanted, or as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (max(hard, wanted), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, most)), most))
            break
        except (ValueError, OSError):  # more than the hard limit is for root only
            continue
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
