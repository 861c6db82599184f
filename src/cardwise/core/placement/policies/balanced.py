"""``balanced``: the default for latency-sensitive pods (SPEC B2). Spreads load, by four facts with fixed weights.

0.4 · free memory + 0.3 · compute headroom + 0.2 · model-cache affinity + 0.1 · failure-domain spread, of the best card;
pods that need several cards also weigh how close those are (SPEC B4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import BoolArray, FloatArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.links import link_scores
from cardwise.core.placement.policy import Policy
from cardwise.core.placement.score import (
    score_compute_headroom,
    score_domain_spread,
    score_free_memory,
    score_model_cache,
)
from cardwise.core.request import PodRequest


@dataclass(frozen=True, slots=True)
class BalancedWeights:
    """SPEC B2's weights; links: only for pods of several cards (SPEC B4)."""

    memory: float = 0.4
    compute: float = 0.3
    cache: float = 0.2
    spread: float = 0.1
    links: float = 0.5


class Balanced(Policy):
    """The least loaded card, near the weights it needs and away from its siblings."""

    name = "balanced"

    def __init__(self, cluster: Cluster, weights: BalancedWeights | None = None) -> None:
        """Weigh by ``weights``, by default SPEC B2's."""
        super().__init__(cluster)
        self.weights = weights or BalancedWeights()

    def evaluate(
        self,
        request: PodRequest,
        rows: NDArray[np.intp],
        usable: BoolArray,
        fits: BoolArray,
    ) -> tuple[FloatArray, ...]:
        """Columns: for each card what depends on the shape alone [R, C]; the link score [R]."""
        shape, w = request.shape, self.weights
        by_card = w.memory * score_free_memory(self.cluster, shape, rows, usable)
        by_card += w.compute * score_compute_headroom(self.cluster, shape, rows, usable)
        by_card[~usable] = -np.inf
        links = np.zeros(len(rows))
        if shape.cards > 1:
            links = w.links * link_scores(
                self.cluster.topologies, self.cluster.topology[rows].tolist(), usable, shape.cards
            )
        return np.zeros(len(rows)), by_card, links

    def combine(self, request: PodRequest, columns: tuple[FloatArray, ...]) -> FloatArray:
        """Add what depends on who the pod is: model cache and spread."""
        feasible, by_card, links = columns
        everywhere = slice(None)
        cost = feasible - links - self.weights.cache * score_model_cache(self.cluster, request.model_key, everywhere)
        if request.shape.cards:
            by_card = by_card + self.weights.spread * score_domain_spread(self.cluster, request.service, everywhere)
            cost -= np.where(np.isfinite(cost), _mean_of_best(by_card, request.shape.cards), 0.0)
        return cost

    def card_cost(self, request: PodRequest, node_idx: int, usable: BoolArray) -> FloatArray:
        """The best card first."""
        row = np.array([node_idx])
        by_card = self.evaluate(request, row, usable[None], np.array([True]))[1]
        spread = self.weights.spread * score_domain_spread(self.cluster, request.service, row)
        return np.asarray(-(by_card + spread)[0])

    def factors(self, request: PodRequest, node_idx: int) -> dict[str, float]:
        """Each score of the card that would be taken (of several: the mean), before weights."""
        row, places = np.array([node_idx]), list(self.places(request, node_idx))
        usable = np.zeros((1, self.cluster.card_exists.shape[1]), np.bool_)
        usable[0, places] = True
        cards = {
            "free-memory": score_free_memory(self.cluster, request.shape, row, usable),
            "compute-headroom": score_compute_headroom(self.cluster, request.shape, row, usable),
            "domain-spread": score_domain_spread(self.cluster, request.service, row),
        }
        scores = {name: float(score[0, places].mean()) if places else 0.0 for name, score in cards.items()}
        scores["model-cache"] = float(score_model_cache(self.cluster, request.model_key, row)[0])
        if request.shape.cards > 1:
            topology = self.cluster.topology[row].tolist()
            scores["links"] = float(link_scores(self.cluster.topologies, topology, usable, request.shape.cards)[0])
        return scores


def _mean_of_best(by_card: FloatArray, count: int) -> FloatArray:
    """Mean of each row's ``count`` best cards, float64 [R]."""
    best = -np.sort(-by_card, axis=1)[:, :count]
    return np.asarray(np.where(np.isfinite(best), best, 0.0).sum(axis=1) / count)
