"""What the mix of pods still to come needs of nodes, worked out once per cluster and mix.

Four tables that ``dense`` reads at every decision: what pieces of a card are worth, how much CPU and host memory goes
with a card, which shapes need several cards of one node, and which demands only some card models serve.
Refuses to look at the cluster's state: inventory and mix only. That is why it can be made off the decision path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cardwise.core.arrays import FloatArray, IntArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.mix import Mix, card_milli
from cardwise.core.placement.prices import piece_values
from cardwise.core.request import Shape
from cardwise.units import MILLI_PER_CARD

DIRECTIONS_MAX = 64
"""Shapes of about the same CPU and memory per card count as one: bounds the work per node."""
CPU_RATIO, MEMORY_RATIO = 0.15, 0.30
"""How close "about the same" is, as a difference of logarithms."""
ROOM_KINDS_MAX = 32
ROOM_CPU_RATIO, ROOM_MEMORY_RATIO = 0.08, 0.15
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Directions:
    """Cards per CPU milli and per MiB of host memory that the mix asks for, with weights that sum to 1; float64 [D]."""

    cards_per_cpu: FloatArray
    cards_per_memory: FloatArray
    weight: FloatArray

    def stranded(self, cpu_milli: IntArray, memory_mib: IntArray, free_cards: FloatArray) -> FloatArray:
        """Of each node's free cards, how many the mix cannot use for lack of CPU or host memory, float64 [R]."""
        short = np.multiply.outer(cpu_milli, self.cards_per_cpu)
        np.minimum(short, np.multiply.outer(memory_mib, self.cards_per_memory), out=short)
        np.subtract(free_cards[:, None], short, out=short)
        np.maximum(short, 0.0, out=short)
        return np.asarray(short @ self.weight)


@dataclass(frozen=True, slots=True)
class RoomKinds:
    """Shapes that need several cards on one node. float64 [K], but milli: int64 [models + 1, pieces].

    per_cpu, per_memory: pods per CPU milli and per MiB of host memory. held: how many such pods the mix would hold if
    the cluster were full of it. milli: thousandths asked on each model's cards, above 1000 where the model is not
    allowed; last row: no card. Kinds that ask the same share a column of it, ``piece`` [K]: counting is the dear part.
    """

    cards: FloatArray
    per_cpu: FloatArray
    per_memory: FloatArray
    held: FloatArray
    milli: IntArray
    piece: IntArray

    def places(self, cpu_milli: IntArray, memory_mib: IntArray, free: IntArray, model: IntArray) -> FloatArray:
        """Pods of each kind that a node could take, with fractions, float64 [R, K]; free, model: int64 [R, C]."""
        room = np.multiply.outer(cpu_milli, self.per_cpu)
        np.minimum(room, np.multiply.outer(memory_mib, self.per_memory), out=room)
        fitting = np.empty((len(free), self.milli.shape[1]))
        for column, milli in enumerate(self.milli.T):
            fitting[:, column] = np.einsum("ij->i", (free >= milli.take(model)).view(np.int8), dtype=np.int64)
        np.minimum(room, fitting[:, self.piece] / self.cards, out=room)
        return room


@dataclass(frozen=True, slots=True)
class Restricted:
    """Demands that only some models serve: allowed models, 0 or 1, float64 [S, models], and their share of all [S]."""

    allowed: FloatArray
    share: FloatArray


@dataclass(frozen=True, slots=True)
class Outlook:
    """The four tables. values: worth of a free piece on each model's cards, float64 [(models + 1) · 1001], flat.

    reference_mib: memory of the cluster's most common card, on which demand is measured.
    """

    reference_mib: int
    values: FloatArray
    directions: Directions
    kinds: RoomKinds
    restricted: Restricted

    @classmethod
    def of(cls, cluster: Cluster, mix: Mix) -> Outlook:
        """Work the tables out: prices take a second or so for a mix not seen before."""
        mix = mix.with_cards
        reference_mib = _most_common(cluster.memory_total_mib[cluster.card_exists])
        memory_by_model = [
            int(cluster.memory_total_mib[cluster.card_model == model].max(initial=1))
            for model in range(len(cluster.models))
        ]
        return cls(
            reference_mib=reference_mib,
            values=_values_by_model(mix, memory_by_model).ravel(),
            directions=_directions(mix, reference_mib),
            kinds=_room_kinds(cluster, mix, reference_mib, memory_by_model),
            restricted=_restricted(cluster, mix, reference_mib),
        )


def _most_common(sizes: IntArray) -> int:
    values, counts = np.unique(sizes, return_counts=True)
    return int(values[np.argmax(counts)]) if len(values) else 1


