"""CW104: two device plugins hand out the same cards, or one resource (case C14): each gives them away in full."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters import wire
from cardwise.adapters.symptoms import ToldNode
from cardwise.agent.registering import ENDPOINT, KUBELET_SOCKET
from cardwise.agent.rivals import rivals
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding

LABEL_AGENT = "cardwise.dev/agent"
NVIDIAS = ("nvidia-", "nvidiaGPU")
REGISTRATIONS = 5
"""In 10 minutes: a kubelet that is restarted takes one."""


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each sign of another plugin on a node that is handed over to cardwise."""
    for node in facts.gpu_nodes:
        name = node.metadata.name
        if _is_ours(node):
            for text in rivals(node, (), wire.OWN_COUNT):
                yield _finding(name, text, _evidence(facts, node), CERTAIN)
    yield from _ousted(facts)
    nearby = facts.nearby
    if nearby is None:
        return
    others = [each for each in nearby.sockets if each.startswith(NVIDIAS) and each.endswith(".sock")]
    if others and ENDPOINT in nearby.sockets:
        text = f"two device plugins are registered: cardwise's and the one of {', '.join(others)}"
        seen = (f"in the kubelet's folder: {', '.join((ENDPOINT, *others))}",)
        yield _finding(nearby.node, f"{text}. Take the other's DaemonSet off the node", seen, LIKELY)


def _ousted(facts: Facts) -> Iterable[Finding]:
    """Who registers a resource last has it: two that serve the same one oust each other again and again."""
    for line in facts.metrics.of("registrations"):
        if not line.last >= REGISTRATIONS:
            continue
        node = line.labels.get("node", line.labels.get("instance", ""))
        seen = [f"{line.last:.0f} registrations of cardwise's agent with its kubelet in 10 minutes"]
        if facts.nearby is not None and facts.nearby.node == node:
            sockets = [each for each in facts.nearby.sockets if each.endswith(".sock") and each != KUBELET_SOCKET]
            seen.append(f"in the kubelet's folder: {', '.join(sockets)}")
        cause = f"cardwise's plugin and another one register the same resource, {wire.OWN_COUNT}"
        action = f"take the other plugin off node {node}: its socket is beside {ENDPOINT} in the kubelet's folder"
        yield _finding(node, f"{cause}. {action}", seen, LIKELY)


def _is_ours(node: ToldNode) -> bool:
    return wire.ANNOTATION_CARDS in node.metadata.annotations or LABEL_AGENT in node.metadata.labels


def _finding(node: str, text: str, evidence: Iterable[str], likelihood: float) -> Finding:
    cause, _, action = text.partition(". ")
    told = f"node {node}: {cause}"
    action = action or f"take the other plugin off node {node}"
    return Finding("CW104", f"node {node}", frozenset({f"node:{node}"}), told, tuple(evidence), action, likelihood)


def _evidence(facts: Facts, node: ToldNode) -> list[str]:
    """What the node offers, and which pods on it look like the plugins."""
    told = [
        f"allocatable {resource}: {amount}"
        for resource, amount in sorted(node.status.allocatable.items())
        if resource.startswith(wire.RESOURCE_DOMAINS)
    ]
    plugins = sorted(
        pod.name
        for pod in facts.pods_on(node.metadata.name)
        if not pod.ended
        and any("device-plugin" in each.image or "device-plugin" in each.name for each in pod.spec.containers)
    )
    return [*told, *([f"pods of other plugins on it: {', '.join(plugins)}"] if plugins else [])] or [
        f"annotation {wire.ANNOTATION_HAMI_CARDS}"
    ]


CHECK = Check(
    "CW104",
    "Two device plugins hand out the same cards",
    find,
    frozenset({"CW108", "CW206", "CW303", "CW406", "CW409"}),
    frozenset({"objects", "node", "metrics"}),
)
