"""What ``/explain`` and ``/state`` tell: why a pod is where it is, or nowhere; and what every card has given away.

The answers come from the ledger and the policy that decide. Refuses to guess at what kube-scheduler's own rules said.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from cardwise.adapters.allocations import encode
from cardwise.core.allocation import BoundPod
from cardwise.core.claim import Claim
from cardwise.core.ledger import Ledger
from cardwise.core.placement.explain import NodeView, explain_node
from cardwise.core.placement.filter import node_reason
from cardwise.core.placement.offer import Offer, offer
from cardwise.core.placement.policy import Policy
from cardwise.core.reasons import Code, Reason
from cardwise.core.request import PodRequest
from cardwise.units import MILLI_PER_PCT

MOST_NODES = 200
"""Nodes of one explanation: those that fit first, then those that nearly do."""


def explain(ledger: Ledger, claim: Claim, node: str | None = None) -> dict[str, Any]:
    """Why, per node and card: rules, then scores, then what was reported. ``node``: this one only."""
    if ledger.outdated:
        ledger.rebuild()
    policy, cluster, costs = ledger.policy(claim), ledger.cluster, ledger.policy(claim).costs(claim.lead)
    held = ledger.pods.get(claim.uid) or ledger.under_way.get(claim.uid)
    found = _asked_everywhere(ledger, claim)
    if node is not None:
        chosen = [cluster.node_idx[node]] if node in cluster.node_idx else []
    else:
        nodes = range(cluster.nodes_total)
        chosen = sorted(nodes, key=lambda i: (i in found.refused, costs[i], cluster.node_names[i]))[:MOST_NODES]
    return {
        "pod": claim.name,
        "uid": claim.uid,
        "policy": policy.name,
        "asks": [_ask(each.container, each.stage.value, claim.request(each.shape, host=False)) for each in claim.asks],
        "bound_to": held.node if held else None,
        "allocation": encode(held.allocation) if held and held.allocation else None,
        "nodes_total": cluster.nodes_total,
        "nodes_fit": len(found.ranked),
        "refusals": [{"code": code.value, "short": Reason(code).short, "nodes": n} for code, n in _counts(found)],
        "nodes": [_node(_view(policy, claim, i, refused=i in found.refused)) for i in chosen],
    }


def _asked_everywhere(ledger: Ledger, claim: Claim) -> Offer:
    """What ``filter`` would answer if kube-scheduler offered all nodes."""
    asked = replace(claim, uid=f"{claim.uid} asked")  # the pod may hold cards already
    total = ledger.cluster.nodes_total
    with ledger.asking(*(() if ledger.knows(claim.uid) else (claim.uid,))):  # what is kept for it is free for it
        return offer(ledger.policy(claim), asked, np.arange(total), total)


def _counts(found: Offer) -> list[tuple[Code, int]]:
    """How many nodes refuse for which reason, most nodes first."""
    return Counter(found.refused.values()).most_common()


def _view(policy: Policy, claim: Claim, node_idx: int, *, refused: bool) -> NodeView:
    """The node as the pod's largest ask sees it; where that alone would fit, the reason of the other asks."""
    view = explain_node(policy, claim.lead, node_idx)
    if view.reason is not None or not refused:
        return view
    others = (policy.granted(claim.request(ask.shape, host=False)) for ask in claim.running_asks)
    reasons = (node_reason(policy.cluster, request, node_idx) for request in others)
    reason = next(filter(None, reasons), Reason(Code.NODE_TOGETHER))
    return replace(view, reason=reason, cost=math.inf, factors={}, places=())


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
                "memory_lent_mib": int(cluster.memory_lent_mib[i, p]),
                "memory_lent_free_mib": int(cluster.memory_lent_free_mib[i, p]),
                "compute_free_pct": int(cluster.compute_free_milli[i, p]) / MILLI_PER_PCT,
                "healthy": bool(cluster.card_healthy[i, p]),
                "slices": _slices(ledger, name, card.uuid),
            }
            for p, card in enumerate(cluster.cards[i])
        ]
        nodes.append({"name": name, "fenced": bool(cluster.node_fenced[i]), "cards": cards})
    return {
        "nodes": nodes,
        "pending": _pending(ledger, [claim for claim in pending.values() if claim.asks], waiting),
        "conflicts": [{"pod": c.pod, "node": c.node, "text": c.text} for c in ledger.conflicts.values()],
    }


def _pending(ledger: Ledger, claims: list[Claim], waiting: dict[str, Claim]) -> list[dict[str, Any]]:
    """Pods that are not bound. Replicas of one template are asked about once."""
    total, told, answers = ledger.cluster.nodes_total, list[dict[str, Any]](), dict[Claim, Offer]()
    for claim in claims:
        kind = replace(claim, uid="", name="")
        if kind not in answers:
            answers[kind] = _asked_everywhere(ledger, claim)
        fit = len(answers[kind].ranked)
        why = ", ".join(f"{n} {Reason(code).short}" for code, n in _counts(answers[kind]))
        whole = f"{fit}/{total} nodes fit" + (f": {why}" if why else "")
        told.append({"pod": claim.name, "refused": claim.uid in waiting, "nodes_fit": fit, "why": whole})
    return told


def _slices(ledger: Ledger, node: str, uuid: str) -> list[dict[str, Any]]:
    return [
        {
            "pod": pod.claim.name,
            "container": container,
            "memory_mib": share.memory_mib,
            "memory_lent_mib": share.lent_mib,
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
        "oversubscribe": shape.oversubscribe,
        "models": sorted(shape.models),
        "unwanted_models": sorted(shape.unwanted_models),
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
                "memory_lent_mib": card.memory_lent_mib,
                "memory_lent_free_mib": card.memory_lent_free_mib,
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
