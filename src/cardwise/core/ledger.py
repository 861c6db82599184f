"""Who holds what: the pods that the cluster tells of, and the holds of bindings that are under way.

The ledger is what one gets by reading all pods, in the order of their allocations; every change keeps it so. A relist,
a restart and a standby that takes over all rebuild the same. Refuses to believe the impossible: pods that do not fit
their node's cards are a *conflict*, and the node takes nothing new until it has gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cardwise.core.allocation import Allocation, BoundPod, Hold, holds
from cardwise.core.claim import Claim, LatencyClass
from cardwise.core.cluster import Cluster, OversoldError, Slice
from cardwise.core.inventory import NodeSpec
from cardwise.core.placement.assign import assign
from cardwise.core.placement.filter import node_reason
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policy import Policy
from cardwise.core.reasons import Code, Reason
from cardwise.core.request import Isolation, Shape
from cardwise.units import MILLI_PER_CARD, MILLI_PER_PCT

MakePolicies = Callable[[Cluster, Mix], Mapping[LatencyClass, Policy]]
MOST_PCT = MILLI_PER_CARD // MILLI_PER_PCT
FIRST_MIX = Mix((Shape(1, memory_mib=4096, compute_milli=200), Shape(1, whole=True)), (1.0, 1.0))
"""What is expected of a cluster that has not seen a pod yet."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """What cannot be true. pod: whose allocation it is; empty where it is the node's own report."""

    pod: str
    node: str
    text: str


@dataclass(frozen=True, slots=True)
class Nominated:
    """What is kept for a pod that waits, on the node where others go for it; until when, on the feed's clock."""

    pod: BoundPod
    until_s: float
    over: bool = False


