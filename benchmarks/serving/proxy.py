"""``proxy``: what the gateway adds to a request that it only passes on, beside nginx, each on one core.

The upstream answers at once. Saturation: 32 connections by wrk where it is installed, else by our generator, which
needs more CPU. Latency: independent callers at half of what the gateway was just seen to do on its core, the same rate
for all; added is the difference from asking the upstream directly in the same round, the median of the rounds. The
generator has another core than the proxy where there are two, and shares it with the upstream where there are only two.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.serving import nginx, ours, table
from benchmarks.serving.cells import Cell, get, hold
from benchmarks.serving.machine import Used, cores, on_cores, watched
from benchmarks.serving.procs import Server
from cardwise.loadtest.plan import Load, Target

CONNECTIONS = 32
ROUNDS = 3
PATH = "/v2/health/live"
"""The engine has it too, which is the upstream where nginx is absent."""
_SERVICE: Mapping[str, object] = {
    "name": "static",
    "kind": "pass",
    "path": "/",
    "probe-path": PATH,
    "limit": 256,  # not what is measured here
    "depth": 1024,
}
_SATURATED = ("<asked", "requests/s", "cores", "requests/s per core", "× nginx", "CPU µs/request", "foreign")
_LATENCIES = (
    "<asked",
    "p50 ms",
    "p99 ms",
    "added p50",
    "added p99",
    "CPU µs/request",
    "sent late p99",
    "stall ms",
    "foreign",
)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the upstream: straight, or through a proxy."""

    name: str
    server: Server

    @property
    def target(self) -> Target:
        """What is asked."""
        return replace(get(self.server.url), path=PATH)


@dataclass(frozen=True, slots=True)
class Saturated:
    """As many requests as it can do."""

    way: Way
    rate_per_s: float
    used: Used

    @property
    def per_core(self) -> float:
        """Requests per second of its CPU time."""
        return self.rate_per_s / self.used.server_cores if self.used.server_cores else float("nan")


def run(*, quick: bool) -> None:
    """Measure and print."""
    seconds, rounds = (1.5, 1) if quick else (3.0, ROUNDS)
    with contextlib.ExitStack() as stack:
        generator_cores, ways = _ways(stack)
        stack.enter_context(on_cores(generator_cores))
        saturated = []
        for way in ways:
            table.doing(f"{way.name}: as much as it can do")
            saturated.append(_saturated(way, seconds))
        rate_per_s = saturated[-1].rate_per_s / 2
        cells: dict[str, list[Cell]] = {way.name: [] for way in ways}
        for i in range(rounds):
            table.doing(f"{rate_per_s:,.0f}/s, round {i + 1} of {rounds}")
            for way in ways:
                cells[way.name].append(hold(way.target, Load(rate_per_s=rate_per_s), [way.server], seconds=seconds))
    by = "wrk" if shutil.which("wrk") else "our generator, for wrk is not installed: apt-get install wrk"
    title = f"saturated, {CONNECTIONS} connections, by {by}"
    table.show(title, _SATURATED, _saturated_lines(saturated), _said(generator_cores))
    title = f"latency at {rate_per_s:,.0f}/s, half of the gateway's own most; open loop, Poisson; median of {rounds}"
    table.show(title, _LATENCIES, _latency_lines(cells))


def _ways(stack: contextlib.ExitStack) -> tuple[list[int], list[Way]]:
    """The generator's cores, and all ways; the upstream first and the gateway last."""
    there = cores()
    proxy_cores, generator_cores = there[:1], there[1:2] or there
    upstream_cores = there[2:3] or generator_cores
    if nginx.program() is None:
        upstream = stack.enter_context(ours.engine(cores=upstream_cores))
        ways = [Way("upstream (engine) directly", upstream)]
    else:
        upstream = stack.enter_context(nginx.static(upstream_cores))
        proxy = stack.enter_context(nginx.proxy(upstream.url, proxy_cores))
        ways = [Way("upstream (nginx) directly", upstream), Way("nginx", proxy)]
    gateway = stack.enter_context(ours.gateway(_SERVICE, [upstream.url], proxy_cores))
    return generator_cores, [*ways, Way("cardwise", gateway)]


def _said(generator_cores: Sequence[int]) -> Iterator[str]:
    if nginx.program() is None:
        yield f"{nginx.INSTALL}; the upstream is the emulated engine"
    if len(cores()) < 2:
        yield "there is one core: generator, proxy and upstream share it, and these figures say little"
    elif len(cores()) < 3:
        yield f"proxies on core {cores()[0]}, generator and upstream on core {generator_cores[0]}"


def _saturated(way: Way, seconds: float) -> Saturated:
    wrk = shutil.which("wrk")
    if wrk is None:
        cell = hold(way.target, Load(concurrency=CONNECTIONS), [way.server], seconds=seconds)
        return Saturated(way, cell.step.ok_per_s, cell.used)
    command = [wrk, "-t1", f"-c{CONNECTIONS}", f"-d{max(round(seconds), 1)}s", way.target.url]
    with watched([way.server.pid]) as used:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        table.doing(f"{way.name}: not all were answered: {' '.join(said.split())}")
    return Saturated(way, _wrk_rate(said), used)


def _wrk_rate(said: str) -> float:
    found = re.search(r"^Requests/sec:\s+([\d.]+)", said, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"wrk told no rate: {said}")
    return float(found[1])


def _saturated_lines(all_of: Sequence[Saturated]) -> Iterator[Sequence[str]]:
    base = next((each.per_core for each in all_of if each.way.name == "nginx"), float("nan"))
    for each in all_of:
        yield (
            each.way.name,
            table.number(each.rate_per_s),
            f"{each.used.server_cores:.2f}",
            table.number(each.per_core),
            table.times(each.per_core, base) if each is not all_of[0] else "",
            table.number(1e6 / each.per_core, 1),
            f"{each.used.foreign_cores:.2f}",
        )


def _latency_lines(cells: Mapping[str, Sequence[Cell]]) -> Iterator[Sequence[str]]:
    direct = next(iter(cells.values()))
    for name, rounds in cells.items():
        pairs = list(zip(rounds, direct, strict=True))
        straight = rounds is direct
        lags = [cell.step.lag_ms.p99 for cell in rounds if cell.step.lag_ms is not None]
        yield (
            name,
            table.ms(median(cell.p50_ms for cell in rounds)),
            table.ms(median(cell.p99_ms for cell in rounds)),
            "" if straight else table.ms(median(cell.p50_ms - base.p50_ms for cell, base in pairs)),
            "" if straight else table.ms(median(cell.p99_ms - base.p99_ms for cell, base in pairs)),
            table.number(median(cell.cpu_us for cell in rounds), 1),
            table.ms(median(lags)) if lags else "–",
            table.ms(max(cell.step.stall_ms for cell in rounds)),
            f"{max(cell.used.foreign_cores for cell in rounds):.2f}",
        )
