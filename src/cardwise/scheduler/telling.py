"""What ``/explain`` and ``/state`` tell: why a pod is where it is, or nowhere; and what every card has given away.

The answers come from the ledger and the policy that decide. Refuses to guess at what kube-scheduler's own rules said.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cardwise.adapters.allocations import encode
from cardwise.adapters.watching import Watching
from cardwise.core.allocation import BoundPod
from cardwise.core.claim import Claim
from cardwise.core.inventory import CardSpec
from cardwise.core.ledger import MOST_PCT, Ledger
from cardwise.core.placement.explain import NodeView, explain_node
from cardwise.core.placement.filter import node_reason
from cardwise.core.placement.offer import Offer, offer
from cardwise.core.placement.policy import Policy
from cardwise.core.reasons import Code, Reason
from cardwise.core.request import PodRequest
from cardwise.scheduler import overview
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


def claim_named(watching: Watching, name: str) -> Claim | None:
    """The claim of the pod that is called "namespace/name", if it waits or is bound."""
    uid = watching.uids.get(name, "")
    held = watching.ledger.pods.get(uid)
    return watching.pending.get(uid) or (held.claim if held else None)


def state(ledger: Ledger, pending: Mapping[str, Claim], waiting: Collection[str]) -> dict[str, Any]:
    """The whole cluster as one JSON object; docs/reference/state.md describes it.

    pending: pods that are not bound, by UID. waiting: UIDs of those that no node took at their last filter.
    """
    if ledger.outdated:
        ledger.rebuild()
    told = {
        "policy": {latency.value: policy.name for latency, policy in ledger.policies.items()},
        "nodes": _nodes(ledger),
        "pending": _pending(ledger, [claim for claim in pending.values() if claim.asks], waiting),
        "denied": [],
        "conflicts": [{"pod": c.pod, "node": c.node, "text": c.text} for c in ledger.conflicts.values()],
        "notes": [],
        "decisions": overview.decisions(ledger),
        "evictions": [],
        "traffic": [],
    }
    return told | sums(told, len(ledger.pods))


def sums(told: Mapping[str, Any], placed: int) -> dict[str, Any]:
    """What follows from the rest of a state. placed: pods that are bound, those without cards too."""
    return {"summary": overview.summary(told, placed), "services": overview.services(told)}


def _nodes(ledger: Ledger) -> list[dict[str, Any]]:
    cluster = ledger.cluster
    nodes = []
    for i, name in enumerate(cluster.node_names):
        slices = _slices(ledger, name)
        cards = [
            {
                "uuid": card.uuid,
                "model": card.model,
                "memory_total_mib": card.memory_mib,
                "memory_free_mib": int(cluster.memory_free_mib[i, p]),
                "memory_lent_mib": int(cluster.memory_lent_mib[i, p]),
                "memory_lent_free_mib": int(cluster.memory_lent_free_mib[i, p]),
                "compute_free_pct": int(cluster.compute_free_milli[i, p]) / MILLI_PER_PCT,
                "compute_used_share": _finite(cluster.compute_used_share[i, p]),
                "healthy": bool(cluster.card_healthy[i, p]),
                "slices": [_with_whole(each, card) for each in slices.get(card.uuid, ())],
            }
            for p, card in enumerate(cluster.cards[i])
        ]
        nodes.append({"name": name, "fenced": bool(cluster.node_fenced[i]), "cards": cards})
    return nodes


def _pending(ledger: Ledger, claims: list[Claim], waiting: Collection[str]) -> list[dict[str, Any]]:
    """Pods that are not bound. Replicas of one template are asked about once."""
    told, answers = list[dict[str, Any]](), dict[Claim, dict[str, Any]]()
    for claim in claims:
        kind = replace(claim, uid="", name="")
        if kind not in answers:
            answers[kind] = _why(ledger, claim)
        whose = {"pod": claim.name, "service": claim.service or claim.name, "refused": claim.uid in waiting}
        told.append({**whose, **answers[kind]})
    return told


def _why(ledger: Ledger, claim: Claim) -> dict[str, Any]:
    """What the nodes say to a pod that waits, and the numbers of what most of them say."""
    found, total = _asked_everywhere(ledger, claim), ledger.cluster.nodes_total
    fit, counts = len(found.ranked), _counts(found)
    why = ", ".join(f"{n} {Reason(code).short}" for code, n in counts)
    said = [(code, np.array([found.refused.get(i) is code for i in range(total)], np.bool_)) for code, _ in counts]
    numbers = overview.numbers(ledger.policy(claim), claim, () if fit else said)
    text = f"{fit}/{total} nodes fit" + (f": {why}" if why else "")
    return {"asks": overview.ask_words(claim), "nodes_fit": fit, "why": text, **numbers}


def _slices(ledger: Ledger, node: str) -> dict[str, list[dict[str, Any]]]:
    """What pods hold of a node's cards, by the card's UUID."""
    held: dict[str, list[dict[str, Any]]] = {}
    for pod in _with_allocation(ledger, node):
        for container, shares in pod.allocation.containers if pod.allocation else ():
            for share in shares:
                told = {
                    "pod": pod.claim.name,
                    "service": pod.claim.service or pod.claim.name,
                    "container": container,
                    "memory_mib": share.memory_mib,
                    "memory_lent_mib": share.lent_mib,
                    "compute_pct": share.compute_pct,
                    "whole": share.whole,
                }
                held.setdefault(share.uuid, []).append(told)
    return held


def _with_whole(told: dict[str, Any], card: CardSpec) -> dict[str, Any]:
    """A slice of all of a card is a whole card, however it was asked for."""
    whole = told["memory_mib"] == card.memory_mib and told["compute_pct"] == MOST_PCT
    return {**told, "whole": told["whole"] or whole}


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
                "compute_used_share": _finite(card.compute_used_share),
                "slices": card.slices,
            }
            for place, card in enumerate(view.cards)
        ],
    }


def _finite(measured: float) -> float | None:
    """None where nothing was measured."""
    return float(measured) if math.isfinite(measured) else None


def _reason(reason: Reason | None) -> dict[str, str] | None:
    if reason is None:
        return None
    return {"code": reason.code.value, "short": reason.short, "long": reason.long, "advice": reason.advice}
