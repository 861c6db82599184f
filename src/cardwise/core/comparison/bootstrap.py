"""How sure a change is: intervals from redrawing parts of the time, for any figure that is made of sums.

What is near in time is alike: requests share a queue, and minutes a load. To draw single requests would take one bad
second for a thousand witnesses, so whole parts are drawn (block bootstrap; Künsch 1989). Few parts make percentile
intervals too short; they are widened as Student's t is (Hesterberg 2015, "What Teachers Should Know About the
Bootstrap": expanded percentile interval). Where parts are like their neighbours there are in truth fewer of them; the
interval is widened by that too.

Before and after are told apart by nothing here: exchange them and the interval is the mirror image. Refuses to tell
more than two measurements can: what differs between them by itself, such as neighbours on the machine, or a drift as
slow as a window is long, no interval from within can know.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from cardwise.core.arrays import FloatArray, IntArray

RESAMPLES = 4000
FEWEST_BLOCKS = 8
MOST_ALIKE = 0.97
"""A correlation of neighbours that few parts cannot tell from a straight line."""
FEWEST_BEYOND = 10
"""Draws beyond an end of the interval: fewer, and the end is where the last of them happens to lie."""
FEWEST_WORTH = 2.1
"""Independent parts that any number of parts is worth: with two there is no spread of a mean to be known."""

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
    """Between which changes of ``statistic`` the true one lies, with a probability of ``level``; :func:`intervals`."""
    return intervals(before, after, statistic, scale=scale, levels=[level], seed=seed)[0]


def intervals(
    before: FloatArray | IntArray,
    after: FloatArray | IntArray,
    statistic: Statistic,
    *,
    scale: Scale,
    levels: Sequence[float],
    seed: int,
) -> list[Interval]:
    """Between which changes of ``statistic`` the true one lies, with each of these probabilities.

    before, after: [blocks, K], sums per part of the time; blocks without anything must be left out. The same seed gives
    the same interval, and the mirrored one for exchanged arguments: each side is drawn twice, once for each stream of
    random numbers, and both pairings count. Unbounded if nothing can be drawn.
    Raises ValueError with fewer than two blocks on a side.
    """
    if min(len(before), len(after)) < 2:
        raise ValueError(f"{len(before)} and {len(after)} parts: two on each side are the least")
    drawn_before, drawn_after = (
        [statistic(_draws(len(side), seed, stream) @ side) for stream in (0, 1)] for side in (before, after)
    )
    changes = np.concatenate(
        [changed(drawn_before[0], drawn_after[1], scale), changed(drawn_before[1], drawn_after[0], scale)]
    )
    changes = changes[np.isfinite(changes)]
    if not changes.size:
        return [Interval(-math.inf, math.inf)] * len(levels)
    parts, alike = min(len(before), len(after)), alikeness(before, after, statistic, scale)
    return [_at(changes, parts, alike, (1 - level) / 2) for level in levels]


def _at(changes: FloatArray, parts: int, alike: float, tail: float) -> Interval:
    """The interval beyond each of whose ends lies ``tail``. changes: as drawn."""
    drawn, farther = _tail(tail, parts, changes.size)
    low, middle, high = np.quantile(changes, [drawn, 0.5, 1 - drawn])
    wider = farther * _widening(parts, alike, tail)
    return Interval(float(middle - wider * (middle - low)), float(middle + wider * (high - middle)))


def changed(before: FloatArray, after: FloatArray, scale: Scale) -> FloatArray:
    """The change on its scale; nan or infinite where there is none. Arrays of one shape."""
    if scale is Scale.DIFFERENCE:
        return after - before
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(after) - np.log(before)


def alikeness(before: FloatArray | IntArray, after: FloatArray | IntArray, statistic: Statistic, scale: Scale) -> float:
    """How many parts are worth one independent one, at least 1.

    By the correlation of neighbours, r: (1 + r) / (1 − r), as of a first-order autoregression; and, as noise of single
    parts hides a slow drift, by the same of two and of four parts in one, where there are eight of these or more. The
    most of them counts. Sources: Bayley and Hammersley 1946; batch means, Law, "Simulation Modeling and Analysis",
    chapter 9; the bias of r in short series, −(1 + 4r)/n, Marriott and Pope 1954.
    """
    sides = [_values(each, statistic, scale) for each in (before, after)]
    spread = sum(float(each.var(ddof=1)) for each in sides if len(each) > 1)
    found = 1.0
    for width in (1, 2, 4):
        means = [each[len(each) % width :].reshape(-1, width).mean(axis=1) for each in sides]
        if min(map(len, means)) < FEWEST_BLOCKS or not spread > 0:
            break
        r = min(max(float(np.mean([_correlation(each) for each in means])), 0.0), MOST_ALIKE)
        over_independent = width * sum(float(each.var(ddof=1)) for each in means) / spread
        found = max(found, over_independent * (1 + r) / (1 - r))
    return found


def _values(blocks: FloatArray | IntArray, statistic: Statistic, scale: Scale) -> FloatArray:
    """Of each part by itself, on the scale."""
    values = statistic(np.asarray(blocks, np.float64))
    values = values[np.isfinite(values)]
    return np.log(values[values > 0]) if scale is Scale.RATIO else values


def _correlation(values: FloatArray) -> float:
    """With the next, in [-1, 1] or, corrected for its bias, somewhat above."""
    apart, count = values - values.mean(), len(values)
    spread = float(apart @ apart)
    return (count * float(apart[1:] @ apart[:-1]) / spread + 1) / (count - 4) if spread > 0 else 0.0


def _widening(parts: int, alike: float, tail: float) -> float:
    """Of an interval that took all parts for independent.

    The spread of a mean of parts of which ``alike`` are worth one, and Student's t for as many degrees of freedom as
    the spread of such parts is known with: parts · (1 − r²) / (1 + r²), by r from ``alike``. Source: Bayley and
    Hammersley 1946, "The effective number of independent observations in an autocorrelated time series".
    """
    worth = max(parts / alike, FEWEST_WORTH)
    freedom = max(parts * 2 * alike / (alike**2 + 1), FEWEST_WORTH) - 1
    t_worth, t_parts = (float(stats.t.ppf(tail, each)) for each in (freedom, parts - 1))
    return math.sqrt(parts / worth) * t_worth / t_parts


def events_p_value(before: int, after: int, before_s: float, after_s: float) -> float:
    """How probable so uneven counts are if nothing changed. two-sided, in [0, 1].

    Source: Przyborowski and Wilenski 1940: given their sum, one of two Poisson counts is binomial.
    """
    if not before + after:
        return 1.0
    return float(stats.binomtest(after, before + after, after_s / (before_s + after_s)).pvalue)


@functools.lru_cache(maxsize=16)
def _draws(count: int, seed: int, stream: int) -> FloatArray:
    """How often each of so many parts is drawn, float64 [RESAMPLES / 2, count].

    Kept, for it takes ten times as long as all else, and a report of a thousand services has thousands of figures.
    """
    rng = np.random.default_rng([seed, stream])
    drawn = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES // 2).astype(np.float64)
    drawn.flags.writeable = False
    return drawn


def _tail(tail: float, blocks: int, draws: int) -> tuple[float, float]:
    """The quantile at which an interval of that many parts has to end, and how much farther its end lies than that.

    The quantile: Hesterberg 2015, above. Where many figures are judged together it lies beyond all draws; then the last
    quantile that they tell is taken, and the rest of the way as in a normal distribution.
    """
    away = math.sqrt(blocks / (blocks - 1)) * float(stats.t.ppf(tail, blocks - 1))
    told = float(stats.norm.ppf(min(FEWEST_BEYOND / draws, 0.25)))
    if away >= told:
        return float(stats.norm.cdf(away)), 1.0
    return float(stats.norm.cdf(told)), away / told
