"""What a free piece of a card is worth: prices from the cutting-stock linear program over the mix's slice sizes.

Cutting slices off a card is cutting stock: a card that ends up with 190 thousandths when no slice is that small is
wasted. The program's dual prices say what each size is worth when cards are cut as well as possible, and the value
of a free piece is the best that can still be cut from it (a knapsack). A cut that an optimal pattern makes then costs
nothing; one that leaves waste costs what it wastes.

Source: Gilmore and Gomory, "A linear programming approach to the cutting-stock problem", Operations Research 9 (1961),
column generation. The solver is SciPy's HiGHS; prices are made off the decision path, when a policy is built.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.optimize import linprog

from cardwise.core.arrays import FloatArray, IntArray
from cardwise.units import MILLI_PER_CARD

PERTURBATIONS = 24
PERTURBATION_SIGMA = 0.5
"""Dual prices jump when the mix shifts a little; a mean over perturbed mixes is smooth. Log-normal, fixed draws."""
ROUNDS_MAX = 200
REDUCED_COST_TOLERANCE = 1e-7


@functools.lru_cache(maxsize=64)
def piece_values(sizes_milli: tuple[int, ...], counts: tuple[float, ...]) -> FloatArray:
    """Value of a free piece of 0-1000 thousandths, float64 [1001], in cards: from 0 to 1, never falling.

    sizes_milli: distinct slice sizes in 1-999; counts: how often each is asked for, > 0. Without sizes a piece is
    worth its length. Kept for the mixes seen last: do not write into the result.
    Raises ValueError for sizes out of range.
    """
    if any(not 0 < size < MILLI_PER_CARD for size in sizes_milli):
        raise ValueError(f"slice sizes must be in 1-{MILLI_PER_CARD - 1} thousandths, got {sorted(sizes_milli)}")
    if not sizes_milli:
        return np.arange(MILLI_PER_CARD + 1) / MILLI_PER_CARD
    unit = math.gcd(MILLI_PER_CARD, *sizes_milli)  # percents make the knapsack ten times smaller
    sizes = np.array(sizes_milli, np.int64) // unit
    noise = np.random.default_rng(0).standard_normal((PERTURBATIONS, len(sizes)))
    demands = np.array(counts) * np.exp(PERTURBATION_SIGMA * noise)
    length = MILLI_PER_CARD // unit
    values = np.mean([_dual_values(sizes, length, demand) for demand in demands], axis=0)
    values = values[np.arange(MILLI_PER_CARD + 1) // unit]
    values.setflags(write=False)
    return np.asarray(values)


def _dual_values(sizes: IntArray, length: int, demand: FloatArray) -> FloatArray:
    """Knapsack values at the optimal dual prices for one demand, float64 [length + 1]."""
    patterns = np.diag(length // sizes).astype(np.float64)  # one column per pattern
    for _ in range(ROUNDS_MAX):
        solved = linprog(np.ones(patterns.shape[1]), A_ub=-patterns, b_ub=-demand, method="highs")
        values, last = _knapsack(sizes, length, -solved.ineqlin.marginals)
        if values[length] <= 1.0 + REDUCED_COST_TOLERANCE:
            return values
        patterns = np.column_stack([patterns, _pattern(sizes, length, last)])
    raise ArithmeticError(f"cutting-stock prices did not settle in {ROUNDS_MAX} rounds for sizes {sizes.tolist()}")


def _knapsack(sizes: IntArray, length: int, prices: FloatArray) -> tuple[FloatArray, IntArray]:
    """Best value of every length up to ``length`` from unlimited pieces, and the piece cut last, -1 for waste."""
    values, last = [0.0] * (length + 1), [-1] * (length + 1)
    pieces = [
        (int(size), float(price), i) for i, (size, price) in enumerate(zip(sizes, prices, strict=True)) if price > 0
    ]
    for at in range(1, length + 1):
        best, best_piece = values[at - 1], -1
        for size, price, i in pieces:
            if size <= at and values[at - size] + price > best + 1e-12:
                best, best_piece = values[at - size] + price, i
        values[at], last[at] = best, best_piece
    return np.array(values), np.array(last)


def _pattern(sizes: IntArray, length: int, last: IntArray) -> FloatArray:
    """How often each size is cut from a whole card by the knapsack's best solution."""
    pattern, at = np.zeros(len(sizes)), length
    while at > 0:
        piece = int(last[at])
        if piece < 0:
            at -= 1
        else:
            pattern[piece] += 1
            at -= int(sizes[piece])
    return pattern
