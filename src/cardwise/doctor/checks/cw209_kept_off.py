"""CW209: a card would take the pod, and another rule keeps it off: a taint, an affinity, a volume, a gate."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts, Waiting
from cardwise.doctor.findings import LIKELY, POSSIBLE, Check, Finding
from cardwise.doctor.room import Cause, cause_of
from cardwise.doctor.words import some

TURN_S = 300.0
"""A pod that is younger, and of which kube-scheduler has said nothing, may still have its turn."""


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod."""
    for each in facts.waiting:
        if cause_of(facts, each) is Cause.KEPT_OFF and not _in_turn(facts, each):
            yield _finding(facts, each)


def _in_turn(facts: Facts, waiting: Waiting) -> bool:
    """Whether it is new and nobody has looked at it yet: some hundred pods at once take their time."""
    age = facts.age_s(waiting.pod.metadata.creation_timestamp)
    return not waiting.said and not waiting.pod.spec.scheduling_gates and age is not None and age < TURN_S


def _finding(facts: Facts, waiting: Waiting) -> Finding:
    gates = [gate.name for gate in waiting.pod.spec.scheduling_gates]
    cause = (
        f"pod {waiting.name} is held by the gate {some(gates)}"
        if gates
        else f"pod {waiting.name}: cards of {some(waiting.fits)} would take it, and a rule that is not about cards "
        "keeps it off"
    )
    tolerated = {each.key for each in waiting.pod.spec.tolerations}
    taints = [
        f"node {node.metadata.name} has the taint {taint.key}:{taint.effect}"
        for node in facts.gpu_nodes
        if node.metadata.name in waiting.fits
        for taint in node.spec.taints
        if taint.effect != "PreferNoSchedule" and taint.key not in tolerated and "" not in tolerated
    ]
    said = [f"kube-scheduler: {waiting.said}"] if waiting.said else []
    selector = [f"its nodeSelector: {waiting.pod.spec.node_selector}"] if waiting.pod.spec.node_selector else []
    return Finding(
        "CW209",
        f"pod {waiting.name}",
        frozenset({waiting.place}),
        cause,
        (*said, *taints[:3], *selector) or (f"{len(waiting.fits)} nodes fit by cards, CPU and memory",),
        f"kubectl describe pod -n {waiting.pod.metadata.namespace} {waiting.pod.metadata.name}; tolerate the taint, "
        "correct the selector, or see the claim of the volume",
        LIKELY if said or taints or gates else POSSIBLE,
    )


CHECK = Check("CW209", "Another rule keeps a pod off cards that would do", find)
