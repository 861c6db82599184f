"""What ``/explain`` and ``/state`` tell: why a pod is where it is, or nowhere; and what every card has given away.

The answers come from the ledger and the policy that decide. Refuses to guess at what kube-scheduler's own rules said.
"""

from __future__ import annotations

import math
from typing import Any

from cardwise.adapters.allocations import encode
from cardwise.core.claim import Claim
from cardwise.core.ledger import BoundPod, Ledger
from cardwise.core.placement.explain import NodeView, explain_node, refusals
from cardwise.core.reasons import Reason
from cardwise.core.request import PodRequest
from cardwise.units import MILLI_PER_PCT

MOST_NODES = 200
"""Nodes of one explanation: those that fit first, then those that nearly do."""


def explain(ledger: Ledger, claim: Claim, node: str | None = None) -> dict[str, Any]:
    """Why, per node and card: rules, then scores, then what was reported. ``node``: this one only."""
    if ledger.outdated:
        ledger.rebuild()
    policy, cluster, lead = ledger.policy(claim), ledger.cluster, claim.lead
    held = ledger.pods.get(claim.uid) or ledger.under_way.get(claim.uid)
    counts = refusals(cluster, policy.granted(lead))
    if node is not None:
        chosen = [cluster.node_idx[node]] if node in cluster.node_idx else []
    else:
        costs = policy.costs(lead)
        chosen = sorted(range(cluster.nodes_total), key=lambda i: (costs[i], cluster.node_names[i]))[:MOST_NODES]
    return {
        "pod": claim.name,
        "uid": claim.uid,
        "policy": policy.name,
        "asks": [_ask(each.container, each.stage.value, claim.request(each.shape, host=False)) for each in claim.asks],
        "bound_to": held.node if held else None,
        "allocation": encode(held.allocation) if held and held.allocation else None,
        "nodes_total": cluster.nodes_total,
        "nodes_fit": cluster.nodes_total - sum(counts.values()),
        "refusals": [{"code": code.value, "short": Reason(code).short, "nodes": n} for code, n in counts.items()],
        "nodes": [_node(explain_node(policy, lead, i)) for i in chosen],
    }


def state(ledger: Ledger, pending: dict[str, Claim], waiting: dict[str, Claim]) -> dict[str, Any]:
    """All cards and who holds what of them; pods that are not bound, and why not."""
    if ledger.outdated:
        ledger.rebuild()
    cluster = ledger.cluster
    nodes = []
    for i, name in enumerate(cluster.node_names):
        cards = [
            {
                "uuid": card.uuid,
                "model": card.model,
                "memory_total_mib": card.memory_mib,
                "memory_free_mib": int(cluster.memory_free_mib[i, p]),
                "compute_free_pct": int(cluster.compute_free_milli[i, p]) / MILLI_PER_PCT,
                "healthy": bool(cluster.card_healthy[i, p]),
                "slices": _slices(ledger, name, card.uuid),
            }
            for p, card in enumerate(cluster.cards[i])
        ]
        nodes.append({"name": name, "fenced": bool(cluster.node_fenced[i]), "cards": cards})
    return {
        "nodes": nodes,
        "pending": [_pending(ledger, claim, uid in waiting) for uid, claim in pending.items() if claim.asks],
        "conflicts": [{"pod": c.pod, "node": c.node, "text": c.text} for c in ledger.conflicts.values()],
    }


def _pending(ledger: Ledger, claim: Claim, refused: bool) -> dict[str, Any]:
    policy = ledger.policy(claim)
    counts = refusals(ledger.cluster, policy.granted(claim.lead))
    fit = ledger.cluster.nodes_total - sum(counts.values())
    why = ", ".join(f"{n} {Reason(code).short}" for code, n in counts.items())
    return {
        "pod": claim.name,
        "refused": refused,
        "nodes_fit": fit,
        "why": f"{fit}/{ledger.cluster.nodes_total} nodes fit" + (f": {why}" if why else ""),
    }


def _slices(ledger: Ledger, node: str, uuid: str) -> list[dict[str, Any]]:
    return [
        {
            "pod": pod.claim.name,
            "container": container,
            "memory_mib": share.memory_mib,
            "compute_pct": share.compute_pct,
        }
        for pod in _with_allocation(ledger, node)
        for container, shares in (pod.allocation.containers if pod.allocation else ())
        for share in shares
        if share.uuid == uuid
    ]


def _with_allocation(ledger: Ledger, node: str) -> list[BoundPod]:
    return [pod for pod in ledger.pods_on(node) if pod.allocation]


def _ask(container: str, stage: str, request: PodRequest) -> dict[str, Any]:
    shape = request.shape
    return {
        "container": container,
        "stage": stage,
        "cards": shape.cards,
        "whole": shape.whole,
        "memory_mib": shape.memory_mib,
        "memory_pct": shape.memory_milli // MILLI_PER_PCT,
        "compute_pct": shape.compute_milli // MILLI_PER_PCT,
        "models": sorted(shape.models),
    }


def _node(view: NodeView) -> dict[str, Any]:
    return {
        "name": view.name,
        "fits": view.reason is None,
        "reason": _reason(view.reason),
        "cost": view.cost if math.isfinite(view.cost) else None,
        "factors": view.factors,
        "cards": [
            {
                "uuid": card.uuid,
                "chosen": place in view.places,
                "reason": _reason(card.reason),
                "memory_free_mib": card.memory_free_mib,
                "memory_total_mib": card.memory_total_mib,
                "compute_free_pct": card.compute_free_milli / MILLI_PER_PCT,
                "compute_used_share": card.compute_used_share if math.isfinite(card.compute_used_share) else None,
                "slices": card.slices,
            }
            for place, card in enumerate(view.cards)
        ],
    }


def _reason(reason: Reason | None) -> dict[str, str] | None:
    if reason is None:
        return None
    return {"code": reason.code.value, "short": reason.short, "long": reason.long, "advice": reason.advice}
