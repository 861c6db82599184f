"""What a change comes to: a verdict per figure, per group and overall (SPEC H3).

Refuses to let anything make up for a worse P99: that is a regression, however few cards it takes and however busy they
are. Refuses to call "no difference" what was measured too roughly to exclude a bad one: that is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cardwise.core.comparison.bootstrap import RESAMPLES, Interval, Scale

CONFIDENCE = 0.95
MATERIAL = 0.05
"""A change of the P99, the cost or the resources below this is none, however sure."""
MATERIAL_SHARE = 0.001
"""The same of a share of requests that got no good answer: what a promise of 99.9 % leaves, and a tenth of what lies
beyond a P99, which is the better for every slow request that is not answered."""
TELLING = 0.25
"""An interval that reaches to a quarter more excludes nothing that matters."""
TELLING_SHARE = 0.01
"""The same of such a share."""
LARGEST_LOGARITHM = 700.0
"""Beyond it a ratio is no number that a computer has."""


class Part(StrEnum):
    """The four groups, in the order of a report."""

    RESOURCES = "resources"
    QUALITY = "service quality"
    COST = "cost per request"
    STABILITY = "stability"


class Verdict(StrEnum):
    """Of the second measurement against the first."""

    BETTER = "better"
    SAME = "no difference"
    WORSE = "worse"
    MIXED = "mixed"
    UNKNOWN = "unknown"

    @property
    def mirrored(self) -> Verdict:
        """With before and after exchanged."""
        return {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}.get(self, self)


class Overall(StrEnum):
    """What it comes to."""

    REGRESSION = "regression"
    COSTLIER = "costlier"
    TRADE_OFF = "trade-off"
    SAME = "no difference"
    IMPROVEMENT = "improvement"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure, before and after.

    change, low, high: shares, so that 0.2 is 20 % more; of figures that are shares themselves their difference. None if
    not known or, low and high, not drawn. answers, blocks: what the figure was made of, before and after.
    """

    part: Part
    what: str
    before: float | None
    after: float | None
    unit: str = ""
    change: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = Verdict.UNKNOWN
    note: str = ""
    """Why it is not judged, or what else is to be known; may be empty."""
    answers: tuple[int, int] | None = None
    blocks: tuple[int, int] | None = None
    service: str = ""
    """Whose figure it is; empty if it is of all together."""


@dataclass(frozen=True, slots=True)
class Group:
    """One of the four."""

    name: str
    verdict: Verdict
    told: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What ``compare --json`` prints, whatever was compared."""

    before: str
    after: str
    overall: Overall
    groups: list[Group]
    changes: list[Change]
    not_comparable: str
    """Why service quality and cost are not judged; empty if they are."""
    notes: list[str]
    seed: int
    left_out: str = ""
    """What is not known of services with few requests, on which the verdict does not wait; empty if nothing."""
    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES

    @property
    def is_regression(self) -> bool:
        """Whether service quality or stability is worse."""
        return self.overall is Overall.REGRESSION


def joint_level(changes: int) -> float:
    """The level at which each of several intervals holds, so that all do together at ``CONFIDENCE`` (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(changes, 1)


def judged(
    change: float,
    found: Interval,
    scale: Scale,
    *,
    less_is_better: bool = True,
    material: float = MATERIAL,
    telling: float = TELLING,
    alone: Interval | None = None,
) -> Verdict:
    """A figure's verdict. change and interval: on the scale, so the logarithm of a ratio.

    Different if the interval excludes zero and the change is material; the same if it excludes a change of ``telling``,
    or if ``alone`` does, the interval that is not widened for the other figures: all are the same only if each is, so
    that needs no allowance for their number (Berger 1982, "Multiparameter hypothesis testing", intersection-union).
    Exchanging before and after exchanges better and worse, so material is what makes the larger 5 % more than the
    smaller.
    """
    least = material
    if scale is Scale.RATIO:
        least, telling = math.log1p(material), math.log1p(telling)
    if found.low > 0 or found.high < 0:
        if abs(change) < least:
            return Verdict.SAME
        return Verdict.WORSE if (change > 0) == less_is_better else Verdict.BETTER
    reach = min(max(-each.low, each.high) for each in (found, alone or found))
    return Verdict.UNKNOWN if reach > telling else Verdict.SAME


def as_share(change: float, scale: Scale) -> float:
    """A change on its scale as people say it: 0.2 for a fifth more. Infinite where no number is so large."""
    if scale is Scale.DIFFERENCE:
        return change
    return math.expm1(change) if change < LARGEST_LOGARITHM else math.inf


def material_share(before: float, after: float, least: float = MATERIAL_SHARE) -> float:
    """From which difference on two shares differ: ``least``, and more where they are large by themselves."""
    return max(least, MATERIAL * max(before, after))


def telling_share(before: float, after: float, least: float = TELLING_SHARE) -> float:
    """Which difference an interval has to exclude: ``least``, and more where they are large by themselves."""
    return max(least, 2 * MATERIAL * max(before, after))


def compared_counts(before: float, after: float, *, less_is_better: bool = True, material: float = MATERIAL) -> Verdict:
    """Of two figures that are exact, such as cards."""
    if before == after:
        return Verdict.SAME
    if min(before, after) > 0 and max(before, after) / min(before, after) < 1 + material:
        return Verdict.SAME
    return Verdict.WORSE if (after > before) == less_is_better else Verdict.BETTER


def any_worse(verdicts: Sequence[Verdict]) -> Verdict:
    """Of several of which none makes up for another. Mixed is partly worse."""
    return Verdict.WORSE if {Verdict.WORSE, Verdict.MIXED} & set(verdicts) else together(verdicts)


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several that may make up for each other. Unknown if none is known."""
    known = {each for each in verdicts if each is not Verdict.UNKNOWN}
    if not known:
        return Verdict.UNKNOWN
    if Verdict.MIXED in known or {Verdict.BETTER, Verdict.WORSE} <= known:
        return Verdict.MIXED
    return next((each for each in (Verdict.WORSE, Verdict.BETTER) if each in known), Verdict.SAME)


def overall_of(resources: Verdict, quality: Verdict, cost: Verdict, stability: Verdict) -> Overall:
    """Worse for users is a regression, whatever it saves (SPEC H3); what they got must be known to call it good."""
    if Verdict.WORSE in {quality, stability}:
        return Overall.REGRESSION
    if Verdict.UNKNOWN in {quality, stability}:
        return Overall.UNKNOWN
    every = {resources, quality, cost, stability}
    if {Verdict.WORSE, Verdict.MIXED} & every:
        return Overall.TRADE_OFF if {Verdict.BETTER, Verdict.MIXED} & every else Overall.COSTLIER
    return Overall.IMPROVEMENT if Verdict.BETTER in every else Overall.SAME
