"""CW301: the runtime finds no CDI description of a card, or one that names what is not there."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cardwise.adapters.symptoms import ToldPod
from cardwise.doctor.facts import Facts, with_card
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding
from cardwise.doctor.words import last_words, some

UNRESOLVED = re.compile(r"unresolvable CDI devices?|CDI device injection failed|failed to inject CDI|cdi: .*not found")
NO_LIBRARY = re.compile(
    r"libcuda\.so\.1: cannot open shared object|libnvidia-ml\.so\.1|Found no NVIDIA driver|"
    r"NVIDIA driver was not detected"
)
"""In a container that has a card these mean that the driver's libraries were not mounted."""
GENERATE = (
    "on the node: nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml, and see that CDI is on in the runtime"
)


def find(facts: Facts) -> Iterable[Finding]:
    """Pods whose containers were not made, or have no libraries; this node's files."""
    for pod in facts.gpu_pods:
        for text in _told(facts, pod):
            yield _of_pod(pod, text, UNRESOLVED.search(text) is not None)
            break
    nearby = facts.nearby
    if nearby is None:
        return
    if nearby.cdi_why and nearby.driver is not None:
        yield _of_node(nearby.node, "the runtime knows no card", (nearby.cdi_why,), CERTAIN)
    elif nearby.absent:
        seen = (f"not there: {some(nearby.absent)}",)
        told = "the toolkit's CDI file names paths that are not there: it is of another driver version"
        yield _of_node(nearby.node, told, seen, LIKELY)


def _told(facts: Facts, pod: ToldPod) -> Iterable[str]:
    """What was said of the pod that means this, the latest first."""
    for _, words in last_words(pod, facts.taken):
        if UNRESOLVED.search(words) or (NO_LIBRARY.search(words) and with_card(pod)):
            yield words
    if not pod.ready:
        for event in facts.events_of("Pod", pod.metadata.namespace, pod.metadata.name):
            if UNRESOLVED.search(event.message):
                yield event.message


def _of_pod(pod: ToldPod, text: str, unresolved: bool) -> Finding:
    node = pod.spec.node_name
    cause = (
        f"no GPU in {pod.name}: the runtime of node {node} does not find its card's CDI description"
        if unresolved
        else f"no GPU in {pod.name}: it has a card, and the driver's libraries were not mounted"
    )
    action = GENERATE if unresolved else f"{GENERATE}; images need no driver of their own, it comes from the node"
    places = frozenset({f"pod:{pod.name}", f"node:{node}"})
    return Finding("CW301", f"pod {pod.name}", places, cause, (text[:300],), action, CERTAIN if unresolved else LIKELY)


def _of_node(node: str, cause: str, evidence: tuple[str, ...], likelihood: float) -> Finding:
    places = frozenset({f"node:{node}"})
    return Finding("CW301", f"node {node}", places, f"node {node}: {cause}", evidence, GENERATE, likelihood)


CHECK = Check(
    "CW301",
    "The runtime finds no CDI description of the card",
    find,
    frozenset({"CW304", "CW410"}),
    frozenset({"objects", "node"}),
)
