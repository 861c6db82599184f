"""Two load tests of one service side by side: resources, service quality, cost per request, stability (SPEC H3).

P99 is compared at equal offered load, with an interval from a bootstrap over parts of the counted time: requests that
are neighbours in time share a queue, so to draw single requests would take one bad second for a thousand witnesses
(block bootstrap; Künsch 1989). The intervals hold together for all loads compared (Bonferroni).

Refuses to let anything make up for a worse P99: that is a regression, however few cards it takes. Refuses to blame the
service for what the generator did or for what was asked of it: under another target other loads hold, and that is no
news of the service. Refuses to tell more than two runs can: what differs between runs by itself, such as neighbours on
the machine, no interval from within a run can know.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec
import numpy as np

from cardwise.core.arrays import FloatArray, IntArray
from cardwise.errors import UserError
from cardwise.loadtest.curve import Curve, Knee, Step
from cardwise.loadtest.measure import BUCKETS, quantiles_of, restored

CONFIDENCE = 0.95
RESAMPLES = 4000
MATERIAL = 0.05
"""A change of the P99, the cost or the resources below this is none, however sure."""
KNEE_MATERIAL = 0.15
"""The search for the knee stops within 8 % of it, on either side."""
SHARE_MATERIAL = 0.05
"""Of what was due: so much more of it not answered within the target is worse."""
FAILED_MATERIAL = 0.01
"""Of the issued: so much more of it errors and timeouts is less stable."""
SAME_LOAD = 0.01
FEWEST = 100
"""Answers that a P99 needs: with fewer it is the slowest."""
FEWEST_BLOCKS = 8
LATE_SHARE = 0.25
"""The generator's own P99 lateness over the P99: above it the P99 is not the service's."""


class Verdict(StrEnum):
    """Of the second run against the first."""

    BETTER = "better"
    SAME = "no difference"
    WORSE = "worse"
    MIXED = "mixed"
    UNKNOWN = "unknown"


class Overall(StrEnum):
    """What it comes to."""

    REGRESSION = "regression"
    COSTLIER = "costlier"
    TRADE_OFF = "trade-off"
    SAME = "no difference"
    IMPROVEMENT = "improvement"
    UNKNOWN = "unknown"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two steps of one load. Changes are shares: 0.2 is 20 % more."""

    load: str
    p99_before_ms: float | None
    p99_after_ms: float | None
    change: float | None
    low: float | None
    high: float | None
    good_share_before: float
    good_share_after: float
    verdict: Verdict
    note: str
    """Why it is not judged, or what else is to be known; may be empty."""


