"""``whole-card``: the Kubernetes default. A pod that asks for any part of a card holds all of it.

NVIDIA's device plugin advertises whole cards, and kube-scheduler spreads pods by least allocated CPU and memory
(``NodeResourcesFit`` with ``LeastAllocated``, both weights 1; cards do not count in its default scoring).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import BoolArray, FloatArray
from cardwise.core.placement.policy import Policy
from cardwise.core.request import PodRequest


class WholeCard(Policy):
    """Rounds every slice up to whole cards."""

    name = "whole-card"

    def granted(self, request: PodRequest) -> PodRequest:
        """The same pod with all of each card."""
        if not request.shape.is_slice:
            return request
        own = replace(request.shape, oversubscribe=False)
        shape = replace(own, memory_mib=0, memory_milli=0, compute_milli=0, whole=True)
        return replace(request, shape=shape)

    def evaluate(
        self,
        request: PodRequest,
        rows: NDArray[np.intp],
        usable: BoolArray,
        fits: BoolArray,
    ) -> tuple[FloatArray, ...]:
        """Minus kube-scheduler's score: mean over CPU and memory of the free share after placing, in percent."""
        cluster, shape = self.cluster, request.shape
        cpu = (cluster.cpu_free_milli[rows] - shape.cpu_milli) * 100 // np.maximum(cluster.cpu_total_milli[rows], 1)
        memory = cluster.host_memory_free_mib[rows] - shape.host_memory_mib
        memory = memory * 100 // np.maximum(cluster.host_memory_total_mib[rows], 1)
        return (-((cpu + memory) // 2).astype(np.float64),)

    def card_cost(self, request: PodRequest, node_idx: int, usable: BoolArray) -> FloatArray:
        """Cards in the order of their places."""
        return np.arange(len(usable), dtype=np.float64)
