"""The knee: the most that a service can be asked and still answers well. Pure: steps in, the next load out.

The load doubles until a step does not hold, then the gap is halved (in ratio) until it is small. Stepping up, and not
down from above, because an overloaded service may need longer than a step to recover, and would be blamed for it.

A step holds if the P99 of its good answers is within the target, and enough of what was due was answered so: a service
that rejects quickly has a fine P99, and a knee all the same. And answers must end as fast as requests come: of a stream
the first token may be in time while all that was begun piles up. In a closed loop the callers wait, so nothing is ever
short; there more callers must not lessen the goodput.

Refuses to call the user's bound a knee: it says what stopped the search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cardwise.loadtest.curve import Knee, Step
from cardwise.loadtest.plan import Load, Search

GOOD_SHARE = 0.95
"""Of what was due, in the open loop; and of the best goodput so far, in the closed one."""
CLOSE_ENOUGH = 1.08
"""Least load that does not hold over the most that does."""
KEEPS_UP_SHARE = 0.8
"""Of the good answers, in the open loop: so many at least must have ended in the counted time."""
LEAST_REQUESTS = 5
"""Per step: no rate is tried that would offer fewer."""


def verdict_of(step: Step, earlier: Sequence[Step], target_p99_ms: float) -> str:
    """Why the step does not hold: ``p99``, ``goodput``, ``backlog``, ``empty``; empty text if it does."""
    if not step.offered:
        return "empty"
    if step.outcomes.ok and step.p99_ms > target_p99_ms:
        return "p99"
    if step.good < GOOD_SHARE * step.offered:
        return "goodput"
    if step.concurrency is None and not keeps_up(step):
        return "backlog"
    if step.concurrency is not None:
        fewer = [each.goodput_per_s for each in earlier if each.holds and each.load < step.load]
        if fewer and step.goodput_per_s < GOOD_SHARE * max(fewer):
            return "goodput"
    return ""


def keeps_up(step: Step) -> bool:
    """Whether good answers ended about as fast as the requests for them came.

    In a steady state what ends in the counted time and what began in it differ by chance only: by what was in flight at
    either end. Two square roots of the count are three standard deviations of that, for answers of a fifth of the step.
    """
    missing = step.good - step.goodput_per_s * step.seconds
    return missing <= max((1 - KEEPS_UP_SHARE) * step.good, 2 * math.sqrt(step.good))


def next_load(steps: Sequence[Step], search: Search, seconds: float) -> Load | None:
    """What to try next; None when the knee is known as well as it will be."""
    if not steps:
        return _load(search.axis, search.start)
    holding = max((each.load for each in steps if each.holds), default=None)
    broken = min((each.load for each in steps if not each.holds), default=None)
    if holding is None:
        return _lower(search.axis, broken or search.start, seconds)
    if broken is None:
        return None if holding >= search.most else _load(search.axis, min(2 * holding, search.most))
    if broken <= holding:  # a step below one that held did not hold: luck, one way or the other
        return None
    return _between(search.axis, holding, broken)


def _lower(axis: str, broken: float, seconds: float) -> Load | None:
    least = 1.0 if axis == "concurrency" else LEAST_REQUESTS / seconds
    return None if broken <= least else _load(axis, max(broken / 4, least))


def _between(axis: str, holding: float, broken: float) -> Load | None:
    if axis == "concurrency":
        middle = round(math.sqrt(holding * broken))
        return None if broken / holding <= CLOSE_ENOUGH or not holding < middle < broken else _load(axis, middle)
    return None if broken / holding <= CLOSE_ENOUGH else _load(axis, math.sqrt(holding * broken))


def _load(axis: str, value: float) -> Load:
    if axis == "concurrency":
        return Load(concurrency=max(round(value), 1))
    return Load(rate_per_s=float(f"{value:.3g}"))


def knee_of(steps: Sequence[Step], axis: str, *, ended: str) -> Knee | None:
    """What the steps say; None if there are none."""
    whole = [each for each in steps if not each.cut_short]
    if not whole:
        return None
    held = [each for each in whole if each.holds]
    best = _best(held, axis)
    above = [each for each in whole if not each.holds and (best is None or each.load > best.load)]
    broke = min(above, key=lambda each: each.load, default=None)
    stopped = {"time": "time", "interrupt": "interrupt"}.get(ended) or (broke.why if broke else "most")
    return Knee(
        axis=axis,
        load=best.load if best else None,
        goodput_per_s=best.goodput_per_s if best else None,
        p99_ms=best.p99_ms if best else None,
        broken_at=broke.load if broke else None,
        stopped_by=stopped,
    )


def _best(held: Sequence[Step], axis: str) -> Step | None:
    """The highest rate; but the fewest callers that give nearly all the goodput, for more of them only wait longer."""
    if axis == "rate" or not held:
        return max(held, key=lambda each: each.load, default=None)
    most = max(each.goodput_per_s for each in held)
    return min((each for each in held if each.goodput_per_s >= GOOD_SHARE * most), key=lambda each: each.load)
