"""MIG: which profile holds a slice, where an instance goes, and how an idle card is laid out anew.

A profile's sizes are fixed; the mix of profiles is free within the placements and changes while the card runs. The
driver's own choice of a placement is no best fit, so the placement is chosen here. Refuses to destroy an instance in
use, and to switch MIG mode: that empties the card and is an operator's step.

The tables are for simulation and advice. On a node, profiles and placements are read from the driver.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from cardwise.core.card.facts import MigInstance


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of instance. size, starts: memory slices it takes, and where it may begin; most: at most so many a card.

    profile_id: what the driver wants at creation; not the driver's enum. sms: streaming multiprocessors.
    """

    name: str
    profile_id: int
    memory_mib: int
    sms: int
    size: int
    starts: tuple[int, ...]
    most: int


class Placed(Protocol):
    """What stands on a card: a :class:`MigInstance`, or a :class:`Creation` to come."""

    @property
    def profile(self) -> str:
        """The profile's name."""
        ...

    @property
    def start(self) -> int:
        """Its first memory slice."""
        ...

    @property
    def size(self) -> int:
        """How many memory slices it takes."""
        ...


@dataclass(frozen=True, slots=True)
class Creation:
    """An instance to be created at a start that was chosen for it."""

    profile: str
    profile_id: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Held:
    """An instance that exists, and whether anything runs in it or holds it; ``by``: names for the operator."""

    instance: MigInstance
    in_use: bool
    by: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """The instance as the operator knows it."""
        who = ", ".join(self.by) or "a process"
        return f"{self.instance.profile} at {self.instance.start} ({self.instance.uuid}) by {who}"


@dataclass(frozen=True, slots=True)
class Match:
    """A profile for a slice, and what of it the slice leaves unused."""

    profile: Profile
    waste_mib: int
    waste_pct: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How to come to the wanted layout: first destroy (UUIDs of idle instances), then create, largest first."""

    destroy: tuple[str, ...]
    create: tuple[Creation, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not. in_use: the instances in use that stand in the way, as the operator knows them."""

    text: str
    in_use: tuple[str, ...] = ()


# ---------------------------------------------------------------- tables, for simulation

