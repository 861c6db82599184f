"""Health: what the driver tells of a card → healthy, degraded or fenced, with strikes and a quiet time.

A fenced card takes no new slices; a degraded one is usable, and told. The driver's own verdict comes first (its
recovery action, field 230 of NVML, since R570), then Xids, failed rows, uncorrected ECC errors, heat, power. A card
comes back by itself only after the driver asked for nothing during a quiet time; each fence within a day doubles that
time, and at the third the card waits for an operator: a card that flaps costs more than one that is gone.

Refuses to fence by temperature alone (the driver slows a hot card down by itself), to blame a card for one pod's
faults, and to act: who resets, reboots, or moves pods reads it from here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from cardwise.core.card.facts import CardEvent, CardSample
from cardwise.core.card.health_record import (
    DEFAULTS,
    CardHealth,
    Code,
    Fence,
    Finding,
    HealthPolicy,
    Mark,
    Notice,
    Seen,
    State,
)
from cardwise.core.card.signs import read, untold
from cardwise.core.card.xids import DOUBLE_BIT, HARSHNESS, REMAPPED, Action

Told = tuple[CardHealth, tuple[Notice, ...]]
_MOST_TEXT = 1000
"""Characters: an event takes 1024 bytes, and a driver's own words may be long."""


def observe(
    health: CardHealth, now_s: float, seen: Seen, pods: Collection[str] = (), policy: HealthPolicy = DEFAULTS
) -> Told:
    """The card's health after one observation, and what to tell.

    pods: whose fault an event may be: those on the card, or fewer if more is known (of that MIG instance, of that
    process). Raises ValueError if the event or sample is of another card.
    """
    if isinstance(seen, CardEvent | CardSample) and seen.uuid != health.uuid:
        raise ValueError(f"an observation of {seen.uuid} was given to {health.uuid}")
    noted, findings = read(health, now_s, seen, pods, policy)
    changed, notices = _apply_all(noted, now_s, findings, policy)
    if not isinstance(seen, CardSample):
        return changed, notices
    cooled, over = _cool(changed, now_s, untold(seen))
    bad = any(finding.action.fences for finding in findings)
    back, recovered = _recover(cooled, now_s, clean=seen.recovery_action == 0 and not bad)
    return back, (*notices, *over, *recovered)


def clear(health: CardHealth, by: str) -> Told:
    """An operator, or a reset that was watched, says that the card is good: strikes and faults are forgotten."""
    fresh = CardHealth(health.uuid, ecc_uncorrected=health.ecc_uncorrected)
    if health.state is State.HEALTHY and not health.struck_s:
        return fresh, ()
    text = (
        f"{health.uuid} was cleared by {by}: it takes slices again, and its strikes ({health.strikes}) are forgotten."
    )
    return fresh, (Notice(Code.CLEARED, State.HEALTHY, text, warning=False),)


def lasting(health: CardHealth, by_s: float = 0.0, latest_s: float = math.inf) -> CardHealth:
    """What must outlive the program: fence and strikes, their times moved by ``by_s``, none later than ``latest_s``.

    Between a monotonic clock and one that another program reads, too; a clock that was set back makes no time negative.
    The quiet time begins anew.
    """
    fence = health.fence
    moved = None if fence is None else replace(fence, since_s=min(fence.since_s + by_s, latest_s))
    return CardHealth(health.uuid, moved, struck_s=tuple(min(at_s + by_s, latest_s) for at_s in health.struck_s))


def of_the_day(health: CardHealth, now_s: float, policy: HealthPolicy = DEFAULTS) -> CardHealth:
    """Without the strikes that count no more."""
    return replace(health, struck_s=tuple(at_s for at_s in health.struck_s if now_s - at_s < policy.day_s))


def rebooted(health: CardHealth) -> Told:
    """The node was booted anew, and with it the card: the fence is over, unless an operator has the say."""
    fence = health.fence
    if fence is None or fence.held:
        return health, ()
    return _unfenced(health, fence, "the node was rebooted")


# ---------------------------------------------------------------- applying


def _apply_all(health: CardHealth, now_s: float, findings: Collection[Finding], policy: HealthPolicy) -> Told:
    notices: list[Notice] = []
    for finding in findings:
        health, told = _apply(health, now_s, finding, policy)
        notices += told
    return health, tuple(notices)


def _apply(health: CardHealth, now_s: float, finding: Finding, policy: HealthPolicy) -> Told:
    if finding.action.fences:
        if health.fence is None:
            return _fence(health, now_s, finding, policy)
        return _fence_more(health, health.fence, finding)
    if finding.action is Action.DEGRADE:
        return _mark(health, now_s, finding)
    if finding.action is Action.IGNORE:
        return health, ()
    return health, (_mention(health, finding),)


def _fence(health: CardHealth, now_s: float, finding: Finding, policy: HealthPolicy) -> Told:
    struck_s = (*of_the_day(health, now_s, policy).struck_s, now_s)
    quiet_s, held = policy.quiet_s * 2 ** (len(struck_s) - 1), len(struck_s) >= policy.most_strikes
    fence = Fence(finding.code, finding.what, finding.action, now_s, quiet_s, held, (finding.key,))
    fenced = replace(health, fence=fence, struck_s=struck_s, clean_since_s=None)
    text = f"{health.uuid} is fenced and takes no new slices: {finding.what}. {_NEXT[finding.action]} "
    return fenced, (_notice(fenced, finding, text + _return_of(fenced, fence)),)


