"""``dot-product``: match what the pod asks for against what is left, as vectors of CPU and GPU.

As the openb study published it (hkust-adsl/kubernetes-scheduler-simulator, ``dot_product_score.go`` with
``dimExtMethod: share``, ``normMethod: max``): of a node's candidate cards, or of its idle cards taken together, the
one with the smallest product counts, and the smallest product over the nodes wins; scores are whole numbers.
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


class DotProduct(Policy):
    """CPU and GPU of node and pod, each relative to the largest node of the cluster."""

    name = "dot-product"

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
        shape = request.shape
        free = self.cluster.free_milli[rows]
        idle = np.where(self.cluster.card_slices[rows] == 0, free, 0).sum(axis=1)
        gpu_left = idle.astype(np.float64)
        if shape.is_slice:
            shared = usable & (self.cluster.card_slices[rows] > 0)
            gpu_left = np.minimum(
                np.where(shared, free, np.inf).min(axis=1, initial=np.inf), np.where(idle > 0, gpu_left, np.inf)
            )
            gpu_left = np.where(np.isfinite(gpu_left), gpu_left, 0.0)
        asked = least_asked_milli(self.cluster, shape, rows, usable)
        cpu = (self.cluster.cpu_free_milli[rows] / self._cpu_max) * (shape.cpu_milli / self._cpu_max)
        gpu = (gpu_left / self._gpu_max) * (shape.cards * asked / self._gpu_max)
        return (-np.floor(SCORE_MAX * (1.0 - (cpu + gpu) / 2)),)

    def card_cost(self, request: PodRequest, node_idx: int, usable: BoolArray) -> FloatArray:
        """The fullest card first: it has the smallest product."""
        return self.cluster.free_milli[node_idx].astype(np.float64)
