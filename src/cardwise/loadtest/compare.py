"""Two load tests of one service side by side: resources, service quality, cost per request, stability (SPEC H3).

P99 is compared at equal offered load, by the rules of ``core/comparison``, over parts of the counted time.

Refuses to blame the service for what the generator did or for what was asked of it: under another target other loads
hold, and that is no news of the service.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from cardwise.core.arrays import FloatArray, IntArray
from cardwise.core.comparison.bootstrap import FEWEST_BLOCKS, Interval, Scale, events_p_value, intervals
from cardwise.core.comparison.verdict import (
    CONFIDENCE,
    TELLING,
    Change,
    Comparison,
    Overall,
    Part,
    Verdict,
    any_worse,
    as_share,
    compared_counts,
    joint_level,
    judged,
    material_share,
    overall_of,
    together,
)
from cardwise.core.comparison.words import SHARE, alone_text, group_of
from cardwise.errors import UserError
from cardwise.loadtest.curve import Curve, Knee, Step
from cardwise.loadtest.measure import BUCKETS, quantiles_of, restored

__all__ = ["Comparison", "Overall", "Verdict", "compare", "good_share"]
KNEE_MATERIAL = 0.15
"""The search for the knee stops within 8 % of it, on either side."""
SHARE_MATERIAL = 0.05
"""Of what was due: so much more of it not answered within the target is worse."""
SAME_LOAD = 0.01
FEWEST = 100
"""Answers that a P99 needs: with fewer it is the slowest."""
LATE_SHARE = 0.25
"""The generator's own P99 lateness over the P99: above it the P99 is not the service's."""


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
    level = joint_level(len(matched))
    unlike = _unlike(before, after)
    quality = [
        *(_p99(one, other, level, seed, unlike) for one, other in matched),
        *_in_time(matched, unlike),
        *_refused(matched, unlike),
        *([] if unlike else _knees(before.knee, after.knee)),
    ]
    resources, cost = _resources(before, after), _cost(before, after, matched, unlike)
    stability = _stability(before, after, matched)
    groups = [
        group_of(Part.RESOURCES, together(_verdicts(resources)), resources, _SAY_RESOURCES),
        group_of(Part.QUALITY, any_worse(_verdicts(quality)), quality, unlike),
        group_of(Part.COST, together(_verdicts(cost)), cost, unlike or _SAY_COST),
        group_of(Part.STABILITY, any_worse(_verdicts(stability)), stability, "no load that it held before"),
    ]
    return Comparison(
        before=names[0],
        after=names[1],
        changes=[*resources, *quality, *cost, *stability],
        groups=groups,
        overall=overall_of(*(each.verdict for each in groups)),
        not_comparable=unlike,
        notes=_notes(before, after),
        seed=seed,
    )


def _verdicts(changes: Sequence[Change]) -> list[Verdict]:
    return [each.verdict for each in changes]


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


def _p99(before: Step, after: Step, level: float, seed: int, unlike: str) -> Change:
    p99s = [each.p99_ms if each.outcomes.ok else None for each in (before, after)]
    note = unlike or _not_judged(before, after)
    change = low = high = None
    verdict = Verdict.UNKNOWN
    if p99s[0] and p99s[1]:
        change = p99s[1] / p99s[0] - 1
    if not note and change is not None:
        found, alone = p99_intervals(_counts(before), _counts(after), [level, CONFIDENCE], seed)
        low, high = (as_share(each, Scale.RATIO) for each in (found.low, found.high))
        verdict = judged(math.log1p(change), found, Scale.RATIO, alone=alone)
        note = "too few answers to tell" if verdict is Verdict.UNKNOWN else ""
        if verdict is Verdict.SAME and max(-low, high) > TELLING:
            note = alone_text(as_share(alone.low, Scale.RATIO), as_share(alone.high, Scale.RATIO), "ms")
    return Change(
        part=Part.QUALITY,
        what=f"P99 at {before.name}",
        unit="ms",
        before=p99s[0],
        after=p99s[1],
        change=change,
        low=low,
        high=high,
        verdict=verdict,
        note=note or ("no good answer" if change is None else ""),
        answers=(before.judged.count, after.judged.count),
        blocks=(len(before.blocks), len(after.blocks)),
    )


def _in_time(matched: Sequence[tuple[Step, Step]], unlike: str) -> list[Change]:
    """Good answers within the target, of what was due, at loads where they fell or rose."""
    made = []
    for before, after in matched:
        one, other = good_share(before), good_share(after)
        if unlike or not before.holds or abs(one - other) < SHARE_MATERIAL:
            continue
        late = [each.offered - each.good for each in (before, after)]
        verdict = Verdict.WORSE if other < one else Verdict.BETTER
        is_sure = _is_sure(late, (before.offered, after.offered))
        made.append(
            Change(
                part=Part.QUALITY,
                what=f"in time at {before.name}, of what was due",
                unit=SHARE,
                before=one,
                after=other,
                change=other - one,
                verdict=verdict if is_sure else Verdict.UNKNOWN,
                note="" if is_sure else _FEW,
            )
        )
    return made


_FEW = "too few requests to tell from chance"


def _is_sure(counts: Sequence[float], of: Sequence[float]) -> bool:
    """Whether so uneven parts of so many requests are more than chance."""
    return events_p_value(round(counts[0]), round(counts[1]), *of) <= 1 - CONFIDENCE


def _refused(matched: Sequence[tuple[Step, Step]], unlike: str) -> list[Change]:
    """Answers 429 and 503 at loads that held before: who is not answered makes the P99 of the others better."""
    held = [(one, other) for one, other in matched if one.holds]
    refused = [sum(pair[i].outcomes.rejected for pair in held) for i in (0, 1)]
    return [_lost(Part.QUALITY, "refused", refused, held, unlike)] if any(refused) else []


def _lost(part: Part, what: str, lost: Sequence[int], held: Sequence[tuple[Step, Step]], unlike: str) -> Change:
    """A share of the issued."""
    issued = [max(sum(pair[i].issued for pair in held), 1) for i in (0, 1)]
    one, other = (count / of for count, of in zip(lost, issued, strict=True))
    verdict, note = Verdict.WORSE if other > one else Verdict.BETTER, unlike
    if unlike:
        verdict = Verdict.UNKNOWN
    elif abs(other - one) < material_share(one, other):
        verdict = Verdict.SAME
    elif not _is_sure(lost, issued):
        verdict, note = Verdict.UNKNOWN, _FEW
    return Change(
        part=part, what=what, unit=SHARE, before=one, after=other, change=other - one, verdict=verdict, note=note
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


def _counts(step: Step) -> IntArray:
    """int64 [blocks, BUCKETS]."""
    return np.array([restored(each).counts for each in step.blocks], np.int64).reshape(-1, BUCKETS)


def p99_intervals(before: IntArray, after: IntArray, levels: Sequence[float], seed: int) -> list[Interval]:
    """Between which logarithms of its ratio the change of the P99 lies. before, after: int64 [blocks, BUCKETS]."""
    filled = np.flatnonzero(before.sum(axis=0) + after.sum(axis=0))
    first, last = int(filled[0]), int(filled[-1])

    def p99_of(counts: FloatArray) -> FloatArray:
        return quantiles_of(counts.astype(np.int64), 0.99, first)

    used = [side[side.sum(axis=1) > 0, first : last + 1] for side in (before, after)]
    return intervals(used[0], used[1], p99_of, scale=Scale.RATIO, levels=levels, seed=seed)


_LESS_IS_BETTER = {"cards": "cards", "memory-mib": "GPU memory", "compute-pct": "compute"}
_UNITS = {"memory-mib": "MiB", "compute-pct": "percent of a card"}
_EVENTS = {"restarts": "restarts", "failed-scheduling": "FailedScheduling events", "alerts": "alerts"}
_SAY_RESOURCES = "say what serves it in both tests: --facts cards=2,memory-mib=40960"
_SAY_COST = "say what it costs in both: --facts cost-per-hour=3.1; or no load that both hold"


def _exact(part: Part, what: str, before: float, after: float, verdict: Verdict, unit: str = "") -> Change:
    """A change of figures that are what they are."""
    change = after / before - 1 if before else None
    return Change(part=part, what=what, unit=unit, before=before, after=after, change=change, verdict=verdict)


def _resources(before: Curve, after: Curve) -> list[Change]:
    made = []
    for key, name in _LESS_IS_BETTER.items():
        if key in before.facts and key in after.facts:
            one, other = before.facts[key], after.facts[key]
            made.append(_exact(Part.RESOURCES, name, one, other, compared_counts(one, other), _UNITS.get(key, "")))
    return made


def _knees(before: Knee | None, after: Knee | None) -> list[Change]:
    loads = _knee_loads(before, after)
    if loads is None:
        return []
    verdict = compared_counts(*loads, less_is_better=False, material=KNEE_MATERIAL)
    return [_exact(Part.QUALITY, "knee", *loads, verdict)]


def _knee_loads(before: Knee | None, after: Knee | None) -> tuple[float, float] | None:
    """Where both were found; None unless they were, on one axis."""
    if before is None or after is None or before.axis != after.axis:
        return None
    if not (before.load and after.load and {before.stopped_by, after.stopped_by} <= {"p99", "goodput", "backlog"}):
        return None
    return before.load, after.load


def _cost(before: Curve, after: Curve, matched: Sequence[tuple[Step, Step]], unlike: str) -> list[Change]:
    """Per a million good answers, at the knee of each, else at the highest load that both hold."""
    rates = _rates(before, after, matched)
    key = next((key for key in ("cost-per-hour", "cards") if key in before.facts and key in after.facts), None)
    if key is None or rates is None or not all(rates) or unlike:
        return []
    one, other = (curve.facts[key] / (rate * 3600) * 1e6 for curve, rate in zip((before, after), rates, strict=True))
    unit = "" if key == "cost-per-hour" else "card-hours"
    return [_exact(Part.COST, "per million good answers", one, other, compared_counts(one, other), unit)]


def _rates(before: Curve, after: Curve, matched: Sequence[tuple[Step, Step]]) -> tuple[float, float] | None:
    if before.knee and after.knee and before.knee.goodput_per_s and after.knee.goodput_per_s:
        return before.knee.goodput_per_s, after.knee.goodput_per_s
    held = [(one, other) for one, other in matched if one.holds and other.holds]
    if not held:
        return None
    one, other = max(held, key=lambda pair: pair[0].load)
    return one.goodput_per_s, other.goodput_per_s


def _stability(before: Curve, after: Curve, matched: Sequence[tuple[Step, Step]]) -> list[Change]:
    made = []
    for key, name in _EVENTS.items():
        if key in before.facts and key in after.facts:
            one, other = before.facts[key], after.facts[key]
            made.append(_exact(Part.STABILITY, name, one, other, compared_counts(one, other, material=0.0)))
    held = [(one, other) for one, other in matched if one.holds]
    if held:
        outcomes = [[pair[i].outcomes for pair in held] for i in (0, 1)]
        failed = [sum(each.error + each.timeout for each in side) for side in outcomes]
        is_unlike = before.settings.timeout_s != after.settings.timeout_s
        unlike = "not comparable: --timeout differs" if is_unlike else ""
        made.append(_lost(Part.STABILITY, "errors and timeouts", failed, held, unlike))
    return made


def _notes(before: Curve, after: Curve) -> list[str]:
    """What the two do not have in common."""
    told = []
    if before.environment.started > after.environment.started:
        told.append("before was measured later than after: exchange them, unless a change was taken back")
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
