"""A card's free room as one number: thousandths of the card, the scarcer of memory and compute.

Policies that pack think of a card as a bar of 1000 thousandths. Memory and compute are both on it; what one side has
free beyond the other cannot be used by itself, so the smaller side is what is left. ``Cluster.free_milli`` is what is
left now; here is what a shape would take of it.
"""

from __future__ import annotations

import numpy as np

from cardwise.core.arrays import ALL, BoolArray, IntArray, Rows
from cardwise.core.cluster import Cluster
from cardwise.core.placement.filter import memory_taken_mib
from cardwise.core.request import Isolation, Shape
from cardwise.units import MILLI_PER_CARD


def free_milli_after(cluster: Cluster, shape: Shape, rows: Rows = ALL) -> IntArray:
    """``Cluster.free_milli`` of each card if one card of ``shape`` were put on it, int64 [R, C].

    Negative where it does not fit; fenced cards are not looked at: nothing is put on them.
    """
    if shape.whole:
        return np.zeros_like(cluster.memory_free_mib[rows])
    memory = cluster.memory_free_mib[rows] - memory_taken_mib(cluster, shape, rows)
    total = np.maximum(cluster.memory_total_mib[rows], 1)
    after = np.minimum(memory * MILLI_PER_CARD // total, cluster.compute_free_milli[rows] - shape.compute_milli)
    if Isolation.MIG in shape.isolation:  # nobody else gets what it leaves of an instance
        return np.where(cluster.card_isolation[rows] == Isolation.MIG, np.minimum(after, 0), after)
    return after


def asked_milli(cluster: Cluster, shape: Shape, rows: Rows = ALL) -> IntArray:
    """Thousandths of each card that one card of ``shape`` asks for, int64 [R, C]; above 1000 where it cannot fit."""
    total = cluster.memory_total_mib[rows]
    if shape.whole:
        return np.full_like(total, MILLI_PER_CARD)
    if shape.memory_milli:
        return np.full_like(total, max(shape.memory_milli, shape.compute_milli))
    memory = -(-shape.memory_mib * MILLI_PER_CARD // np.maximum(total, 1))
    return np.maximum(memory, shape.compute_milli)


def least_asked_milli(cluster: Cluster, shape: Shape, rows: Rows, usable: BoolArray) -> IntArray:
    """The least that :func:`asked_milli` is on any usable card of each node, int64 [R]; 1000 where none is usable."""
    asked = np.where(usable, asked_milli(cluster, shape, rows), MILLI_PER_CARD)
    return asked.min(axis=1, initial=MILLI_PER_CARD)


def largest_node(cluster: Cluster) -> tuple[int, int]:
    """(CPU milli, thousandths of cards) of the largest node in each: what policies measure against; at least 1 each."""
    cards = int(cluster.card_exists.sum(axis=1).max(initial=0))
    return max(int(cluster.cpu_total_milli.max(initial=0)), 1), max(cards * MILLI_PER_CARD, 1)
