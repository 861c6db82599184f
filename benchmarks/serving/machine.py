"""Whose CPU time it was: the servers', our own, or that of others on this machine, who spoil what is measured.

Read from /proc, so Linux only. Time in interrupts is nobody's.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Used:
    """Cores in use on average while something was measured. foreign: by processes that are none of ours."""

    foreign_cores: float = 0.0
    server_cores: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    busy_s: float
    ours_s: float

    @classmethod
    def now(cls) -> _Look:
        return cls(time.monotonic(), _busy_s(), cpu_s([os.getpid()]))


@contextlib.contextmanager
def watched(servers: Sequence[int]) -> Iterator[Used]:
    """What is used within the ``with``. servers: process ids, whose descendants count too."""
    used = Used()
    before, served_s = _Look.now(), cpu_s(servers)
    try:
        yield used
    finally:
        after = _Look.now()
        used.seconds = after.at_s - before.at_s
        ours_s = after.ours_s - before.ours_s
        used.foreign_cores = max(0.0, after.busy_s - before.busy_s - ours_s) / used.seconds
        used.server_cores = (cpu_s(servers) - served_s) / used.seconds


def cores() -> list[int]:
    """Those that we may use."""
    return sorted(os.sched_getaffinity(0))


@contextlib.contextmanager
def on_cores(chosen: Sequence[int]) -> Iterator[None]:
    """Run on these, and start what is started here on these. Empty: wherever there is room."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, chosen or before)
        yield
    finally:
        os.sched_setaffinity(0, before)


def said() -> str:
    """The machine, in a line."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in _read("/proc/cpuinfo").splitlines()
            if line.startswith("model name")
        ),
        "unknown CPU",
    )
    return f"{len(cores())} cores ({model}), load average {os.getloadavg()[0]:.1f}"


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds of these processes and all that descend from them, those that have ended included."""
    stats = _stats()
    return sum(stats[pid].cpu_s for pid in _with_descendants(pids, stats))


def descendants(pid: int) -> list[int]:
    """Processes that descend from this one, itself left out."""
    return [each for each in _with_descendants([pid], _stats()) if each != pid]


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    cpu_s: float


def _with_descendants(pids: Sequence[int], stats: dict[int, _Stat]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found, left = [], [pid for pid in pids if pid in stats]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found


def _stats() -> dict[int, _Stat]:
    stats = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - some hundred names, twice per cell
        if name.isdigit() and (text := _read(f"/proc/{name}/stat")):
            fields = text.rpartition(")")[2].split()
            ticks = sum(map(int, fields[11:15]))  # utime, stime, and those of children that have ended
            stats[int(name)] = _Stat(int(fields[1]), ticks / TICKS)
    return stats


def _busy_s() -> float:
    """user, nice, system and steal of all cores. Source: proc(5)."""
    fields = [int(each) for each in _read("/proc/stat").partition("\n")[0].split()[1:]]
    return (fields[0] + fields[1] + fields[2] + fields[7]) / TICKS


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # the process has ended meanwhile
        return ""
