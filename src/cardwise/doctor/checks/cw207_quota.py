"""CW207: quota holds a pod back, or keeps it from being created: Kueue's, or a namespace's ResourceQuota."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters import wire
from cardwise.adapters.symptoms import Event, ToldWorkload
from cardwise.doctor.facts import Facts, Waiting
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding
from cardwise.doctor.room import Cause, cause_of

RECENT_S = 3600.0


def find(facts: Facts) -> Iterable[Finding]:
    """Pods behind Kueue's gate, and events of who may not create pods."""
    for each in facts.waiting:
        if cause_of(facts, each) is Cause.QUOTA:
            yield _gated(facts, each)
    for event in facts.capture.of(Event):
        age = facts.age_s(event.last_timestamp or event.event_time or event.metadata.creation_timestamp)
        if event.reason == "FailedCreate" and "exceeded quota" in event.message and (age is None or age < RECENT_S):
            about = event.involved_object
            who = f"{about.namespace}/{about.name}"
            yield Finding(
                "CW207",
                f"{about.kind} {who}",
                frozenset({f"owner:{who}"}),
                f"{about.kind} {who} may not create its pods: a ResourceQuota of {about.namespace} is used up",
                (event.message,),
                f"kubectl describe resourcequota -n {about.namespace}; raise it, or ask for less",
                CERTAIN,
            )


def _gated(facts: Facts, waiting: Waiting) -> Finding:
    queue = waiting.pod.metadata.labels.get(wire.LABEL_KUEUE_QUEUE, "?")
    said = [
        f"Workload {each.metadata.name}: {condition.type} is {condition.status}: {condition.message}"
        for each in facts.capture.of(ToldWorkload)
        if _is_of(each, waiting)
        for condition in each.status.conditions
        if condition.status == "False" or condition.type in {"Evicted", "Preempted"}
    ]
    return Finding(
        "CW207",
        f"pod {waiting.name}",
        frozenset({waiting.place}),
        f"pod {waiting.name} waits in Kueue's queue {queue}: its quota does not admit it now",
        tuple(said) or (f"its scheduling gate is there still, and its queue is {queue}",),
        f"cardwise quota why {waiting.name} says its place in the queue and what is missing; raise the queue's share, "
        "or wait",
        CERTAIN if said else LIKELY,
    )


def _is_of(workload: ToldWorkload, waiting: Waiting) -> bool:
    """Kueue names a pod as its Workload's owner, or the pod's own owner."""
    names = {waiting.pod.metadata.name, *(owner.name for owner in waiting.pod.metadata.owner_references)}
    same = workload.metadata.namespace == waiting.pod.metadata.namespace
    return same and any(owner.name in names for owner in workload.metadata.owner_references)


CHECK = Check("CW207", "Quota holds a pod back", find)
