"""A small synthetic cluster with its pods, for trying cardwise out where no trace is at hand.

A GPU-sharing inference cluster as production is publicly described: mostly slices of one card, some whole cards, a few
pods of several cards, pods without any; nodes of several sizes and models; lifetimes with a long tail. The parameters
are ours and round. Refuses to be evidence: no number measured on it says anything about a real cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import PCG64, Generator

from cardwise.adapters.openb import CARD_MEMORY_MIB
from cardwise.core.arrays import IntArray
from cardwise.core.history import History, PodRecord
from cardwise.core.inventory import CardSpec, NodeSpec
from cardwise.core.request import PodRequest, Shape
from cardwise.errors import UserError
from cardwise.units import MILLI_PER_CARD

GIB = 1024
HOUR_S = 3600
HORIZON_S = 14 * 24 * HOUR_S
"""Pods are created over two weeks; one that outlives them has no deletion time."""


@dataclass(frozen=True, slots=True)
class _NodeKind:
    """weight: share of the nodes. model: from the openb table, so that a history can be written as such CSVs."""

    weight: float
    cards: int
    model: str
    cores: int
    memory_gib: int


_NODE_KINDS = (
    _NodeKind(0.20, 8, "V100M32", 96, 768),
    _NodeKind(0.20, 8, "A10", 128, 512),
    _NodeKind(0.15, 4, "V100M16", 64, 256),
    _NodeKind(0.25, 2, "T4", 48, 192),
    _NodeKind(0.10, 1, "A10", 32, 128),
    _NodeKind(0.10, 0, "", 64, 256),
)
_CARDS_SHARE = {0: 0.16, 1: 0.78, 2: 0.03, 4: 0.02, 8: 0.01}
"""Share of the pods by the number of cards they ask for."""
_SLICE_SHARE = 0.72
"""Of the pods with one card, so many ask for a slice of it."""
_SLICES_MILLI = (100, 150, 200, 250, 300, 400, 500, 600, 700, 800, 900)
_SLICES_WEIGHT = (0.10, 0.07, 0.16, 0.14, 0.13, 0.12, 0.13, 0.06, 0.04, 0.03, 0.02)
_CORES_PER_CARD = (4, 6, 8, 10)
_CORES_WITHOUT_CARD = (2, 4, 8, 16)
_GIB_PER_CORE = (2, 4, 6)
_PICKY_SHARE = 0.12
"""So many of the pods with cards name the models that will do."""
_SERVICE_SHARE = 0.55
"""The others are jobs. Lifetimes are log-normal: median in hours, and sigma."""
_SERVICE_LIFE = (240.0, 1.2)
_JOB_LIFE = (1.0, 1.5)
_SHORTEST_S = 30


def synthesize(nodes: int, seed: int) -> History:
    """A cluster of so many nodes, and pods that ask for all its cards once over: 100 % in sum, at no one moment.

    The same numbers give the same history. Raises UserError unless nodes >= 1 and seed >= 0.
    """
    if nodes < 1:
        raise UserError(f"nodes is {nodes}; write 1 or more")
    if seed < 0:
        raise UserError(f"seed is {seed}; write 0 or more")
    rng = Generator(PCG64(seed))
    kinds = _draw_kinds(rng, nodes)
    specs = tuple(_node(f"synth-node-{i:04d}", kind) for i, kind in enumerate(kinds))
    pods = tuple(_draw_pods(rng, kinds))
    notes = (
        f"Synthetic cluster, seed {seed}: its mix is plausible and nothing of it was measured.",
        "A slice takes the same share of memory and of compute.",
    )
    return History(f"synthetic cluster of {nodes} nodes, seed {seed}", specs, pods, notes)


# ---------------------------------------------------------------- nodes


def _draw_kinds(rng: Generator, nodes: int) -> list[_NodeKind]:
    """Kinds of all nodes. The first is of the largest kind, so that every pod fits somewhere in the empty cluster."""
    weights = np.array([kind.weight for kind in _NODE_KINDS])
    drawn = rng.choice(len(_NODE_KINDS), size=nodes - 1, p=weights / weights.sum())
    return [_NODE_KINDS[0], *(_NODE_KINDS[i] for i in drawn)]


def _node(name: str, kind: _NodeKind) -> NodeSpec:
    cards = tuple(CardSpec(f"{name}-{i}", kind.model, CARD_MEMORY_MIB[kind.model]) for i in range(kind.cards))
    return NodeSpec(name, kind.cores * 1000, kind.memory_gib * GIB, cards)


# ---------------------------------------------------------------- pods


def _draw_pods(rng: Generator, kinds: Sequence[_NodeKind]) -> Iterator[PodRecord]:
    """Pods in order of creation, until they have asked for all cards."""
    cards, milli = _draw_asks(rng, sum(kind.cards for kind in kinds) * MILLI_PER_CARD)
    count = len(cards)
    cpu_milli, memory_mib = _draw_host_asks(rng, cards, milli)
    created_s = np.sort(rng.integers(0, HORIZON_S, size=count))
    deleted_s = created_s + _draw_lives_s(rng, count)
    models = [_draw_models(rng, kinds, int(n)) for n in cards]
    for i in range(count):
        shape = _shape(int(cards[i]), int(milli[i]), models[i], int(cpu_milli[i]), int(memory_mib[i]))
        gone_s = float(deleted_s[i]) if deleted_s[i] < HORIZON_S else None
        yield PodRecord(PodRequest(f"synth-pod-{i:05d}", shape), float(created_s[i]), gone_s)


def _draw_asks(rng: Generator, capacity_milli: int) -> tuple[IntArray, IntArray]:
    """Cards and thousandths of each, int64 [pods]: the fewest pods that ask for the whole capacity."""
    enough = 4 * (capacity_milli // MILLI_PER_CARD) + 100  # a pod asks for half a card on average
    while True:
        cards = rng.choice(list(_CARDS_SHARE), size=enough, p=list(_CARDS_SHARE.values()))
        slices = rng.choice(_SLICES_MILLI, size=enough, p=_SLICES_WEIGHT)
        sliced = (cards == 1) & (rng.random(enough) < _SLICE_SHARE)
        milli = np.where(sliced, slices, MILLI_PER_CARD) * (cards > 0)
        asked = np.cumsum(cards * milli)
        if asked[-1] >= capacity_milli:
            count = int(np.searchsorted(asked, capacity_milli)) + 1
            return cards[:count], milli[:count]
        enough *= 2


def _draw_host_asks(rng: Generator, cards: IntArray, milli: IntArray) -> tuple[IntArray, IntArray]:
    """Milli CPU and MiB, int64 [pods]: cores in proportion to the cards, half a core at least; memory to the cores."""
    count = len(cards)
    with_cards = rng.choice(_CORES_PER_CARD, size=count) * cards * milli  # thousandths of a card are milli CPU per core
    without = rng.choice(_CORES_WITHOUT_CARD, size=count) * 1000
    cpu_milli = np.maximum(np.where(cards > 0, with_cards, without) // 500 * 500, 500)
    memory_mib = cpu_milli * rng.choice(_GIB_PER_CORE, size=count) * GIB // 1000
    return cpu_milli, memory_mib


def _draw_lives_s(rng: Generator, count: int) -> IntArray:
    """Lifetimes in whole seconds, int64 [pods]: services live for weeks, jobs for an hour, both with a long tail."""
    is_service = rng.random(count) < _SERVICE_SHARE
    (service_h, service_sigma), (job_h, job_sigma) = _SERVICE_LIFE, _JOB_LIFE
    median_s = np.where(is_service, service_h, job_h) * HOUR_S
    sigma = np.where(is_service, service_sigma, job_sigma)
    lives_s = median_s * np.exp(sigma * rng.standard_normal(count))
    return np.asarray(np.maximum(lives_s, _SHORTEST_S), np.int64)


def _draw_models(rng: Generator, kinds: Sequence[_NodeKind], cards: int) -> frozenset[str]:
    """Models that the pod names: none, one, or two of those that have enough cards on one node."""
    if not cards or rng.random() >= _PICKY_SHARE:
        return frozenset()
    offered = sorted({kind.model for kind in kinds if kind.cards >= cards})
    count = min(int(rng.integers(1, 3)), len(offered))
    return frozenset(str(model) for model in rng.choice(offered, size=count, replace=False))


def _shape(cards: int, milli: int, models: frozenset[str], cpu_milli: int, memory_mib: int) -> Shape:
    whole = milli == MILLI_PER_CARD
    return Shape(
        cards=cards,
        memory_milli=0 if whole else milli,
        compute_milli=0 if whole else milli,
        whole=whole,
        models=models,
        cpu_milli=cpu_milli,
        host_memory_mib=memory_mib,
    )
