"""How sure a change is: intervals from redrawing parts of the time, for any figure that is made of sums.

What is near in time is alike: requests share a queue, and minutes a load. To draw single requests would take one bad
second for a thousand witnesses, so whole parts are drawn (block bootstrap; Künsch 1989). Where parts beside each other
are still alike, they are joined first. Few parts make percentile intervals too short; they are widened as Student's t is
(Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 5.3, expanded percentile interval).

Before and after are told apart by nothing here: exchange them and the interval is the mirror image. Refuses to tell more
than two measurements can: what differs between them by itself, such as neighbours on the machine, no interval from
within can know.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from cardwise.core.arrays import FloatArray, IntArray

RESAMPLES = 4000
FEWEST_BLOCKS = 8
ALIKE = 0.3
"""Correlation of a part with the next, above which two are joined. Of 32 independent parts one in twenty exceeds it."""

Statistic = Callable[[FloatArray], FloatArray]
"""From sums, float64 [rows, K], to a figure per row, float64 [rows]; nan where there is none."""


class Scale(enum.Enum):
    """How two figures are set against each other."""

    RATIO = "ratio"
    """after / before: for what is above zero. Kept as its logarithm, in which a half and a double are equally far."""
    DIFFERENCE = "difference"
    """after − before: for shares, which may be zero."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Of a change, on its scale: the logarithm of the ratio, or the difference."""

    low: float
    high: float


def interval(
    before: FloatArray | IntArray,
    after: FloatArray | IntArray,
    statistic: Statistic,
    *,
    scale: Scale,
    level: float,
    seed: int,
) -> Interval:
    """Between which changes of ``statistic`` the true one lies, with a probability of ``level``.

    before, after: [blocks, K], sums per part of the time; blocks without anything must be left out. The same seed gives
    the same interval, and the mirrored one for exchanged arguments: each side is drawn twice, once for each stream of
    random numbers, and both pairings count.
    Raises ValueError with fewer than two blocks on a side.
    """
    if min(len(before), len(after)) < 2:
        raise ValueError(f"{len(before)} and {len(after)} parts: two on each side are the least")
    one, other = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    drawn_before = _redrawn(before, statistic, one), _redrawn(before, statistic, other)
    one, other = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    drawn_after = _redrawn(after, statistic, one), _redrawn(after, statistic, other)
    changes = np.concatenate(
        [changed(drawn_before[0], drawn_after[1], scale), changed(drawn_before[1], drawn_after[0], scale)]
    )
    changes = changes[np.isfinite(changes)]
    if not changes.size:
        return Interval(-math.inf, math.inf)
    tail = _expanded_tail((1 - level) / 2, min(len(before), len(after)))
    low, high = np.quantile(changes, [tail, 1 - tail])
    return Interval(float(low), float(high))


def changed(before: FloatArray, after: FloatArray, scale: Scale) -> FloatArray:
    """The change on its scale; nan or infinite where there is none. Arrays of one shape."""
    if scale is Scale.DIFFERENCE:
        return after - before
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(after) - np.log(before)


def joined(blocks: FloatArray, statistic: Statistic) -> FloatArray:
    """Parts that are unlike their neighbours: [blocks, K] as they are, or two, four, ... of them in one.

    Not below ``FEWEST_BLOCKS``: whether what is left is still alike, :func:`are_alike` says.
    """
    while are_alike(blocks, statistic) and len(blocks) // 2 >= FEWEST_BLOCKS:
        even = len(blocks) // 2 * 2
        blocks = blocks[len(blocks) - even :].reshape(even // 2, 2, -1).sum(axis=1)
    return blocks


def are_alike(blocks: FloatArray, statistic: Statistic) -> bool:
    """Whether parts tell of their neighbours, so that intervals from them are too short."""
    values = statistic(blocks)
    known = values[np.isfinite(values)]
    if len(known) < 4:
        return False
    apart = known - known.mean()
    spread = float(apart @ apart)
    return spread > 0 and float(apart[1:] @ apart[:-1]) / spread > ALIKE


def events_p_value(before: int, after: int, before_s: float, after_s: float) -> float:
    """How probable so uneven counts are if nothing changed. two-sided, in [0, 1].

    Source: Przyborowski and Wilenski 1940: given their sum, one of two Poisson counts is binomial.
    """
    if not before + after:
        return 1.0
    return float(stats.binomtest(after, before + after, after_s / (before_s + after_s)).pvalue)


def _redrawn(blocks: FloatArray | IntArray, statistic: Statistic, rng: np.random.Generator) -> FloatArray:
    count = len(blocks)
    return statistic(rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES // 2) @ blocks)


def _expanded_tail(tail: float, blocks: int) -> float:
    """The quantile at which an interval of that many parts has to end. Source: Hesterberg 2015, above."""
    t = stats.t.ppf(tail, blocks - 1)
    return float(stats.norm.cdf(math.sqrt(blocks / (blocks - 1)) * t))
