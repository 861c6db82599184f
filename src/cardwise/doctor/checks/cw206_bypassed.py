"""CW206: a pod asks for cards by another bookkeeper's names or scheduler: cardwise's books do not know of it."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters import wire
from cardwise.adapters.symptoms import ToldPod
from cardwise.doctor.facts import Facts, Waiting
from cardwise.doctor.findings import LIKELY, POSSIBLE, Check, Finding
from cardwise.doctor.room import Cause, cause_of
from cardwise.doctor.words import some


def find(facts: Facts) -> Iterable[Finding]:
    """Pods that wait elsewhere; pods that run on our nodes' cards without an allocation."""
    for each in facts.waiting:
        if cause_of(facts, each) is Cause.BYPASSED:
            yield _waits(each) if facts.cards else _elsewhere(facts, each)
    ours = {card.node for card in facts.cards}
    for pod in facts.gpu_pods:
        if pod.spec.node_name in ours and wire.ANNOTATION_ALLOC not in pod.metadata.annotations:
            yield _runs(facts, pod)


def _waits(waiting: Waiting) -> Finding:
    scheduler = waiting.pod.spec.scheduler_name or wire.DEFAULT_SCHEDULER
    namespace = waiting.pod.metadata.namespace
    return Finding(
        "CW206",
        f"pod {waiting.name}",
        frozenset({waiting.place}),
        f"pod {waiting.name} asks for cards and waits for {scheduler}, which knows nothing of cardwise's cards",
        (
            f"schedulerName {scheduler}; it asks for {some(_asked(waiting.pod))}",
            waiting.said or "nobody has said why it waits",
        ),
        "create it again with schedulerName: cardwise, or have the webhook take such pods: kubectl label namespace "
        f"{namespace} cardwise.dev/whole-cards=true",
        LIKELY,
    )


def _elsewhere(facts: Facts, waiting: Waiting) -> Finding:
    """No node is cardwise's: it is another plugin's whole cards that the pod waits for."""
    return Finding(
        "CW206",
        f"pod {waiting.name}",
        frozenset({waiting.place}),
        f"pod {waiting.name} waits for cards of another bookkeeper: no node is handed over to cardwise",
        (
            f"it asks for {some(_asked(waiting.pod))}; {len(facts.gpu_nodes)} nodes offer GPUs",
            waiting.said or "nobody has said why it waits",
        ),
        "cardwise replay --dump shows how many cards the same pods need as slices; to hand a node over see "
        "docs/howto/install.md",
        POSSIBLE,
    )


def _runs(facts: Facts, pod: ToldPod) -> Finding:
    node = pod.spec.node_name
    held = sorted(f"card:{card.uuid}" for card in facts.cards if card.node == node)
    return Finding(
        "CW206",
        f"pod {pod.name}",
        frozenset({f"pod:{pod.name}", f"node:{node}", *held}),
        f"pod {pod.name} got cards of node {node} from another bookkeeper: cardwise gives the same ones away",
        (f"it asks for {some(_asked(pod))}, runs on {node} and has no annotation {wire.ANNOTATION_ALLOC}",),
        f"create it again with schedulerName: cardwise, and take the other device plugin off {node}",
        POSSIBLE,
    )


def _asked(pod: ToldPod) -> list[str]:
    """The resources of cards that a pod names."""
    return sorted(
        {
            f"{name}: {amount}"
            for each in pod.spec.containers
            for name, amount in each.resources.limits.items()
            if name.startswith(wire.RESOURCE_DOMAINS)
        }
    )


CHECK = Check("CW206", "A pod asks another bookkeeper for cards", find)
