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

Small terms gather slices on cards that are begun and pods on nodes that are nearly full, so that others can drain.
The policy never refuses a pod that fits. Method, sources, tuning and results: docs/concepts/dense.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import ALL, BoolArray, FloatArray, IntArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.filter import identity_allows, memory_asked_mib
from cardwise.core.placement.free import asked_milli, free_milli_after, largest_node
from cardwise.core.placement.links import link_scores
from cardwise.core.placement.mix import Mix, card_milli
from cardwise.core.placement.outlook import EPSILON, Outlook
from cardwise.core.placement.policy import Policy
from cardwise.core.placement.score import node_share
from cardwise.core.request import Isolation, PodRequest, Shape
from cardwise.units import MILLI_PER_CARD


@dataclass(frozen=True, slots=True)
class DenseWeights:
    """How the parts of the cost weigh, all >= 0. Found by ``cardwise tune``; the defaults' origin is in the docs.

    sliver: per card wasted by the cut. stranding: per card newly cut off from the mix, for lack of CPU or host memory.
    room: per card of lost multi-card places; room_scale, room_floor: how many spare places are plenty, as
    scale × √(places the mix holds at full load) + floor; room_partial: credit for a partly freed place.
    model, model_scale: the same for card models that restricted pods depend on, in shares of their demand.
    choice: usable share of the cluster below which room and model prices fall off: with little left, being choosy is
    dear.
    links: per card, for cards of a multi-card pod that are far from each other (SPEC B4). spread: for the share of the
    pod's service that the node holds already (SPEC B5).
    untouched: for breaking an untouched card. card_free: per free card of the card that a slice goes to, so that slices
    gather on cards that are begun. node_free: per free card of the node, so that full nodes come first, others drain.
    cpu_left: for pods without cards, per CPU left on the node over the largest node's: CPU that lies about in small
    pieces is as lost as slivers of cards are. grain: costs closer than this are equal.
    """

    sliver: float = 1.0
    stranding: float = 1.0
    room: float = 12.0
    room_scale: float = 0.8
    room_floor: float = 3.0
    room_partial: float = 0.1
    model: float = 10.0
    model_scale: float = 1.6
    choice: float = 0.1
    links: float = 0.05
    spread: float = 0.05
    untouched: float = 0.2
    node_free: float = 0.0015
    card_free: float = 0.08
    cpu_left: float = 0.064
    grain: float = 0.004

    def __post_init__(self) -> None:
        """Refuse weights that would turn a cost into a reward."""
        for each in fields(self):
            value = getattr(self, each.name)
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"weight {each.name} is {value}, must be a number of 0 or more")


@dataclass(slots=True)
class _NodeState:
    """What the cost looks at, for some nodes as they are or as they would be.

    cpu, memory: free on the node, int64 [R]; free: thousandths per card, int64 [R, C]; model: int64 [R, C].
    """

    cpu: IntArray
    memory: IntArray
    free: IntArray
    model: IntArray


@dataclass(slots=True)
class _Potential:
    """What some nodes are good for: stranded, free cards lost to the mix [R]; rooms and their worth [R, K]."""

    stranded: FloatArray
    rooms: FloatArray
    worth: FloatArray


