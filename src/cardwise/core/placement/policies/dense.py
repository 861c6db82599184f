"""``dense``: ours. Leaves the least unusable, on an empty cluster that fills as on a busy one that churns.

The cost of a placement is what it takes from the mix of pods that is still to come (the history's mix, never the
future). Four parts, each a small function below:

slivers    what the cut wastes of a card, by cutting-stock prices (:mod:`cardwise.core.placement.prices`).
stranding  free GPU on the node that the mix could no longer use for lack of CPU or host memory there.
room       places lost for the shapes that need several cards on one node, priced by how scarce such places are in the
           whole cluster *now*: a shape whose places abound costs nothing, the last ones are dear. This is what makes
           the policy adapt: it neither reserves what is plentiful nor gives away what a later pod alone can use.
models     card models that restricted pods depend on, priced the same way, so that pods that may run anywhere leave
           them alone while there is another choice.

A small term prefers nodes that are nearly full, so that others can drain, and breaking an untouched card costs a bit.
The policy never refuses a pod that fits. Method, sources, tuning and results: docs/concepts/dense.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import BoolArray, FloatArray, IntArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.free import asked_milli, free_milli, free_milli_after
from cardwise.core.placement.mix import Mix, card_milli
from cardwise.core.placement.policy import Policy
from cardwise.core.placement.prices import piece_values
from cardwise.core.request import PodRequest, Shape
from cardwise.units import MILLI_PER_CARD


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """How the parts of the cost weigh, all >= 0. Found by ``cardwise tune``; the defaults' origin is in the docs.

    sliver: per card wasted by the cut. stranding: per card newly cut off from the mix, for lack of CPU or host memory.
    room: per card of lost multi-card places; room_scale, room_floor: how many spare places are plenty, as
    scale × √(places the mix holds at full load) + floor; room_partial: credit for a partly freed place.
    model, model_scale: the same for card models that restricted pods depend on, in shares of their demand.
    untouched: for breaking an untouched card. node_free: per free card of the node, so that full nodes come first and
    others drain. cpu_left: for pods without cards, per CPU left on the node over the largest node's: CPU that lies
    about in small pieces is as lost as slivers of cards are. grain: costs closer than this are equal.
    """

    sliver: float = 1.0
    stranding: float = 1.0
    room: float = 12.0
    room_scale: float = 0.8
    room_floor: float = 3.0
    room_partial: float = 0.1
    model: float = 16.0
    model_scale: float = 1.6
    untouched: float = 0.2
    node_free: float = 0.0015
    cpu_left: float = 0.064
    grain: float = 0.004

    def __post_init__(self) -> None:
        """Refuse weights that would turn a cost into a reward."""
        for each in fields(self):
            value = getattr(self, each.name)
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"weight {each.name} is {value}, must be a number of 0 or more")


DIRECTIONS_MAX = 64
"""Shapes of about the same CPU and memory per card count as one: bounds the work per node."""
CPU_RATIO, MEMORY_RATIO = 0.15, 0.30
"""How close "about the same" is, as a difference of logarithms."""
ROOM_KINDS_MAX = 32
ROOM_CPU_RATIO, ROOM_MEMORY_RATIO = 0.08, 0.15
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class _Directions:
    """CPU (milli) and host memory (MiB) per card that the mix asks for, with weights that sum to 1; float64 [D]."""

    cpu: FloatArray
    memory: FloatArray
    weight: FloatArray


@dataclass(frozen=True, slots=True)
class _RoomKinds:
    """Shapes that need several cards on one node. float64 [K] but milli: int64 [models + 1, K].

    held: how many such pods the mix would hold if the cluster were full of it.
    milli: thousandths asked on each model's cards, above 1000 where the model is not allowed; last row: no card.
    """

    cards: FloatArray
    cpu: FloatArray
    memory: FloatArray
    milli: IntArray
    held: FloatArray


@dataclass(slots=True)
class _NodeState:
    """What the cost looks at, for some nodes as they are or as they would be.

    cpu, memory: free on the node, int64 [R]; free: thousandths per card, int64 [R, C]; model: int64 [R, C].
    """

    cpu: IntArray
    memory: IntArray
    free: IntArray
    model: IntArray


class Dense(Policy):
    """Places a pod where it takes the least from those that will come."""

    name = "dense"

    def __init__(self, cluster: Cluster, mix: Mix, weights: DenseWeights | None = None) -> None:
        """Price the mix for this cluster: some seconds of work at most, off the decision path."""
        super().__init__(cluster)
        self.weights = weights or DenseWeights()
        mix = mix.with_cards
        memory_by_model = [
            int(cluster.memory_total_mib[cluster.card_model == model].max(initial=1))
            for model in range(len(cluster.models))
        ]
        self._reference_mib = _most_common(cluster.memory_total_mib[cluster.card_exists])
        self._values = _values_by_model(mix, memory_by_model)
        self._directions = _directions(mix, self._reference_mib)
        self._kinds = _room_kinds(cluster, mix, self._reference_mib, memory_by_model)
        self._restricted = _restricted_demand(cluster, mix, self._reference_mib)
        self._cpu_max = max(int(cluster.cpu_total_milli.max(initial=1)), 1)
        self._stamp = -1
        n, k = cluster.nodes_total, len(self._kinds.cards)
        self._stranding = np.zeros(n)
        self._rooms, self._room_worth = np.zeros((n, k)), np.zeros((n, k))
        self._rooms_total = np.zeros(k)
        self._model_free = np.zeros((n, len(cluster.models)))
        self._model_free_total = np.zeros(len(cluster.models))
        self._refresh()

    # ---------------------------------------------------------------- the policy's answers

    def evaluate(
        self, request: PodRequest, rows: NDArray[np.intp], usable: BoolArray, fits: BoolArray
    ) -> tuple[FloatArray, ...]:
        """Columns: the fixed part of the cost [R]; the model whose cards are taken [R]; room worth lost [R, K]."""
        self._refresh()
        fixed, model = np.zeros(len(rows)), np.zeros(len(rows))
        lost = np.zeros((len(rows), len(self._kinds.cards)))
        kept, on = rows[fits], usable[fits]
        if len(kept):
            before = self._state(kept)
            after, fixed[fits], model[fits] = self._placed(request.shape, before, kept, on)
            fixed[fits] += self._stranding_of(after) - self._stranding[kept]
            lost[fits] = self._room_worth[kept] - self._room_of(after)[1]
        return fixed, model, lost

    def combine(self, request: PodRequest, columns: tuple[FloatArray, ...]) -> FloatArray:
        """Add the parts whose prices hold cluster-wide now, and round to the grain."""
        self._refresh()
        fixed, model, lost = columns
        cost = fixed + lost @ self._room_prices()
        if request.shape.cards and len(self._restricted[1]):
            asked = request.shape.cards * card_milli(request.shape, self._reference_mib) / MILLI_PER_CARD
            cost += asked * self._model_prices()[model.astype(np.intp)]
        grain = self.weights.grain
        return np.rint(cost / grain) * grain if grain else cost

    def card_cost(self, request: PodRequest, node_idx: int, usable: BoolArray) -> FloatArray:
        """The cut that wastes least first; among equals the fullest card."""
        row = np.array([node_idx])
        return self._cut_cost(request.shape, self._state(row), row)[0]

    def factors(self, request: PodRequest, node_idx: int) -> dict[str, float]:
        """The cost's parts: fixed (slivers, stranding, tidiness), room, models."""
        fixed, model, lost = (column[node_idx] for column in self.tables.columns(self.granted(request).shape))
        asked = request.shape.cards * card_milli(request.shape, self._reference_mib) / MILLI_PER_CARD
        scarce = self._model_prices()[int(model)] if request.shape.cards and len(self._restricted[1]) else 0.0
        return {"fixed": float(fixed), "room": float(lost @ self._room_prices()), "models": float(asked * scarce)}

    # ---------------------------------------------------------------- parts of the cost

    def _placed(
        self, shape: Shape, before: _NodeState, rows: NDArray[np.intp], usable: BoolArray
    ) -> tuple[_NodeState, FloatArray, FloatArray]:
        """The nodes after placing, what cut and tidiness terms cost [R], and the model of the cards taken [R]."""
        w = self.weights
        cost, model = np.zeros(len(rows)), np.zeros(len(rows))
        free = before.free
        if shape.cards:
            cut = np.where(usable, self._cut_cost(shape, before, rows), np.inf)
            cost += w.node_free * before.free.sum(axis=1) / MILLI_PER_CARD
            taken = _lowest(cut, shape.cards)
            model = np.take_along_axis(before.model, np.argmax(taken, axis=1)[:, None], axis=1)[:, 0].astype(np.float64)
            if shape.is_slice:
                untouched = before.free == MILLI_PER_CARD
                wasted = w.sliver * self._sliver_of(shape, before, rows) + w.untouched * untouched
                cost += np.where(taken, wasted, 0.0).sum(axis=1)
            free = np.where(taken, free_milli_after(self.cluster, shape, rows), free)
        else:
            cost += w.cpu_left * before.cpu / self._cpu_max
        state = _NodeState(before.cpu - shape.cpu_milli, before.memory - shape.host_memory_mib, free, before.model)
        return state, cost, model

    def _cut_cost(self, shape: Shape, state: _NodeState, rows: NDArray[np.intp]) -> FloatArray:
        """Order of preference among a node's cards, float64 [R, C]: least waste, then the fullest, then the place."""
        fullness = state.free / MILLI_PER_CARD * EPSILON
        return self._sliver_of(shape, state, rows) + fullness if shape.is_slice else fullness

    def _sliver_of(self, shape: Shape, state: _NodeState, rows: NDArray[np.intp]) -> FloatArray:
        """What cutting one card's part of ``shape`` from each card wastes, in cards, float64 [R, C].

        Value lost by the card beyond what the same cut costs an untouched card, which is its fair price.
        """
        values, model = self._values, state.model
        after = np.clip(free_milli_after(self.cluster, shape, rows), 0, MILLI_PER_CARD)
        asked = np.clip(asked_milli(self.cluster, shape, rows), 0, MILLI_PER_CARD)
        lost = values[model, state.free] - values[model, after]
        return np.asarray(lost - (values[model, MILLI_PER_CARD] - values[model, MILLI_PER_CARD - asked]))

    def _stranding_of(self, state: _NodeState) -> FloatArray:
        """Free GPU that the mix cannot use for lack of CPU or host memory on the node, weighed, float64 [R]."""
        mix = self._directions
        free_cards = state.free.sum(axis=1) / MILLI_PER_CARD
        reach = np.minimum(state.cpu[:, None] / mix.cpu, state.memory[:, None] / mix.memory)
        short = free_cards[:, None] - reach
        return np.asarray(self.weights.stranding * (np.maximum(short, 0.0) @ mix.weight))

    def _room_of(self, state: _NodeState) -> tuple[FloatArray, FloatArray]:
        """Places for each multi-card kind, whole ones and their worth with credit for a partial one, float64 [R, K]."""
        kinds = self._kinds
        pieces = (state.free[:, :, None] >= kinds.milli[state.model]).sum(axis=1)
        hosts = np.minimum(state.cpu[:, None] / kinds.cpu, state.memory[:, None] / kinds.memory)
        places = np.minimum(pieces / kinds.cards, hosts)
        whole = np.floor(places)
        return whole, whole + self.weights.room_partial * (places - whole) ** 3

    # ---------------------------------------------------------------- prices that hold cluster-wide

    def _room_prices(self) -> FloatArray:
        """Price of one lost place of each kind, float64 [K]: falls off exponentially with the spare places."""
        w, kinds = self.weights, self._kinds
        plenty = w.room_scale * np.sqrt(kinds.held) + w.room_floor + EPSILON
        return np.asarray(w.room * kinds.cards * kinds.held / plenty * np.exp(-self._rooms_total / plenty))

    def _model_prices(self) -> FloatArray:
        """Price per card of each model, float64 [models + 1]: sums over the restricted demands that may use it."""
        allowed, share = self._restricted
        spare = allowed @ self._model_free_total / MILLI_PER_CARD
        plenty = self.weights.model_scale * share * self.cluster.cards_total + 1.0
        return np.append((self.weights.model * share * np.exp(-spare / plenty)) @ allowed, 0.0)

    # ---------------------------------------------------------------- following the cluster

    def _state(self, rows: NDArray[np.intp]) -> _NodeState:
        cluster = self.cluster
        return _NodeState(
            cluster.cpu_free_milli[rows],
            cluster.host_memory_free_mib[rows],
            free_milli(cluster, rows),
            cluster.card_model[rows],
        )

    def _refresh(self) -> None:
        """Bring the nodes' potentials and their sums up to date with the cluster; costs only what changed."""
        if self._stamp == self.cluster.stamp:
            return
        stale = np.flatnonzero(self.cluster.node_stamp > self._stamp)
        state = self._state(stale)
        self._stranding[stale] = self._stranding_of(state)
        rooms, self._room_worth[stale] = self._room_of(state)
        model_free = _sum_by_model(state, len(self.cluster.models))
        self._rooms_total += (rooms - self._rooms[stale]).sum(axis=0)  # whole numbers: the sums stay exact
        self._model_free_total += (model_free - self._model_free[stale]).sum(axis=0)
        self._rooms[stale], self._model_free[stale] = rooms, model_free
        self._stamp = self.cluster.stamp


