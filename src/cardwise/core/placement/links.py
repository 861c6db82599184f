"""How close cards of a node are to each other, for pods that need several (SPEC B4). Single cards never ask.

Source of the levels: NVML's ``nvmlDeviceGetTopologyCommonAncestor`` and NVLink state, folded to what a collective
operation feels. Refuses to look at anything but distance: which of equally close cards are taken is the policy's.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from cardwise.core.arrays import FloatArray

LinkMatrix = tuple[tuple[int, ...], ...]


class Link(enum.IntEnum):
    """Distance between two cards, nearer is smaller."""

    NVLINK = 0
    PCIE_SWITCH = 1
    NUMA = 2
    NODE = 3
    NETWORK = 4


UNKNOWN: LinkMatrix = ()
"""A node whose links were not reported: every set of its cards is as good as any other."""
EXACT_UP_TO = 8
"""All sets are tried on nodes of up to so many cards (at most 70 sets); beyond, the nearest cards are gathered around
each card in turn, which is exact where distances form a tree, as PCIe and NUMA do."""


def spread_of(links: LinkMatrix, places: Sequence[int]) -> tuple[int, int]:
    """(largest, total) distance within a set of cards: what to minimize, in this order; (0, 0) for one card."""
    pairs = [links[a][b] for a, b in itertools.combinations(places, 2)]
    return (max(pairs, default=0), sum(pairs))


@functools.lru_cache(maxsize=65536)
def tightest(links: LinkMatrix, candidates: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The ``count`` candidates nearest to each other; of equally near sets the one whose cards come first.

    candidates: card places in order of preference, at least ``count``. Without links: the first ones.
    """
    if not links or count < 2:
        return candidates[:count]
    if len(candidates) <= EXACT_UP_TO:
        sets = list(itertools.combinations(candidates, count))
    else:
        sets = [_gathered(links, candidates, start, count) for start in candidates]
    return min(sets, key=lambda places: spread_of(links, places))


def _gathered(links: LinkMatrix, candidates: tuple[int, ...], start: int, count: int) -> tuple[int, ...]:
    """Grow a set from ``start`` by the nearest candidate, the preferred one among equals."""
    chosen = [start]
    while len(chosen) < count:
        rest = [place for place in candidates if place not in chosen]
        chosen.append(min(rest, key=lambda place: (sum(links[place][c] for c in chosen), candidates.index(place))))
    return tuple(chosen)


def link_score(links: LinkMatrix, places: Sequence[int]) -> float:
    """1 for cards that all see each other over NVLink, 0 over the network; the worst pair counts, in [0, 1]."""
    if not links:
        return 0.0
    return 1.0 - spread_of(links, places)[0] / Link.NETWORK


def link_scores(
    topologies: Sequence[LinkMatrix], topology: Sequence[int], usable: np.ndarray, count: int
) -> FloatArray:
    """:func:`link_score` of each row's tightest set, float64 [R]; 0 where fewer than ``count`` cards are usable.

    topologies: the distinct link matrices; topology: which of them each row has, [R]; usable: bool [R, C].
    """
    scores = np.zeros(len(usable))
    for i, (kind, row) in enumerate(zip(topology, usable, strict=True)):
        links = topologies[kind]
        if links and row.sum() >= count:
            candidates = tuple(int(place) for place in np.flatnonzero(row))
            scores[i] = link_score(links, tightest(links, candidates, count))
    return scores