def _fence_more(health: CardHealth, fence: Fence, finding: Finding) -> Told:
    """The quiet time begins anew with every fault; a fault is told, and no further strike, if it is a new one."""
    noted = replace(health, clean_since_s=None)
    if finding.key in fence.keys:
        return noted, ()
    softer = finding.action is Action.DRAIN and _MEMORY_KEYS.issuperset((finding.key, *fence.keys))
    action = finding.action if softer or HARSHNESS[finding.action] > HARSHNESS[fence.action] else fence.action
    fence = replace(fence, action=action, keys=(*fence.keys, finding.key))
    noted = replace(noted, fence=fence)
    text = f"{health.uuid} stays fenced, now also for this: {finding.what}. {_NEXT[action]} "
    return noted, (_notice(noted, finding, text + _return_of(noted, fence)),)


_MEMORY_KEYS = {f"xid-{xid}" for xid in (DOUBLE_BIT, *REMAPPED)}
"""Together they are one fault, and a milder one than 48 or 64 alone."""

_NEXT: Mapping[Action, str] = {
    Action.CORDON: "Running pods stay; someone should look at the node's kernel log.",
    Action.DRAIN: "Running pods may finish, then the card needs a reset.",
    Action.RESET: "Its services should move now, then the card needs a reset.",
    Action.REBOOT: "Its services should move now, then the node needs a reboot, and the card a look if it comes again.",
}


def _return_of(health: CardHealth, fence: Fence) -> str:
    if fence.held:
        return f"This is fence {health.strikes} within a day: it stays fenced until an operator clears it: {_HOW}."
    return (
        f"It takes slices again after {fence.quiet_s / 60:g} min without a fault in which the driver says that nothing "
        f"is to be done; where the driver cannot say so, an operator clears it: {_HOW}."
    )


_HOW = "cardwise fence clear, in the agent's container, once the card is mended"


def _mark(health: CardHealth, now_s: float, finding: Finding) -> Told:
    others = tuple(mark for mark in health.marks if mark.key != finding.key)
    marked = replace(health, marks=(*others, Mark(finding.code, finding.key, finding.what, now_s, finding.lasts_s)))
    if len(others) < len(health.marks):
        return marked, ()
    text = (
        f"{health.uuid}: {finding.what}. {_taking(marked)}; this is over {_span(finding.lasts_s)} after its last sign."
    )
    return marked, (_notice(marked, finding, text),)


def _taking(health: CardHealth) -> str:
    return "It stays fenced" if health.fence else "It still takes slices"


def _span(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} min" if seconds < 7200 else f"{seconds / 3600:g} h"


def _mention(health: CardHealth, finding: Finding) -> Notice:
    if finding.action is Action.FOLLOW_DRIVER:
        then = "The driver's recovery action decides what happens."
    elif finding.code is Code.FAULTS_OF_POD:
        then = "The pod is to blame and not the card, which stays as it is; look at the pod's log."
    elif finding.code is Code.XID_APP:
        then = _whose(finding.pods)
    else:
        then = f"{_taking(health)}."
    return _notice(health, finding, f"{health.uuid}: {finding.what}. {then}")


def _whose(pods: tuple[str, ...]) -> str:
    if not pods:
        return "An application is hit, but no pod is known on the card."
    shown = ", ".join(pods[:5]) + (f" and {len(pods) - 5} more" if len(pods) > 5 else "")
    return f"It hit {'one of ' if len(pods) > 1 else ''}{shown}, which has to start anew; the card stays as it is."


def _notice(health: CardHealth, finding: Finding, text: str) -> Notice:
    shown = text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 4]} ..."
    return Notice(finding.code, health.state, shown, finding.pods)


# ---------------------------------------------------------------- getting better


def _cool(health: CardHealth, now_s: float, untold: Collection[Code]) -> Told:
    """End the marks that were not seen for long enough; what the sample does not tell of stays as it was."""
    marks = tuple(replace(mark, seen_s=now_s) if mark.code in untold else mark for mark in health.marks)
    over = [mark for mark in marks if now_s - mark.seen_s >= mark.lasts_s]
    cooled = replace(health, marks=tuple(mark for mark in marks if mark not in over))
    texts = (f"{health.uuid} is {cooled.state.value}; this is over: {mark.what}." for mark in over)
    notices = zip(over, texts, strict=True)
    return cooled, tuple(Notice(mark.code, cooled.state, text, warning=False) for mark, text in notices)


def _recover(health: CardHealth, now_s: float, *, clean: bool) -> Told:
    """End the fence if all samples were clean for its quiet time, the driver's verdict among them."""
    fence = health.fence
    if fence is None:
        return health, ()
    if not clean:
        return replace(health, clean_since_s=None), ()
    since_s = now_s if health.clean_since_s is None else health.clean_since_s
    if fence.held or now_s - since_s < fence.quiet_s:
        return replace(health, clean_since_s=since_s), ()
    return _unfenced(health, fence, f"no fault for {_span(fence.quiet_s)}, and the driver asks for nothing")


def _unfenced(health: CardHealth, fence: Fence, because: str) -> Told:
    back = replace(health, fence=None, clean_since_s=None, late_probes=0, app_faults=())
    text = (
        f"{health.uuid} is {back.state.value} and takes slices again: {because}. It was fenced for this: {fence.what}. "
        f"Strikes within a day: {back.strikes}."
    )
    return back, (Notice(Code.RECOVERED, back.state, text, warning=False),)
