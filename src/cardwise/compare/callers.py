"""What callers see of a service: P99, mean, and who got no good answer, at equal load.

Refuses to blame a service for a load that rose, or to praise it for one that fell; and to let it hide behind a load
that its own failures changed: callers that leave make it fall, and those that try again make it rise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cardwise.compare.figures import Figure, over, p99_of
from cardwise.compare.window import Parts, Service, Window, array_of
from cardwise.core.arrays import FloatArray
from cardwise.core.comparison.bootstrap import Scale, Statistic
from cardwise.core.comparison.verdict import MATERIAL_SHARE, TELLING_SHARE, Part, Verdict
from cardwise.core.comparison.words import SHARE, value_text
from cardwise.files import plain

LIKE_LOAD = 1.1
"""The larger load over the smaller, above which they are not equal."""
LIKE_PEAK = 1.25
"""The same of the busiest parts: a note."""
FEWEST_ANSWERS = 1000
"""That a P99 needs in each window: ten beyond it."""
CALLERS_MATERIAL = 0.01
"""Of the answers: so much more of other 4xx is worse. More than of refusals, for callers have their part in them."""


def figures_of(name: str, before: Window, after: Window, unlike: str) -> list[Figure]:
    """Of one service. unlike: why its windows say nothing of each other; empty if they do."""
    sides = before.services[name], after.services[name]
    counts = [counts_of(each, len(before.bounds_s) + 1) for each in sides]
    called = plain(name)
    told = [
        *_latencies(called, sides, counts, before.bounds_s, unlike),
        _share(Part.QUALITY, f"refused by {called}", sides, [array_of(each.refused) for each in sides], unlike),
        _share(Part.STABILITY, f"failed by {called}", sides, [array_of(each.failed) for each in sides], unlike),
    ]
    wrong = [_wrong(each) for each in sides]
    if any(np.nansum(each) > 0 for each in wrong):
        what = f"other 4xx of {called}"
        told.append(_share(Part.QUALITY, what, sides, wrong, unlike, material=CALLERS_MATERIAL))
    left = [array_of(each.hung_up) for each in sides if each.hung_up is not None]
    if len(left) == 2 and any(np.nansum(each) > 0 for each in left):
        told.append(_share(Part.QUALITY, f"callers of {called} that left", sides, left, unlike, others=left))
    told = [replace(each, service=name) for each in told]
    if not unlike:
        return told
    seconds = before.step_s, after.step_s
    return [replace(each, though_unlike=_though_unlike(each, sides, seconds)) for each in told]


def _wrong(service: Service) -> FloatArray:
    """Answers that are neither good, nor refusals, nor failures: other 4xx."""
    rest = array_of(service.answers) - array_of(service.good) - array_of(service.refused) - array_of(service.failed)
    return np.where(rest < 0.5, 0.0 * rest, rest)  # what is less is the rounding of ``increase``


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
            unlike=unlike or _few(answers) or _beyond(counts, p99, bounds_s),
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


def _share(
    part: Part,
    what: str,
    sides: Sequence[Service],
    lost: Sequence[FloatArray],
    unlike: str,
    *,
    others: Sequence[FloatArray] | None = None,
    material: float = MATERIAL_SHARE,
) -> Figure:
    """Of what was asked. others: requests that are not among the answers."""
    asked = [array_of(each.answers) for each in sides]
    if others is not None:
        asked = [one + other for one, other in zip(asked, others, strict=True)]
    sums = [np.column_stack(each) for each in zip(lost, asked, strict=True)]
    return Figure(
        part=part,
        what=what,
        unit=SHARE,
        before=sums[0],
        after=sums[1],
        statistic=over,
        scale=Scale.DIFFERENCE,
        material=material,
        telling=TELLING_SHARE,
        unlike=unlike,
        answers=(int(np.nansum(sums[0][:, 1])), int(np.nansum(sums[1][:, 1]))),
    )


def _though_unlike(figure: Figure, sides: Sequence[Service], seconds: Sequence[float]) -> frozenset[Verdict]:
    """What holds of a share though the loads differ: see :func:`_is_worse_anyway`."""
    if figure.scale is not Scale.DIFFERENCE:
        return frozenset()
    rates: list[tuple[float, float, float]] = []
    for side, each, part_s in zip(sides, (figure.before, figure.after), seconds, strict=True):
        known = each[np.isfinite(each).all(axis=1)]
        if not len(known):
            return frozenset()
        lost, asked = (float(each) / part_s for each in known.mean(axis=0))
        rates.append((lost, asked, _mean_rate(side.good, part_s)))
    one, other = rates
    held = {Verdict.WORSE: _is_worse_anyway(one, other), Verdict.BETTER: _is_worse_anyway(other, one)}
    return frozenset(verdict for verdict, holds in held.items() if holds)


def _is_worse_anyway(before: tuple[float, float, float], after: tuple[float, float, float]) -> bool:
    """lost, asked and good requests per second. More are lost of less; or of more, and fewer than before are good.

    So no larger load is to blame: as many good answers were given before. That more are lost of less must be true of
    their number too, for one broken caller is a larger share of a quiet night.
    """
    is_more_lost = after[0] > LIKE_LOAD * before[0]
    return is_more_lost and (after[1] <= before[1] or LIKE_LOAD * after[2] < before[2])


def _mean_rate(parts: Parts, part_s: float) -> float:
    values = array_of(parts)
    return float(np.nanmean(values)) / part_s if np.isfinite(values).any() else 0.0


def _few(answers: tuple[int, int]) -> str:
    """Why there is no P99; empty if there is one."""
    if min(answers) >= FEWEST_ANSWERS:
        return ""
    return f"{answers[0]:,} answers before, {answers[1]:,} after: too few for a P99, {FEWEST_ANSWERS:,} are needed"


def counts_of(service: Service, buckets: int) -> FloatArray:
    """Answers by latency, float64 [T, buckets]; rows of nan where nothing was known."""
    missing = [float("nan")] * buckets
    return np.array([missing if each is None else each for each in service.latency_counts]).reshape(-1, buckets)


def _beyond(counts: Sequence[FloatArray], p99: Statistic, bounds_s: Sequence[float]) -> str:
    """Why two P99s say nothing of each other; empty if they do. Both are cut off at the last bound."""
    found = [float(p99(np.nansum(each, axis=0)[np.newaxis])[0]) for each in counts]
    return (
        f"both beyond the last bucket, {bounds_s[-1]:g} s: how far is not known" if min(found) >= bounds_s[-1] else ""
    )


def _buckets(counts: Sequence[FloatArray], p99: Statistic, bounds_s: Sequence[float]) -> str:
    """How rough the P99 is, where both lie in one bucket."""
    edges = np.array([0.0, *bounds_s])
    found = [float(p99(np.nansum(each, axis=0)[np.newaxis])[0]) for each in counts]
    if not np.isfinite(found).all():
        return ""
    if max(found) >= edges[-1]:
        return f"one is beyond the last bucket, {edges[-1]:g} s: the change is larger than told"
    at = [int(np.searchsorted(edges, each)) for each in found]
    return f"both in one bucket, {edges[at[0] - 1]:g} to {edges[at[0]]:g} s: roughly known" if at[0] == at[1] else ""


# -------------------------------------------------------------------- load


def is_idle(name: str, before: Window, after: Window) -> bool:
    """Whether nothing was asked of a service in either window: that tells nothing, and hides nothing."""
    parts = (each.services[name] for each in (before, after))
    return all(np.nansum(array_of(each.answers)) == 0 and not np.nansum(array_of(each.hung_up or [])) for each in parts)


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
    return f"{plain(name)}: the busiest part had {value_text(one)} requests/s before, {value_text(other)} after"


def _load(service: Service, step_s: float, of_parts: Callable[[FloatArray], float]) -> float:
    """Requests per second; 0 if nothing is known."""
    rates = array_of(service.answers) / step_s
    return float(of_parts(rates)) if np.isfinite(rates).any() else 0.0