class Group(msgspec.Struct, frozen=True):
    """One of the four."""

    name: str
    verdict: Verdict
    told: list[str]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--compare --json`` prints."""

    before: str
    after: str
    pairs: list[Pair]
    groups: list[Group]
    overall: Overall
    confidence: float = CONFIDENCE
    not_comparable: str
    """Why service quality and cost are not judged; empty if they are."""
    notes: list[str]

    @property
    def is_regression(self) -> bool:
        """Whether service quality or stability is worse."""
        return self.overall is Overall.REGRESSION


def compare(before: Curve, after: Curve, names: tuple[str, str], *, seed: int = 1) -> Comparison:
    """Judge ``after``. Raises UserError if the two measured different things, or share no load."""
    if before.environment.kind != after.environment.kind:
        raise UserError(f"{names[0]} and {names[1]} are of different kinds of requests: they cannot be compared")
    if before.settings.judged != after.settings.judged:
        raise UserError(f"{names[0]} and {names[1]} have their targets on different times: they cannot be compared")
    matched = _matched(before.steps, after.steps)
    if not matched:
        loads = "; ".join(", ".join(each.name for each in curve.steps) or "no steps" for curve in (before, after))
        raise UserError(f"{names[0]} and {names[1]} have no load in common ({loads}): test both with the same --sweep")
    level = 1 - (1 - CONFIDENCE) / len(matched)
    unlike = _unlike(before, after)
    pairs = [_pair(one, other, level, seed + i, unlike) for i, (one, other) in enumerate(matched)]
    groups = [
        _resources(before, after),
        Group("service quality", Verdict.UNKNOWN, [unlike]) if unlike else _quality(pairs, before, after),
        Group("cost per request", Verdict.UNKNOWN, [unlike]) if unlike else _cost(before, after, matched),
        _stability(before, after, matched),
    ]
    return Comparison(
        before=names[0],
        after=names[1],
        pairs=pairs,
        groups=groups,
        overall=_overall(*(each.verdict for each in groups)),
        not_comparable=unlike,
        notes=_notes(before, after),
    )


_ASKED = {"target_p99_ms": "--target-p99", "arrivals": "--arrivals"}
"""Settings that decide what holds, what is in time and what the P99 is, whatever the service does."""


def _unlike(before: Curve, after: Curve) -> str:
    """Why they say nothing of each other; empty if they do."""
    told, advice = [], []
    for name, option in _ASKED.items():
        one, other = getattr(before.settings, name), getattr(after.settings, name)
        if one != other:
            told.append(f"{_words(name)} differs ({_plain(one)} before, {_plain(other)} after)")
            advice.append(option)
    return f"not comparable: {' and '.join(told)}; test both with the same {' and '.join(advice)}" if told else ""


def _words(name: str) -> str:
    return name.replace("_", " ").replace("p99", "P99")


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _matched(before: Sequence[Step], after: Sequence[Step]) -> list[tuple[Step, Step]]:
    """Steps of one load, each once."""
    left = [each for each in after if not each.cut_short]
    pairs = []
    for one in before:
        other = next((each for each in left if _is_same_load(one, each)), None)
        if other is not None and not one.cut_short:
            left.remove(other)
            pairs.append((one, other))
    return pairs


def _is_same_load(one: Step, other: Step) -> bool:
    return (
        (one.rate_per_s is None) == (other.rate_per_s is None)
        and one.batch_window_ms == other.batch_window_ms
        and math.isclose(one.load, other.load, rel_tol=SAME_LOAD)
    )


def _pair(before: Step, after: Step, level: float, seed: int, unlike: str) -> Pair:
    share_before, share_after = good_share(before), good_share(after)
    p99s = [each.p99_ms if each.outcomes.ok else None for each in (before, after)]
    change = low = high = None
    note = unlike or _not_judged(before, after)
    verdict = Verdict.UNKNOWN
    if p99s[0] and p99s[1]:
        change = p99s[1] / p99s[0] - 1
    if not note:
        low, high = p99_interval(_counts(before), _counts(after), level, seed)
        verdict = _verdict_of(change or 0.0, low, high)
    if not unlike and before.holds and share_before - share_after >= SHARE_MATERIAL:
        verdict = Verdict.WORSE
        note = f"within the target: {100 * share_before:.1f} % of what was due before, {100 * share_after:.1f} % after"
    return Pair(
        load=before.name,
        p99_before_ms=p99s[0],
        p99_after_ms=p99s[1],
        change=change,
        low=low,
        high=high,
        good_share_before=share_before,
        good_share_after=share_after,
        verdict=verdict,
        note=note,
    )


def good_share(step: Step) -> float:
    """Answered well and within the target, of what was due."""
    return step.good / step.offered if step.offered else 0.0


def _not_judged(before: Step, after: Step) -> str:
    """Why the P99s are not compared; empty if they are."""
    if not before.holds:
        return "too much for the service before already"
    for step, name in ((before, "before"), (after, "after")):
        whole = [restored(each).count for each in step.blocks]
        if sum(whole) < FEWEST or sum(count > 0 for count in whole) < FEWEST_BLOCKS:
            return f"{sum(whole)} good answers {name}: too few for a P99, {FEWEST} are needed"
        if step.lag_ms is not None and step.lag_ms.p99 > LATE_SHARE * step.p99_ms:
            return f"the generator itself was late {name} (P99 {step.lag_ms.p99:.1f} ms): give it a quiet machine"
    return ""


def _verdict_of(change: float, low: float, high: float) -> Verdict:
    if low > 0 and change >= MATERIAL:
        return Verdict.WORSE
    if high < 0 and change <= -MATERIAL:
        return Verdict.BETTER
    return Verdict.SAME


def _counts(step: Step) -> IntArray:
    """int64 [blocks, BUCKETS]."""
    return np.array([restored(each).counts for each in step.blocks], np.int64).reshape(-1, BUCKETS)


def p99_interval(before: IntArray, after: IntArray, level: float, seed: int) -> tuple[float, float]:
    """Between which shares the change of the P99 lies, with a probability of ``level``.

    before, after: int64 [blocks, BUCKETS]. Source: percentile bootstrap (Efron and Tibshirani 1993, chapter 13) of the
    ratio.
    """
    rng = np.random.default_rng(seed)
    ratios = _resampled(after, rng) / _resampled(before, rng) - 1
    low, high = np.nanquantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled(counts: IntArray, rng: np.random.Generator) -> FloatArray:
    """P99s of redrawn runs, float64 [RESAMPLES]."""
    filled = np.flatnonzero(counts.sum(axis=0))
    first, last = int(filled[0]), int(filled[-1])
    used = counts[:, first : last + 1]
    used = used[used.sum(axis=1) > 0]
    blocks = len(used)
    drawn = rng.multinomial(blocks, np.full(blocks, 1 / blocks), size=RESAMPLES) @ used
    return quantiles_of(drawn, 0.99, first)


_LESS_IS_BETTER = {"cards": "cards", "memory-mib": "MiB of GPU memory", "compute-pct": "percent of compute"}
_EVENTS = {"restarts": "restarts", "failed-scheduling": "FailedScheduling events", "alerts": "alerts"}


def _resources(before: Curve, after: Curve) -> Group:
    told, verdicts = [], []
    for key, name in _LESS_IS_BETTER.items():
        if key in before.facts and key in after.facts:
            one, other = before.facts[key], after.facts[key]
            told.append(f"{name}: {one:g} before, {other:g} after")
            verdicts.append(_less_is_better(one, other))
    advice = "say what serves it in both tests: --facts cards=2,memory-mib=40960"
    return Group("resources", _joined(verdicts), told or [advice])


def _quality(pairs: Sequence[Pair], before: Curve, after: Curve) -> Group:
    told = [f"{each.load}: {change_text(each)}" for each in pairs]
    verdicts: list[Verdict] = [each.verdict for each in pairs if each.verdict is not Verdict.UNKNOWN]
    loads = _knee_loads(before.knee, after.knee)
    if loads is not None:
        told.append(f"knee: {loads[0]:,g} before, {loads[1]:,g} after")
        verdicts.append(_more_is_better(loads[1] / loads[0] - 1, KNEE_MATERIAL))
    worst = Verdict.WORSE if Verdict.WORSE in verdicts else _joined(verdicts)
    return Group("service quality", worst, told)


def _knee_loads(before: Knee | None, after: Knee | None) -> tuple[float, float] | None:
    """Where both were found; None unless they were, on one axis."""
    if before is None or after is None or before.axis != after.axis:
        return None
    if not (before.load and after.load and {before.stopped_by, after.stopped_by} <= {"p99", "goodput"}):
        return None
    return before.load, after.load


def change_text(pair: Pair) -> str:
    """A pair in words."""
    if pair.change is None or pair.p99_before_ms is None or pair.p99_after_ms is None:
        return pair.note or "no good answer"
    said = f"P99 {pair.p99_before_ms:,.1f} → {pair.p99_after_ms:,.1f} ms ({100 * pair.change:+.1f} %"
    between = "" if pair.low is None or pair.high is None else f", {100 * pair.low:+.1f} to {100 * pair.high:+.1f}"
    return f"{said}{between}): {pair.verdict}" + (f"; {pair.note}" if pair.note else "")


def _cost(before: Curve, after: Curve, matched: Sequence[tuple[Step, Step]]) -> Group:
    """Per a million good answers, at the knee of each, else at the highest load that both hold."""
    rates = _rates(before, after, matched)
    name, key = "cost per request", "cost-per-hour"
    if key not in before.facts or key not in after.facts:
        key = "cards"
    if key not in before.facts or key not in after.facts or rates is None:
        why = "no load that both hold" if rates is None else "say what it costs in both: --facts cost-per-hour=3.1"
        return Group(name, Verdict.UNKNOWN, [why])
    costs = [curve.facts[key] / rate * 1e6 / 3600 for curve, rate in zip((before, after), rates, strict=True)]
    unit = "" if key == "cost-per-hour" else " card-hours"
    told = f"{costs[0]:,.3g}{unit} before, {costs[1]:,.3g}{unit} after, per million good answers"
    return Group(name, _less_is_better(*costs), [told])


def _rates(before: Curve, after: Curve, matched: Sequence[tuple[Step, Step]]) -> tuple[float, float] | None:
    if before.knee and after.knee and before.knee.goodput_per_s and after.knee.goodput_per_s:
        return before.knee.goodput_per_s, after.knee.goodput_per_s
    held = [(one, other) for one, other in matched if one.holds and other.holds]
    if not held:
        return None
    one, other = max(held, key=lambda pair: pair[0].load)
    return one.goodput_per_s, other.goodput_per_s


def _stability(before: Curve, after: Curve, matched: Sequence[tuple[Step, Step]]) -> Group:
    told, verdicts = [], []
    for key, name in _EVENTS.items():
        if key in before.facts and key in after.facts:
            one, other = before.facts[key], after.facts[key]
            told.append(f"{name}: {one:g} before, {other:g} after")
            verdicts.append(Verdict.SAME if one == other else Verdict.WORSE if other > one else Verdict.BETTER)
    held = [(one, other) for one, other in matched if one.holds]
    if before.settings.timeout_s != after.settings.timeout_s:
        told.append("errors and timeouts: not comparable, for --timeout differs")
    elif held:
        shares = [_failed_share([pair[i] for pair in held]) for i in (0, 1)]
        told.append(f"errors and timeouts: {100 * shares[0]:.2f} % before, {100 * shares[1]:.2f} % after")
        verdicts.append(_more_is_better(shares[0] - shares[1], FAILED_MATERIAL))
    worst = Verdict.WORSE if Verdict.WORSE in verdicts else _joined(verdicts)
    return Group("stability", worst, told or ["no load that it held before"])


def _failed_share(steps: Sequence[Step]) -> float:
    failed = sum(each.outcomes.error + each.outcomes.timeout for each in steps)
    return failed / max(sum(each.issued for each in steps), 1)


def _less_is_better(before: float, after: float) -> Verdict:
    if before == after:
        return Verdict.SAME
    return _more_is_better(before / after - 1 if after else math.inf, MATERIAL)


def _more_is_better(change: float, material: float) -> Verdict:
    if abs(change) < material:
        return Verdict.SAME
    return Verdict.BETTER if change > 0 else Verdict.WORSE


def _joined(verdicts: Sequence[Verdict]) -> Verdict:
    """Of several that may make up for each other."""
    if not verdicts:
        return Verdict.UNKNOWN
    if Verdict.BETTER in verdicts and Verdict.WORSE in verdicts:
        return Verdict.MIXED
    return next((each for each in (Verdict.WORSE, Verdict.BETTER) if each in verdicts), Verdict.SAME)


def _overall(resources: Verdict, quality: Verdict, cost: Verdict, stability: Verdict) -> Overall:
    """Worse for users is a regression, whatever it saves (SPEC H3)."""
    if Verdict.WORSE in {quality, stability}:
        return Overall.REGRESSION
    if quality is Verdict.UNKNOWN:
        return Overall.UNKNOWN
    every = {resources, quality, cost, stability}
    if {Verdict.WORSE, Verdict.MIXED} & every:
        return Overall.TRADE_OFF if {Verdict.BETTER, Verdict.MIXED} & every else Overall.COSTLIER
    return Overall.IMPROVEMENT if Verdict.BETTER in every else Overall.SAME


def _notes(before: Curve, after: Curve) -> list[str]:
    """What the two do not have in common."""
    told = []
    if before.environment.url != after.environment.url:
        told.append(f"the URL differs: {before.environment.url} before, {after.environment.url} after")
    for name in before.settings.__struct_fields__:
        one, other = getattr(before.settings, name), getattr(after.settings, name)
        if one != other and name != "seed":
            told.append(f"{_words(name)} differs: {one} before, {other} after")
    told.extend(
        f"the generators differ: {name.replace('_', ' ')}"
        for name in ("host_cores", "event_loop")
        if getattr(before.environment, name) != getattr(after.environment, name)
    )
    return told
