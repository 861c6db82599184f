"""Costs kept per shape and renewed only where the cluster changed: why a decision takes microseconds, not milliseconds.

Pods of one shape cost the same on the same node, and between two pods of one shape only a few nodes change.
So a table holds one row per node, remembers the cluster's stamp, and re-evaluates the rows whose node is newer.
Refuses to know what a cost means: a policy brings the function that fills rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import FloatArray
from cardwise.core.cluster import Cluster
from cardwise.core.request import Shape

DEFAULT_BYTES_MAX = 256 * 2**20
Evaluate = Callable[[Shape, "NDArray[np.intp]"], tuple[FloatArray, ...]]


@dataclass(slots=True)
class _Table:
    stamp: int
    columns: tuple[FloatArray, ...]


@dataclass(slots=True)
class ShapeTables:
    """For each shape, columns over all N nodes: the arrays that ``evaluate(shape, rows)`` returns for some rows.

    bytes_max: least recently used shapes are dropped beyond it (they are evaluated anew when they return).
    """

    cluster: Cluster
    evaluate: Evaluate
    bytes_max: int = DEFAULT_BYTES_MAX
    _tables: OrderedDict[Shape, _Table] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def columns(self, shape: Shape) -> tuple[FloatArray, ...]:
        """The columns of a shape, up to date with the cluster. Read only: they are the table's own arrays."""
        table = self._tables.get(shape)
        if table is None:
            return self._add(shape)
        self._tables.move_to_end(shape)
        if table.stamp != self.cluster.stamp:
            stale = np.flatnonzero(self.cluster.node_stamp > table.stamp)
            for column, values in zip(table.columns, self.evaluate(shape, stale), strict=True):
                column[stale] = values
            table.stamp = self.cluster.stamp
        return table.columns

    def forget(self) -> None:
        """Drop everything that is kept."""
        self._tables.clear()
        self._bytes = 0

    def _add(self, shape: Shape) -> tuple[FloatArray, ...]:
        columns = self.evaluate(shape, np.arange(self.cluster.nodes_total))
        self._tables[shape] = _Table(self.cluster.stamp, columns)
        self._bytes += _size(columns)
        while self._bytes > self.bytes_max and len(self._tables) > 1:
            _, dropped = self._tables.popitem(last=False)
            self._bytes -= _size(dropped.columns)
        return columns


def _size(columns: tuple[FloatArray, ...]) -> int:
    return sum(column.nbytes for column in columns)
