"""``random``: any node that fits, on it any card. What a policy must at least beat.

The draw depends on the seed and the pod's name alone, so asking twice gives the same answer.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import BoolArray, FloatArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.choose import tie_ranks
from cardwise.core.placement.policy import Policy
from cardwise.core.request import PodRequest


class RandomFit(Policy):
    """A fresh random order of nodes and cards for each pod."""

    name = "random"

    def __init__(self, cluster: Cluster, seed: int) -> None:
        """Order nodes by name and seed, so that listing them otherwise changes nothing."""
        super().__init__(cluster)
        self._seed = seed
        self._ranks = tie_ranks(cluster, seed)

    def evaluate(
        self,
        request: PodRequest,
        rows: NDArray[np.intp],
        usable: BoolArray,
        fits: BoolArray,
    ) -> tuple[FloatArray, ...]:
        """Nothing to prefer: the draw comes in ``combine``, for it differs from pod to pod."""
        return (np.zeros(len(rows)),)

    def combine(self, request: PodRequest, columns: tuple[FloatArray, ...]) -> FloatArray:
        """One draw per node."""
        return columns[0] + self._draw(request, self.cluster.nodes_total)[self._ranks]

    def card_cost(self, request: PodRequest, node_idx: int, usable: BoolArray) -> FloatArray:
        """One draw per card."""
        return self._draw(request, len(usable))

    def _draw(self, request: PodRequest, size: int) -> FloatArray:
        return np.random.default_rng([self._seed & 0xFFFFFFFF, zlib.crc32(request.name.encode())]).random(size)
