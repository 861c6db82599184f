"""Choose: the cheapest node that fits; ties are broken by an order that does not depend on how nodes are listed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from cardwise.core.arrays import FloatArray, IntArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.policy import Policy
from cardwise.core.request import PodRequest

TIE_TOLERANCE = 1e-9
"""Costs closer than this are equal: rounding must not decide."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision: plain data, nothing is reserved by it.

    granted: what is to be reserved: the pod's own request, or more under a policy that rounds up.
    """

    granted: PodRequest
    node_idx: int
    places: tuple[int, ...]
    cost: float


def tie_ranks(cluster: Cluster, seed: int) -> IntArray:
    """A random but fixed order of nodes, int64 [N], from names and seed: listing nodes otherwise changes nothing."""
    salt = seed.to_bytes(8, "little", signed=True)
    digests = [hashlib.blake2b(name.encode(), digest_size=8, salt=salt).digest() for name in cluster.node_names]
    order = sorted(range(len(digests)), key=lambda i: (digests[i], cluster.node_names[i]))
    ranks = np.empty(len(digests), np.int64)
    ranks[order] = np.arange(len(digests))
    return ranks


def cheapest(costs: FloatArray, ranks: IntArray) -> int | None:
    """Index of the lowest finite cost; among equals the lowest rank; None if every cost is infinite."""
    lowest = costs.min(initial=np.inf)
    if not np.isfinite(lowest):
        return None
    tied = np.flatnonzero(costs <= lowest + TIE_TOLERANCE)
    return int(tied[np.argmin(ranks[tied])]) if len(tied) > 1 else int(tied[0])


def choose(policy: Policy, request: PodRequest, ranks: IntArray) -> Placement | None:
    """Where the policy would put the pod now; None if it fits nowhere (``explain`` tells why)."""
    costs = policy.costs(request)
    node_idx = cheapest(costs, ranks)
    if node_idx is None:
        return None
    return Placement(policy.granted(request), node_idx, policy.places(request, node_idx), float(costs[node_idx]))
