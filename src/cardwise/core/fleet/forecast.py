"""History → what is expected in the next hours, or why nothing is: a forecast has to earn its place first.

A series of equal steps is cut into *past* and *last day*. The model sees the past and is judged by the last day: only
if it was near enough there is it asked about the days to come, and its misses there are added to what it says, for
capacity has to cover more than the middle. Otherwise there is no forecast, with the reason, and never a guess.

The model itself is a library's and heavy; it is an argument (``adapters/seasonal.py`` runs it in a process of its own).
Refuses to look at a clock.
Source: SPEC J1. Judging by a held-out end: Hyndman and Athanasopoulos, "Forecasting: Principles and Practice", 3rd ed.,
5.8; the measure is WAPE, for MAPE divides by the zeros of a night.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cardwise.core.arrays import FloatArray

DAY_STEPS, WEEK_STEPS = 24, 168
"""Of an hour each."""
FEWEST_DAYS, FEWEST_WEEKS = 4, 3
"""So much history is needed to see a day's shape, or a week's."""
MOST_MISSING_SHARE, LONGEST_GAP_STEPS = 0.1, 12
MOST_ERROR_SHARE = 0.35
"""WAPE on the held-out day above which a forecast is none."""
MISS_QUANTILE = 0.9
ROUNDING_SHARE = 1e-6
"""Of what is usual: less than that is what a model's arithmetic leaves over of nothing."""

Model: TypeAlias = Callable[[FloatArray, int, int], FloatArray]
"""From a history without gaps, the steps of a season, and how many steps ahead: the values expected."""


class NoForecast(enum.Enum):
    """Why there is none. The value is a condition's reason."""

    SHORT = "HistoryTooShort"
    GAPS = "HistoryHasGaps"
    INEXACT = "ForecastTooInexact"
    FAILED = "ForecastFailed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no forecast, with the numbers."""

    why: NoForecast
    text: str


@dataclass(frozen=True, slots=True)
class Forecast:
    """expected: float64 [H], per hour ahead, the first is the hour after the history; never below 0.

    margin: what is added for its misses. error_share: WAPE on the held-out day. season_steps: a day's or a week's.
    """

    expected: FloatArray
    margin: float
    error_share: float
    season_steps: int

    def highest(self, from_step: float, to_step: float) -> float | None:
        """The most that may come within these hours ahead, margin included; None if they lie beyond it."""
        first, last = math.floor(max(from_step, 0)), math.ceil(to_step)
        if last > len(self.expected) or first >= last:
            return None
        return float(self.expected[first:last].max()) + self.margin


def season_of(steps: int) -> int | None:
    """Steps of the season that this much history shows: a week's, a day's, or none."""
    if steps >= FEWEST_WEEKS * WEEK_STEPS:
        return WEEK_STEPS
    return DAY_STEPS if steps >= FEWEST_DAYS * DAY_STEPS else None


def filled(history: FloatArray, season: int) -> FloatArray | Refusal:
    """Without its gaps: a missing hour is as the same one a season before, else between its neighbours.

    history: float64 [T], NaN where nothing was measured. A refusal if too much is missing, or too long in one piece.
    """
    missing = ~np.isfinite(history)
    share, longest = float(missing.mean()), _longest(missing)
    if share > MOST_MISSING_SHARE or longest > LONGEST_GAP_STEPS:
        return Refusal(NoForecast.GAPS, f"{share:.0%} of {len(history)} hours are missing, up to {longest} in a row")
    made = history.copy()
    for i in np.flatnonzero(missing):
        made[i] = made[i - season] if i >= season else math.nan
    still = ~np.isfinite(made)
    if still.any():
        made[still] = np.interp(np.flatnonzero(still), np.flatnonzero(~still), made[~still])
    return made


def _longest(missing: np.ndarray) -> int:
    """Length of the longest run of true."""
    edges = np.diff(np.concatenate(([0], missing.astype(np.int8), [0])))
    runs = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
    return int(runs.max(initial=0))


def forecast(history: FloatArray, steps_ahead: int, model: Model) -> Forecast | Refusal:
    """What is expected in the next hours.

    history: float64 [T] per hour, the newest last, NaN where nothing was measured; leading NaN is before it began.
    Raises nothing of the model's: what it raises as ValueError, or returns that is no number, is a refusal.
    """
    begun = np.flatnonzero(np.isfinite(history))
    history = history[begun[0] :] if len(begun) else history[:0]
    season = season_of(len(history))
    if season is None:
        text = f"{len(history)} hours of history; {FEWEST_DAYS * DAY_STEPS} show a day's shape"
        return Refusal(NoForecast.SHORT, text)
    whole = filled(history, season)
    if isinstance(whole, Refusal):
        return whole
    try:
        error_share, margin = _judged(whole, season, model)
        if error_share > MOST_ERROR_SHARE:
            off = f"{error_share:.0%}" if error_share < math.inf else "all that it expected"
            text = f"on the last day it was off by {off}, more than {MOST_ERROR_SHARE:.0%}"
            return Refusal(NoForecast.INEXACT, text)
        expected = _asked(model, whole, season, steps_ahead)
    except ValueError as exc:
        return Refusal(NoForecast.FAILED, str(exc))
    return Forecast(expected, margin, error_share, season)


def _judged(whole: FloatArray, season: int, model: Model) -> tuple[float, float]:
    """WAPE on the last day, and how much more than expected came there, at its 90th percentile."""
    past, day = whole[:-DAY_STEPS], whole[-DAY_STEPS:]
    expected = _asked(model, past, season, DAY_STEPS)
    with np.errstate(over="ignore", invalid="ignore"):  # sums of huge numbers are no numbers: told below
        total, missed = float(np.abs(day).sum()), float(np.abs(day - expected).sum())
        margin = max(float(np.quantile(day - expected, MISS_QUANTILE)), 0.0)
    if not math.isfinite(total + missed + margin):
        raise ValueError("its numbers are too large to be compared")
    rounding = ROUNDING_SHARE * float(np.abs(past).mean()) * DAY_STEPS
    if total <= rounding:  # a day without any load proves only a model that expected none
        return (0.0 if missed <= rounding else math.inf), margin
    return missed / total, margin


def _asked(model: Model, past: FloatArray, season: int, steps: int) -> FloatArray:
    expected = np.asarray(model(past, season, steps), dtype=np.float64)
    if expected.shape != (steps,) or not np.isfinite(expected).all():
        raise ValueError(f"the model gave no {steps} numbers")
    return np.maximum(expected, 0.0)