# -------------------------------------------------------------------- what is made of the mix, once


def _lowest(cost: FloatArray, count: int) -> BoolArray:
    """The ``count`` lowest of each row, bool [R, C]; ties go to the lower place."""
    taken = np.zeros(cost.shape, np.bool_)
    order = np.argmin(cost, axis=1)[:, None] if count == 1 else np.argsort(cost, axis=1, kind="stable")[:, :count]
    np.put_along_axis(taken, order, values=True, axis=1)
    return taken


def _sum_by_model(state: _NodeState, models: int) -> FloatArray:
    """Free thousandths of each node by card model, float64 [R, models]."""
    rows = len(state.free)
    slot = np.arange(rows)[:, None] * (models + 1) + state.model + 1  # slot 0 of a row gathers places without a card
    sums = np.bincount(slot.ravel(), weights=state.free.ravel(), minlength=rows * (models + 1))
    return np.asarray(sums.reshape(rows, models + 1)[:, 1:], np.float64)


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


def _directions(mix: Mix, memory_mib: int) -> _Directions:
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
    return _Directions(kept[:, 1], kept[:, 2], kept[:, 0] / max(kept[:, 0].sum(), EPSILON))


def _room_kinds(cluster: Cluster, mix: Mix, memory_mib: int, memory_by_model: list[int]) -> _RoomKinds:
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
    milli = [[_asked_of(cluster, s, model, memory) for s in shapes] for model, memory in enumerate(memory_by_model)]
    return _RoomKinds(
        cards=np.array([float(shape.cards) for shape in shapes]),
        cpu=np.array([max(float(shape.cpu_milli), 1.0) for shape in shapes]),
        memory=np.array([max(float(shape.host_memory_mib), 1.0) for shape in shapes]),
        milli=np.array([*milli, [MILLI_PER_CARD + 1] * len(shapes)], np.int64).reshape(len(memory_by_model) + 1, -1),
        held=np.array([held for _, held in kinds]),
    )


