"""Services whose peaks do not coincide: together they need less than each for itself, and by how much is shown.

Put on the same cards, two services need the peak of their sum; apart, the sum of their peaks. The share that this
saves is the *saving*. One history is one draw of many: whole days are drawn anew with replacement, for hours of a day
hang together, and the interval of the saving over those draws says how far it can be trusted. Services are put
together by the lower end.

Correlation is shown beside it and decides nothing: two services can be uncorrelated and peak together once a day.
Refuses to look at a clock, and to invent: hours in which one of the two was not measured count for neither.
Source: SPEC J1; the block bootstrap: Kuensch, "The Jackknife and the Bootstrap for General Stationary Observations",
Annals of Statistics 17 (1989).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from cardwise.core.arrays import FloatArray

PEAK_QUANTILE = 0.99
"""A peak is what is exceeded in one hundredth of the time: a single spike is not what capacity is bought for."""
DRAWS = 400
LOW, HIGH = 0.05, 0.95
FEWEST_DAYS = 3


@dataclass(frozen=True, slots=True)
class Profiles:
    """Load over time. names: [S]; values: float64 [S, T] in steps of one length, NaN where nothing was measured.

    day_steps: steps of a day. In one unit for all, such as cards: else a sum means nothing.
    """

    names: tuple[str, ...]
    values: FloatArray
    day_steps: int

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or len(self.names) != self.values.shape[0]:
            raise ValueError(f"{len(self.names)} names, values of shape {self.values.shape}")
        if self.day_steps < 1:
            raise ValueError(f"day_steps {self.day_steps} must be at least 1")


@dataclass(frozen=True, slots=True)
class Together:
    """Services put together. saving_share: 1 - peak_of_sum / sum_of_peaks; low_share, high_share: its 90 % interval.

    correlation: the highest of any two of them; NaN where one of them never changes. days: that all were measured in.
    """

    names: tuple[str, ...]
    correlation: float
    peak_of_sum: float
    sum_of_peaks: float
    saving_share: float
    low_share: float
    high_share: float
    days: int


def pairs(profiles: Profiles, seed: int = 0) -> list[Together]:
    """All pairs that were measured together for some days, the surest saving first."""
    found = [_together(profiles, pair, seed) for pair in combinations(range(len(profiles.names)), 2)]
    return sorted((each for each in found if each is not None), key=lambda each: (-each.low_share, each.names))


def groups(profiles: Profiles, least_share: float, most: int, seed: int = 0) -> list[Together]:
    """Services put together, each in one group at most, largest sure saving first.

    Begins with the pair of the surest saving, then takes in whoever raises the group's saving for sure the most, until
    nobody does or ``most`` are in it. least_share: what a group must save for sure.
    """
    left = set(range(len(profiles.names)))
    made: list[Together] = []
    while True:
        grown = _grown(profiles, left, most, seed)
        if grown is None or grown[1].low_share < least_share:
            return made
        members, told = grown
        made.append(told)
        left -= set(members)


def _grown(profiles: Profiles, left: set[int], most: int, seed: int) -> tuple[tuple[int, ...], Together] | None:
    best: tuple[tuple[int, ...], Together] | None = None
    candidates: list[tuple[int, ...]] = list(combinations(sorted(left), 2))
    while candidates:
        found = [(each, told) for each in candidates if (told := _together(profiles, each, seed)) is not None]
        top = max(found, key=lambda each: (each[1].low_share, each[1].names), default=None)
        if top is None or (best is not None and top[1].low_share <= best[1].low_share):
            return best
        best = top
        candidates = [tuple(sorted((*top[0], each))) for each in left - set(top[0])] if len(top[0]) < most else []
    return best


def _together(profiles: Profiles, members: Sequence[int], seed: int) -> Together | None:
    """None if they were not measured together for long enough, or none of them does anything."""
    days = _whole_days(profiles.values[list(members)], profiles.day_steps)
    if days.shape[1] < FEWEST_DAYS:
        return None
    peak_of_sum, sum_of_peaks = _peaks(days[:, None])
    if not sum_of_peaks[0]:
        return None
    drawn = np.random.default_rng(seed).integers(days.shape[1], size=(DRAWS, days.shape[1]))
    sums, peaks = _peaks(days[:, drawn])
    savings = 1 - np.divide(sums, peaks, out=np.ones_like(sums), where=peaks > 0)
    low, high = np.quantile(savings, [LOW, HIGH])
    saving = 1 - float(peak_of_sum[0] / sum_of_peaks[0])
    flat = days.reshape(len(members), -1)
    names = tuple(profiles.names[i] for i in members)
    peak, peaks_apart = float(peak_of_sum[0]), float(sum_of_peaks[0])
    return Together(
        names,
        _correlation(flat),
        peak,
        peaks_apart,
        saving,
        min(float(low), saving),
        max(float(high), saving),
        days.shape[1],
    )


def _whole_days(values: FloatArray, day_steps: int) -> FloatArray:
    """[S, D, steps of a day] of the days in which all were measured throughout."""
    total = values.shape[1] // day_steps
    days = values[:, : total * day_steps].reshape(len(values), total, day_steps)
    return days[:, np.isfinite(days).all(axis=(0, 2))]


def _peaks(drawn: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Peak of the sum, and sum of the peaks, per draw. drawn: [S, draws, D, steps]."""
    members, draws = drawn.shape[:2]
    flat = drawn.reshape(members, draws, -1)
    return (
        np.quantile(flat.sum(axis=0), PEAK_QUANTILE, axis=-1),
        np.quantile(flat, PEAK_QUANTILE, axis=-1).sum(axis=0),
    )


def _correlation(flat: FloatArray) -> float:
    """The highest of any two."""
    moving = flat.std(axis=1) > 0
    if moving.sum() < len(flat):
        return math.nan
    matrix = np.atleast_2d(np.corrcoef(flat))
    return float(matrix[np.triu_indices(len(flat), 1)].max())
