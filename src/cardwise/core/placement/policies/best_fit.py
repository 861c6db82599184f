"""``best-fit``: the node with the least CPU and GPU left over, on it the fullest card that still fits.

A usual policy, as the openb study published it (hkust-adsl/kubernetes-scheduler-simulator, ``best_fit_score.go``,
``gpuSelMethod: best``), with its whole-number scores: they make ties, and ties change the outcome.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import BoolArray, FloatArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.free import largest_node, least_asked_milli
from cardwise.core.placement.policy import Policy
from cardwise.core.request import PodRequest

SCORE_MAX = 100


class BestFit(Policy):
    """Least left over, CPU and GPU weighing the same, each relative to the largest node of the cluster."""

    name = "best-fit"

    def __init__(self, cluster: Cluster) -> None:
        """Take the largest node's CPU and cards as the yardstick."""
        super().__init__(cluster)
        self._cpu_max, self._gpu_max = largest_node(cluster)

    def evaluate(
        self,
        request: PodRequest,
        rows: NDArray[np.intp],
        usable: BoolArray,
        fits: BoolArray,
    ) -> tuple[FloatArray, ...]:
        """Minus the published score, 0-100."""
        cpu_left = self.cluster.cpu_free_milli[rows] - request.shape.cpu_milli
        asked = least_asked_milli(self.cluster, request.shape, rows, usable)
        gpu_left = self.cluster.free_milli[rows].sum(axis=1) - request.shape.cards * asked
        left_share = 0.5 * cpu_left / self._cpu_max + 0.5 * gpu_left / self._gpu_max
        return (-np.floor(SCORE_MAX * (1.0 - left_share)),)

    def card_cost(self, request: PodRequest, node_idx: int, usable: BoolArray) -> FloatArray:
        """The fullest card first."""
        return np.asarray(self.cluster.free_milli[node_idx], np.float64)