def _same_kind(kind: Shape, shape: Shape) -> bool:
    asks = (kind.cards, kind.whole, kind.memory_mib, kind.memory_milli, kind.compute_milli, kind.models)
    if asks != (shape.cards, shape.whole, shape.memory_mib, shape.memory_milli, shape.compute_milli, shape.models):
        return False
    return _near(kind.cpu_milli, shape.cpu_milli, ROOM_CPU_RATIO) and _near(
        kind.host_memory_mib, shape.host_memory_mib, ROOM_MEMORY_RATIO
    )


def _near(one: int, other: int, ratio: float) -> bool:
    return bool(abs(np.log(max(one, 1) / max(other, 1))) < ratio)


def _asked_of(cluster: Cluster, shape: Shape, model: int, memory_mib: int) -> int:
    if shape.models and cluster.models[model] not in shape.models:
        return MILLI_PER_CARD + 1
    return card_milli(shape, memory_mib)


def _restricted_demand(cluster: Cluster, mix: Mix, memory_mib: int) -> tuple[FloatArray, FloatArray]:
    """Demands that only some models serve: allowed models, 0 or 1, float64 [S, models], and their share [S] of all."""
    total, by_models = 0.0, dict[frozenset[str], float]()
    for shape, count in zip(mix.shapes, mix.counts, strict=True):
        asked = count * shape.cards * card_milli(shape, memory_mib)
        total += asked
        if shape.models:
            by_models[shape.models] = by_models.get(shape.models, 0.0) + asked
    sets = sorted(by_models, key=sorted)
    allowed = np.array([[float(model in models) for model in cluster.models] for models in sets])
    share = np.array([by_models[models] / max(total, 1.0) for models in sets])
    return allowed.reshape(len(sets), len(cluster.models)), share
