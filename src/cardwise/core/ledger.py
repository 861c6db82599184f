"""Who holds what: the pods that the cluster tells of, and the holds of bindings that are under way.

The ledger is what one gets by reading all pods, in the order of their allocations; every change keeps it so. A relist,
a restart and a standby that takes over all rebuild the same. Refuses to believe the impossible: pods that do not fit
their node's cards are a *conflict*, and the node takes nothing new until it has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cardwise.core.allocation import Allocation, holds
from cardwise.core.claim import Claim, LatencyClass
from cardwise.core.cluster import Cluster, OversoldError
from cardwise.core.inventory import NodeSpec
from cardwise.core.placement.assign import assign
from cardwise.core.placement.filter import node_reason
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policy import Policy
from cardwise.core.reasons import Code, Reason
from cardwise.core.request import Shape
from cardwise.units import MILLI_PER_PCT

MakePolicies = Callable[[Cluster, Mix], Mapping[LatencyClass, Policy]]
FIRST_MIX = Mix((Shape(1, memory_mib=4096, compute_milli=200), Shape(1, whole=True)), (1.0, 1.0))
"""What is expected of a cluster that has not seen a pod yet."""


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod on a node, as the cluster tells of it. ``allocation``: None if it asks for no cards, or nobody gave any."""

    claim: Claim
    node: str
    allocation: Allocation | None = None
    initialized: bool = False

    @property
    def order(self) -> tuple[int, int, str]:
        """Earlier allocations come first: where two contradict each other, the later one is in the wrong."""
        order = (self.allocation.epoch, self.allocation.seq) if self.allocation else (0, 0)
        return (*order, self.claim.uid)


@dataclass(frozen=True, slots=True)
class Conflict:
    """A pod whose allocation cannot be true beside the others."""

    pod: str
    node: str
    text: str


