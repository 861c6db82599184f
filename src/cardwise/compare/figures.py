"""One figure, before and after: what it is made of, its interval and its verdict.

Refuses to judge what few parts are known of, and what is more likely drift than change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cardwise.core.arrays import FloatArray
from cardwise.core.comparison.bootstrap import (
    FEWEST_BLOCKS,
    Interval,
    Scale,
    Statistic,
    alikeness,
    changed,
    intervals,
)
from cardwise.core.comparison.verdict import (
    CONFIDENCE,
    MATERIAL,
    TELLING,
    Change,
    Part,
    Verdict,
    as_share,
    judged,
    material_share,
    telling_share,
)
from cardwise.core.comparison.words import alone_text

DRIFTING = 2.0
"""So many parts are worth one: a longer window is needed, not a finer one."""
DRIFT = "it drifts within the windows: give longer ones"
ROUGH = "too little data to tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What an interval is drawn for. before, after: float64 [T, K], sums per part, nan where not known."""

    part: Part
    what: str
    unit: str
    before: FloatArray
    after: FloatArray
    statistic: Statistic
    scale: Scale = Scale.RATIO
    less_is_better: bool = True
    material: float = MATERIAL
    telling: float = TELLING
    unlike: str = ""
    """Why it is not judged; empty if it is."""
    though_unlike: frozenset[Verdict] = frozenset()
    """Verdicts that hold for all that."""
    note: str = ""
    answers: tuple[int, int] | None = None
    service: str = ""


def judge(figure: Figure, level: float, seed: int) -> Change:
    """Draw the interval and judge. level: of this one interval."""
    known = [each[np.isfinite(each).all(axis=1)] for each in (figure.before, figure.after)]
    told = _told(figure, known)
    if told.change is None or (figure.unlike and not figure.though_unlike):
        return told
    whole = [_filled(each) for each in known]
    if (fewest := min(map(len, whole))) < FEWEST_BLOCKS:
        return replace(told, note=figure.unlike or f"known in {fewest} parts only: {FEWEST_BLOCKS} are needed")
    levels = [level, CONFIDENCE]
    found, alone = intervals(whole[0], whole[1], figure.statistic, scale=figure.scale, levels=levels, seed=seed)
    verdict, telling = _verdict(figure, told, found, alone)
    if figure.unlike and verdict not in figure.though_unlike:
        return told
    low, high = (as_share(each, figure.scale) for each in (found.low, found.high))
    notes = [f"though {figure.unlike}" if figure.unlike else "", figure.note]
    if verdict is Verdict.SAME and max(-low, high) > telling:
        notes.append(alone_text(as_share(alone.low, figure.scale), as_share(alone.high, figure.scale), figure.unit))
    if verdict is Verdict.UNKNOWN:
        is_drifting = alikeness(whole[0], whole[1], figure.statistic, figure.scale) > DRIFTING
        notes = [DRIFT if is_drifting else ROUGH]
    return replace(told, low=low, high=high, verdict=verdict, note="; ".join(filter(None, notes)))


def _verdict(figure: Figure, told: Change, found: Interval, alone: Interval) -> tuple[Verdict, float]:
    """And which change an interval had to exclude for it."""
    material, telling = figure.material, figure.telling
    if figure.scale is Scale.DIFFERENCE:
        sides = told.before or 0.0, told.after or 0.0
        material, telling = material_share(*sides, material), telling_share(*sides, telling)
    change = _change(figure, told.before, told.after)
    less_is_better = figure.less_is_better
    verdict = judged(
        change, found, figure.scale, less_is_better=less_is_better, material=material, telling=telling, alone=alone
    )
    return verdict, telling


def _told(figure: Figure, known: Sequence[FloatArray]) -> Change:
    """Not judged yet."""
    before, after = (_value(each, figure.statistic) for each in known)
    change = _change(figure, before, after)
    return Change(
        part=figure.part,
        what=figure.what,
        unit=figure.unit,
        before=before,
        after=after,
        change=as_share(change, figure.scale) if np.isfinite(change) else None,
        answers=figure.answers,
        service=figure.service,
        blocks=(len(known[0]), len(known[1])),
        note=figure.unlike or ("" if np.isfinite(change) else "not known"),
    )


def _change(figure: Figure, before: float | None, after: float | None) -> float:
    if before is None or after is None:
        return float("nan")
    return float(changed(np.array(before), np.array(after), figure.scale))


def _filled(sums: FloatArray) -> FloatArray:
    """Without parts in which nothing happened: they say nothing, and a quotient of nothing is none."""
    return sums[sums.sum(axis=1) > 0]


def _value(sums: FloatArray, statistic: Statistic) -> float | None:
    if not len(sums):
        return None
    value = float(statistic(sums.sum(axis=0)[np.newaxis])[0])
    return value if np.isfinite(value) else None


def p99_of(bounds_s: Sequence[float]) -> Statistic:
    """P99 in seconds of counts per bucket, linear within one, as PromQL's histogram_quantile has it.

    Beyond the last bound it is the last bound. Source: prometheus.io/docs/prometheus/latest/querying/functions.
    """
    edges = np.array([0.0, *bounds_s, bounds_s[-1]])

    def statistic(counts: FloatArray) -> FloatArray:
        cumulated = np.cumsum(counts, axis=1)
        totals = cumulated[:, -1]
        ranks = 0.99 * totals
        at = np.minimum((cumulated < ranks[:, np.newaxis]).sum(axis=1), len(edges) - 2)
        rows = np.arange(len(counts))
        inside = counts[rows, at]
        below = cumulated[rows, at] - inside
        share = np.where(inside > 0, (ranks - below) / np.where(inside > 0, inside, 1.0), 0.0)
        return np.where(totals > 0, edges[at] + share * (edges[at + 1] - edges[at]), np.nan)

    return statistic


def over(sums: FloatArray) -> FloatArray:
    """The first sum over the second."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[:, 0] / sums[:, 1]
