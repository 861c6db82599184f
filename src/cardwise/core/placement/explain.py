"""Why: per node and card, first the rules, then the scores, then what was reported (SPEC B7).

The answers come from the same rules and the same policy that decide; nothing is worked out a second way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cardwise.core.arrays import ALL, BoolArray, IntArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.filter import (
    IDENTITY_RULES,
    KIND_RULES,
    LOAD_RULES,
    NODE_RULES,
    CardRule,
    KindRule,
    card_reason,
    kinds_allowed,
    node_reason,
)
from cardwise.core.placement.policy import Policy
from cardwise.core.reasons import Code, Reason
from cardwise.core.request import PodRequest

CARD_RULES: tuple[KindRule | CardRule, ...] = (*KIND_RULES, *LOAD_RULES, *IDENTITY_RULES)


@dataclass(frozen=True, slots=True)
class CardView:
    """One card as the decision saw it: why not (None: it may), and what was reported of it."""

    uuid: str
    reason: Reason | None
    memory_free_mib: int
    memory_total_mib: int
    compute_free_milli: int
    compute_used_share: float
    slices: int
    memory_lent_mib: int = 0
    memory_lent_free_mib: int = 0


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as the decision saw it.

    reason: why not; None if the pod fits. cost: the policy's, lower is better; infinite if it does not fit.
    factors: parts of the cost or score by name. places: cards the pod would take here.
    """

    name: str
    reason: Reason | None
    cost: float
    factors: dict[str, float]
    places: tuple[int, ...]
    cards: tuple[CardView, ...]


def explain_node(policy: Policy, request: PodRequest, node_idx: int) -> NodeView:
    """Everything about one node and one pod."""
    cluster, granted = policy.cluster, policy.granted(request)
    reason = node_reason(cluster, granted, node_idx)
    fits = reason is None
    return NodeView(
        name=cluster.node_names[node_idx],
        reason=reason,
        cost=float(policy.costs(request)[node_idx]),
        factors=policy.factors(request, node_idx) if fits else {},
        places=policy.places(request, node_idx) if fits else (),
        cards=tuple(_card_view(cluster, granted, node_idx, place) for place in range(len(cluster.cards[node_idx]))),
    )


def _card_view(cluster: Cluster, request: PodRequest, node_idx: int, place: int) -> CardView:
    return CardView(
        uuid=cluster.cards[node_idx][place].uuid,
        reason=card_reason(cluster, request, node_idx, place),
        memory_free_mib=int(cluster.memory_free_mib[node_idx, place]),
        memory_total_mib=int(cluster.memory_total_mib[node_idx, place]),
        compute_free_milli=int(cluster.compute_free_milli[node_idx, place]),
        compute_used_share=float(cluster.compute_used_share[node_idx, place]),
        slices=int(cluster.card_slices[node_idx, place]),
        memory_lent_mib=int(cluster.memory_lent_mib[node_idx, place]),
        memory_lent_free_mib=int(cluster.memory_lent_free_mib[node_idx, place]),
    )


def refusals(cluster: Cluster, request: PodRequest) -> dict[Code, int]:
    """How many nodes refuse the pod for which reason, most nodes first; nodes that would take it are not in it.

    The sum that pod events show ("0/12 nodes: 9 too little card memory, 3 too little CPU").
    """
    codes, said = refusal_codes(cluster, request)
    counts = np.bincount(said[said >= 0], minlength=len(codes))
    by_code: dict[Code, int] = {}
    for code, count in zip(codes, counts, strict=True):
        if count:
            by_code[code] = by_code.get(code, 0) + int(count)
    return dict(sorted(by_code.items(), key=lambda item: -item[1]))


def refusal_codes(cluster: Cluster, request: PodRequest) -> tuple[list[Code], IntArray]:
    """Codes, and for every node which of them it says, int64 [N]; -1 for nodes that would take the pod.

    A node says the first node rule that refuses; else the card rule after which too few cards were left.
    """
    said = np.full(cluster.nodes_total, -1, np.int64)
    for i, rule in enumerate(NODE_RULES):
        said[(said < 0) & ~rule.passes(cluster, request, ALL)] = i
    codes = [rule.code for rule in NODE_RULES]
    if request.shape.cards:
        codes += _say_cards(cluster, request, said, len(codes))
    return codes, said


def _say_cards(cluster: Cluster, request: PodRequest, said: IntArray, first: int) -> list[Code]:
    """Mark in ``said`` the nodes that some card rule leaves with too few cards; the codes, numbered from ``first``."""
    usable: BoolArray = cluster.card_exists
    said[(said < 0) & (usable.sum(axis=1) < request.shape.cards)] = first
    codes = [Code.NODE_CARDS]
    for kind_rule in KIND_RULES:
        usable = usable & kinds_allowed(cluster, request.shape, (kind_rule,))[cluster.card_kind]
        said[(said < 0) & (usable.sum(axis=1) < request.shape.cards)] = first + len(codes)
        codes.append(kind_rule.code)
    for rule in (*LOAD_RULES, *IDENTITY_RULES):
        usable = usable & rule.passes(cluster, request, ALL)
        said[(said < 0) & (usable.sum(axis=1) < request.shape.cards)] = first + len(codes)
        codes.append(rule.code)
    return codes


def closest(
    cluster: Cluster, request: PodRequest, code: Code, nodes: BoolArray
) -> tuple[int, int | None, Reason] | None:
    """Where a refusal comes closest to a yes: node, place (None: the node itself refuses), and the reason with numbers.

    Of the cards of ``nodes`` (bool [N]) that the rule of ``code`` refuses, the one with the most memory free, whatever
    other rules say of it; None if the rule refuses nothing there. For sums of refusals: they tell codes only.
    """
    for rule in NODE_RULES:
        if rule.code is code:
            free = cluster.host_memory_free_mib if code is Code.NODE_MEMORY else cluster.cpu_free_milli
            node_idx = _most(nodes & ~rule.passes(cluster, request, ALL), free)
            if node_idx is None:
                return None
            return node_idx, None, Reason(code, rule.numbers(cluster, request, node_idx))
    for card_rule in CARD_RULES:
        if card_rule.code is code:
            refused = cluster.card_exists & nodes[:, None] & ~_passes(cluster, request, card_rule)
            card_idx = _most(refused, cluster.memory_free_mib)
            if card_idx is None:
                return None
            node_idx, place = divmod(card_idx, refused.shape[1])
            return node_idx, place, Reason(code, card_rule.numbers(cluster, request, node_idx, place))
    return None


def _passes(cluster: Cluster, request: PodRequest, rule: KindRule | CardRule) -> BoolArray:
    """Cards that one rule lets pass, bool [N, C]."""
    if isinstance(rule, KindRule):
        return kinds_allowed(cluster, request.shape, (rule,))[cluster.card_kind]
    return rule.passes(cluster, request, ALL)


def _most(among: BoolArray, free: IntArray) -> int | None:
    """Flat index of the first of those with the most free, or None if there are none."""
    return int(np.argmax(np.where(among, free, -1))) if among.any() else None


def summary(cluster: Cluster, request: PodRequest) -> str:
    """One line for a pod event: how many nodes say no, and why."""
    counts = refusals(cluster, request)
    no = sum(counts.values())
    parts = ", ".join(f"{count} {Reason(code).short}" for code, count in counts.items())
    return f"{cluster.nodes_total - no}/{cluster.nodes_total} nodes fit" + (f": {parts}" if parts else "")
