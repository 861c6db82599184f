"""Series on one grid of times, and when latency was bad: a cause is what changed at those times. Pure.

Refuses to call a service slow that is not: without a target, slow is twice its own usual P99.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cardwise.core.arrays import BoolArray, FloatArray

SPIKE_FACTOR = 2.0
"""A P99 that so many times its usual one counts as a spike, where no target says what is too much."""
LEAST_SPIKE_STEPS = 2
"""One step alone may be a scrape that came late."""
LEAST_SPIKE_S = 0.01
"""Below it a doubling is noise."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series. values: float64 [T], NaN where nothing was known."""

    labels: Mapping[str, str]
    values: FloatArray

    @property
    def last(self) -> float:
        """The last value that is known; NaN if none is."""
        return last(self.values)

    @property
    def pod(self) -> str:
        """The pod that it is of, as "namespace/name"."""
        return f"{self.labels.get('namespace', '')}/{self.labels.get('pod', '')}"


@dataclass(frozen=True)
class Metrics:
    """All answers. lines: by the name of a query (``queries.py``)."""

    lines: Mapping[str, tuple[Line, ...]] = field(default_factory=dict)
    _by_label: dict[tuple[str, str], dict[str, list[Line]]] = field(
        default_factory=dict, compare=False, repr=False, init=False
    )

    def of(self, query: str, **labels: str) -> tuple[Line, ...]:
        """The series of a query that have these labels."""
        near = min((self._near(query, *each) for each in labels.items()), key=len, default=self.lines.get(query, ()))
        return tuple(line for line in near if labels.items() <= line.labels.items())

    def _near(self, query: str, label: str, value: str) -> Sequence[Line]:
        """The series of a query with one label: a thousand services each look for theirs among all slices."""
        key = (query, label)
        if key not in self._by_label:
            found = self._by_label[key] = {}
            for line in self.lines.get(query, ()):
                found.setdefault(line.labels.get(label, ""), []).append(line)
        return self._by_label[key].get(value, ())

    def values(self, query: str, **labels: str) -> FloatArray | None:
        """Their sum over time, float64 [T]; None if there are none. What is unknown of one is unknown of the sum."""
        found = self.of(query, **labels)
        return np.sum([line.values for line in found], axis=0) if found else None

    def last(self, query: str, **labels: str) -> float | None:
        """The latest number of their sum, or None."""
        values = self.values(query, **labels)
        found = np.nan if values is None else last(values)
        return found if np.isfinite(found) else None


def labels_of(pod: str) -> dict[str, str]:
    """How series name a pod. pod: "namespace/name"."""
    namespace, name = pod.split("/", 1)
    return {"namespace": namespace, "pod": name}


def last(values: FloatArray) -> float:
    """The last value that is known; NaN if none is."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")


def mean(values: FloatArray, where: BoolArray | None = None) -> float:
    """Mean of what is known (there); NaN if nothing is."""
    picked = values if where is None else values[where]
    known = picked[np.isfinite(picked)]
    return float(known.mean()) if len(known) else float("nan")


def mean_of(lines: Iterable[FloatArray]) -> FloatArray | None:
    """Mean over series, float64 [T]; None of none. A series that is unknown at a time does not count there."""
    stacked = list(lines)
    if not stacked:
        return None
    rows = np.array(stacked)
    known = np.isfinite(rows)
    counts = known.sum(axis=0)
    return np.where(counts > 0, np.where(known, rows, 0).sum(axis=0) / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True, slots=True)
class Spikes:
    """When a service was slow. slow, calm: bool [T], disjoint. usual_s: its P99 in between; worst_s: its worst."""

    slow: BoolArray
    calm: BoolArray
    usual_s: float
    worst_s: float

    def both(self, values: FloatArray) -> tuple[float, float]:
        """Mean while slow, and while calm; the second NaN for a service that is always slow."""
        return mean(values, self.slow), mean(values, self.calm)

    def told(self, values: FloatArray | None, what: str) -> str:
        """The same in words; empty where nothing is known of the times at which it was slow."""
        then, usual = (np.nan, np.nan) if values is None else self.both(values)
        if not np.isfinite(then):
            return ""
        return f"{then:.1f} {what} then" + (f", {usual:.1f} otherwise" if np.isfinite(usual) else "")


def spikes(p99_s: FloatArray | None, target_s: float | None) -> Spikes | None:
    """When latency was too high; None if it never was, or is not known. p99_s: float64 [T]."""
    if p99_s is None or not np.isfinite(p99_s).any():
        return None
    known = np.isfinite(p99_s)
    usual = float(np.median(p99_s[known]))
    most = target_s if target_s is not None else max(SPIKE_FACTOR * usual, LEAST_SPIKE_S)
    slow = known & (np.where(known, p99_s, 0) > most)
    if slow.sum() < LEAST_SPIKE_STEPS:
        return None
    calm = known & ~slow
    usual = float(np.median(p99_s[calm])) if calm.any() else usual
    return Spikes(slow, calm, usual, float(p99_s[known].max()))