def _values_by_model(mix: Mix, memory_by_model: list[int]) -> FloatArray:
    """Worth of a free piece on each model's cards, float64 [models + 1, 1001]; the last row is for no card."""
    made: dict[tuple[tuple[int, float], ...], FloatArray] = {}
    rows = []
    for memory_mib in memory_by_model:
        sizes: dict[int, float] = {}
        for shape, count in zip(mix.shapes, mix.counts, strict=True):
            milli = card_milli(shape, memory_mib)
            if shape.is_slice and 0 < milli < MILLI_PER_CARD:
                sizes[milli] = sizes.get(milli, 0.0) + count * shape.cards
        key = tuple(sorted(sizes.items()))
        if key not in made:
            made[key] = piece_values(tuple(size for size, _ in key), tuple(count for _, count in key))
        rows.append(made[key])
    return np.array([*rows, np.zeros(MILLI_PER_CARD + 1)])


def _directions(mix: Mix, memory_mib: int) -> Directions:
    """Merge shapes of about the same CPU and memory per card, heaviest first; beyond the limit they are left out."""
    per_card = []
    for shape, count in zip(mix.shapes, mix.counts, strict=True):
        cards = shape.cards * card_milli(shape, memory_mib) / MILLI_PER_CARD
        per_card.append((count * cards, max(shape.cpu_milli / cards, 1.0), max(shape.host_memory_mib / cards, 1.0)))
    merged: list[list[float]] = []
    for weight, cpu, memory in sorted(per_card, reverse=True):
        for direction in merged:
            if abs(np.log(cpu / direction[1])) < CPU_RATIO and abs(np.log(memory / direction[2])) < MEMORY_RATIO:
                direction[0] += weight
                break
        else:
            merged.append([weight, cpu, memory])
    kept = np.array(sorted(merged, reverse=True)[:DIRECTIONS_MAX]).reshape(-1, 3)
    return Directions(1.0 / kept[:, 1], 1.0 / kept[:, 2], kept[:, 0] / max(kept[:, 0].sum(), EPSILON))


def _room_kinds(cluster: Cluster, mix: Mix, memory_mib: int, memory_by_model: list[int]) -> RoomKinds:
    """The mix's multi-card shapes; those of the same cards and models and about the same CPU and memory are one."""
    total = sum(c * s.cards * card_milli(s, memory_mib) for s, c in zip(mix.shapes, mix.counts, strict=True))
    kinds: list[tuple[Shape, float]] = []
    for shape, count in zip(mix.shapes, mix.counts, strict=True):
        if shape.cards < 2:
            continue
        held = count * cluster.cards_total * MILLI_PER_CARD / max(total, 1.0)
        for i, (kind, so_far) in enumerate(kinds):
            if _same_kind(kind, shape):
                kinds[i] = (kind, so_far + held)
                break
        else:
            kinds.append((shape, held))
    kinds = sorted(kinds, key=lambda kind: -kind[1] * kind[0].cards)[:ROOM_KINDS_MAX]
    shapes = [shape for shape, _ in kinds]
    asked = [[_asked_of(cluster, s, model, memory) for s in shapes] for model, memory in enumerate(memory_by_model)]
    milli, piece = np.unique(
        np.array([*asked, [MILLI_PER_CARD + 1] * len(shapes)], np.int64).reshape(len(memory_by_model) + 1, -1),
        axis=1,
        return_inverse=True,
    )
    return RoomKinds(
        cards=np.array([float(shape.cards) for shape in shapes]),
        per_cpu=np.array([1.0 / max(shape.cpu_milli, 1) for shape in shapes]),
        per_memory=np.array([1.0 / max(shape.host_memory_mib, 1) for shape in shapes]),
        milli=milli,
        piece=piece.reshape(-1),
        held=np.array([held for _, held in kinds]),
    )


def _same_kind(kind: Shape, shape: Shape) -> bool:
    for asked in ("cards", "whole", "memory_mib", "memory_milli", "compute_milli", "models", "unwanted_models"):
        if getattr(kind, asked) != getattr(shape, asked):
            return False
    return _near(kind.cpu_milli, shape.cpu_milli, ROOM_CPU_RATIO) and _near(
        kind.host_memory_mib, shape.host_memory_mib, ROOM_MEMORY_RATIO
    )


def _near(one: int, other: int, ratio: float) -> bool:
    return bool(abs(np.log(max(one, 1) / max(other, 1))) < ratio)


def _asked_of(cluster: Cluster, shape: Shape, model: int, memory_mib: int) -> int:
    if not shape.takes(cluster.models[model]):
        return MILLI_PER_CARD + 1
    return card_milli(shape, memory_mib)


def _restricted(cluster: Cluster, mix: Mix, memory_mib: int) -> Restricted:
    """Demand by the set of models it is restricted to."""
    total, by_models = 0.0, dict[frozenset[str], float]()
    for shape, count in zip(mix.shapes, mix.counts, strict=True):
        asked = count * shape.cards * card_milli(shape, memory_mib)
        total += asked
        if shape.models:
            by_models[shape.models] = by_models.get(shape.models, 0.0) + asked
    sets = sorted(by_models, key=sorted)
    restricted = [Shape(0, models=models) for models in sets]
    allowed = np.array([[float(shape.takes(model)) for model in cluster.models] for shape in restricted])
    share = np.array([by_models[models] / max(total, 1.0) for models in sets])
    return Restricted(allowed.reshape(len(sets), len(cluster.models)), share)
