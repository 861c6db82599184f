"""What is asked of MPS and what it tells: limits, servers, clients; and what a daemon of either protocol can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """One slice: a card's memory and SMs for one container. name: of its slot, unique on the node.

    processes: how many processes of the container share this card, as its owner declares. MPS limits a process, not a
    container: each gets an equal part of the memory (case C32). compute_pct is each one's ceiling, never divided.
    """

    name: str
    card_uuid: str
    memory_mib: int
    compute_pct: int
    low_priority: bool = False
    processes: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.compute_pct <= 100 or self.processes < 1 or self.client_mib < 1:
            raise ValueError(f"impossible slice {self}")

    @property
    def client_mib(self) -> int:
        """What one process may hold; n of them never hold more than the slice."""
        return self.memory_mib // self.processes


@dataclass(frozen=True, slots=True)
class MpsServer:
    """A process that owns the cards' contexts. name: empty under protocol 2. status: such as ACTIVE (2), Ready (3)."""

    pid: int
    name: str
    status: str

    @property
    def faulty(self) -> bool:
        """True while it takes no new clients, since one of its clients broke the card's context."""
        return "FAULT" in self.status.upper()


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A process that runs under MPS; pid as the daemon's PID namespace has it.

    device: an ordinal (3) or the begin of a UUID (2). namespace: the slice's (3), else empty.
    """

    pid: int
    server_pid: int
    server_status: str
    device: str
    namespace: str
    command: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits as they should be, or as they were read. None: not asked for, or not told.

    floored: the memory was told in whole GiB. R595 tells 4606M as 4G (seen in the GPU operator's documentation too).
    """

    memory_mib: int | None
    compute_pct: float | None
    low_priority: bool | None = None
    floored: bool = False
    place: str = ""


@dataclass(frozen=True, slots=True)
class MpsEdits:
    """What a container needs to be a client. mounts: host path, path in the container, options."""

    env: dict[str, str]
    mounts: tuple[tuple[str, str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """A static SM partition: ``lspart``'s short name of the card, the partition's own, its SMs."""

    card: str
    name: str
    sm_count: int


@dataclass(frozen=True, slots=True)
class MpsSupport:
    """What a program can do. version: 13040 is CUDA 13.4's; 0 if it does not tell."""

    version2: bool
    version3: bool
    static: bool
    version: int = 0


class MpsControl(Protocol):
    """A control daemon, whichever protocol it speaks. Every call raises CardError if the daemon does not answer."""

    async def start(self) -> None:
        """Have a daemon that answers: one that is there already is kept."""

    async def stop(self) -> None:
        """End the daemon and its servers, by force if need be."""

    async def alive(self) -> bool:
        """True if the daemon answers sense."""

    def running(self) -> bool:
        """True if the daemon's process is there, whether or not it answers."""

    async def servers(self) -> tuple[MpsServer, ...]:
        """Return the servers that run."""

    async def clients(self) -> list[MpsClient]:
        """Return the processes that run under MPS."""

    async def set_limits(self, wanted: SliceLimits) -> None:
        """Set a slice's limits. Proves nothing: :meth:`read_limits` does."""

    def wanted(self, wanted: SliceLimits) -> Limits:
        """Return what :meth:`read_limits` reads if this slice's limits are in force."""

    async def read_limits(self, wanted: SliceLimits) -> Limits:
        """Return what the daemon, and with protocol 2 each server, says of a slice's limits."""

    async def remove(self, name: str) -> None:
        """Forget a slice; no error if it is not there."""

    async def terminate(self, pid: int) -> None:
        """End a client's work on the card, before its process is killed."""

    def edits(self, slices: Sequence[SliceLimits]) -> MpsEdits:
        """Return what a container with these slices needs."""


def difference(wanted: Limits, told: Limits) -> str:
    """Return in words how limits that were read differ from what they should be; empty if they are in force."""
    wrong = []
    if wanted.memory_mib is not None and told.memory_mib not in _tellings(wanted.memory_mib, told.floored):
        wrong.append(f"memory limit {_or_none(told.memory_mib, ' MiB')}, not {wanted.memory_mib} MiB")
    if wanted.compute_pct is not None and told.compute_pct != wanted.compute_pct:
        wrong.append(f"SM limit {_or_none(told.compute_pct, ' %')}, not {wanted.compute_pct:g} %")
    if wanted.low_priority is not None and told.low_priority != wanted.low_priority:
        wrong.append(f"priority {'low' if told.low_priority else 'normal'}")
    return f"{told.place} has {' and '.join(wrong)}" if wrong else ""


def _tellings(memory_mib: int, floored: bool) -> tuple[int, ...]:
    return (memory_mib, memory_mib // 1024 * 1024) if floored and memory_mib >= 1024 else (memory_mib,)


def _or_none(value: float | None, unit: str) -> str:
    return "none" if value is None else f"{value:g}{unit}"