@dataclass(slots=True)
class Ledger:
    """The books. Not safe for threads: one loop owns it.

    mix: what the policies expect to come.
    epoch: the leader's number, written into each allocation.
    freed: names of nodes on which capacity came free since someone last took the set.
    fresh: UIDs of pods that were held or confirmed since the last list of pods began: it may not have them.
    """

    make_policies: MakePolicies
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    pods: dict[str, BoundPod] = field(default_factory=dict)
    under_way: dict[str, BoundPod] = field(default_factory=dict)
    conflicts: dict[str, Conflict] = field(default_factory=dict)
    loads: dict[str, dict[str, float]] = field(default_factory=dict)
    freed: set[str] = field(default_factory=set)
    fresh: set[str] = field(default_factory=set)
    epoch: int = 0
    seq: int = 0
    outdated: bool = False
    cluster: Cluster = field(default_factory=lambda: Cluster.build(()))
    policies: Mapping[LatencyClass, Policy] = field(default_factory=dict)
    mix: Mix = FIRST_MIX
    _pods_mixed: int = 0
    _parts: dict[str, list[str]] = field(default_factory=dict)
    _on_node: dict[str, set[str]] = field(default_factory=dict)
    _card: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with an empty cluster."""
        self.rebuild()

    # ---------------------------------------------------------------- what the cluster tells

    def reset(self, nodes: Iterable[NodeSpec], pods: Iterable[BoundPod]) -> None:
        """Take over a whole list: what is not in it is gone. Holds of bindings under way stay."""
        self.nodes = {node.name: node for node in nodes}
        self.pods = {pod.claim.uid: pod for pod in pods}
        self.under_way = {uid: held for uid, held in self.under_way.items() if uid not in self.pods}
        self.rebuild()

    def begin_list(self) -> None:
        """A list of pods begins: what was confirmed before is in it, or gone."""
        self.fresh.clear()

    def take_list(self, listed: Collection[str], bound: Iterable[BoundPod]) -> None:
        """Take over a list of pods: what was known when it began and is not in it is gone.

        listed: UIDs of all pods of the list; bound: those of them that are on a node.
        """
        for uid in self.under_way.keys() - self.fresh - set(listed):
            self.release(uid)
        told = {pod.claim.uid: pod for pod in bound}
        later = [pod for uid, pod in self.pods.items() if uid in self.fresh and uid not in told]
        self.reset(self.nodes.values(), [*told.values(), *later])

    def put_node(self, spec: NodeSpec) -> None:
        """A node came or changed. New hardware makes the ledger ``outdated``: call :meth:`rebuild` before deciding."""
        before = self.nodes.get(spec.name)
        self.nodes[spec.name] = spec
        if before == spec:
            return
        if before is None or _hardware(before) != _hardware(spec):
            self.outdated = True
            if before is not None and spec.name in self.cluster.node_idx:
                self.cluster.fence(self.cluster.node_idx[spec.name], fenced=True)
            return
        if not self.outdated:
            self._report(spec)
            self.freed.add(spec.name)

    def drop_node(self, name: str) -> None:
        """A node is gone; its pods stay known until they are gone too."""
        if self.nodes.pop(name, None) is not None:
            self.outdated = True
            if name in self.cluster.node_idx:
                self.cluster.fence(self.cluster.node_idx[name], fenced=True)

    def report_load(self, node: str, used_share: Mapping[str, float]) -> None:
        """Recent utilization by card UUID, in [0, 1]."""
        self.loads[node] = dict(used_share)
        for uuid, share in used_share.items():
            if uuid in self._card and self.cluster.node_names[self._card[uuid][0]] == node:
                self.cluster.report_card(*self._card[uuid], compute_used_share=min(max(share, 0.0), 1.0))

    def put_pod(self, pod: BoundPod) -> None:
        """A pod is bound, or a bound pod changed."""
        uid = pod.claim.uid
        if self.pods.get(uid) == pod:
            return
        if uid in self.pods or uid in self.under_way:
            self._forget(uid)
        self.pods[uid] = pod
        self._enter(pod)

    def drop_pod(self, uid: str) -> None:
        """A pod is gone or has ended. A pod that is not known is no error: deletes are told twice, or late."""
        if uid in self.pods:
            self._forget(uid)

    # ---------------------------------------------------------------- bindings under way

    def hold(self, claim: Claim, node: str) -> Allocation | Reason:
        """Choose cards on this node and keep them for a binding that is about to be written, or say why not.

        Asked again for a pod that is held already, the old hold is given up first.
        """
        self.release(claim.uid)
        if self.outdated:
            self.rebuild()
        if claim.uid in self.pods:
            return Reason(Code.POD_BOUND, {"node": self.pods[claim.uid].node})
        if node not in self.cluster.node_idx:
            return Reason(Code.NODE_UNKNOWN, {"node": node})
        node_idx, policy = self.cluster.node_idx[node], self.policy(claim)
        chosen = assign(policy, claim, node_idx)
        if chosen is None:
            return node_reason(self.cluster, policy.granted(claim.lead), node_idx) or Reason(Code.NODE_TOGETHER)
        self.seq += 1
        allocation = replace(chosen, epoch=self.epoch, seq=self.seq)
        held = BoundPod(claim, node, allocation)
        self.under_way[claim.uid] = held
        self.fresh.add(claim.uid)
        self._enter(held)
        return allocation

    def confirm(self, uid: str) -> None:
        """The binding was written: the hold is a bound pod now, whether or not the feed told of it yet."""
        held = self.under_way.pop(uid, None)
        if held is not None:
            self.pods[uid] = held
            self.fresh.add(uid)

    def release(self, uid: str) -> None:
        """The binding was not written: give the hold back."""
        if uid in self.under_way:
            self._forget(uid)

    # ---------------------------------------------------------------- what deciders ask

    def policy(self, claim: Claim) -> Policy:
        """The policy for the claim's latency class."""
        return self.policies[claim.latency]

    def suppose(self, claim: Claim, node: str) -> BoundPod | None:
        """How the pod would be bound to this node now; None if it would not fit. Nothing is held by it."""
        node_idx = self.cluster.node_idx.get(node)
        allocation = None if node_idx is None else assign(self.policy(claim), claim, node_idx)
        return None if allocation is None else BoundPod(claim, node, allocation)

    def allocation_of(self, uid: str) -> Allocation | None:
        """What a pod has, bound or about to be."""
        held = self.pods.get(uid) or self.under_way.get(uid)
        return held.allocation if held else None

    def pods_on(self, node: str) -> list[BoundPod]:
        """Pods that are counted on a node, earliest allocation first."""
        return sorted(map(self._known, self._on_node.get(node, ())), key=lambda pod: pod.order)

    def take_freed(self) -> set[str]:
        """Nodes on which capacity came free since the last call."""
        freed, self.freed = self.freed, set()
        return freed

    def knows(self, uid: str) -> bool:
        """True if the pod is counted: bound, or about to be."""
        return uid in self.pods or uid in self.under_way

    @contextmanager
    def supposing(self, guesses: Iterable[BoundPod]) -> Iterator[None]:
        """For the length of a ``with``: as if these pods were bound so, where that still can be."""
        mark = self.cluster.mark()
        try:
            for guess in guesses:
                inner = self.cluster.mark()
                try:
                    self._reserve(guess)
                except (OversoldError, _UnknownCardError, KeyError):  # the cluster has changed since it was guessed
                    self.cluster.undo(inner)
                else:
                    self.cluster.keep(inner)
            yield
        finally:
            self.cluster.undo(mark)

    # ---------------------------------------------------------------- inside

    def rebuild(self) -> None:
        """Build the cluster anew from nodes, pods and holds."""
        nodes, doubled = _told_once(sorted(self.nodes.values(), key=lambda node: node.name))
        self.cluster = Cluster.build(nodes)
        self.outdated = False
        self._parts, self._on_node, self.conflicts = {}, {}, {each.pod: each for each in doubled}
        for each in doubled:
            self.cluster.fence(self.cluster.node_idx[each.node], fenced=True)
        self._card = {card.uuid: (i, p) for i, cards in enumerate(self.cluster.cards) for p, card in enumerate(cards)}
        for pod in (*self.pods.values(), *self.under_way.values()):
            self._on_node.setdefault(pod.node, set()).add(pod.claim.uid)
        for node in self._on_node:
            self._recount(node)
        for node, load in self.loads.items():
            self.report_load(node, load)
        self.freed |= self.nodes.keys()
        if len(self.pods) > 2 * self._pods_mixed:
            self.renew_policies()
        else:
            self.policies = self.make_policies(self.cluster, self.mix)

    def renew_policies(self) -> None:
        """Bind policies to the present cluster and to the mix of the pods that it has by now."""
        mix = Mix.of(pod.claim.lead.shape for pod in self.pods.values())
        self.mix = mix if mix.with_cards.shapes else FIRST_MIX
        self._pods_mixed = len(self.pods)
        self.policies = self.make_policies(self.cluster, self.mix)

    def _known(self, uid: str) -> BoundPod:
        return self.pods[uid] if uid in self.pods else self.under_way[uid]

    def _enter(self, pod: BoundPod) -> None:
        """Count a pod that is not counted yet."""
        self._on_node.setdefault(pod.node, set()).add(pod.claim.uid)
        if self._has_conflict(pod.node) or not self._place(pod):
            self._recount(pod.node)

    def _forget(self, uid: str) -> None:
        """Give back what a pod holds and drop it from the books."""
        pod = self._known(uid)
        self.pods.pop(uid, None)
        self.under_way.pop(uid, None)
        self.fresh.discard(uid)
        self._on_node[pod.node].discard(uid)
        if not self._on_node[pod.node]:
            del self._on_node[pod.node]
        troubled = self._has_conflict(pod.node)
        self._lift(uid)
        self.conflicts.pop(uid, None)
        if troubled:
            self._recount(pod.node)
        self.freed.add(pod.node)

    def _has_conflict(self, node: str) -> bool:
        return bool(self.conflicts) and any(conflict.node == node for conflict in self.conflicts.values())

    def _recount(self, node: str) -> None:
        """Count all pods of a node afresh, earliest allocation first, and fence it if some cannot be true."""
        if node not in self.cluster.node_idx:
            return
        pods = self.pods_on(node)
        for pod in pods:
            self._lift(pod.claim.uid)
            self.conflicts.pop(pod.claim.uid, None)
        for pod in pods:
            if not self._place(pod):
                self._place(replace(pod, allocation=None))
        self.cluster.fence(self.cluster.node_idx[node], fenced=self._has_conflict(node))

    def _lift(self, uid: str) -> None:
        for part in self._parts.pop(uid, ()):
            self.cluster.release(part)

    def _place(self, pod: BoundPod) -> bool:
        """Reserve what a pod holds; if that cannot be, reserve nothing and note the conflict."""
        if pod.node not in self.cluster.node_idx:
            return True
        mark = self.cluster.mark()
        try:
            parts = self._reserve(pod)
        except (OversoldError, _UnknownCardError) as exc:
            self.cluster.undo(mark)
            self.conflicts[pod.claim.uid] = Conflict(pod.claim.name, pod.node, str(exc))
            return False
        self.cluster.keep(mark)
        self._parts[pod.claim.uid] = parts
        return True

    def _reserve(self, pod: BoundPod) -> list[str]:
        """Take what a pod holds, one part per card; names of the parts. The first carries CPU and host memory."""
        node_idx = self.cluster.node_idx[pod.node]
        parts: list[str] = []
        for shape, places in self._wanted(pod, node_idx):
            part = f"{pod.claim.uid}#{len(parts)}"
            self.cluster.reserve(pod.claim.request(shape, host=not parts, name=part), node_idx, places, running=True)
            parts.append(part)
        return parts

    def _wanted(self, pod: BoundPod, node_idx: int) -> Iterable[tuple[Shape, tuple[int, ...]]]:
        held = holds(pod.claim, pod.allocation, initialized=pod.initialized) if pod.allocation else []
        for hold in held:
            card_node_idx, place = self._card.get(hold.uuid, (-1, -1))
            if card_node_idx != node_idx:
                raise _UnknownCardError(f"{pod.node} reports no card {hold.uuid}")
            if hold.whole:
                yield Shape(1, whole=True), (place,)
            else:  # a hold of compute alone takes 1 MiB: a slice of no memory cannot be asked for
                milli = hold.compute_pct * MILLI_PER_PCT
                yield Shape(1, memory_mib=max(hold.memory_mib, 1), compute_milli=milli), (place,)
        if not held:
            yield Shape(0), ()

    def _report(self, spec: NodeSpec) -> None:
        node_idx = self.cluster.node_idx[spec.name]
        self.cluster.set_schedulable(node_idx, spec.schedulable)
        self.cluster.report_cached_models(node_idx, spec.cached_models)
        for place, card in enumerate(spec.cards):
            self.cluster.report_card(node_idx, place, healthy=card.healthy, isolation=card.isolation)


class _UnknownCardError(ValueError):
    """An allocation names a card that its node does not report."""


def _told_once(nodes: Iterable[NodeSpec]) -> tuple[list[NodeSpec], list[Conflict]]:
    """The nodes; one that tells a card of an earlier one has no cards: a card is in one place, and which is not known.

    So it is when a machine comes back under another name, or its cards have moved, and the old node is still there.
    """
    once: list[NodeSpec] = []
    doubled: list[Conflict] = []
    owners: dict[str, str] = {}
    for node in nodes:
        twice = [card.uuid for card in node.cards if card.uuid in owners]
        if twice:
            text = f"{owners[twice[0]]} reports card {twice[0]} too; delete the node that is no more"
            doubled.append(Conflict(f"node {node.name}", node.name, text))
            once.append(replace(node, cards=()))
            continue
        once.append(node)
        owners |= dict.fromkeys((card.uuid for card in node.cards), node.name)
    return once, doubled


def _hardware(node: NodeSpec) -> tuple[object, ...]:
    """What of a node cannot change without building the cluster anew."""
    cards = tuple((card.uuid, card.model, card.memory_mib, card.links) for card in node.cards)
    return (node.cpu_milli, node.memory_mib, node.domain, cards)