class Dense(Policy):
    """Places a pod where it takes the least from those that will come."""

    name = "dense"

    def __init__(self, cluster: Cluster, mix: Mix, weights: DenseWeights | None = None) -> None:
        """Work out the mix's outlook for this cluster: a second or so, off the decision path."""
        super().__init__(cluster)
        self.weights = weights or DenseWeights()
        self.outlook = Outlook.of(cluster, mix)
        self._value_base = cluster.card_model * (MILLI_PER_CARD + 1)  # row of each card's model in ``values``
        self._cards_total = cluster.cards_total
        self._cpu_max, _ = largest_node(cluster)
        self._stamp = -1
        n, k, models = cluster.nodes_total, len(self.outlook.kinds.cards), len(cluster.models)
        self._potential = _Potential(np.zeros(n), np.zeros((n, k)), np.zeros((n, k)))
        self._model_free = np.zeros((n, models))
        self._rooms_total, self._model_free_total, self._stranded_total = np.zeros(k), np.zeros(models), 0.0
        self._room_prices, self._model_prices = np.zeros(k), np.zeros(models + 1)
        self._refresh()

    # ---------------------------------------------------------------- the policy's answers

    def evaluate(
        self, request: PodRequest, rows: NDArray[np.intp], usable: BoolArray, fits: BoolArray
    ) -> tuple[FloatArray, ...]:
        """Columns: the fixed part of the cost [R]; model and place of the first card [R]; room worth lost [R, K]."""
        self._refresh()
        fixed, model, place = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
        lost = np.zeros((len(rows), len(self.outlook.kinds.cards)))
        kept = rows[fits]
        if len(kept):
            before = self._state(kept)
            after, cost, taken = self._placed(request.shape, before, kept, usable[fits])
            potential = self._potential_of(after)
            fixed[fits] = cost + self.weights.stranding * (potential.stranded - self._potential.stranded[kept])
            if request.shape.cards:
                place[fits] = first = taken.argmax(axis=1)
                model[fits] = before.model[np.arange(len(kept)), first]
            lost[fits] = self._potential.worth[kept] - potential.worth
        return fixed, model, place, lost

    def combine(self, request: PodRequest, columns: tuple[FloatArray, ...]) -> FloatArray:
        """Add the parts whose prices hold cluster-wide now, and round to the grain."""
        self._refresh()
        fixed, model, _place, lost = columns
        cost = fixed + lost @ self._room_prices
        if request.shape.cards and len(self.outlook.restricted.share):
            cost += self._asked_cards(request.shape) * self._model_prices.take(model.astype(np.intp))
        if request.service:
            cost += self.weights.spread * node_share(self.cluster, request.service)
        grain = self.weights.grain
        return np.rint(cost / grain) * grain if grain else cost

    def places(self, request: PodRequest, node_idx: int) -> tuple[int, ...]:
        """As for every policy; a single card that is kept with the shape's costs is not looked for again."""
        if request.shape.cards == 1 and identity_allows(self.cluster, request, ALL) is None:
            return (int(self.tables.columns(request.shape)[2][node_idx]),)
        return super().places(request, node_idx)

    def card_cost(self, request: PodRequest, node_idx: int, usable: BoolArray) -> FloatArray:
        """The cut that wastes least first; among equals the fullest card."""
        row = np.array([node_idx])
        state = self._state(row)
        return self._order(state, self._sliver_of(request.shape, state, row))[0]

    def factors(self, request: PodRequest, node_idx: int) -> dict[str, float]:
        """The cost's parts: fixed (slivers, stranding, tidiness), room, models."""
        fixed, model, _place, lost = (column[node_idx] for column in self.tables.columns(request.shape))
        scarce = self._model_prices[int(model)] if request.shape.cards else 0.0
        return {
            "fixed": float(fixed),
            "room": float(lost @ self._room_prices),
            "models": float(self._asked_cards(request.shape) * scarce),
        }

    # ---------------------------------------------------------------- parts of the cost

    def _placed(
        self, shape: Shape, before: _NodeState, rows: NDArray[np.intp], usable: BoolArray
    ) -> tuple[_NodeState, FloatArray, BoolArray]:
        """The nodes after placing, what cut and tidiness terms cost [R], and the cards taken, bool [R, C]."""
        w, free = self.weights, before.free
        taken = np.zeros(usable.shape, np.bool_)
        if shape.cards:
            sliver = self._sliver_of(shape, before, rows)
            taken = _lowest(np.where(usable, self._order(before, sliver), np.inf), shape.cards)
            cost = w.node_free / MILLI_PER_CARD * np.einsum("ij->i", free)
            if shape.is_slice:
                per_card = (
                    w.sliver * sliver + w.untouched * (free == MILLI_PER_CARD) + w.card_free / MILLI_PER_CARD * free
                )
                cost += np.einsum("ij,ij->i", taken, per_card)
            if shape.cards > 1:
                cost += w.links * shape.cards * (1.0 - self._link_scores(usable, rows, shape.cards))
            free = np.where(taken, free_milli_after(self.cluster, shape, rows), free)
        else:
            cost = w.cpu_left / self._cpu_max * before.cpu
        state = _NodeState(before.cpu - shape.cpu_milli, before.memory - shape.host_memory_mib, free, before.model)
        return state, cost, taken

    def _sliver_of(self, shape: Shape, state: _NodeState, rows: NDArray[np.intp]) -> FloatArray:
        """What cutting one card's part of ``shape`` from each card wastes, in cards, float64 [R, C].

        Value lost by the card beyond what the same cut costs an untouched card, which is its fair price. Of a MIG
        instance all that is not used is wasted: the smallest that fits wastes least.
        """
        if not shape.is_slice:
            return np.zeros(state.free.shape)
        values, base = self.outlook.values, self._value_base[rows]
        after = np.maximum(free_milli_after(self.cluster, shape, rows), 0)
        uncut = base + MILLI_PER_CARD
        asked = np.minimum(asked_milli(self.cluster, shape, rows), MILLI_PER_CARD)
        lost = values.take(base + state.free, mode="wrap") - values.take(base + after, mode="wrap")
        sliver = lost - values.take(uncut, mode="wrap") + values.take(uncut - asked, mode="wrap")
        if Isolation.MIG in shape.isolation:
            total = np.maximum(self.cluster.memory_total_mib[rows], 1)
            unused = 1.0 - memory_asked_mib(self.cluster, shape, rows) / total
            sliver = np.where(self.cluster.card_isolation[rows] == Isolation.MIG, unused, sliver)
        return sliver

    def _order(self, state: _NodeState, sliver: FloatArray) -> FloatArray:
        """Order of preference among a node's cards, float64 [R, C]: least waste, then the fullest, then the place."""
        return sliver + state.free * (EPSILON / MILLI_PER_CARD)

    def _link_scores(self, usable: BoolArray, rows: NDArray[np.intp], cards: int) -> FloatArray:
        """How close the node's cards are, float64 [R] in [0, 1]; the same everywhere if no links are known."""
        return link_scores(self.cluster.topologies, self.cluster.topology[rows].tolist(), usable, cards)

    def _asked_cards(self, shape: Shape) -> float:
        return shape.cards * card_milli(shape, self.outlook.reference_mib) / MILLI_PER_CARD

    def _potential_of(self, state: _NodeState) -> _Potential:
        free_cards = np.einsum("ij->i", state.free) / MILLI_PER_CARD
        stranded = self.outlook.directions.stranded(state.cpu, state.memory, free_cards)
        places = self.outlook.kinds.places(state.cpu, state.memory, state.free, state.model)
        rooms = np.floor(places)
        return _Potential(stranded, rooms, rooms + self.weights.room_partial * (places - rooms) ** 3)

    # ---------------------------------------------------------------- following the cluster

    def _state(self, rows: NDArray[np.intp]) -> _NodeState:
        cluster = self.cluster
        return _NodeState(
            cluster.cpu_free_milli[rows],
            cluster.host_memory_free_mib[rows],
            cluster.free_milli[rows],
            cluster.card_model[rows],
        )

    def _refresh(self) -> None:
        """Bring the nodes' potentials, their sums and the prices up to date; costs only what changed."""
        if self._stamp == self.cluster.stamp:
            return
        stale = np.flatnonzero(self.cluster.node_stamp > self._stamp)
        state, kept = self._state(stale), self._potential
        new, model_free = self._potential_of(state), _sum_by_model(state, len(self.cluster.models))
        self._rooms_total += (new.rooms - kept.rooms[stale]).sum(axis=0)  # whole numbers: the sums stay exact
        self._model_free_total += (model_free - self._model_free[stale]).sum(axis=0)
        kept.stranded[stale], kept.rooms[stale], kept.worth[stale] = new.stranded, new.rooms, new.worth
        self._model_free[stale] = model_free
        self._stranded_total = float(kept.stranded.sum())
        self._set_prices()
        self._stamp = self.cluster.stamp

    def _set_prices(self) -> None:
        """What one lost place of each kind [K] and one card of each model [models + 1] cost now.

        Both fall off exponentially with what is to spare, and, all together, with the square of what the mix can use.
        """
        w, cards = self.weights, self._cards_total
        kinds, restricted = self.outlook.kinds, self.outlook.restricted
        usable = self._model_free_total.sum() / MILLI_PER_CARD - self._stranded_total
        choice = min(1.0, max(usable, 0.0) / max(w.choice * cards, EPSILON)) ** 2
        plenty = w.room_scale * np.sqrt(kinds.held) + w.room_floor + EPSILON
        self._room_prices = choice * w.room * kinds.cards * kinds.held / plenty * np.exp(-self._rooms_total / plenty)
        if len(restricted.share):
            spare = restricted.allowed @ self._model_free_total / MILLI_PER_CARD
            scarcity = np.exp(-spare / (w.model_scale * restricted.share * cards + 1.0))
            self._model_prices[:-1] = (choice * w.model * restricted.share * scarcity) @ restricted.allowed


def _lowest(cost: FloatArray, count: int) -> BoolArray:
    """The ``count`` lowest of each row, bool [R, C]; ties go to the lower place."""
    taken = np.zeros(cost.shape, np.bool_)
    if count == 1:
        taken[np.arange(len(cost)), cost.argmin(axis=1)] = True
    else:
        np.put_along_axis(taken, np.argsort(cost, axis=1, kind="stable")[:, :count], values=True, axis=1)
    return taken


def _sum_by_model(state: _NodeState, models: int) -> FloatArray:
    """Free thousandths of each node by card model, float64 [R, models]."""
    rows = len(state.free)
    slot = np.arange(rows)[:, None] * (models + 1) + state.model + 1  # slot 0 of a row gathers places without a card
    sums = np.bincount(slot.ravel(), weights=state.free.ravel(), minlength=rows * (models + 1))
    return np.asarray(sums.reshape(rows, models + 1)[:, 1:], np.float64)
