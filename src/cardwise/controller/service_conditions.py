"""Conditions of a ServicePolicy: what is well, what is not, and what to do about it.

A condition keeps its time while its status stays. Which status is the bad one is said here once; that one of them
turned bad is an event, and the object itself remembers that it was told. Refuses to put numbers that change by the
second into a message: each change of it would be a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from cardwise.adapters.kube.instants import stamp
from cardwise.adapters.policies import FIELD_MANAGER, Target
from cardwise.adapters.service_policy import Condition, ServicePolicy

READY = "Ready"
"""The policy can be read, and there is what it speaks of."""
SIGNAL = "SignalSeen"
"""Its metrics say how much it carries."""
FORECAST = "ForecastUsed"
ALLOWED = "ScalingAllowed"
"""Nobody else sets the number of replicas."""
LIMITED = "ScalingLimited"
"""Its maximum keeps it from more."""
TWO_NODES = "OnTwoNodes"
GATEWAY = "GatewayApplied"
PODS = "PodsAgree"
"""Its Deployment's template says of its pods what the policy says."""
_BAD = {LIMITED: "True"}
"""The status that is bad; of all others it is False."""

HANDS_OFF = timedelta(hours=1)
"""So long a number that somebody else wrote is left as it is."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found about one condition. status: True, False, or None for unknown."""

    type: str
    status: bool | None
    reason: str
    message: str

    @property
    def text(self) -> str:
        """As the API has it."""
        return "Unknown" if self.status is None else str(self.status)


@dataclass(frozen=True, slots=True)
class HandsOff:
    """Somebody else sets the number. until: when that is over; None while they are there. by: who, as told."""

    reason: str
    text: str
    until: datetime | None = None
    by: str = ""


def conditions(policy: ServicePolicy, found: Iterable[Found], now: datetime) -> list[Condition]:
    """As they are written, each with the time since when its status is so."""
    before = {each.type: each for each in policy.status.conditions}
    made = []
    for each in found:
        old = before.get(each.type)
        since = old.last_transition_time if old and old.status == each.text else stamp(now)
        made.append(Condition(each.type, each.text, each.reason, each.message, policy.generation, since))
    return sorted(made, key=lambda each: (each.type != READY, each.type))


def turned_bad(policy: ServicePolicy, found: Iterable[Found]) -> Iterator[Found]:
    """Those that are bad now and were not, or for another reason."""
    before = {each.type: (each.status, each.reason) for each in policy.status.conditions}
    for each in found:
        if each.text == _BAD.get(each.type, "False") and before.get(each.type) != (each.text, each.reason):
            yield each


def hands_off(policy: ServicePolicy, target: Target, autoscaler: str | None, now: datetime) -> HandsOff | None:
    """Whether somebody else sets the number of replicas.

    A HorizontalPodAutoscaler does for as long as it is there. Whoever else wrote another number than we did last is
    left alone for an hour, and again with each new number; a policy that was changed since takes over at once.
    """
    if autoscaler is not None:
        text = f"HorizontalPodAutoscaler {autoscaler} scales {target.name} too; delete it, or this policy"
        return HandsOff("HorizontalPodAutoscaler", text)
    status = policy.status
    if status.target_uid != target.uid or status.observed_generation != policy.generation:
        return None
    foreign = target.writer not in {"", FIELD_MANAGER}
    if foreign and status.scaled_replicas is not None and target.replicas != status.scaled_replicas:
        return _left_to(target.writer, now + HANDS_OFF)
    until = _instant(status.hands_off_until)
    if not foreign or until is None or until <= now:
        return None
    return _left_to(target.writer, min(until, now + HANDS_OFF))  # it lies further ahead if the clock was set back


def _left_to(writer: str, until: datetime) -> HandsOff:
    text = (
        f"{writer} wrote the number of replicas; it is left alone until {stamp(until)}, or until this policy is "
        "changed. A manifest that is applied again and again must not have spec.replicas"
    )
    return HandsOff("OtherWriter", text, until, writer)


def _instant(text: str | None) -> datetime | None:
    """An instant that we wrote. What is none was written by somebody else, and says nothing."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
