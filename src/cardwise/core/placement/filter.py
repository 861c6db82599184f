"""Which cards and nodes may take a pod at all (SPEC B1), as a list of small rules.

Every rule looks at one card or one node at a time: what is left on other cards of the node never adds up.
The rules that say yes are the rules that explain a no: :func:`card_reason` and :func:`node_reason` read the same list.
Refuses to score: a rule knows nothing better than yes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cardwise.core.arrays import ALL, BoolArray, IntArray, Rows
from cardwise.core.cluster import MANY_TENANTS, NO_TENANT, Cluster
from cardwise.core.inventory import CardKind, card_kinds
from cardwise.core.reasons import Code, Reason
from cardwise.core.request import Isolation, PodRequest, Shape, WorkloadClass
from cardwise.units import MILLI_PER_CARD, MILLI_PER_PCT

Numbers = dict[str, int | float | str]

SLICED_MODES = frozenset({Isolation.ANY, Isolation.TIME_SLICING, Isolation.MPS})
"""Modes that take a slice which does not say what it accepts. MIG must be asked for: its instances have fixed sizes."""
WHOLE_MODES = SLICED_MODES | {Isolation.WHOLE}


@dataclass(frozen=True, slots=True)
class KindRule:
    """One opinion on a kind of card, whatever its load: asked once per kind, then looked up for every card."""

    code: Code
    passes: Callable[[Shape, CardKind], bool]
    numbers: Callable[[Cluster, PodRequest, int, int], Numbers]


@dataclass(frozen=True, slots=True)
class CardRule:
    """One opinion on cards as they are: which pass (bool [R, C]), and the numbers to tell for one that does not."""

    code: Code
    passes: Callable[[Cluster, PodRequest, Rows], BoolArray]
    numbers: Callable[[Cluster, PodRequest, int, int], Numbers]


@dataclass(frozen=True, slots=True)
class NodeRule:
    """One opinion on nodes: which pass (bool [R]), and the numbers to tell for one that does not."""

    code: Code
    passes: Callable[[Cluster, PodRequest, Rows], BoolArray]
    numbers: Callable[[Cluster, PodRequest, int], Numbers]


# ---------------------------------------------------------------- cards: by kind


def card_is_healthy(_shape: Shape, kind: CardKind) -> bool:
    """Cards that are not fenced."""
    return kind.healthy


def model_is_allowed(shape: Shape, kind: CardKind) -> bool:
    """Cards of an allowed model."""
    return shape.takes(kind.model)


def isolation_is_accepted(shape: Shape, kind: CardKind) -> bool:
    """Cards whose mode the pod accepts; a card without a mode yet takes anything."""
    return kind.isolation in accepted_modes(shape)


def limits_bind(shape: Shape, kind: CardKind) -> bool:
    """Cards that hold their slices, for a pod that demands it; who has a card alone needs no limit (case C29)."""
    return kind.binds or shape.whole or not shape.binding


def accepted_modes(shape: Shape) -> frozenset[Isolation]:
    """The modes that will do for a shape (SPEC A3)."""
    if shape.isolation:
        return shape.isolation | {Isolation.ANY}
    return WHOLE_MODES if shape.whole else SLICED_MODES


# ---------------------------------------------------------------- cards: by what is left on them


def memory_asked_mib(cluster: Cluster, shape: Shape, rows: Rows = ALL) -> IntArray:
    """MiB that one card of ``shape`` would take on each place, int64 [R, C]; a slice takes 1 at least."""
    total = cluster.memory_total_mib[rows]
    if shape.whole:
        return total
    if shape.memory_milli:
        return np.maximum(total * shape.memory_milli // MILLI_PER_CARD, 1)
    return np.full_like(total, shape.memory_mib)


def memory_taken_mib(cluster: Cluster, shape: Shape, rows: Rows = ALL) -> IntArray:
    """MiB of the physical card that one card of ``shape`` would take on each place, int64 [R, C].

    What is lent beyond the card is taken first, by a shape that takes lent memory (SPEC E1).
    """
    asked = memory_asked_mib(cluster, shape, rows)
    if not shape.oversubscribe:
        return asked
    return np.maximum(asked - cluster.memory_lent_free_mib[rows], 0)


def card_is_untouched(cluster: Cluster, request: PodRequest, rows: Rows) -> BoolArray:
    """For a whole card: cards without any slice. For a slice: all."""
    if request.shape.whole:
        return cluster.card_slices[rows] == 0
    return cluster.card_exists[rows]


def instance_is_untouched(cluster: Cluster, request: PodRequest, rows: Rows) -> BoolArray:
    """All but MIG instances with a slice: nothing can be added to one. Pods that do not accept MIG see none anyway."""
    if Isolation.MIG not in request.shape.isolation:
        return cluster.card_exists[rows]
    return (cluster.card_slices[rows] == 0) | (cluster.card_isolation[rows] != Isolation.MIG)


def memory_is_left(cluster: Cluster, request: PodRequest, rows: Rows) -> BoolArray:
    """Cards with the asked MiB free on that one card, lent ones included for a pod that takes these."""
    return cluster.memory_free_mib[rows] >= memory_taken_mib(cluster, request.shape, rows)


def compute_is_left(cluster: Cluster, request: PodRequest, rows: Rows) -> BoolArray:
    """Cards with the asked share of compute free."""
    asked = MILLI_PER_CARD if request.shape.whole else request.shape.compute_milli
    return cluster.compute_free_milli[rows] >= asked


# ---------------------------------------------------------------- cards: by who the pod is


def tenant_may_share(cluster: Cluster, request: PodRequest, rows: Rows) -> BoolArray:
    """Cards where no exclusive slice of another tenant lies, and, for an exclusive pod, no other tenant at all."""
    tenant = cluster.card_tenant[rows]
    own = (tenant == NO_TENANT) | (tenant == cluster.tenant_id(request.tenant))
    if request.exclusive:
        return own
    return own | (cluster.exclusive_slices[rows] == 0)


def workload_may_mix(cluster: Cluster, request: PodRequest, rows: Rows) -> BoolArray:
    """Cards without the other workload class, or where both sides allow to mix (SPEC B8)."""
    other = 1 if request.workload is WorkloadClass.INFERENCE else 0
    held = cluster.class_slices[rows][..., other, :]
    return (held[..., 0] if request.mixes else held.sum(axis=-1)) == 0


def none_was_evicted(cluster: Cluster, request: PodRequest, rows: Rows) -> BoolArray:
    """Cards whose memory no pod of this service had to give back lately: the next one would have to as well (E2)."""
    if request.service not in cluster.evicted:
        return cluster.card_exists[rows]
    allowed = cluster.card_exists.copy()
    for node_idx, place in cluster.evicted[request.service]:
        allowed[node_idx, place] = False
    return allowed[rows]


# ---------------------------------------------------------------- nodes


def node_is_schedulable(cluster: Cluster, _request: PodRequest, rows: Rows) -> BoolArray:
    """Nodes that are not cordoned."""
    return cluster.node_schedulable[rows]


def node_is_consistent(cluster: Cluster, _request: PodRequest, rows: Rows) -> BoolArray:
    """Nodes whose slices do not contradict their cards."""
    return ~cluster.node_fenced[rows]


def cards_are_reported(cluster: Cluster, request: PodRequest, rows: Rows) -> BoolArray:
    """For a pod that asks for cards: nodes of which somebody reports any."""
    if not request.shape.cards:
        return np.ones(cluster.node_fenced[rows].shape, np.bool_)
    if not cluster.card_exists.shape[1]:
        return np.zeros(cluster.node_fenced[rows].shape, np.bool_)
    return cluster.card_exists[:, 0][rows]  # a node's first card has the first place


def cpu_is_left(cluster: Cluster, request: PodRequest, rows: Rows) -> BoolArray:
    """Nodes with the asked CPU free."""
    return cluster.cpu_free_milli[rows] >= request.shape.cpu_milli


def host_memory_is_left(cluster: Cluster, request: PodRequest, rows: Rows) -> BoolArray:
    """Nodes with the asked host memory free."""
    return cluster.host_memory_free_mib[rows] >= request.shape.host_memory_mib


# ---------------------------------------------------------------- the lists, cheapest explanation first

KIND_RULES: tuple[KindRule, ...] = (
    KindRule(Code.CARD_UNHEALTHY, card_is_healthy, lambda _c, _r, _i, _p: {}),
    KindRule(
        Code.CARD_MODEL,
        model_is_allowed,
        lambda c, r, i, p: {"model": c.cards[i][p].model, "allowed": _allowed(r.shape)},
    ),
    KindRule(
        Code.CARD_ISOLATION,
        isolation_is_accepted,
        lambda c, r, i, p: {
            "mode": _mode_name(int(c.card_isolation[i, p])),
            "asked": _joined(_mode_name(mode) for mode in accepted_modes(r.shape) if mode is not Isolation.ANY),
        },
    ),
    KindRule(Code.CARD_LIMITS, limits_bind, lambda _c, _r, _i, _p: {}),
)
"""Rules that look at what a card is."""

LOAD_RULES: tuple[CardRule, ...] = (
    CardRule(Code.CARD_IN_USE, card_is_untouched, lambda c, _r, i, p: {"slices": int(c.card_slices[i, p])}),
    CardRule(Code.CARD_INSTANCE, instance_is_untouched, lambda _c, _r, _i, _p: {}),
    CardRule(
        Code.CARD_MEMORY,
        memory_is_left,
        lambda c, r, i, p: {
            "free": int(c.memory_free_mib[i, p]),
            "total": int(c.memory_total_mib[i, p]),
            "asked": c.memory_asked_mib(r.shape, i, p),
            **_lent(c, r, i, p),
        },
    ),
    CardRule(
        Code.CARD_COMPUTE,
        compute_is_left,
        lambda c, r, i, p: {
            "free_pct": int(c.compute_free_milli[i, p]) / MILLI_PER_PCT,
            "asked_pct": (MILLI_PER_CARD if r.shape.whole else r.shape.compute_milli) / MILLI_PER_PCT,
        },
    ),
)
"""Rules that look at what is left on a card."""

IDENTITY_RULES: tuple[CardRule, ...] = (
    CardRule(Code.CARD_TENANT, tenant_may_share, lambda _c, _r, _i, _p: {}),
    CardRule(
        Code.CARD_WORKLOAD,
        workload_may_mix,
        lambda _c, r, _i, _p: {
            "held": "training" if r.workload is WorkloadClass.INFERENCE else "inference",
            "asked": r.workload.value,
        },
    ),
    CardRule(Code.CARD_EVICTED, none_was_evicted, lambda _c, r, _i, _p: {"service": r.service}),
)
"""Rules that depend on who the pod is: asked anew for each pod, and only where they can say no."""

NODE_RULES: tuple[NodeRule, ...] = (
    NodeRule(Code.NODE_CORDONED, node_is_schedulable, lambda _c, _r, _i: {}),
    NodeRule(Code.NODE_FENCED, node_is_consistent, lambda _c, _r, _i: {}),
    NodeRule(Code.NODE_UNKNOWN, cards_are_reported, lambda c, _r, i: {"node": c.node_names[i]}),
    NodeRule(
        Code.NODE_CPU,
        cpu_is_left,
        lambda c, r, i: {
            "free": int(c.cpu_free_milli[i]),
            "total": int(c.cpu_total_milli[i]),
            "asked": r.shape.cpu_milli,
        },
    ),
    NodeRule(
        Code.NODE_MEMORY,
        host_memory_is_left,
        lambda c, r, i: {
            "free": int(c.host_memory_free_mib[i]),
            "total": int(c.host_memory_total_mib[i]),
            "asked": r.shape.host_memory_mib,
        },
    ),
)


# ---------------------------------------------------------------- the answers


def usable_cards(cluster: Cluster, request: PodRequest, rows: Rows = ALL, *, load: bool = True) -> BoolArray:
    """Cards that could hold one card's part of the pod's *shape*, bool [R, C]. Identity is not looked at.

    load: False to ask only what kind of card it is, not what is left on it.
    """
    usable = kinds_allowed(cluster, request.shape)[cluster.card_kind[rows]]
    for rule in LOAD_RULES if load else ():
        usable = usable & rule.passes(cluster, request, rows)
    return usable


def kinds_allowed(cluster: Cluster, shape: Shape, rules: tuple[KindRule, ...] = KIND_RULES) -> BoolArray:
    """Which kinds of card pass the rules on kinds, bool [kinds + 1]; the last, "no card", never does. Read only."""
    return _kinds_allowed(cluster.models, shape, rules)


@functools.lru_cache(maxsize=16384)
def _kinds_allowed(models: tuple[str, ...], shape: Shape, rules: tuple[KindRule, ...]) -> BoolArray:
    allowed = np.array([all(rule.passes(shape, kind) for rule in rules) for kind in card_kinds(models)] + [False])
    allowed.setflags(write=False)
    return allowed


def identity_allows(cluster: Cluster, request: PodRequest, rows: Rows = ALL) -> BoolArray | None:
    """Cards whose neighbours the pod may live with, bool [R, C]; None if nothing in the cluster could object."""
    tenants_matter = request.exclusive or cluster.exclusive_total > 0
    classes_matter = cluster.class_total[1 if request.workload is WorkloadClass.INFERENCE else 0] > 0
    evictions_matter = bool(cluster.evicted) and request.service in cluster.evicted
    if not (request.shape.cards and (tenants_matter or classes_matter or evictions_matter)):
        return None
    allowed = cluster.card_exists[rows]
    for rule in IDENTITY_RULES:
        allowed = allowed & rule.passes(cluster, request, rows)
    return allowed


def fitting_nodes(cluster: Cluster, request: PodRequest, usable: BoolArray, rows: Rows = ALL) -> BoolArray:
    """Nodes that could take the pod, bool [R]; ``usable`` is bool [R, C] for the same rows."""
    shape = request.shape
    fits = np.ones(len(usable), np.bool_)
    if shape.cards:
        fits = np.einsum("ij->i", usable.view(np.int8), dtype=np.int64) >= shape.cards  # einsum: a sum of short rows
    for rule in NODE_RULES:
        fits = fits & rule.passes(cluster, request, rows)
    return fits


def card_reason(cluster: Cluster, request: PodRequest, node_idx: int, place: int) -> Reason | None:
    """Why this card may not take the pod, or None if it may: the first rule of the lists that says no."""
    kind = cluster.kind_of(int(cluster.card_kind[node_idx, place]))
    for kind_rule in KIND_RULES:
        if kind is None or not kind_rule.passes(request.shape, kind):
            return Reason(kind_rule.code, kind_rule.numbers(cluster, request, node_idx, place))
    row = np.array([node_idx])
    for rule in (*LOAD_RULES, *IDENTITY_RULES):
        if not rule.passes(cluster, request, row)[0, place]:
            return Reason(rule.code, rule.numbers(cluster, request, node_idx, place))
    return None


def node_reason(cluster: Cluster, request: PodRequest, node_idx: int) -> Reason | None:
    """Why this node may not take the pod, or None if it may. Too few cards comes last: its causes are the cards'."""
    row = np.array([node_idx])
    for rule in NODE_RULES:
        if not rule.passes(cluster, request, row)[0]:
            return Reason(rule.code, rule.numbers(cluster, request, node_idx))
    total = len(cluster.cards[node_idx])
    fitting = sum(card_reason(cluster, request, node_idx, place) is None for place in range(total))
    if fitting < request.shape.cards:
        return Reason(Code.NODE_CARDS, {"fitting": fitting, "total": total, "asked": request.shape.cards})
    return None


def _lent(cluster: Cluster, request: PodRequest, node_idx: int, place: int) -> Numbers:
    """What may be lent beside what is free, for a pod that takes lent memory."""
    return {"lent": int(cluster.memory_lent_free_mib[node_idx, place])} if request.shape.oversubscribe else {}


def _allowed(shape: Shape) -> str:
    """The models that a shape takes, in words."""
    wanted = [f"only {_joined(shape.models)}"] if shape.models else []
    return " and ".join(wanted + [f"none of {_joined(shape.unwanted_models)}"] * bool(shape.unwanted_models))


def _joined(names: object) -> str:
    return ", ".join(sorted(map(str, names)))  # type: ignore[call-overload]


def _mode_name(mode: int) -> str:
    return Isolation(mode).name.lower().replace("_", "-")


assert MANY_TENANTS < NO_TENANT  # noqa: S101 - tenant_may_share relies on "many" never equalling a tenant's number
