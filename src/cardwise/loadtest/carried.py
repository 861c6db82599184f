"""What a curve proves that a service carries, and what makes that doubtful. Pure: a curve in, a figure and words out.

Refuses to call capacity what nobody saw to be the most, and to count with a load whose answers did not end while they
were counted: a figure that is a hundred times too low asks for a hundred times the cards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cardwise.loadtest.curve import Curve, Step

FEWEST_IN_TURN = 5
"""Answers that a step must have room for, one after the other."""
FAR_BELOW = 0.5
"""Of the good answers to what was due: where fewer ended in the counted time, they piled up, or the step saw no end."""
_STOPPED_EARLY = frozenset({"most", "time", "interrupt"})


@dataclass(frozen=True, slots=True)
class Carried:
    """rate_per_s: answers in time. at_least: it may be more, for nothing above was seen to fail close by.

    notes: what must be known to count with it.
    """

    rate_per_s: float
    at_least: bool
    notes: tuple[str, ...]


def carried(curve: Curve) -> Carried:
    """At the knee, else at the best step that holds. Raises ValueError, in words, if the curve proves no rate."""
    step = _step(curve)
    if step is None:
        raise ValueError("no step of this test held its target, so it carries nothing")
    ended, good = step.goodput_per_s * step.seconds, step.good
    if ended <= 0 or ended < FAR_BELOW * good:
        raise ValueError(
            f"at {step.name} only {ended:.0f} of {good:,} good answers ended in the counted {step.seconds:g} s: what "
            f"it carries was not seen; test again with --seconds {_seconds_for([step], curve.settings.seconds)}"
        )
    bound = _bound(curve, step)
    return Carried(step.goodput_per_s, bool(bound), (*bound, *short_notes(curve, [step])))


def _step(curve: Curve) -> Step | None:
    held = [step for step in curve.steps if step.holds]
    if curve.knee is not None and curve.knee.load is not None:
        held = [step for step in held if step.load == curve.knee.load] or held
    return max(held, key=lambda each: each.goodput_per_s, default=None)


def _bound(curve: Curve, step: Step) -> tuple[str, ...]:
    """Why more may be carried; nothing if the knee was found."""
    knee = curve.knee
    if knee is not None and knee.load is not None and knee.stopped_by not in _STOPPED_EARLY:
        return ()
    open_loop = step.rate_per_s is not None
    above = [
        each
        for each in curve.steps
        if not (each.holds or each.cut_short) and (each.rate_per_s is not None) == open_loop and each.load > step.load
    ]
    least = min(above, key=lambda each: each.load, default=None)
    seen = "no more was tried" if least is None else f"the next that was tried, {least.name}, did not hold"
    find = "rate" if open_loop else "concurrency"
    told = f"the load test found no knee: {step.name} held, and {seen}"
    return (f"{told}. A replica may carry more, and fewer replicas may do; cardwise loadtest --find {find} tells",)


def short_notes(curve: Curve, steps: Sequence[Step]) -> list[str]:
    """Of steps that hold few answers: what began before the counted time and what ends after it outweigh the rest."""
    short = [step for step in steps if _typical_s(step) * FEWEST_IN_TURN > curve.settings.seconds]
    if not short:
        return []
    longest_s = max(map(_typical_s, short))
    told = f"half of the answers took {longest_s:.1f} s or longer, a step {curve.settings.seconds:g} s"
    less = " or fewer --max-tokens" if curve.settings.judged == "first token" else ""
    advice = f"give --seconds {_seconds_for(short, curve.settings.seconds)}{less}"
    return [f"{told}: too short to tell rates and the knee at {', '.join(each.name for each in short)}; {advice}"]


def _typical_s(step: Step) -> float:
    return 0.0 if step.latency_ms is None else step.latency_ms.p50 / 1000


def _seconds_for(steps: Sequence[Step], seconds: float) -> int:
    """How long a step should be, instead of so many seconds."""
    enough = math.ceil(2 * FEWEST_IN_TURN * max(map(_typical_s, steps)))
    return enough if enough > seconds else math.ceil(2 * seconds)
