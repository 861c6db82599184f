"""How many replicas a service should have now: by its schedule, by its forecast, and by what runs hot.

Up follows the highest of the three, down waits: only when nothing has asked for as many during the whole cool-down
does the number fall, by a bounded step. What replicas carry now is never taken from under them, whatever a schedule
says; and silence is no signal: a service whose metrics are missing keeps its replicas, and only a schedule may raise
them. Refuses to look at a clock, and to remember: what was asked of late is an argument. Source: SPEC J1; the
cool-down is the stabilization window of Kubernetes' HorizontalPodAutoscaler (autoscaling/v2, "Stabilization window"),
and so is that a service of 0 replicas is switched off and left alone.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

FILL_SHARE = 0.8
"""Of what a replica carries within its target it is given so much: the rest is for what comes before the next one."""
STEP_UP, STEP_DOWN = 4, 2
COOL_DOWN_S = 300.0
LONGEST_GAP_S = 120.0
"""Between two looks, after which a calm begins anew."""


class Why(enum.Enum):
    """What decided. The value is the reason of a condition or an event."""

    STEADY = "Steady"
    """It has what it needs."""
    SCHEDULE = "Schedule"
    """The window's minimum."""
    FORECAST = "Forecast"
    """What is expected within the horizon."""
    HOT = "Hot"
    """What it carries now, or its P99."""
    QUIET = "Quiet"
    """Nothing asked for as many during the whole cool-down."""
    COOLING = "CoolingDown"
    """Fewer would do, but not for long enough."""
    NO_SIGNAL = "NoSignal"
    """Its metrics are missing: it keeps what it has."""
    FULL = "AtMaximum"
    """It needs more than its maximum."""
    OFF = "ScaledToZero"
    """Somebody switched it off."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be chosen now.

    per_replica: the demand that one replica carries within its target; None: not known, then only schedule and P99
    count. step_up: or as many as there are, if that is more.
    """

    min_replicas: int
    max_replicas: int
    per_replica: float | None = None
    target_p99_ms: float | None = None
    fill_share: float = FILL_SHARE
    step_up: int = STEP_UP
    step_down: int = STEP_DOWN
    cool_down_s: float = COOL_DOWN_S

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ValueError(f"min {self.min_replicas} must be at least 1 and at most max {self.max_replicas}")
        if self.per_replica is not None and not 0 < self.per_replica < math.inf:
            raise ValueError(f"per_replica {self.per_replica} must be above 0")
        if not 0 < self.fill_share <= 1 or self.step_up < 1 or self.step_down < 1:
            raise ValueError(f"fill_share {self.fill_share} must be in (0, 1], both steps at least 1")


