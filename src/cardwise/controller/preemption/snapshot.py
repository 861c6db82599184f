"""What one turn decides on: who runs where, who may go, what was done of late, what budgets and Kueue say.

Taken once per turn, and kept true by :meth:`Snapshot.note` for what the turn itself decides. Refuses to act.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from cardwise.adapters.kube_objects import Budget, Pod
from cardwise.adapters.selecting import covers, lets
from cardwise.controller.preemption.seeing import Seen, Standing, is_well, owner_of, queue_of
from cardwise.controller.preemption.settings import PreemptionSettings
from cardwise.core.allocation import BoundPod
from cardwise.core.claim import Claim, LatencyClass
from cardwise.core.fleet.guard import Eviction
from cardwise.core.fleet.preempt import Nobody, Plan, Running, Waiting, World, decided, may_go, search, workloads
from cardwise.core.ledger import Ledger
from cardwise.core.placement.offer import offer

SEVERAL = "several budgets"
"""The API server evicts no pod that more than one budget covers. Source: pkg/registry/core/pod/rest/eviction.go."""


@dataclass(slots=True)
class Snapshot:
    """now_s: on the steady clock of ``seen``. utc_s: seconds since 1970, as evictions are dated.

    leaving: UIDs of pods and owners whose Workload Kueue is evicting; None if that is not known. going: UIDs of pods
    that were chosen and have not gone yet. past: evictions that were done or decided. closed: see :class:`World`.
    inconsistent: nodes that the scheduler gives nothing. denied: UIDs of pods that cannot be evicted.
    """

    ledger: Ledger
    seen: Seen
    settings: PreemptionSettings
    now_s: float
    utc_s: float
    leaving: frozenset[str] | None
    going: set[str]
    past: list[Eviction]
    closed: frozenset[str] = frozenset()
    inconsistent: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()
    allowed: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, dict[str, Running]] = field(default_factory=dict)
    _budgets: dict[tuple[str, str, str], list[Budget]] = field(default_factory=dict)

    def fill(self, budgets: Iterable[Budget]) -> Snapshot:
        """Read pods and budgets."""
        for budget in budgets:
            for place in _places(budget):
                self._budgets.setdefault(place, []).append(budget)
            self.allowed[budget.name] = budget.status.disruptions_allowed
        for bound in self.ledger.pods.values():
            pod = self.seen.pods.get(bound.claim.uid)
            if pod is not None and bound.allocation is not None:
                self.nodes.setdefault(bound.node, {})[bound.claim.uid] = self._running(pod, bound)
        for runs in self.nodes.values():  # chosen, and not counted down by the API server yet
            for each in runs.values():
                pod = self.seen.pods[each.uid]
                if each.uid in self.going and pod.metadata.deletion_timestamp is None:
                    self._count_down(each)
        return self

    def search(self, claim: Claim, pod: Pod) -> Generator[None, None, Plan | Nobody]:
        """Whom to evict for a pod that waits, or why nobody; pauses after each node."""
        open_nodes = self.open_to(pod)
        nodes = {name: list(runs.values()) for name, runs in self.nodes.items() if name in open_nodes}
        opened = partial(self.ledger.trying, claim)
        room = partial(self._room, claim, open_nodes)
        return search(waiting(claim, pod), nodes, opened, self.world, room, self.workloads)

    def search_on(self, node: str, claim: Claim, pod: Pod) -> Plan | Nobody:
        """The same of one node, on which something is kept for the pod already."""
        nodes = {node: list(self.nodes.get(node, {}).values())}
        opened = partial(self.ledger.trying, claim)
        return decided(search(waiting(claim, pod), nodes, opened, self.world, lambda: None, self.workloads))

    def may_go(self, claim: Claim, pod: Pod, nodes: Collection[str]) -> dict[str, list[Running]]:
        """Who on these nodes may be evicted for a pod that waits, by node."""
        runs = {name: list(self.nodes.get(name, {}).values()) for name in nodes}
        return may_go(waiting(claim, pod), runs, self.world, self.workloads)

    def room(self, claim: Claim, pod: Pod) -> str | None:
        """A node that the pod fits as it is; what is kept for it is free for it."""
        return self._room(claim, self.open_to(pod))

    @property
    def workloads(self) -> Counter[str]:
        """How many pods of each workload run in the whole cluster, as the brakes count them."""
        return workloads(each for runs in self.nodes.values() for each in runs.values())

    @property
    def world(self) -> World:
        """What the rules need beside pods."""
        return World(self.utc_s, self.past, self.allowed, self.settings.brakes, self.closed)

    def running(self, node: str, uid: str) -> Running | None:
        """A pod on a node, as it may or may not go."""
        return self.nodes.get(node, {}).get(uid)

    def is_leaving(self, pod: Pod) -> bool:
        """Whether Kueue takes the pod away, or may: where that is not known its pods are left alone."""
        if self.leaving is None:
            return bool(queue_of(pod))
        owners = {owner.uid for owner in pod.metadata.owner_references}
        return pod.metadata.uid in self.leaving or bool(owners & self.leaving)

    def note(self, plan: Plan, by: str) -> None:
        """Victims were chosen: they are going, for whoever asks next in this turn."""
        for victim in plan.victims:
            self.going.add(victim.uid)
            self.past.append(Eviction(self.utc_s, plan.node, victim.owner, by))
            self._count_down(victim)
            self.nodes[plan.node][victim.uid] = replace(victim, going=True)

    def open_to(self, pod: Pod) -> set[str]:
        """Nodes that would take the pod, but for cards: elsewhere others would go in vain."""
        return {
            name
            for name, node in self.seen.nodes.items()
            if name not in self.inconsistent and is_well(node) and lets(node, pod)
        }

    # ---------------------------------------------------------------- inside

    def _room(self, claim: Claim, nodes: Collection[str]) -> str | None:
        index = self.ledger.cluster.node_idx
        rows = np.array(sorted(index[name] for name in nodes if name in index), np.intp)
        with self.ledger.asking(claim.uid):
            found = offer(self.ledger.policy(claim), claim, rows, 1)
        return self.ledger.cluster.node_names[found.ranked[0]] if found.ranked else None

    def _running(self, pod: Pod, bound: BoundPod) -> Running:
        claim, meta = bound.claim, pod.metadata
        shares = bound.allocation.shares if bound.allocation else ()
        return Running(
            uid=claim.uid,
            name=claim.name,
            owner=owner_of(pod),
            priority=claim.priority,
            memory_mib=sum(share.memory_mib for share in shares),
            sensitive=claim.latency is LatencyClass.SENSITIVE,
            preemptible=claim.preemptible and claim.uid not in self.denied,
            starting=self._is_starting(self.seen.standing[claim.uid]),
            going=meta.deletion_timestamp is not None or claim.uid in self.going or self.is_leaving(pod),
            budgets=self._covering(pod),
            queue=queue_of(pod),
        )

    def _is_starting(self, standing: Standing) -> bool:
        for_s = self.now_s - standing.since_s
        return for_s < (self.settings.settle_s if standing.ready else self.settings.starting_s)

    def _covering(self, pod: Pod) -> frozenset[str]:
        meta = pod.metadata
        places = [(meta.namespace, *label) for label in (("", ""), *meta.labels.items())]
        budgets = [budget for place in places for budget in self._budgets.get(place, ())]
        names = [budget.name for budget in budgets if covers(budget.spec.selector, meta.labels)]
        return frozenset([SEVERAL] if len(names) > 1 else names)

    def _count_down(self, victim: Running) -> None:
        counts = Counter(victim.budgets)
        for budget, number in counts.items():
            self.allowed[budget] = self.allowed.get(budget, 0) - number


def _places(budget: Budget) -> Iterator[tuple[str, str, str]]:
    """Where a budget is looked up: under a label that its pods must have, or under none if it asks for no one value.

    Of a thousand budgets in a namespace only those are compared with a pod that may cover it.
    """
    namespace, selector = budget.metadata.namespace, budget.spec.selector
    if selector is not None and selector.match_labels:
        yield (namespace, *next(iter(selector.match_labels.items())))
        return
    listed = selector.match_expressions if selector is not None else ()
    among = next((each for each in listed if each.operator == "In"), None)
    if among is None:
        yield namespace, "", ""
        return
    for value in dict.fromkeys(among.values):
        yield namespace, among.key, value


def waiting(claim: Claim, pod: Pod) -> Waiting:
    """A pod that waits, as the rules take it."""
    return Waiting(claim.uid, owner_of(pod), claim.priority, queue_of(pod))
