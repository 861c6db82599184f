"""Array types of the core. Axes are letters everywhere: N nodes, C card places on a node, R chosen rows of N.

Nodes have different numbers of cards, so card state is kept in rectangles [N, C] where C is the largest number of
cards on any node and the places beyond a node's own cards do not exist (``Cluster.card_exists`` is False there).
A rectangle makes "per node, over its cards" one numpy call along the last axis.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
Rows: TypeAlias = "NDArray[np.intp] | slice"
"""Which nodes a function looks at: indices, or ``ALL`` for every node without a copy."""

ALL = slice(None)
