"""What a policy is: it puts a cost on every node for a pod, and names the cards it would take there.

A policy never changes the cluster and never breaks ties between nodes: ``choose`` does, the same way for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import BoolArray, FloatArray
from cardwise.core.cluster import Cluster
from cardwise.core.placement.filter import fitting_nodes, identity_allows, usable_cards
from cardwise.core.placement.links import tightest
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.score import sole_node
from cardwise.core.placement.tables import ShapeTables
from cardwise.core.request import PodRequest, Shape

INFEASIBLE = np.inf
SOLE_NODE_COST = 1e6
"""More than any policy's costs differ by."""


class Policy(ABC):
    """A named way to choose. Bound to one cluster, for it keeps costs that depend on the cluster's state.

    name: what ``--policy`` takes.
    """

    name: str

    def __init__(self, cluster: Cluster) -> None:
        """Bind to ``cluster``; it may change afterwards, the policy follows."""
        self.cluster = cluster
        self.tables = ShapeTables(cluster, self._evaluate_shape)

    # ---------------------------------------------------------------- what a policy says

    @abstractmethod
    def evaluate(
        self, request: PodRequest, rows: NDArray[np.intp], usable: BoolArray, fits: BoolArray
    ) -> tuple[FloatArray, ...]:
        """Columns of the request's shape for ``rows``: at least the cost, float64 [R], for rows where ``fits``.

        usable: bool [R, C]; fits: bool [R]. Rows that do not fit are overwritten by the caller: their values are free.
        """

    def combine(self, request: PodRequest, columns: tuple[FloatArray, ...]) -> FloatArray:  # noqa: ARG002 - a hook
        """Cost per node from the kept columns and whatever holds cluster-wide now, float64 [N]."""
        return columns[0]

    @abstractmethod
    def card_cost(self, request: PodRequest, node_idx: int, usable: BoolArray) -> FloatArray:
        """Which of the node's cards to take first, float64 [C], lower first; ``usable`` is bool [C]."""

    def granted(self, request: PodRequest) -> PodRequest:
        """What the pod really gets; more than it asks for under policies that round up."""
        return request

    # ---------------------------------------------------------------- what it answers

    def costs(self, request: PodRequest) -> FloatArray:
        """Cost of the pod on every node, float64 [N]; infinite where it does not fit. Read only.

        The only node that holds a service's replicas so far is the last choice for the next one (SPEC B5).
        """
        request = self.granted(request)
        allowed = identity_allows(self.cluster, request)
        if allowed is None:
            columns = self.tables.columns(request.shape)
        else:
            rows = np.arange(self.cluster.nodes_total)
            columns = self._evaluate(request, rows, usable_cards(self.cluster, request) & allowed)
        costs, sole = self.combine(request, columns), sole_node(self.cluster, request)
        return costs if sole is None else np.where(np.arange(len(costs)) == sole, costs + SOLE_NODE_COST, costs)

    def fits(self, request: PodRequest, node_idx: int) -> bool:
        """True if the node could take the pod now."""
        request, row = self.granted(request), np.array([node_idx])
        usable = usable_cards(self.cluster, request, row)
        allowed = identity_allows(self.cluster, request, row)
        if allowed is not None:
            usable = usable & allowed
        return bool(fitting_nodes(self.cluster, request, usable, row)[0])

    def places(self, request: PodRequest, node_idx: int) -> tuple[int, ...]:
        """The card places the pod takes on a node that fits it."""
        request = self.granted(request)
        if not request.shape.cards:
            return ()
        row = np.array([node_idx])
        usable = usable_cards(self.cluster, request, row)
        allowed = identity_allows(self.cluster, request, row)
        if allowed is not None:
            usable = usable & allowed
        cost = np.where(usable[0], self.card_cost(request, node_idx, usable[0]), INFEASIBLE)
        preferred = tuple(int(place) for place in np.argsort(cost, kind="stable")[: int(usable[0].sum())])
        links = self.cluster.topologies[self.cluster.topology[node_idx]]
        return tuple(sorted(tightest(links, preferred, request.shape.cards)))

    def factors(self, request: PodRequest, node_idx: int) -> dict[str, float]:  # noqa: ARG002 - a hook
        """The parts of the node's cost by name, for ``explain``; empty if the cost has no parts."""
        return {}

    def warm(self, mix: Mix) -> None:
        """Work out the costs of the mix's shapes ahead of the first decisions; the most frequent are kept longest."""
        for shape in reversed(mix.shapes):
            self.tables.columns(self.granted(PodRequest("", shape)).shape)

    # ---------------------------------------------------------------- inside

    def _evaluate_shape(self, shape: Shape, rows: NDArray[np.intp]) -> tuple[FloatArray, ...]:
        request = PodRequest("", shape)
        return self._evaluate(request, rows, usable_cards(self.cluster, request, rows))

    def _evaluate(self, request: PodRequest, rows: NDArray[np.intp], usable: BoolArray) -> tuple[FloatArray, ...]:
        fits = fitting_nodes(self.cluster, request, usable, rows)
        columns = self.evaluate(request, rows, usable, fits)
        columns[0][~fits] = INFEASIBLE
        return columns
