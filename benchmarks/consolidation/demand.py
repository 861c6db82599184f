"""What is asked of the cluster: services of a mix of sizes, whose replicas are a seeded random walk between two marks.

All of it would find a place at any time, if it were placed anew: whoever waits does so beside free pieces. Every arm is
asked the same. Refuses to know where anything is placed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SHARE, FIRST_SHARE, MOST_SHARE = 0.70, 0.80, 0.92
"""Of the cluster's compute, and in proportion of its memory, that all replicas ask for together."""
SIZES_PCT = ((6, 10, 25), (5, 30, 45), (4, 55, 90), (1, 100, 100))
"""So many services ask for so many percent of a card: small, medium, large ones, and one for a card of its own."""
STEPS = (-2, -1, -1, 1, 1, 2)
CHANGE_S, CARDS, FILL_S = 90.0, 32, 300.0
"""On so many cards, so long between two changes; on more cards there are the more. The first replicas come in
FILL_S."""


@dataclass(frozen=True, slots=True)
class Service:
    """One Deployment of latency-sensitive replicas. 100 percent: each has a card alone."""

    name: str
    compute_pct: int


@dataclass(frozen=True, slots=True)
class Change:
    """From this second on a service has so many replicas."""

    at_s: float
    service: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Demand:
    """services: what each replica asks for; changes: in order of time."""

    services: Sequence[Service]
    changes: Sequence[Change]


def draw_demand(cards: int, until_s: float, seed: int) -> Demand:
    """Services and how many replicas they have, on a cluster of so many cards."""
    draw = random.Random(seed)  # noqa: S311 - load, not secrets
    services = _services(draw, max(cards // CARDS, 1))
    size = {each.name: each.compute_pct for each in services}
    first = _first(draw, services, 100 * cards * FIRST_SHARE)
    changes, counts = list[Change](), Counter[str]()
    for i, name in enumerate(first):
        counts[name] += 1
        changes.append(Change(FILL_S * i / len(first), name, counts[name]))
    most_pct, least_pct = 100 * cards * MOST_SHARE, 100 * cards * LEAST_SHARE
    asked_pct, at_s = sum(size[name] for name in first), FILL_S
    while True:
        at_s += draw.expovariate(cards / CARDS / CHANGE_S)
        if at_s >= until_s:
            return Demand(services, changes)
        name, step = draw.choice(services).name, draw.choice(STEPS)
        then_pct = asked_pct + step * size[name]
        then = Counter({**counts, name: counts[name] + step})
        if then[name] >= 1 and least_pct <= then_pct <= most_pct and _packs(then, size, cards):
            counts, asked_pct = then, then_pct
            changes.append(Change(at_s, name, then[name]))


def _packs(counts: Mapping[str, int], size: Mapping[str, int], cards: int) -> bool:
    """Whether all of it has a place if it is placed anew: by first fit, the largest first."""
    free_pct = np.full(cards, 100)
    for name in sorted(counts, key=lambda name: -size[name]):
        room = free_pct // size[name]
        taken = np.diff(np.minimum(np.cumsum(room), counts[name]), prepend=0)
        if taken.sum() < counts[name]:
            return False
        free_pct -= taken * size[name]
    return True


def _first(draw: random.Random, services: Sequence[Service], until_pct: float) -> list[str]:
    """Whose replicas come first: at least one of each, in any order."""
    chosen = list(services)
    while sum(each.compute_pct for each in chosen) < until_pct:
        chosen.append(draw.choice(services))
    draw.shuffle(chosen)
    return [each.name for each in chosen]


def _services(draw: random.Random, times: int) -> list[Service]:
    drawn = [draw.randint(least, most) for number, least, most in SIZES_PCT for _ in range(number * times)]
    return [Service(f"s{i:03}-{pct}", pct) for i, pct in enumerate(drawn)]
