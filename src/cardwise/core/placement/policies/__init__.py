"""Policies by name. To add one: a file here with a class, and a line in ``POLICIES``."""

from __future__ import annotations

from collections.abc import Callable

from cardwise.core.cluster import Cluster
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policies.balanced import Balanced, BalancedWeights
from cardwise.core.placement.policies.best_fit import BestFit
from cardwise.core.placement.policies.dense import Dense, DenseWeights
from cardwise.core.placement.policies.dot_product import DotProduct
from cardwise.core.placement.policies.fgd import Fgd
from cardwise.core.placement.policies.first_fit import FirstFit
from cardwise.core.placement.policies.random_fit import RandomFit
from cardwise.core.placement.policies.whole_card import WholeCard
from cardwise.core.placement.policy import Policy

__all__ = ["POLICIES", "Balanced", "BalancedWeights", "Dense", "DenseWeights", "make_policy"]

POLICIES: dict[str, Callable[[Cluster, Mix, int], Policy]] = {
    WholeCard.name: lambda cluster, _mix, _seed: WholeCard(cluster),
    RandomFit.name: lambda cluster, _mix, seed: RandomFit(cluster, seed),
    FirstFit.name: lambda cluster, _mix, _seed: FirstFit(cluster),
    DotProduct.name: lambda cluster, _mix, _seed: DotProduct(cluster),
    BestFit.name: lambda cluster, _mix, _seed: BestFit(cluster),
    Balanced.name: lambda cluster, _mix, _seed: Balanced(cluster),
    Fgd.name: lambda cluster, mix, _seed: Fgd(cluster, mix),
    Dense.name: lambda cluster, mix, _seed: Dense(cluster, mix),
}
"""Name → how to make the policy for a cluster, the mix of its history, and a seed."""


def make_policy(name: str, cluster: Cluster, mix: Mix, seed: int = 0) -> Policy:
    """The policy of that name, bound to ``cluster``. Raises KeyError if there is none."""
    return POLICIES[name](cluster, mix, seed)