@dataclass(frozen=True, slots=True)
class Readings:
    """What was measured. asked: whether metrics are configured at all; else the schedule alone decides.

    demand: now, in the unit of ``per_replica``; None: no signal. forecast: the highest within the horizon; None: none.
    partial: some of what was asked for is missing, or ``demand`` may be a part of the truth: enough to add replicas by,
    not to take any away. ready: replicas that are; None: not known, then all are.
    """

    asked: bool = False
    demand: float | None = None
    p99_ms: float | None = None
    forecast: float | None = None
    partial: bool = False
    ready: int | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """What was wanted of late: pairs of time and number, in any order.

    since_s: since when somebody has looked, without a long gap. looked_s: when that was last; None: a moment ago.
    changed_s: when the number was last lowered.
    """

    since_s: float
    wants: tuple[tuple[float, int], ...] = ()
    changed_s: float = -math.inf
    looked_s: float | None = None

    def watched_since_s(self, now_s: float) -> float:
        """Since when it was watched: from now on, if nobody looked for a while, for who knows what was wanted then."""
        gap_s = 0.0 if self.looked_s is None else now_s - self.looked_s
        return self.since_s if gap_s <= LONGEST_GAP_S else now_s

    def with_want(self, now_s: float, wanted: int, cool_down_s: float) -> Past:
        """With one more, without those that have no bearing any more."""
        kept = tuple(each for each in self.wants if now_s - each[0] < cool_down_s)
        return Past(self.watched_since_s(now_s), (*kept, (now_s, wanted)), self.changed_s, now_s)


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there should be, and why.

    wanted: without steps and cool-down. needed: for what is carried now, 0 if that is not known.
    limited: its maximum keeps it from more. text: the numbers.
    """

    replicas: int
    wanted: int
    why: Why
    text: str
    needed: int = 0
    limited: bool = False


def decide(now_s: float, current: int, limits: Limits, readings: Readings, past: Past) -> Decision:
    """How many replicas there should be, from ``current``. past: without this decision; see :meth:`Past.with_want`."""
    if current == 0:
        return Decision(0, 0, Why.OFF, "it has 0 replicas: somebody switched it off, and switches it on again")
    if readings.asked and readings.demand is None:
        return _silent(current, limits)
    needed = _carried(current, limits, readings)
    asks = {Why.SCHEDULE: limits.min_replicas, Why.FORECAST: _for(readings.forecast, limits), Why.HOT: needed}
    why, asked = max(asks.items(), key=lambda each: each[1])  # of equals the schedule
    # the maximum bounds growth; what carries the load now stays, for to drop requests is no schedule's intention
    wanted = max(min(asked, limits.max_replicas), min(current, needed))
    told = ", ".join(f"{_WORDS[each]} {number}" for each, number in asks.items() if number)
    limited = asked > limits.max_replicas
    text = f"{told}; at most {limits.max_replicas}" if limited else told
    if wanted > current:
        upto = current + max(limits.step_up, current)
        replicas = min(wanted, upto)
        return Decision(replicas, wanted, why, f"{text}{_step(replicas, wanted)}", needed, limited)
    if wanted == current:
        return Decision(current, wanted, Why.FULL if limited else Why.STEADY, text, needed, limited)
    if readings.partial:
        text = f"{text}; not all is known: it keeps {current}"
        return Decision(current, current, Why.NO_SIGNAL, text, needed, limited)
    return _lower(now_s, current, limits, past, Decision(current, wanted, Why.COOLING, text, needed, limited))


_WORDS = {Why.SCHEDULE: "schedule", Why.FORECAST: "forecast", Why.HOT: "load"}


def _silent(current: int, limits: Limits) -> Decision:
    wanted = max(current, limits.min_replicas)
    replicas = min(wanted, current + max(limits.step_up, current))
    text = f"no signal: it keeps {current}" if wanted == current else f"no signal; schedule {limits.min_replicas}"
    return Decision(replicas, wanted, Why.NO_SIGNAL, text)


def _carried(current: int, limits: Limits, readings: Readings) -> int:
    """Replicas that what is carried now needs.

    While P99 is over its target all there are, and one more once they are ready: before, nobody knows if they help.
    """
    needed = _for(readings.demand, limits)
    target, p99_ms = limits.target_p99_ms, readings.p99_ms
    if target is None or p99_ms is None or p99_ms <= target:
        return needed
    starting = readings.ready is not None and readings.ready < current
    return max(needed, current if starting else current + 1)


def _for(demand: float | None, limits: Limits) -> int:
    if demand is None or limits.per_replica is None or demand <= 0:
        return 0
    each = limits.per_replica * limits.fill_share
    return math.ceil(min(demand / each, 1e6) - 1e-9)


def _lower(now_s: float, current: int, limits: Limits, past: Past, kept: Decision) -> Decision:
    """Fewer, if nothing asked for as many during the whole cool-down, and it was watched for as long."""
    from_s = now_s - limits.cool_down_s
    highest = max((number for at_s, number in past.wants if at_s > from_s), default=0)
    floor = max(kept.wanted, highest)
    if past.watched_since_s(now_s) > from_s or past.changed_s > from_s or floor >= current:
        return replace(kept, text=f"{kept.text}; cooling down")
    replicas = max(floor, current - limits.step_down)
    text = f"{kept.text}; no more for {limits.cool_down_s:g} s{_step(replicas, kept.wanted)}"
    return replace(kept, replicas=replicas, why=Why.QUIET, text=text)


def _step(replicas: int, wanted: int) -> str:
    return "" if replicas == wanted else f"; {replicas} first, in steps to {wanted}"
