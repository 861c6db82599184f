"""Latencies as a histogram of logarithmic buckets: any number of them in a few kilobytes, and two add up to one.

Our own and not the hdrhistogram package: that one takes integers one by one in Python, which costs the generator more
than sending the request does, and its text form can only be read by itself. Here values are collected in a list and
sorted into buckets thousands at a time; the stored form is two lists of integers.

Refuses to interpolate: a quantile is the middle of the bucket that holds it, within half a percent of the true value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from cardwise.core.arrays import FloatArray, IntArray

GROWTH = 1.01
"""Upper over lower bound of a bucket: a quantile is off by half a percent at most."""
LEAST_S = 1e-6
"""Lower bound of the first bucket; what is shorter counts as this."""
BUCKETS = 2400
"""From a microsecond to 1.01^2400 of it: six hours. What is longer counts as that."""
_FLUSH_AT = 4096


class Stored(msgspec.Struct, frozen=True):
    """A histogram in a file: bucket ``i`` holds values in [1 µs × 1.01^i, 1 µs × 1.01^(i+1))."""

    buckets: list[int]
    counts: list[int]
    sum_s: float
    least_s: float
    most_s: float


class Quantiles(msgspec.Struct, frozen=True):
    """What a histogram says, in milliseconds. Of nothing there are none: ``None`` stands in its place."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class Histogram:
    """Durations in seconds. Adding is a list's append until thousands are there."""

    __slots__ = ("_counts", "_least_s", "_most_s", "_sum_s", "_waiting", "add")

    def __init__(self) -> None:
        self._counts: IntArray = np.zeros(BUCKETS, np.int64)
        self._sum_s, self._least_s, self._most_s = 0.0, math.inf, 0.0
        self._waiting: list[float] = []
        self.add = self._waiting.append

    def fold(self, *, always: bool = True) -> None:
        """Sort what was added into buckets; unless ``always``, only if there is much of it."""
        if not self._waiting or (len(self._waiting) < _FLUSH_AT and not always):
            return
        values = np.array(self._waiting)
        self._waiting.clear()
        self._counts += np.bincount(_bucket_of(values), minlength=BUCKETS)
        self._sum_s += float(values.sum())
        self._least_s = min(self._least_s, float(values.min()))
        self._most_s = max(self._most_s, float(values.max()))

    def merge(self, other: Histogram) -> None:
        """Add what the other holds."""
        other.fold()
        self.fold()
        self._counts += other._counts
        self._sum_s += other._sum_s
        self._least_s = min(self._least_s, other._least_s)
        self._most_s = max(self._most_s, other._most_s)

    @property
    def counts(self) -> IntArray:
        """Values per bucket, int64 [BUCKETS]."""
        self.fold()
        return self._counts

    @property
    def count(self) -> int:
        """Values in all."""
        return int(self.counts.sum())

    def quantile_s(self, q: float) -> float:
        """The value that a share ``q`` of all do not exceed; nan of nothing."""
        if not self.count:
            return math.nan
        middle = float(quantiles_of(self._counts[np.newaxis], q)[0])
        return min(max(middle, self._least_s), self._most_s)

    def quantiles(self) -> Quantiles | None:
        """The usual ones; None of nothing."""
        count = self.count
        if not count:
            return None
        p50, p90, p99, p999 = (1000 * self.quantile_s(q) for q in (0.5, 0.9, 0.99, 0.999))
        return Quantiles(count, 1000 * self._sum_s / count, p50, p90, p99, p999, 1000 * self._most_s)

    def stored(self) -> Stored:
        """For a file."""
        counts = self.counts
        filled = np.flatnonzero(counts)
        least_s = self._least_s if filled.size else 0.0
        return Stored(filled.tolist(), counts[filled].tolist(), self._sum_s, least_s, self._most_s)


def restored(stored: Stored) -> Histogram:
    """From a file. Raises ValueError if it is no histogram of ours."""
    if len(stored.buckets) != len(stored.counts):
        raise ValueError("a histogram has as many buckets as counts")
    if any(not 0 <= i < BUCKETS for i in stored.buckets) or any(count < 0 for count in stored.counts):
        raise ValueError(f"a histogram's buckets are 0 to {BUCKETS - 1}, its counts not negative")
    made = Histogram()
    np.add.at(made._counts, np.array(stored.buckets, np.int64), np.array(stored.counts, np.int64))
    if stored.buckets:
        made._sum_s, made._least_s, made._most_s = stored.sum_s, stored.least_s, stored.most_s
    return made


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """All in one."""
    whole = Histogram()
    for each in histograms:
        whole.merge(each)
    return whole


def quantiles_of(counts: IntArray, q: float, first: int = 0) -> FloatArray:
    """The middle, in seconds, of the bucket in which a share ``q`` of each row is reached: float64 [rows].

    counts: int64 [rows, buckets from ``first`` on]; nan for rows without any. Nearest rank: the ceil(q·n)-th smallest.
    """
    cumulated = counts.cumsum(axis=1)
    totals = cumulated[:, -1]
    ranks = np.maximum(np.ceil(q * totals - 1e-9), 1)
    at = (cumulated < ranks[:, np.newaxis]).sum(axis=1)
    middles = LEAST_S * GROWTH ** (first + np.minimum(at, counts.shape[1] - 1) + 0.5)
    return np.where(totals > 0, middles, np.nan)


def _bucket_of(values: FloatArray) -> IntArray:
    steps = np.floor(np.log(np.maximum(values, LEAST_S) / LEAST_S) / math.log(GROWTH) + 1e-9)
    return np.clip(steps, 0, BUCKETS - 1).astype(np.int64)


def histogram_of(values: Sequence[float]) -> Histogram:
    """Of values in seconds."""
    made = Histogram()
    for value in values:
        made.add(value)
    return made
