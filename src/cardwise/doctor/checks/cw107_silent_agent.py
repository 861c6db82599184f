"""CW107: a node's agent is silent, or what it reports contradicts the books: its free memory is not to be had."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters import wire
from cardwise.adapters.symptoms import ToldNode
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding

SILENT_S = 90.0
"""An agent renews its Lease every 20 s; the scheduler calls it silent after about as long."""

FAILURES = 3
"""Writes that failed in ten minutes: one or two are an API server that was restarted."""


def find(facts: Facts) -> Iterable[Finding]:
    """Nodes that have cards of ours, or had: their condition, their Lease, their agent's pod."""
    for node in facts.gpu_nodes:
        told = wire.ANNOTATION_CARDS in node.metadata.annotations
        found = _lost(node) or _condition(node) or (_reports(facts, node.metadata.name) if told else None)
        if found is None:
            continue
        why, likelihood = found
        name = node.metadata.name
        yield Finding(
            "CW107",
            f"node {name}",
            frozenset({f"node:{name}"}),
            f"what node {name} reports of its cards is stale or contradicts its pods: it takes nothing new",
            (why, *_agent(facts, name)),
            "find its agent (kubectl get pods -n cardwise-system -l app.kubernetes.io/component=agent -o wide) and "
            "read its log; the fence goes by itself once it reports again",
            likelihood,
        )


def _lost(node: ToldNode) -> tuple[str, float] | None:
    """The node itself is silent, and its agent with it."""
    for each in node.status.conditions:
        if each.type == "Ready" and each.status != "True":
            return f"the node's condition Ready is {each.status}: {each.message or each.reason or 'no reason'}", CERTAIN
    return None


def _condition(node: ToldNode) -> tuple[str, float] | None:
    for each in node.status.conditions:
        if (each.type, each.status) == (wire.CONDITION_CONSISTENT, "False"):
            return f"condition {each.type} is False: {each.message or each.reason or 'no reason is told'}", CERTAIN
    return None


def _reports(facts: Facts, node: str) -> tuple[str, float] | None:
    return _lease(facts, node) or _publishes(facts, node)


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
    if age is not None and age - (behind or 0.0) > SILENT_S:
        return f"its agent renewed its Lease {age:.0f} s ago, every 20 s is usual", LIKELY
    return None


def _agent(facts: Facts, node: str) -> list[str]:
    """The agent's pod on the node, if pods tell of one that is not well."""
    pods = [
        pod
        for pod in facts.capture.pods
        if pod.spec.node_name == node and pod.metadata.labels.get("app.kubernetes.io/component") == "agent"
    ]
    if not pods:
        return ["no pod of the agent is on it"]
    return [f"pod {pod.name} is {pod.status.phase}, not ready" for pod in pods if not pod.ready]


CHECK = Check(
    "CW107",
    "An agent is silent, or its report contradicts the books",
    find,
    frozenset({"CW203", "CW208"}),
    frozenset({"objects", "metrics"}),
)
