"""What callers see of a service: P99, mean, refusals and failures, at equal load.

Refuses to blame a service for a load that rose, or to praise it for one that fell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cardwise.compare.figures import Figure, over, p99_of
from cardwise.compare.window import Service, Window, array_of
from cardwise.core.arrays import FloatArray
from cardwise.core.comparison.bootstrap import Scale, Statistic
from cardwise.core.comparison.verdict import Part
from cardwise.core.comparison.words import SHARE, value_text

LIKE_LOAD = 1.1
"""The larger load over the smaller, above which they are not equal."""
LIKE_PEAK = 1.25
"""The same of the busiest parts: a note."""
FEWEST_ANSWERS = 1000
"""That a P99 needs in each window: ten beyond it."""
SHARE_MATERIAL = 0.01
"""Of the answers: so much more of them refused or failed is worse."""


def figures_of(name: str, before: Window, after: Window, unlike: str) -> list[Figure]:
    """Of one service. unlike: why its windows say nothing of each other; empty if they do."""
    sides = before.services[name], after.services[name]
    counts = [counts_of(each, len(before.bounds_s) + 1) for each in sides]
    return [
        *_latencies(name, sides, counts, before.bounds_s, unlike),
        _share(Part.QUALITY, f"refused by {name}", sides, "refused", unlike),
        _share(Part.STABILITY, f"failed by {name}", sides, "failed", unlike),
    ]


def _latencies(
    name: str, sides: Sequence[Service], counts: Sequence[FloatArray], bounds_s: Sequence[float], unlike: str
) -> list[Figure]:
    answers = (int(np.nansum(counts[0])), int(np.nansum(counts[1])))
    p99 = p99_of(bounds_s)
    means = [
        np.column_stack([array_of(each.latency_sum_s), rows.sum(axis=1)])
        for each, rows in zip(sides, counts, strict=True)
    ]
    return [
        Figure(
            part=Part.QUALITY,
            what=f"P99 of {name}",
            unit="s",
            before=counts[0],
            after=counts[1],
            statistic=p99,
            unlike=unlike or _few(answers),
            note=_buckets(counts, p99, bounds_s),
            answers=answers,
        ),
        Figure(
            part=Part.QUALITY,
            what=f"mean of {name}",
            unit="s",
            before=means[0],
            after=means[1],
            statistic=over,
            unlike=unlike,
            answers=answers,
        ),
    ]


def _share(part: Part, what: str, sides: Sequence[Service], field: str, unlike: str) -> Figure:
    sums = [np.column_stack([array_of(getattr(each, field)), array_of(each.answers)]) for each in sides]
    return Figure(
        part=part,
        what=what,
        unit=SHARE,
        before=sums[0],
        after=sums[1],
        statistic=over,
        scale=Scale.DIFFERENCE,
        material=SHARE_MATERIAL,
        unlike=unlike,
        answers=(int(np.nansum(sums[0][:, 1])), int(np.nansum(sums[1][:, 1]))),
    )


def _few(answers: tuple[int, int]) -> str:
    """Why there is no P99; empty if there is one."""
    if min(answers) >= FEWEST_ANSWERS:
        return ""
    return f"{answers[0]:,} answers before, {answers[1]:,} after: too few for a P99, {FEWEST_ANSWERS:,} are needed"


def counts_of(service: Service, buckets: int) -> FloatArray:
    """Answers by latency, float64 [T, buckets]; rows of nan where nothing was known."""
    missing = [float("nan")] * buckets
    return np.array([missing if each is None else each for each in service.latency_counts]).reshape(-1, buckets)


def _buckets(counts: Sequence[FloatArray], p99: Statistic, bounds_s: Sequence[float]) -> str:
    """How rough the P99 is, where both lie in one bucket."""
    edges = np.array([0.0, *bounds_s])
    found = [float(p99(np.nansum(each, axis=0)[np.newaxis])[0]) for each in counts]
    if not np.isfinite(found).all():
        return ""
    if max(found) >= edges[-1]:
        return f"beyond the last bucket, {edges[-1]:g} s"
    at = [int(np.searchsorted(edges, each)) for each in found]
    return f"both in one bucket, {edges[at[0] - 1]:g} to {edges[at[0]]:g} s: roughly known" if at[0] == at[1] else ""


# -------------------------------------------------------------------- load


def unlike_load(name: str, before: Window, after: Window) -> str:
    """Why the windows of a service say nothing of each other; empty if they do."""
    one, other = (_load(each.services[name], each.step_s, np.nanmean) for each in (before, after))
    if min(one, other) <= 0:
        return f"no request {'before' if one <= 0 else 'after'}"
    if max(one, other) / min(one, other) > LIKE_LOAD:
        return f"not comparable: {value_text(one)} requests/s before, {value_text(other)} after"
    return ""


def unlike_peak(name: str, before: Window, after: Window) -> str:
    """What else is to be known of the load; may be empty."""
    one, other = (_load(each.services[name], each.step_s, np.nanmax) for each in (before, after))
    if min(one, other) <= 0 or max(one, other) / min(one, other) <= LIKE_PEAK:
        return ""
    return f"{name}: the busiest part had {value_text(one)} requests/s before, {value_text(other)} after"


def _load(service: Service, step_s: float, of_parts: Callable[[FloatArray], float]) -> float:
    """Requests per second; 0 if nothing is known."""
    rates = array_of(service.answers) / step_s
    return float(of_parts(rates)) if np.isfinite(rates).any() else 0.0
