"""From processes to slices: what each container uses of each card, and who uses what was not given.

A process belongs to the container in whose cgroup it is. Refuses to divide what the driver does not tell apart: without
a process's memory, its slice's use is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cardwise.core.card.facts import CardFacts, CardSample, ProcessUse

Container = tuple[str, str]
"""A pod's UID and a container's name."""


@dataclass(frozen=True, slots=True)
class SliceUse:
    """What one container uses of one card. None: the driver does not say. granted_mib: 0 if it was given nothing."""

    container: Container
    uuid: str
    processes: int
    memory_mib: int | None
    sm_pct: int | None
    granted_mib: int

    @property
    def over_mib(self) -> int:
        """How much more memory it uses than it was given."""
        return max((self.memory_mib or 0) - self.granted_mib, 0)


@dataclass(frozen=True, slots=True)
class Stranger:
    """A process on a card that belongs to no container of this node's pods, or to one that was not given the card."""

    uuid: str
    pid: int
    container: Container | None


def by_instance(sample: CardSample, card: CardFacts) -> list[CardSample]:
    """A sample as one of each MIG instance that is handed out, and one of the card for processes in none of these."""
    if not card.mig or sample.processes is None:
        return [sample]
    names = {each.gpu_instance: each.uuid for each in card.usable_instances}
    found: dict[str, list[ProcessUse]] = {uuid: [] for uuid in (*names.values(), sample.uuid)}
    for use in sample.processes:
        found[names.get(-1 if use.gpu_instance is None else use.gpu_instance, sample.uuid)].append(use)
    return [replace(sample, uuid=uuid, processes=tuple(uses)) for uuid, uses in found.items()]


def slice_uses(
    samples: Iterable[CardSample],
    containers: Mapping[int, Container],
    granted: Mapping[tuple[Container, str], int],
) -> tuple[list[SliceUse], list[Stranger]]:
    """What each container uses of each card.

    containers: by process. granted: MiB that a container was given of a card. A container that was given a card and has
    no process there uses nothing of it.
    """
    found: dict[tuple[Container, str], list[ProcessUse]] = {key: [] for key in granted}
    strangers: list[Stranger] = []
    told: set[str] = set()
    for sample in samples:
        if sample.processes is None:
            continue
        told.add(sample.uuid)
        for use in sample.processes:
            key = (containers[use.pid], sample.uuid) if use.pid in containers else None
            if key is None or key not in granted:
                strangers.append(Stranger(sample.uuid, use.pid, containers.get(use.pid)))
            else:
                found[key].append(use)
    uses = [
        SliceUse(
            key[0], key[1], len(seen), _sum(u.memory_mib for u in seen), _sum(u.sm_pct for u in seen), granted[key]
        )
        for key, seen in found.items()
        if key[1] in told
    ]
    return uses, strangers


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Their sum; None if one of them is not known."""
    told = list(amounts)
    return None if None in told else sum(amount for amount in told if amount is not None)
