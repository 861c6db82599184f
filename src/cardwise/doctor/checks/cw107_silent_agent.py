"""CW107: a node's agent is silent, or what it reports contradicts the books: its free memory is not to be had."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters import wire
from cardwise.adapters.symptoms import ToldNode
from cardwise.doctor.facts import LABEL_COMPONENT, Facts
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding
from cardwise.doctor.words import denied, fails_again, last_words, some

SILENT_S = 90.0
"""An agent renews its Lease every 20 s; the scheduler calls it silent after about as long."""

FAILURES = 3
"""Writes that failed in ten minutes: one or two are an API server that was restarted."""


def find(facts: Facts) -> Iterable[Finding]:
    """Nodes that have cards of ours, or had: their condition, their Lease, their agent's pod."""
    for node in facts.gpu_nodes:
        if facts.settling(node):
            continue
        name = node.metadata.name
        lost = _lost(node)
        if lost and not _is_laid_up(facts, node):
            told = f"node {name} is not Ready: its cards take nothing new, and what it told of them is stale"
            action = f"kubectl describe node {name}; see its kubelet (systemctl status kubelet), its network, its power"
            yield _finding(node, told, (lost,), action, CERTAIN)
        found = (
            None if lost else _failing(facts, name) or _condition(node) or _books(facts, name) or _reports(facts, node)
        )
        if found is not None:
            told = f"what node {name} reports of its cards is stale or contradicts its pods: it takes nothing new"
            action = (
                "find its agent (kubectl get pods -A -l app.kubernetes.io/component=agent -o wide) and read its log; "
                "the fence goes by itself once it reports again"
            )
            yield _finding(node, told, (found[0], *_agent(facts, name)), action, found[1])


def _finding(node: ToldNode, cause: str, evidence: tuple[str, ...], action: str, likelihood: float) -> Finding:
    name = node.metadata.name
    return Finding("CW107", f"node {name}", frozenset({f"node:{name}"}), cause, evidence, action, likelihood)


def _lost(node: ToldNode) -> str:
    """How it reads that the node itself is silent, and its agent with it; empty if it is not."""
    for each in node.status.conditions:
        if each.type == "Ready" and each.status != "True":
            return f"the node's condition Ready is {each.status}: {each.message or each.reason or 'no reason'}"
    return ""


def _is_laid_up(facts: Facts, node: ToldNode) -> bool:
    """Whether it was cordoned and has no pods with cards: somebody took it out of service, and knows."""
    name = node.metadata.name
    return node.spec.unschedulable and not any(facts.pod(pod.name) for pod in facts.pods_on(name) if not pod.ended)


def _failing(facts: Facts, node: str) -> tuple[str, float] | None:
    """Its agent ends again and again: all that it tells, and holds, is of a moment ago."""
    for pod in facts.pods_on(node):
        if pod.metadata.labels.get(LABEL_COMPONENT) != "agent" or pod.ended:
            continue
        for status in pod.status.container_statuses:
            if fails_again(status, facts.taken):
                words = next((text for _, text in last_words(pod, facts.taken)), "")
                return (
                    f"pod {pod.name} was restarted {status.restart_count} times{words and f': {words[:200]}'}",
                    CERTAIN,
                )
    return None


def _books(facts: Facts, node: str) -> tuple[str, float] | None:
    """What the pods' allocations say cannot be, or one of both cannot be read."""
    told = facts.troubles.get(node)
    return (some(told, " | "), CERTAIN) if told else None


def _condition(node: ToldNode) -> tuple[str, float] | None:
    told = denied(node, wire.CONDITION_CONSISTENT)
    return (told, CERTAIN) if told else None


def _reports(facts: Facts, node: ToldNode) -> tuple[str, float] | None:
    if wire.ANNOTATION_CARDS not in node.metadata.annotations:
        return None
    return _lease(facts, node.metadata.name) or _publishes(facts, node.metadata.name)


def _publishes(facts: Facts, node: str) -> tuple[str, float] | None:
    """The agent lives, and the API server takes nothing of it."""
    failed = facts.metrics.last("publish_failures", node=node)
    if failed is None or failed < FAILURES:
        return None
    return f"the API server refused {failed:.0f} reports of its agent in 10 minutes", LIKELY


def _lease(facts: Facts, node: str) -> tuple[str, float] | None:
    """By the kubelet's own Lease, whose clock is the same: a clock that is behind makes nobody silent."""
    lease, kubelets = facts.lease(f"{wire.LEASE_AGENT_PREFIX}{node}"), facts.lease(node)
    age = facts.age_s(lease.spec.renew_time) if lease else None
    behind = facts.age_s(kubelets.spec.renew_time) if kubelets else None
    if age is not None and age - max(behind or 0.0, 0.0) > SILENT_S:
        return f"its agent renewed its Lease {age:.0f} s ago, every 20 s is usual", LIKELY
    return None


def _agent(facts: Facts, node: str) -> list[str]:
    """The agent's pod on the node, if pods tell of one that is not well."""
    pods = [pod for pod in facts.pods_on(node) if pod.metadata.labels.get(LABEL_COMPONENT) == "agent"]
    if not pods:
        return ["no pod of the agent is on it"]
    return [f"pod {pod.name} is {pod.status.phase}, not ready" for pod in pods if not pod.ready]


CHECK = Check(
    "CW107",
    "An agent is silent, or its report contradicts the books",
    find,
    frozenset({"CW108", "CW203", "CW208", "CW303"}),
    frozenset({"objects", "metrics"}),
)
