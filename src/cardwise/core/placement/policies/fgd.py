"""``fgd``: Fragmentation Gradient Descent, the best published policy, as the bar to clear.

"Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC '23.
For a node, the expected GPU that a pod drawn from the typical mix could not use; the placement that raises it least
wins. As in the authors' simulator (``fgd_score.go``, ``frag.go``): typical pods are the shapes that make up 95 % of the
mix, host memory is not looked at, and the score is ``int(100 · sigmoid(Δ))`` with Δ in cards: its ties count.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import BoolArray, FloatArray, IntArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.free import asked_milli, free_milli_after
from cardwise.core.placement.mix import Mix, card_milli
from cardwise.core.placement.policy import Policy
from cardwise.core.request import PodRequest, Shape
from cardwise.units import MILLI_PER_CARD

TYPICAL_SHARE = 0.95
SCORE_MAX = 100
ROWS_AT_ONCE = 1024
"""Bounds the working set (rows × cards × typical shapes) to some tens of MiB on clusters of any size."""


class Fgd(Policy):
    """Expected unusable GPU rises least."""

    name = "fgd"

    def __init__(self, cluster: Cluster, mix: Mix) -> None:
        """Take the typical shapes of the history's mix."""
        super().__init__(cluster)
        typical = Mix.of([]) if not mix.shapes else _without_host_memory(mix).typical(TYPICAL_SHARE)
        weights = np.array(typical.counts) / max(sum(typical.counts), 1.0)
        with_cards = [i for i, shape in enumerate(typical.shapes) if shape.cards]
        shapes = [typical.shapes[i] for i in with_cards]
        self._weight_cpu_only = float(weights.sum() - weights[with_cards].sum())
        self._weight = weights[with_cards]  # float64 [M]
        self._cards = np.array([shape.cards for shape in shapes], np.int64)
        self._cpu = np.array([shape.cpu_milli for shape in shapes], np.int64)
        # Thousandths asked on each model's cards, int64 [models + 1, M]: the same card model has the same memory.
        self._milli = np.array(
            [[_asked_of(cluster, shape, model) for shape in shapes] for model in range(len(cluster.models))]
            + [[MILLI_PER_CARD + 1] * len(shapes)],
            np.int64,
        )

    def evaluate(
        self, request: PodRequest, rows: NDArray[np.intp], usable: BoolArray, fits: BoolArray
    ) -> tuple[FloatArray, ...]:
        """Minus the published score, 0-100: for one card the best of the node's cards, else the fullest that fit."""
        cost = np.zeros(len(rows))
        for chunk in np.array_split(np.flatnonzero(fits), max(1, -(-int(fits.sum()) // ROWS_AT_ONCE))):
            if len(chunk):
                cost[chunk] = self._node_costs(request.shape, rows[chunk], usable[chunk])
        return (cost,)

    def card_cost(self, request: PodRequest, node_idx: int, usable: BoolArray) -> FloatArray:
        """For one card of a slice its own cost, else the fullest cards first."""
        row = np.array([node_idx])
        if request.shape.is_slice and request.shape.cards == 1:
            return self._per_card_costs(request.shape, row, usable[None])[0]
        return self.cluster.free_milli[node_idx].astype(np.float64)

    # ---------------------------------------------------------------- inside

    def _node_costs(self, shape: Shape, rows: NDArray[np.intp], usable: BoolArray) -> FloatArray:
        if shape.is_slice and shape.cards == 1:
            return np.asarray(self._per_card_costs(shape, rows, usable).min(axis=1))
        free = self.cluster.free_milli[rows]
        before = self._fragment(self.cluster.cpu_free_milli[rows], free, rows)
        if shape.cards:
            order = np.argsort(np.where(usable, free, MILLI_PER_CARD + 1), axis=1, kind="stable")
            taken = np.zeros_like(usable)
            np.put_along_axis(taken, order[:, : shape.cards], values=True, axis=1)
            free = np.where(taken, free - asked_milli(self.cluster, shape, rows), free)
        after = self._fragment(self.cluster.cpu_free_milli[rows] - shape.cpu_milli, free, rows)
        return -_score(before - after)

    def _fragment(self, cpu: IntArray, free: IntArray, rows: NDArray[np.intp]) -> FloatArray:
        """Expected unusable thousandths of each node, float64 [R]."""
        fits = self._fits(free, rows)
        too_small = (free[:, :, None] * ~fits).sum(axis=1)
        return self._expected(cpu, free.sum(axis=1), fits.sum(axis=1), too_small)

    def _per_card_costs(self, shape: Shape, rows: NDArray[np.intp], usable: BoolArray) -> FloatArray:
        """Cost of putting a one-card slice on each card, float64 [R, C]; infinite where it does not fit."""
        cpu, free = self.cluster.cpu_free_milli[rows], self.cluster.free_milli[rows]
        free_after = np.where(usable, free_milli_after(self.cluster, shape, rows), free)
        fits, fits_after = self._fits(free, rows), self._fits(free_after, rows)
        count, too_small = fits.sum(axis=1), (free[:, :, None] * ~fits).sum(axis=1)
        before = self._expected(cpu, free.sum(axis=1), count, too_small)
        cost = np.full(usable.shape, np.inf)
        for place in range(usable.shape[1]):  # one card changes: counts move by that card's old and new part only
            count_after = count - fits[:, place] + fits_after[:, place]
            small_after = (
                too_small - free[:, place, None] * ~fits[:, place] + free_after[:, place, None] * ~fits_after[:, place]
            )
            total_after = free.sum(axis=1) - free[:, place] + free_after[:, place]
            after = self._expected(cpu - shape.cpu_milli, total_after, count_after, small_after)
            cost[:, place] = -_score(before - after)
        return np.where(usable, cost, np.inf)

    def _fits(self, free: IntArray, rows: NDArray[np.intp]) -> BoolArray:
        """Which cards could hold one card of each typical shape, bool [R, C, M]."""
        return np.asarray(free[:, :, None] >= self._milli[self.cluster.card_model[rows]])

    def _expected(self, cpu: IntArray, total: IntArray, count: IntArray, too_small: IntArray) -> FloatArray:
        """Σ over typical shapes of weight × what it could not use: cards too small for it, or all if it cannot run."""
        runs = (count >= self._cards) & (cpu[:, None] >= self._cpu)
        unusable = np.where(runs, too_small, total[:, None])
        return np.asarray(unusable @ self._weight + self._weight_cpu_only * total)


def _score(gain_milli: FloatArray) -> FloatArray:
    return np.floor(SCORE_MAX / (1.0 + np.exp(-gain_milli / MILLI_PER_CARD)))


def _without_host_memory(mix: Mix) -> Mix:
    merged: dict[Shape, float] = {}
    for shape, count in zip(mix.shapes, mix.counts, strict=True):
        bare = replace(shape, host_memory_mib=0)
        merged[bare] = merged.get(bare, 0.0) + count
    ordered = sorted(merged.items(), key=lambda item: -item[1])
    return Mix(tuple(shape for shape, _ in ordered), tuple(count for _, count in ordered))


def _asked_of(cluster: Cluster, shape: Shape, model: int) -> int:
    """Thousandths that one card of the shape asks for on the largest card of that model; above 1000 if not allowed."""
    if not shape.takes(cluster.models[model]):
        return MILLI_PER_CARD + 1
    return card_milli(shape, int(cluster.memory_total_mib[cluster.card_model == model].max(initial=0)))
