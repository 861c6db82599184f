"""A card's free room as one number: thousandths of the card, the scarcer of memory and compute.

Policies that pack think of a card as a bar of 1000 thousandths. Memory and compute are both on it; what one side has
free beyond the other cannot be used by itself, so the smaller side is what is left.
"""

from __future__ import annotations

import numpy as np

from cardwise.core.arrays import ALL, IntArray, Rows
from cardwise.core.cluster import Cluster
from cardwise.core.placement.filter import memory_asked_mib
from cardwise.core.request import Shape
from cardwise.units import MILLI_PER_CARD


def free_milli(cluster: Cluster, rows: Rows = ALL) -> IntArray:
    """Thousandths of each card that are free, int64 [R, C] in 0-1000; 0 where no card is or it is fenced."""
    return bar(cluster, cluster.memory_free_mib[rows], cluster.compute_free_milli[rows], rows)


def free_milli_after(cluster: Cluster, shape: Shape, rows: Rows = ALL) -> IntArray:
    """The same for each card, if one card of ``shape`` were put on it, int64 [R, C]; negative where it does not fit."""
    if shape.whole:
        return np.zeros_like(cluster.memory_free_mib[rows])
    memory = cluster.memory_free_mib[rows] - memory_asked_mib(cluster, shape, rows)
    return bar(cluster, memory, cluster.compute_free_milli[rows] - shape.compute_milli, rows)


def bar(cluster: Cluster, memory_mib: IntArray, compute_milli: IntArray, rows: Rows) -> IntArray:
    """min(memory, compute) in thousandths of each card, int64 [R, C]; rounds memory down."""
    total = np.maximum(cluster.memory_total_mib[rows], 1)
    free = np.minimum(memory_mib * MILLI_PER_CARD // total, compute_milli)
    return np.where(cluster.card_healthy[rows], free, 0)


def asked_milli(cluster: Cluster, shape: Shape, rows: Rows = ALL) -> IntArray:
    """Thousandths of each card that one card of ``shape`` asks for, int64 [R, C]; above 1000 where it cannot fit."""
    total = cluster.memory_total_mib[rows]
    if shape.whole:
        return np.full_like(total, MILLI_PER_CARD)
    if shape.memory_milli:
        return np.full_like(total, max(shape.memory_milli, shape.compute_milli))
    memory = -(-shape.memory_mib * MILLI_PER_CARD // np.maximum(total, 1))
    return np.maximum(memory, shape.compute_milli)
