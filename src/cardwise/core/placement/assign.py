"""Assign: cards on one node for all containers of a pod, or nothing.

The policy orders the cards; the largest ask takes its cards first, and the trial is taken back before the answer is
given. An init container takes cards of the running containers where that costs least. Refuses to reserve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cardwise.core.allocation import Allocation, Hold, Share, beyond
from cardwise.core.claim import Claim, ContainerAsk, Stage, size
from cardwise.core.cluster import Cluster
from cardwise.core.placement.filter import identity_allows, usable_cards
from cardwise.core.placement.policy import Policy
from cardwise.core.request import Isolation, PodRequest, Shape
from cardwise.units import MILLI_PER_PCT


def assign(policy: Policy, claim: Claim, node_idx: int) -> Allocation | None:
    """Cards on this node for every container of the claim; None if they do not fit there together.

    Largest ask first, one after the other: where an arrangement exists only in another order, it is not found.
    """
    cluster = policy.cluster
    asks = sorted(claim.running_asks, key=lambda ask: size(ask.shape), reverse=True)
    granted: dict[str, tuple[Share, ...]] = {}
    mark = cluster.mark()
    try:
        if not policy.fits(claim.lead, node_idx):
            return None
        for i, ask in enumerate(asks):
            request = policy.granted(claim.request(ask.shape, host=not i, name=f"{claim.uid}#{ask.container}"))
            if not policy.fits(request, node_idx):
                return None
            held = cluster.reserve(request, node_idx, policy.places(request, node_idx))
            granted[ask.container] = _shares(cluster, request.shape, node_idx, held.places, held.lent_mib)
        for ask in claim.asks:
            if ask.stage is Stage.INIT:
                shares = _init_shares(policy, claim, ask, node_idx, granted)
                if shares is None:
                    return None
                granted[ask.container] = shares
    finally:
        cluster.undo(mark)
    in_order = tuple((ask.container, granted[ask.container]) for ask in claim.asks)
    return Allocation(cluster.node_names[node_idx], in_order)


def _shares(
    cluster: Cluster, shape: Shape, node_idx: int, places: Sequence[int], lent_mib: Sequence[int] = ()
) -> tuple[Share, ...]:
    return tuple(
        Share(
            cluster.cards[node_idx][place].uuid,
            cluster.memory_asked_mib(shape, node_idx, place),
            100 if shape.whole else shape.compute_milli // MILLI_PER_PCT,
            shape.whole,
            cluster.isolation_of(node_idx, place),
            lent,
        )
        for place, lent in zip(places, lent_mib or (0,) * len(places), strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A card that an init container could take: what must be held for it beyond the pod's other holds."""

    share: Share
    memory_mib: int
    compute_pct: int
    place: int


def _init_shares(
    policy: Policy, claim: Claim, ask: ContainerAsk, node_idx: int, granted: dict[str, tuple[Share, ...]]
) -> tuple[Share, ...] | None:
    """The cards that cost least beyond what the pod holds anyway; the running containers are reserved already.

    A MIG instance may be an app container's too, which starts later, but not a sidecar's, which runs beside it.
    """
    cluster = policy.cluster
    shape = policy.granted(PodRequest("", ask.shape)).shape
    sidecars = {share.uuid for each in claim.asks if each.stage is Stage.SIDECAR for share in granted[each.container]}
    candidates = []
    for place in _acceptable(cluster, claim, shape, node_idx):
        (share,) = _shares(cluster, shape, node_idx, [place])
        with_it = {**granted, ask.container: (share,)}
        trial = Allocation("", tuple(with_it.items()))
        over = next((hold for hold in beyond(claim, trial) if hold.uuid == share.uuid), Hold(share.uuid, 0, 0))
        free_mib = int(cluster.memory_free_mib[node_idx, place])
        free_pct = int(cluster.compute_free_milli[node_idx, place]) // MILLI_PER_PCT
        own = any(each.uuid == share.uuid for shares in granted.values() for each in shares)
        mig = share.mode is Isolation.MIG
        alone = own or not (shape.whole or mig) or not cluster.card_slices[node_idx, place]
        beside = mig and share.uuid in sidecars
        if over.memory_mib <= free_mib and over.compute_pct <= free_pct and alone and not beside:
            candidates.append(_Candidate(share, over.memory_mib, over.compute_pct, place))
    candidates.sort(key=lambda each: (each.memory_mib, each.compute_pct, each.place))
    chosen = candidates[: shape.cards]
    return tuple(each.share for each in chosen) if len(chosen) == shape.cards else None


def _acceptable(cluster: Cluster, claim: Claim, shape: Shape, node_idx: int) -> list[int]:
    """Places whose card is of a kind that will do, and whose neighbours the pod may live with, however full."""
    row = np.array([node_idx])
    piece = shape if shape.whole else replace(shape, memory_mib=0, memory_milli=1, compute_milli=0)
    kind_only = replace(piece, cards=1, cpu_milli=0, host_memory_mib=0)
    request = claim.request(kind_only, host=False)
    usable = usable_cards(cluster, request, row, load=False)
    allowed = identity_allows(cluster, request, row)
    return [int(place) for place in np.flatnonzero((usable if allowed is None else usable & allowed)[0])]
