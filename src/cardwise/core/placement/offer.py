"""Offer: of some nodes, which could take a pod, best first, and why the others could not. What ``filter`` answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import FloatArray
from cardwise.core.claim import Claim
from cardwise.core.placement.assign import assign
from cardwise.core.placement.choose import TIE_TOLERANCE
from cardwise.core.placement.explain import refusal_codes
from cardwise.core.placement.policy import Policy
from cardwise.core.reasons import Code

TRIALS = 4
"""For pods of several containers: so many times the wanted nodes are tried before the search is given up."""


@dataclass(frozen=True, slots=True)
class Offer:
    """ranked, costs: node indices, cheapest first. refused: node index → code of the first rule against it."""

    ranked: list[int]
    costs: list[float]
    refused: dict[int, Code]


def offer(policy: Policy, claim: Claim, rows: NDArray[np.intp], best: int) -> Offer:
    """The cheapest nodes among ``rows``, at most ``best``; nodes that fit beyond that are in neither list.

    Equal costs keep the order of ``rows``.
    """
    requests = [claim.lead]
    if len(claim.asks) > 1:
        requests += [claim.request(ask.shape, host=False) for ask in claim.running_asks]
    costs = policy.costs(requests[0])[rows]
    for request in requests[1:]:
        costs = np.where(np.isfinite(policy.costs(request)[rows]), costs, np.inf)
    fits = np.isfinite(costs)
    refused = _refused(policy, claim, rows[~fits])
    order = np.flatnonzero(fits)
    order = order[np.argsort(_rounded(costs[order]), kind="stable")]
    if len(claim.asks) > 1:
        ranked = _tried(policy, claim, rows[order], best, refused)
        by_node = dict(zip(rows[order].tolist(), costs[order].tolist(), strict=True))
        return Offer(ranked, [by_node[i] for i in ranked], refused)
    return Offer(rows[order][:best].tolist(), costs[order][:best].tolist(), refused)


def _rounded(costs: FloatArray) -> FloatArray:
    return np.asarray(np.round(costs / TIE_TOLERANCE))


def _refused(policy: Policy, claim: Claim, rows: NDArray[np.intp]) -> dict[int, Code]:
    refused: dict[int, Code] = {}
    requests = [claim.lead, *(claim.request(ask.shape, host=False) for ask in claim.running_asks)]
    for request in requests if len(rows) else ():
        codes, said = refusal_codes(policy.cluster, policy.granted(request))
        for node_idx in rows.tolist():
            if said[node_idx] >= 0:
                refused.setdefault(node_idx, codes[said[node_idx]])
        if len(refused) == len(rows):
            break
    return refused


def _tried(
    policy: Policy, claim: Claim, candidates: NDArray[np.intp], best: int, refused: dict[int, Code]
) -> list[int]:
    """Nodes that take all containers together."""
    ranked: list[int] = []
    for tried, node_idx in enumerate(candidates.tolist()):
        if len(ranked) == best or (ranked and tried >= TRIALS * best):
            break
        if assign(policy, claim, node_idx) is None:
            refused[node_idx] = Code.NODE_TOGETHER
        else:
            ranked.append(node_idx)
    return ranked


def scores(costs: Sequence[float], most: int) -> list[int]:
    """Ascending costs as whole scores: ``most`` for the cheapest and all as cheap, one less for each dearer cost."""
    said: list[int] = []
    rank = 0
    for i, cost in enumerate(costs):
        if i and cost > costs[i - 1] + TIE_TOLERANCE:
            rank += 1
        said.append(max(most - rank, 0))
    return said