@dataclass(slots=True)
class Ledger:
    """The books. Not safe for threads: one loop owns it.

    mix: what the policies expect to come.
    epoch: the leader's number, written into each allocation.
    freed: names of nodes on which capacity came free since someone last took the set.
    fresh: UIDs of pods that were held or confirmed since the last list of pods began: it may not have them.
    unlisted: those of them that it did not have: they came after it, or went before it. Somebody must ask.
    conflicts: by the pod's UID, or by the node where it is the node's own.
    silent: nodes whose agent does not report, and how that reads.
    nominated: by the UID of who waits. Of what is kept for it as much is held as is free: that grows as others go.
    """

    make_policies: MakePolicies
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    pods: dict[str, BoundPod] = field(default_factory=dict)
    under_way: dict[str, BoundPod] = field(default_factory=dict)
    conflicts: dict[str, Conflict] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    loads: dict[str, dict[str, float]] = field(default_factory=dict)
    nominated: dict[str, Nominated] = field(default_factory=dict)
    freed: set[str] = field(default_factory=set)
    fresh: set[str] = field(default_factory=set)
    unlisted: set[str] = field(default_factory=set)
    epoch: int = 0
    seq: int = 0
    outdated: bool = False
    cluster: Cluster = field(default_factory=lambda: Cluster.build(()))
    policies: Mapping[LatencyClass, Policy] = field(default_factory=dict)
    mix: Mix = FIRST_MIX
    _pods_mixed: int = 0
    _parts: dict[str, list[str]] = field(default_factory=dict)
    _kept: dict[str, list[str]] = field(default_factory=dict)
    _on_node: dict[str, set[str]] = field(default_factory=dict)
    _troubles: dict[str, set[str]] = field(default_factory=dict)
    _built: dict[str, NodeSpec] = field(default_factory=dict)
    _places: dict[str, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with an empty cluster."""
        self.rebuild()

    # ---------------------------------------------------------------- what the cluster tells

    def reset(self, nodes: Iterable[NodeSpec], pods: Iterable[BoundPod]) -> None:
        """Take over a whole list: what is not in it is gone. Holds of bindings under way stay."""
        self.nodes = {node.name: node for node in nodes}
        self.pods = {pod.claim.uid: pod for pod in pods}
        self.under_way = {uid: held for uid, held in self.under_way.items() if uid not in self.pods}
        self._on_node = {}
        for pod in (*self.pods.values(), *self.under_way.values()):
            self._on_node.setdefault(pod.node, set()).add(pod.claim.uid)
        self._built = {}
        self.rebuild()

    def begin_list(self) -> None:
        """A list of pods begins: what was confirmed before is in it, or gone."""
        self.fresh.clear()

    def take_list(self, listed: Collection[str], bound: Iterable[BoundPod]) -> None:
        """Take over a list of pods: what was known when it began and is not in it is gone.

        What became known since then and is not in it is kept, as ``unlisted``.
        listed: UIDs of all pods of the list; bound: those of them that are on a node.
        """
        for uid in self.under_way.keys() - self.fresh - set(listed):
            self.release(uid)
        told = {pod.claim.uid: pod for pod in bound}
        later = [pod for uid, pod in self.pods.items() if uid in self.fresh and uid not in told]
        self.reset(self.nodes.values(), [*told.values(), *later])
        self.unlisted = {uid for uid in self.fresh if self.knows(uid)} - set(listed)

    def put_node(self, spec: NodeSpec) -> None:
        """A node came or changed. New hardware makes the ledger ``outdated``: call :meth:`rebuild` before deciding."""
        before = self.nodes.get(spec.name)
        if before == spec:
            return
        self.nodes[spec.name] = spec
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
        places = self._places.get(node, {})
        for uuid in used_share.keys() & places.keys():
            share = min(max(used_share[uuid], 0.0), 1.0)
            self.cluster.report_card(self.cluster.node_idx[node], places[uuid], compute_used_share=share)

    def put_pod(self, pod: BoundPod) -> None:
        """A pod is bound, or a bound pod changed."""
        uid = pod.claim.uid
        self.unlisted.discard(uid)
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

    def disown(self, uid: str) -> None:
        """A pod is known to be gone for good, bound or not: a binding under way cannot land any more."""
        if self.knows(uid):
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
        with self.asking(claim.uid):
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

    # ---------------------------------------------------------------- what is kept for pods that wait

    def nominate(self, pod: BoundPod, until_s: float) -> None:
        """Keep what the pod would get from all others, also what is freed from now on, until it is bound or expired.

        Told again of the same, the first deadline stays: hearing a list anew must not make it longer.
        """
        known = self.nominated.get(pod.claim.uid)
        if known is None or known.pod != pod:
            self.withdraw(pod.claim.uid)
            with self._yielding(pod.node):
                self.nominated[pod.claim.uid] = Nominated(pod, until_s)

    def withdraw(self, uid: str) -> None:
        """Keep nothing more for a pod."""
        known = self.nominated.get(uid)
        if known is not None:
            with self._yielding(known.pod.node):
                del self.nominated[uid]
            self.freed.add(known.pod.node)

    def expire(self, now_s: float) -> None:
        """Keep nothing more for pods whose deadline has passed. That is remembered: to hear it again renews nothing."""
        for uid, known in list(self.nominated.items()):
            if not known.over and known.until_s <= now_s:
                with self._yielding(known.pod.node):
                    self.nominated[uid] = replace(known, over=True)
                self.freed.add(known.pod.node)

    @contextmanager
    def keeping(self, pod: BoundPod) -> Iterator[None]:
        """For the length of a ``with``: as if this were kept for a pod that waits, and not what is kept for it now."""
        uid = pod.claim.uid
        before, freed = self.nominated.get(uid), set(self.freed)
        self.nominate(pod, math.inf)
        try:
            yield
        finally:
            with self._yielding(pod.node, *([before.pod.node] if before else [])):
                del self.nominated[uid]
                if before is not None:
                    self.nominated[uid] = before
            self.freed = freed

    def kept_on(self, node: str) -> list[Nominated]:
        """For whom something is kept on a node, the most important first."""
        found = [each for each in self.nominated.values() if each.pod.node == node and not each.over]
        waiting = [each for each in found if not self.knows(each.pod.claim.uid)]
        return sorted(waiting, key=lambda each: (-each.pod.claim.priority, each.pod.claim.uid))

    @contextmanager
    def _yielding(self, *nodes: str) -> Iterator[None]:
        """What is kept on these nodes gives way to what the ``with`` does, and takes what that leaves free."""
        for uid, known in self.nominated.items():
            if known.pod.node in nodes:
                self._unkeep(uid)
        yield
        for node in dict.fromkeys(nodes) if self.nominated else ():
            for known in self.kept_on(node):
                self._keep(known.pod)

    def _unkeep(self, uid: str) -> None:
        for part in self._kept.pop(uid, ()):
            self.cluster.release(part)

    def _keep(self, pod: BoundPod) -> None:
        """Hold of what a pod is to get as much as is free. Pods that have not gone yet hold the rest."""
        if pod.node not in self.cluster.node_idx or pod.allocation is None:
            return
        node_idx, parts = self.cluster.node_idx[pod.node], list[str]()
        for hold in self._as_slices(pod.node, holds(pod.claim, pod.allocation, initialized=pod.initialized)):
            place = self._places[pod.node].get(hold.uuid)
            shape = None if place is None else self._free_part(hold, node_idx, place)
            if place is None or shape is None:
                continue
            part = f"{pod.claim.uid}!{len(parts)}"
            if not parts:
                cpu_milli, memory_mib = (
                    min(pod.claim.cpu_milli, int(self.cluster.cpu_free_milli[node_idx])),
                    min(pod.claim.host_memory_mib, int(self.cluster.host_memory_free_mib[node_idx])),
                )
                shape = replace(shape, cpu_milli=cpu_milli, host_memory_mib=memory_mib)
            lent_mib = min(hold.lent_mib, shape.memory_mib, int(self.cluster.memory_lent_free_mib[node_idx, place]))
            request = pod.claim.request(shape, host=False, name=part)
            self.cluster.reserve(request, node_idx, (place,), running=True, lent_mib=lent_mib)
            parts.append(part)
        self._kept[pod.claim.uid] = parts

    def _free_part(self, hold: Hold, node_idx: int, place: int) -> Shape | None:
        """As much of a hold as is free on its card, as a slice; None if that is nothing."""
        cluster = self.cluster
        free_mib, free_milli = (
            int(cluster.memory_free_mib[node_idx, place]),
            int(cluster.compute_free_milli[node_idx, place]),
        )
        in_use = bool(cluster.card_slices[node_idx, place])
        if in_use and cluster.isolation_of(node_idx, place) is Isolation.MIG:
            return None
        if hold.whole and not in_use:
            return Shape(1, whole=True)
        lent_mib = min(hold.lent_mib, int(cluster.memory_lent_free_mib[node_idx, place]))
        wanted_mib = free_mib if hold.whole else min(hold.memory_mib - hold.lent_mib, free_mib) + lent_mib
        compute_milli = free_milli if hold.whole else min(hold.compute_pct * MILLI_PER_PCT, free_milli)
        return Shape(1, memory_mib=wanted_mib, compute_milli=compute_milli) if wanted_mib else None

    # ---------------------------------------------------------------- what deciders ask

    def policy(self, claim: Claim) -> Policy:
        """The policy for the claim's latency class."""
        return self.policies[claim.latency]

    def suppose(self, claim: Claim, node: str) -> BoundPod | None:
        """How the pod would be bound to this node now; None if it would not fit. Nothing is held by it."""
        return self.suppose_without(claim, node, ())

    def suppose_without(self, claim: Claim, node: str, gone: Iterable[str]) -> BoundPod | None:
        """How the pod would be bound to this node if these pods (UIDs) were gone. Nothing is changed by it."""
        node_idx = self.cluster.node_idx.get(node)
        if node_idx is None:
            return None
        with self.asking(claim.uid, *gone):
            allocation = assign(self.policy(claim), claim, node_idx)
        return None if allocation is None else BoundPod(claim, node, allocation)

    @contextmanager
    def trying(self, claim: Claim, node: str) -> Iterator[Callable[[Collection[str]], bool]]:
        """For the length of a ``with``: whether the pod would fit a node with these pods (UIDs) gone, asked repeatedly.

        An answer costs as much as it differs from the one before in who is gone.
        """
        node_idx, gone = self.cluster.node_idx.get(node), dict[str, list[Slice]]()

        def fits(wanted: Collection[str]) -> bool:
            for uid in [uid for uid in gone if uid not in wanted]:
                for held in gone.pop(uid):
                    lent_mib = held.lent_mib[0] if held.lent_mib else 0  # each part is of one card
                    self.cluster.reserve(held.request, held.node_idx, held.places, running=True, lent_mib=lent_mib)
            for uid in [uid for uid in dict.fromkeys(wanted) if uid not in gone]:
                gone[uid] = [self.cluster.release(part) for part in self._parts.get(uid, ())]
            return node_idx is not None and assign(self.policy(claim), claim, node_idx) is not None

        with self.asking(claim.uid):
            yield fits

    @contextmanager
    def asking(self, *uids: str) -> Iterator[None]:
        """For the length of a ``with``: as if these pods held nothing, nor anything were kept for them."""
        mark = self.cluster.mark()
        try:
            for uid in dict.fromkeys(uids):
                for part in (*self._parts.get(uid, ()), *self._kept.get(uid, ())):
                    self.cluster.release(part)
            yield
        finally:
            self.cluster.undo(mark)

    def allocation_of(self, uid: str) -> Allocation | None:
        """What a pod has, bound or about to be."""
        held = self.pods.get(uid) or self.under_way.get(uid)
        return held.allocation if held else None

    def name_of(self, uid: str) -> str | None:
        """Namespace and name of a pod that is counted."""
        return self._known(uid).claim.name if self.knows(uid) else None

    def binds(self, allocation: Allocation) -> bool:
        """Whether every card of an allocation holds the pod to its memory in any case, or is the pod's alone."""
        cards = {card.uuid: card for card in self.nodes[allocation.node].cards}
        return all(share.whole or cards[share.uuid].binds for share in allocation.shares if share.uuid in cards)

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
                    for part in self._kept.get(guess.claim.uid, ()):
                        self.cluster.release(part)
                    self._reserve(guess)
                except (OversoldError, _ImpossibleError, KeyError):  # the cluster has changed since it was guessed
                    self.cluster.undo(inner)
                else:
                    self.cluster.keep(inner)
            yield
        finally:
            self.cluster.undo(mark)

    # ---------------------------------------------------------------- inside

    def rebuild(self) -> None:
        """Build the cluster anew. Nodes that are as they were keep what is counted on them, the others are counted."""
        for uid in list(self._kept):
            self._unkeep(uid)
        specs = sorted(self.nodes.values(), key=lambda node: node.name)
        kept = {node.name for node in specs if self._built.get(node.name) is node and node.name not in self._troubles}
        self._parts = {uid: parts for uid, parts in self._parts.items() if kept and self._known(uid).node in kept}
        before, self.cluster = self.cluster, Cluster.build([_distinct(node) for node in specs], doubles=True)
        self.cluster.adopt(before, kept)
        self._built, self.outdated = dict(self.nodes), False
        self._places = {
            name: {card.uuid: place for place, card in enumerate(cards)}
            for name, cards in zip(self.cluster.node_names, self.cluster.cards, strict=True)
        }
        self.conflicts, self._troubles = {}, {}
        for doubled in _doubled(specs):
            self._note(f"node {doubled.node}", doubled)
            self.cluster.fence(self.cluster.node_idx[doubled.node], fenced=True)
        self.silent = {node: text for node, text in self.silent.items() if node in self.nodes}
        for node, text in self.silent.items():
            self._note_silent(node, text)
        for node in self._on_node.keys() - kept:
            self._recount(node)
        for node in self.loads.keys() - kept:
            self.report_load(node, self.loads[node])
        with self._yielding(*sorted({each.pod.node for each in self.nominated.values()})):
            self.freed |= self.nodes.keys() - kept
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
        with self._yielding(pod.node, *self._nominated_to(pod.claim.uid)):
            if self._has_conflict(pod.node) or not self._place(pod):
                self._recount(pod.node)

    def _nominated_to(self, uid: str) -> tuple[str, ...]:
        return (self.nominated[uid].pod.node,) if uid in self.nominated else ()

    def _forget(self, uid: str) -> None:
        """Give back what a pod holds and drop it from the books."""
        pod = self._known(uid)
        self.pods.pop(uid, None)
        self.under_way.pop(uid, None)
        self.fresh.discard(uid)
        self.unlisted.discard(uid)
        self._on_node[pod.node].discard(uid)
        if not self._on_node[pod.node]:
            del self._on_node[pod.node]
        troubled = self._has_conflict(pod.node)
        with self._yielding(pod.node, *self._nominated_to(uid)):
            self._lift(uid)
            self._clear(uid)
            if troubled:
                self._recount(pod.node)
        self.freed.add(pod.node)

    def _has_conflict(self, node: str) -> bool:
        return node in self._troubles

    def _note(self, key: str, conflict: Conflict) -> None:
        self.conflicts[key] = conflict
        self._troubles.setdefault(conflict.node, set()).add(key)

    def _clear(self, key: str) -> None:
        conflict = self.conflicts.pop(key, None)
        if conflict is None:
            return
        self._troubles[conflict.node].discard(key)
        if not self._troubles[conflict.node]:
            del self._troubles[conflict.node]

    def silence(self, node: str, text: str) -> None:
        """A node's agent does not report, as ``text`` says, or reports again (no text): the node is fenced, or free."""
        if text:
            self.silent[node] = text
            self._note_silent(node, text)
            return
        self.silent.pop(node, None)
        self._clear(f"silent {node}")
        if node in self.cluster.node_idx:
            self.cluster.fence(self.cluster.node_idx[node], fenced=self._has_conflict(node))
            self.freed.add(node)

    def _note_silent(self, node: str, text: str) -> None:
        if node in self.cluster.node_idx:
            self._note(f"silent {node}", Conflict("", node, text))
            self.cluster.fence(self.cluster.node_idx[node], fenced=True)

    def _recount(self, node: str) -> None:
        """Count all pods of a node afresh, earliest allocation first, and fence it if some cannot be true."""
        if node not in self.cluster.node_idx:
            return
        pods = self.pods_on(node)
        for pod in pods:
            self._lift(pod.claim.uid)
            self._clear(pod.claim.uid)
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
        except (OversoldError, _ImpossibleError) as exc:
            self.cluster.undo(mark)
            self._note(pod.claim.uid, Conflict(pod.claim.name, pod.node, str(exc)))
            return False
        self.cluster.keep(mark)
        self._parts[pod.claim.uid] = parts
        return True

    def _reserve(self, pod: BoundPod) -> list[str]:
        """Take what a pod holds, one part per card; names of the parts. The first carries CPU and host memory."""
        node_idx = self.cluster.node_idx[pod.node]
        parts: list[str] = []
        for shape, places, lent_mib in self._wanted(pod):
            part = f"{pod.claim.uid}#{len(parts)}"
            request = pod.claim.request(shape, host=not parts, name=part)
            self.cluster.reserve(request, node_idx, places, running=True, lent_mib=lent_mib)
            parts.append(part)
        return parts

    def _wanted(self, pod: BoundPod) -> Iterable[tuple[Shape, tuple[int, ...], int]]:
        """Each part of what a pod holds: its shape, its place, and how much of its memory is lent."""
        held = holds(pod.claim, pod.allocation, initialized=pod.initialized) if pod.allocation else []
        for hold in self._as_slices(pod.node, held):
            place = self._places[pod.node].get(hold.uuid)
            if place is None:
                raise _ImpossibleError(f"{pod.node} reports no card {hold.uuid}")
            if hold.compute_pct > MOST_PCT and not hold.whole:
                raise _ImpossibleError(f"card {hold.uuid} on {pod.node}: one pod holds {hold.compute_pct} % of it")
            if hold.whole:
                yield Shape(1, whole=True), (place,), 0
            else:  # a hold of compute alone takes 1 MiB: a slice of no memory cannot be asked for
                milli = hold.compute_pct * MILLI_PER_PCT
                yield Shape(1, memory_mib=max(hold.memory_mib, 1), compute_milli=milli), (place,), hold.lent_mib
        if not held:
            yield Shape(0), (), 0

    def _as_slices(self, node: str, held: Iterable[Hold]) -> Iterable[Hold]:
        """What a pod holds of a MIG instance is one slice: one pod has it, its containers one after the other."""
        instances: dict[str, Hold] = {}
        for hold in held:
            place, node_idx = self._places[node].get(hold.uuid), self.cluster.node_idx[node]
            if place is None or self.cluster.isolation_of(node_idx, place) is not Isolation.MIG:
                yield hold
            elif (before := instances.get(hold.uuid)) is None:
                instances[hold.uuid] = hold
            else:
                memory_mib, compute_pct = before.memory_mib + hold.memory_mib, before.compute_pct + hold.compute_pct
                lent_mib = before.lent_mib + hold.lent_mib
                instances[hold.uuid] = Hold(hold.uuid, memory_mib, compute_pct, before.whole or hold.whole, lent_mib)
        yield from instances.values()

    def _report(self, spec: NodeSpec) -> None:
        node_idx = self.cluster.node_idx[spec.name]
        self.cluster.set_schedulable(node_idx, spec.schedulable)
        self.cluster.report_cached_models(node_idx, spec.cached_models)
        for place, card in enumerate(_distinct(spec).cards):
            self.cluster.report_card(
                node_idx,
                place,
                healthy=card.healthy,
                isolation=card.isolation,
                lendable_mib=card.lendable_mib,
                evicted=card.evicted,
            )
        self._built[spec.name] = spec


class _ImpossibleError(ValueError):
    """An allocation names a card that its node does not report, or takes more than a card has."""


def _doubled(nodes: Iterable[NodeSpec]) -> Iterator[Conflict]:
    """A conflict for each node that tells a card which is told elsewhere: it is in one place, and which is not known.

    So it is when a machine comes back under another name, or its cards have moved, and the old node is still there.
    """
    tellers: dict[str, list[str]] = {}
    for node in nodes:
        for card in node.cards:
            tellers.setdefault(card.uuid, []).append(node.name)
    told = set[str]()
    for uuid, names in tellers.items():
        for name in names if len(names) > 1 else ():
            if name not in told:
                told.add(name)
                other = next((each for each in names if each != name), None)
                yield Conflict("", name, _doubled_text(uuid, name, other))


def _doubled_text(uuid: str, node: str, other: str | None) -> str:
    if other is None:
        return f"{node} reports card {uuid} twice"
    return f"{other} reports card {uuid} too; delete the node that is no more"


def _distinct(node: NodeSpec) -> NodeSpec:
    """The node with each of its cards once; without links if there were more, for those no longer match."""
    cards = {card.uuid: card for card in reversed(node.cards)}
    if len(cards) == len(node.cards):
        return node
    return replace(node, cards=tuple(replace(card, links=()) for card in reversed(cards.values())))


def _hardware(node: NodeSpec) -> tuple[object, ...]:
    """What of a node cannot change without building the cluster anew."""
    mig = Isolation.MIG  # what lies on a card counts otherwise there
    cards = tuple((c.uuid, c.model, c.memory_mib, c.links, c.isolation is mig, c.binds) for c in node.cards)
    return (node.cpu_milli, node.memory_mib, node.domain, cards)