_EIGHTS = (
    (19, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    (15, 2, (0, 2, 4, 6), 4),
    (14, 2, (0, 2, 4), 3),
    (9, 4, (0, 4), 2),
    (5, 4, (0,), 1),
    (0, 8, (0,), 1),
)
"""Cards of eight memory slices: id, size, starts, most of 1g, 1g with twice the memory, 2g, 3g, 4g, 7g. Seen on A100
and H100; H200 and B200 by analogy."""


def _eights(names: str, memory_mib: tuple[int, ...], sms: tuple[int, ...]) -> tuple[Profile, ...]:
    rows = zip(names.split(), memory_mib, sms, _EIGHTS, strict=True)
    return tuple(Profile(name, id_, mib, sm, size, starts, most) for name, mib, sm, (id_, size, starts, most) in rows)


_A100_SMS = (14, 14, 28, 42, 56, 98)
_HOPPER_SMS = (16, 26, 32, 60, 64, 132)
_B200_SMS = (18, 18, 36, 54, 72, 126)

TABLES: dict[str, tuple[Profile, ...]] = {
    # MIG guide; the ids of 1g and 2g from memory
    "A30-24": (
        Profile("1g.6gb", 14, 5836, 14, 1, (0, 1, 2, 3), 4),
        Profile("2g.12gb", 5, 11672, 28, 2, (0, 2), 2),
        Profile("4g.24gb", 0, 23344, 56, 4, (0,), 1),
    ),
    # as `nvidia-smi mig -lgip` tells on these cards (the H100 is an SXM5); the A100-80's 7g from go-nvml: it is less
    "A100-40": _eights(
        "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb", (4864, 9856, 9856, 19968, 19968, 40192), _A100_SMS
    ),
    "A100-80": _eights(
        "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", (9728, 19968, 19968, 40192, 40192, 80384), _A100_SMS
    ),
    "H100-80": _eights(
        "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb", (9984, 20096, 20096, 40448, 40448, 81152), _HOPPER_SMS
    ),
    # the 1g as seen on cards, the rest as its multiples: a lower bound
    "H200-141": _eights(
        "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb", (16384, 32768, 32768, 65536, 65536, 131072), _HOPPER_SMS
    ),
    # likewise; SMs as sevenths of what seven 1g have: a lower bound
    "B200-180": _eights(
        "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb", (20992, 41984, 41984, 83968, 83968, 167936), _B200_SMS
    ),
}
"""Profiles by card, without the variants with and without media engines. Lower bounds where no card was seen."""

_ONLY_SIZE = {"A30": "24", "H200": "141", "B200": "180"}
_CAPABLE = frozenset(["A30", "A100", "H20", "H100", "H200", "GH200", "B200", "GB200"])
"""Source: MIG guide, supported GPUs. Cards whose name does not say it in one word are in :func:`knows_mig`."""


def knows_mig(model: str) -> bool:
    """Whether a card of this name can be divided by MIG, as far as the guide tells; the driver knows better."""
    words = _words(model)
    return bool(_CAPABLE & words) or ({"RTX", "PRO", "BLACKWELL"} <= words and bool({"6000", "5000"} & words))


def table_of(model: str) -> tuple[Profile, ...]:
    """The table for a card's name as the driver tells it, such as ``NVIDIA A100-SXM4-40GB``; empty if there is none."""
    words = _words(model)
    if {"H100", "PCIE"} <= words or {"H100", "NVL"} <= words:
        return ()  # other SMs than the SXM5 that the table is of
    sizes = {word.removesuffix("GB") for word in words if re.fullmatch(r"\d+GB", word)}
    for family in ("A30", "A100", "H100", "H200", "B200"):
        if family in words:
            told = sizes or {_ONLY_SIZE.get(family, "80" if family == "H100" else "")}
            return next((TABLES[key] for size in sorted(told) if (key := f"{family}-{size}") in TABLES), ())
    return ()


def _words(model: str) -> set[str]:
    return set(re.split(r"[^A-Z0-9]+", model.upper()))


# ---------------------------------------------------------------- a slice


def match(memory_mib: int, compute_pct: int, profiles: Collection[Profile]) -> Match | Refusal:
    """The smallest profile that holds a slice; a plain one before its variants with or without media engines.

    compute_pct: percent of the SMs that MIG can hand out on this card (those of the largest profile, not of the card).
    """
    if not profiles:
        return Refusal("the card has no MIG profiles")
    all_sms = max(each.sms for each in profiles)
    holding = [each for each in profiles if each.memory_mib >= memory_mib and 100 * each.sms >= compute_pct * all_sms]
    if not holding:
        largest = max(profiles, key=lambda each: (each.memory_mib, each.sms))
        return Refusal(
            f"no profile holds {memory_mib} MiB and {compute_pct} %: the largest, {largest.name}, has "
            f"{largest.memory_mib} MiB"
        )
    best = min(holding, key=lambda each: (each.size, each.sms, _is_variant(each), each.memory_mib, each.name))
    return Match(best, best.memory_mib - memory_mib, 100 * best.sms // all_sms - compute_pct)


def _is_variant(profile: Profile) -> bool:
    return "+" in profile.name or "-" in profile.name


# ---------------------------------------------------------------- a placement


def place(instances: Collection[Placed], profile: Profile, profiles: Collection[Profile]) -> int | None:
    """Where a new instance of ``profile`` begins: where most large placements stay possible; None if nowhere.

    profiles: all of the card, for what is still possible afterwards. Of equal starts the lowest.
    """
    if sum(each.profile == profile.name for each in instances) >= profile.most:
        return None
    taken = _slices(instances)
    starts = [start for start in profile.starts if _is_free(taken, start, profile.size)]
    room = {start: _room(taken | _span(start, profile.size), profiles) for start in starts}
    return max(starts, key=lambda start: (room[start], -start), default=None)


def _span(start: int, size: int) -> frozenset[int]:
    return frozenset(range(start, start + size))


def _slices(instances: Iterable[Placed]) -> frozenset[int]:
    return frozenset[int]().union(*(_span(each.start, each.size) for each in instances))


def _is_free(taken: frozenset[int], start: int, size: int) -> bool:
    return taken.isdisjoint(_span(start, size))


def _room(taken: frozenset[int], profiles: Collection[Profile]) -> tuple[int, ...]:
    """How many starts each profile still has, the largest first: what to maximize, in this order."""
    by_size = sorted(profiles, key=lambda each: (-each.size, -each.sms, each.name))
    return tuple(sum(_is_free(taken, start, each.size) for start in each.starts) for each in by_size)


# ---------------------------------------------------------------- a layout


def plan(current: Sequence[Held], wanted: Sequence[Profile], profiles: Collection[Profile]) -> Plan | Refusal:
    """How to come from what stands on a card to exactly ``wanted``, or why not.

    An instance in use stays where it is: it must be among ``wanted``, and the rest must fit around it. Of the idle
    ones as many stay as can.
    """
    used, idle = [held for held in current if held.in_use], [held for held in current if not held.in_use]
    in_use = tuple(held.told for held in used)
    count = Counter(each.name for each in wanted)
    for each in wanted:
        if count[each.name] > each.most:
            return Refusal(f"a card holds at most {each.most} of {each.name}, {count[each.name]} are wanted")
    surplus = Counter(held.instance.profile for held in used) - count
    if surplus:
        names = tuple(held.told for held in used if held.instance.profile in surplus)
        return Refusal(f"not wanted, but in use: {'; '.join(names)}. Move what uses it first", names)
    layout = _best_layout(_missing(used, wanted), used, idle, profiles)
    if layout is None:
        return Refusal(_no_room(wanted, in_use), in_use)
    return _steps(layout, idle)


def _missing(used: Sequence[Held], wanted: Sequence[Profile]) -> list[Profile]:
    """What of ``wanted`` does not stand in use already, largest first."""
    there = Counter(held.instance.profile for held in used)
    missing = []
    for each in sorted(wanted, key=lambda each: (-each.size, -each.sms, each.name)):
        if there[each.name] > 0:
            there[each.name] -= 1
        else:
            missing.append(each)
    return missing


def _best_layout(
    missing: Sequence[Profile], used: Sequence[Held], idle: Sequence[Held], profiles: Collection[Profile]
) -> tuple[Creation, ...] | None:
    taken = _slices(held.instance for held in used)
    standing = {(held.instance.profile, held.instance.start) for held in idle}

    def merit(layout: tuple[Creation, ...]) -> tuple[int, tuple[int, ...]]:
        kept = sum((each.profile, each.start) in standing for each in layout)
        return (kept, _room(taken | _slices(layout), profiles))

    return max(_layouts(missing, taken), key=merit, default=None)


def _layouts(missing: Sequence[Profile], taken: frozenset[int], after: int = -1) -> Iterator[tuple[Creation, ...]]:
    """Every way to place all of ``missing``; equal neighbours in ascending order, so that none comes twice."""
    if not missing:
        yield ()
        return
    first, rest = missing[0], missing[1:]
    twins = bool(rest) and rest[0] == first
    for start in first.starts:
        if start > after and _is_free(taken, start, first.size):
            here = Creation(first.name, first.profile_id, start, first.size)
            for others in _layouts(rest, taken | _span(start, first.size), start if twins else -1):
                yield (here, *others)


def _no_room(wanted: Sequence[Profile], in_use: Sequence[str]) -> str:
    names = ", ".join(each.name for each in wanted)
    if not in_use:
        return f"{names} do not fit one card together"
    return f"{names} do not fit around what is in use: {'; '.join(in_use)}"


def _steps(layout: tuple[Creation, ...], idle: Sequence[Held]) -> Plan:
    to_be = {(each.profile, each.start) for each in layout}
    kept = {(held.instance.profile, held.instance.start) for held in idle} & to_be
    destroy = tuple(held.instance.uuid for held in idle if (held.instance.profile, held.instance.start) not in kept)
    return Plan(destroy, tuple(each for each in layout if (each.profile, each.start) not in kept))
