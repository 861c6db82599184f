"""The saturation bound: how much of a cluster any policy could allocate if it placed the trace's mix in proportion.

A linear program over node classes: every shape of the mix is placed to the same degree α, each class has the CPU, host
memory and cards of its nodes together, and cards are cut by patterns (column generation, as in cutting stock). It is an
upper bound for proportional placement: fractions of pods are allowed and nodes of a class are one big node. A run in
which large pods are refused more often than small ones is not proportional and may end a little above it. Shapes that
no node of the cluster could ever run are left out.

Run: ``python -m benchmarks.bound NODES.csv PODS.csv [PODS.csv ...]``
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from cardwise.adapters.openb import read_openb
from cardwise.core.history import History
from cardwise.core.request import Shape
from cardwise.units import MILLI_PER_CARD

NodeClass = tuple[int, int, int, str]
"""CPU milli, host memory MiB, cards, card model."""
TOLERANCE = 1e-7


@dataclass(slots=True)
class _Program:
    """max α. Columns: α, then x[shape, class], then y[class, pattern]; rows by name."""

    rows: dict[object, int] = field(default_factory=dict)
    limits: list[float] = field(default_factory=list)
    entries: list[tuple[int, int, float]] = field(default_factory=list)
    columns: int = 1

    def row(self, key: object, limit: float = 0.0) -> int:
        if key not in self.rows:
            self.rows[key] = len(self.rows)
            self.limits.append(limit)
        return self.rows[key]

    def column(self, entries: dict[int, float]) -> None:
        self.entries += [(row, self.columns, value) for row, value in entries.items()]
        self.columns += 1

    def solve(self) -> tuple[float, NDArray[np.float64]]:
        """α and the dual price of every row, >= 0."""
        rows, columns, values = zip(*self.entries, strict=True)
        where = (np.array(rows), np.array(columns))
        matrix = coo_matrix((np.array(values), where), shape=(len(self.rows), self.columns)).tocsr()
        goal = np.zeros(self.columns)
        goal[0] = -1.0
        solved = linprog(goal, A_ub=matrix, b_ub=self.limits, method="highs")  # type: ignore[call-overload]  # the stubs lack sparse matrices
        return float(solved.x[0]), -solved.ineqlin.marginals


def saturation_bound(history: History) -> float:
    """Allocated share of the cluster's GPU at the largest α, at most 1. The history must ask in thousandths."""
    classes = Counter(
        (node.cpu_milli, node.memory_mib, len(node.cards), node.cards[0].model if node.cards else "")
        for node in history.nodes
    )
    shapes = Counter(pod.request.shape for pod in history.pods)
    counts = Counter({shape: n for shape, n in shapes.items() if any(_may_run(shape, each) for each in classes)})
    sizes = sorted({shape.compute_milli for shape in counts if shape.is_slice})
    program = _stated(counts, classes, sizes)
    while True:
        alpha, prices = program.solve()
        if not _cut_better(program, classes, sizes, prices):
            break
    cards = sum(nodes * node_class[2] for node_class, nodes in classes.items())
    asked = sum(shape.cards * _milli(shape) * count for shape, count in counts.items()) / MILLI_PER_CARD
    return min(alpha * asked / cards, 1.0)


def _stated(counts: Counter[Shape], classes: Counter[NodeClass], sizes: list[int]) -> _Program:
    program = _Program()
    for (cpu, memory, cards, model), nodes in classes.items():
        node_class = (cpu, memory, cards, model)
        program.row(("cpu", node_class), float(nodes * cpu))
        program.row(("memory", node_class), float(nodes * memory))
        program.row(("cards", node_class), float(nodes * cards))
        for size in sizes:
            program.row(("size", node_class, size))
    for shape, count in counts.items():
        placed = program.row(("placed", shape))
        program.entries.append((placed, 0, float(count)))  # α · count − Σ x <= 0
        for node_class in classes:
            if _may_run(shape, node_class):
                program.column({placed: -1.0, **_uses(program, shape, node_class)})
    for node_class in classes:
        for size in sizes:
            _add_pattern(program, node_class, {size: MILLI_PER_CARD // size})
    return program


def _may_run(shape: Shape, node_class: NodeClass) -> bool:
    cpu, memory, cards, model = node_class
    fits = shape.cpu_milli <= cpu and shape.host_memory_mib <= memory and shape.cards <= cards
    return fits and (not shape.models or model in shape.models or not shape.cards)


def _uses(program: _Program, shape: Shape, node_class: NodeClass) -> dict[int, float]:
    used = {
        program.row(("cpu", node_class)): float(shape.cpu_milli),
        program.row(("memory", node_class)): float(shape.host_memory_mib),
    }
    if shape.is_slice:
        used[program.row(("size", node_class, shape.compute_milli))] = float(shape.cards)
    elif shape.cards:
        used[program.row(("cards", node_class))] = float(shape.cards)
    return used


def _add_pattern(program: _Program, node_class: NodeClass, pattern: dict[int, int]) -> None:
    cut = {program.row(("size", node_class, size)): -float(times) for size, times in pattern.items()}
    program.column({program.row(("cards", node_class)): 1.0, **cut})


def _cut_better(program: _Program, classes: Counter[NodeClass], sizes: list[int], prices: NDArray[np.float64]) -> bool:
    """Add, for every class, the most valuable way to cut a card if it is worth more than the card; False if none is."""
    found = False
    for node_class in classes:
        worth = {size: prices[program.row(("size", node_class, size))] for size in sizes}
        value, pattern = _knapsack(worth)
        if value > prices[program.row(("cards", node_class))] + TOLERANCE and pattern:
            _add_pattern(program, node_class, pattern)
            found = True
    return found


def _knapsack(worth: dict[int, float]) -> tuple[float, dict[int, int]]:
    best: list[tuple[float, int]] = [(0.0, 0)] * (MILLI_PER_CARD + 1)
    for length in range(1, MILLI_PER_CARD + 1):
        best[length] = (best[length - 1][0], 0)
        for size, price in worth.items():
            if size <= length and best[length - size][0] + price > best[length][0] + 1e-12:
                best[length] = (best[length - size][0] + price, size)
    pattern, length = Counter[int](), MILLI_PER_CARD
    while length > 0:
        size = best[length][1]
        if size:
            pattern[size] += 1
        length -= size or 1
    return best[MILLI_PER_CARD][0], dict(pattern)


def _milli(shape: Shape) -> int:
    return MILLI_PER_CARD if shape.whole else shape.compute_milli


def main() -> None:
    """Print the bound of each pod file."""
    nodes, *pods = (Path(argument) for argument in sys.argv[1:])
    for path in pods:
        print(f"{path.stem}\t{100 * saturation_bound(read_openb(nodes, path)):.2f} %", flush=True)


if __name__ == "__main__":
    main()
