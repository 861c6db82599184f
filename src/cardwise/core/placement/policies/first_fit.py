"""``first-fit``: the first node by name that fits, on it the first card. The simplest baseline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import BoolArray, FloatArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.policy import Policy
from cardwise.core.request import PodRequest


class FirstFit(Policy):
    """Nodes in the order of their names."""

    name = "first-fit"

    def __init__(self, cluster: Cluster) -> None:
        """Rank the nodes by name once."""
        super().__init__(cluster)
        self._rank = np.empty(cluster.nodes_total)
        self._rank[np.argsort(np.array(cluster.node_names, dtype=object), kind="stable")] = np.arange(
            cluster.nodes_total
        )

    def evaluate(
        self,
        request: PodRequest,
        rows: NDArray[np.intp],
        usable: BoolArray,
        fits: BoolArray,
    ) -> tuple[FloatArray, ...]:
        """The node's rank by name."""
        return (self._rank[rows],)

    def card_cost(self, request: PodRequest, node_idx: int, usable: BoolArray) -> FloatArray:
        """Cards in the order of their places."""
        return np.arange(len(usable), dtype=np.float64)
