"""The cluster's state as arrays over N nodes and C card places, and the only way to change it.

``reserve`` and ``release`` are exact inverses and cost O(cards touched); ``mark``/``undo`` take back a trial;
``snapshot`` copies what changes and shares what does not. Nothing here decides: filters and scores do.
Refuses to oversell: a reservation that does not fit raises, whoever asked for it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from cardwise.core.arrays import BoolArray, FloatArray, IntArray
from cardwise.core.inventory import CardKind, CardSpec, NodeSpec, card_kinds, check_inventory, link_matrix
from cardwise.core.request import Isolation, PodRequest, Shape, WorkloadClass
from cardwise.units import MILLI_PER_CARD

NO_TENANT, MANY_TENANTS = 0, -1
_Key = TypeVar("_Key")
_Member = TypeVar("_Member")
_CLASSES = (WorkloadClass.INFERENCE, WorkloadClass.TRAINING)


@dataclass(frozen=True, slots=True)
class Slice:
    """A reservation that stands: who holds how much of which places. One per pod.

    places: card places on the node, ascending. memory_mib: taken on each place, same order; lent_mib: how much of that
    is lent beyond the card, empty if nothing is.
    """

    request: PodRequest
    node_idx: int
    places: tuple[int, ...]
    memory_mib: tuple[int, ...]
    compute_milli: int
    lent_mib: tuple[int, ...] = ()

    @property
    def parts(self) -> Iterable[tuple[int, int, int]]:
        """Place, MiB of the physical card, and MiB lent beyond it, for each card."""
        if not self.lent_mib:
            return zip(self.places, self.memory_mib, (0,) * len(self.places), strict=True)
        physical = (memory - lent for memory, lent in zip(self.memory_mib, self.lent_mib, strict=True))
        return zip(self.places, physical, self.lent_mib, strict=True)


class OversoldError(ValueError):
    """A reservation that does not fit was asked for: the caller decided on another state than this one."""


@dataclass(slots=True)
class Cluster:
    """State of N nodes with up to C cards each. Build it with :meth:`build`.

    Fixed by inventory:
      node_names: length N; node_domain: int64 [N], index into ``domains``; topology: int64 [N], index into
      ``topologies``, the distinct link matrices of nodes (an empty one where links are unknown);
      cpu_total_milli, host_memory_total_mib: int64 [N].
      card_exists: bool [N, C]; card_model: int64 [N, C], index into ``models``, -1 where no card is;
      memory_total_mib: int64 [N, C], 0 where no card is.
    Changed by reservations:
      cpu_free_milli, host_memory_free_mib: int64 [N], never below 0; cpu_left_milli, host_memory_left_mib: the same,
      below 0 where pods run that do not fit by their requests; memory_free_mib, compute_free_milli: int64 [N, C];
      memory_lent_mib: int64 [N, C], lent beyond the card; it never counts in memory_free_mib (SPEC E1);
      memory_lent_free_mib: int64 [N, C], may still be lent; 0 also where more is lent than may be by now;
      free_milli: int64 [N, C], the scarcer of a card's memory and compute in thousandths of the card, rounded down; 0
      for a fenced card and for a MIG instance in use. What packing policies look at.
      card_slices: int64 [N, C], how many slices a card holds;
      class_slices: int64 [N, C, 2, 2], of them by workload class (inference, training) and ``mixes`` (no, yes);
      card_tenant: int64 [N, C], NO_TENANT, MANY_TENANTS or the tenant's number; exclusive_slices: int64 [N, C].
    Changed by reports:
      memory_lendable_mib: int64 [N, C], may be lent beyond the card in all;
      node_schedulable, node_fenced: bool [N]; card_healthy, card_binds: bool [N, C];
      card_isolation: int64 [N, C] (``Isolation`` values);
      card_kind: int64 [N, C], model, isolation mode and health as one number, see :func:`card_kinds`;
      compute_used_share: float64 [N, C], recent measured utilization, NaN where nothing was reported;
      compute_free_reported_milli: int64 [N, C], ``compute_free_milli`` at that report: what was reserved since is
      not in the measurement yet.
    evicted: cards, as (node, place), that a service's pods do not come to yet, by service.
    exclusive_total, class_total: ``exclusive_slices`` and ``class_slices`` summed over the cluster.
    node_stamp: int64 [N], the value of ``stamp`` at the node's last change: caches compare it to know what is stale.
    """

    node_names: tuple[str, ...]
    models: tuple[str, ...]
    domains: tuple[str, ...]
    topologies: tuple[tuple[tuple[int, ...], ...], ...]
    node_domain: IntArray
    topology: IntArray
    cpu_total_milli: IntArray
    host_memory_total_mib: IntArray
    card_exists: BoolArray
    card_model: IntArray
    memory_total_mib: IntArray
    cards: tuple[tuple[CardSpec, ...], ...]
    cached_models: list[frozenset[str]]

    cpu_left_milli: IntArray
    host_memory_left_mib: IntArray
    cpu_free_milli: IntArray
    host_memory_free_mib: IntArray
    memory_free_mib: IntArray
    memory_lendable_mib: IntArray
    memory_lent_mib: IntArray
    memory_lent_free_mib: IntArray
    compute_free_milli: IntArray
    free_milli: IntArray
    card_slices: IntArray
    class_slices: IntArray
    card_tenant: IntArray
    exclusive_slices: IntArray

    node_schedulable: BoolArray
    node_fenced: BoolArray
    card_healthy: BoolArray
    card_isolation: IntArray
    card_kind: IntArray
    card_binds: BoolArray
    compute_used_share: FloatArray
    compute_free_reported_milli: IntArray

    node_stamp: IntArray
    stamp: int = 0
    exclusive_total: int = 0
    class_total: list[int] = field(default_factory=lambda: [0, 0])
    node_idx: dict[str, int] = field(default_factory=dict)
    slices: dict[str, Slice] = field(default_factory=dict)
    on_card: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    service_slices: dict[str, set[str]] = field(default_factory=dict)
    evicted: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    _tenant_ids: dict[str, int] = field(default_factory=dict)
    _journal: list[tuple[bool, Slice]] = field(default_factory=list)
    _marks: int = 0

    # ---------------------------------------------------------------- building

    @classmethod
    def build(cls, nodes: Sequence[NodeSpec], *, doubles: bool = False) -> Cluster:
        """Make an empty cluster from inventory.

        doubles: two nodes may tell one card; who allows that must fence them.
        Raises ValueError if two nodes share a name, two cards a UUID, or an amount is negative.
        """
        check_inventory(nodes, doubles=doubles)
        n, c = len(nodes), max((len(node.cards) for node in nodes), default=0)
        models = tuple(sorted({card.model for node in nodes for card in node.cards}))
        domains = tuple(sorted({node.domain for node in nodes}))
        model_idx = {model: i for i, model in enumerate(models)}
        shape = (n, c)
        exists = np.zeros(shape, np.bool_)
        model = np.full(shape, -1, np.int64)
        memory = np.zeros(shape, np.int64)
        lendable = np.zeros(shape, np.int64)
        evicted: dict[str, set[tuple[int, int]]] = {}
        healthy = np.zeros(shape, np.bool_)
        isolation = np.zeros(shape, np.int64)
        binds = np.zeros(shape, np.bool_)
        for i, node in enumerate(nodes):
            for p, card in enumerate(node.cards):
                exists[i, p] = True
                model[i, p] = model_idx[card.model]
                memory[i, p] = card.memory_mib
                lendable[i, p] = card.lendable_mib
                for service in card.evicted:
                    evicted.setdefault(service, set()).add((i, p))
                healthy[i, p] = card.healthy
                isolation[i, p] = card.isolation
                binds[i, p] = card.binds
        links = [link_matrix(node) for node in nodes]
        topologies = tuple(sorted(set(links)))
        cpu = np.array([node.cpu_milli for node in nodes], np.int64)
        host_memory = np.array([node.memory_mib for node in nodes], np.int64)
        return cls(
            node_names=tuple(node.name for node in nodes),
            models=models,
            domains=domains,
            topologies=topologies,
            topology=np.array([topologies.index(each) for each in links], np.int64),
            node_domain=np.array([domains.index(node.domain) for node in nodes], np.int64),
            cpu_total_milli=cpu,
            host_memory_total_mib=host_memory,
            card_exists=exists,
            card_model=model,
            memory_total_mib=memory,
            cards=tuple(node.cards for node in nodes),
            cached_models=[node.cached_models for node in nodes],
            cpu_left_milli=cpu.copy(),
            host_memory_left_mib=host_memory.copy(),
            cpu_free_milli=cpu.copy(),
            host_memory_free_mib=host_memory.copy(),
            memory_free_mib=memory.copy(),
            memory_lendable_mib=lendable,
            memory_lent_mib=np.zeros(shape, np.int64),
            memory_lent_free_mib=lendable.copy(),
            compute_free_milli=exists * np.int64(MILLI_PER_CARD),
            free_milli=healthy * np.int64(MILLI_PER_CARD),
            card_slices=np.zeros(shape, np.int64),
            class_slices=np.zeros((*shape, 2, 2), np.int64),
            card_tenant=np.full(shape, NO_TENANT, np.int64),
            exclusive_slices=np.zeros(shape, np.int64),
            node_schedulable=np.array([node.schedulable for node in nodes], np.bool_),
            node_fenced=np.zeros(n, np.bool_),
            card_healthy=healthy,
            card_isolation=isolation,
            card_kind=np.where(
                exists, ((model * len(Isolation) + isolation) * 2 + healthy) * 2 + binds, len(card_kinds(models))
            ),
            card_binds=binds,
            compute_used_share=np.full(shape, np.nan),
            compute_free_reported_milli=exists * np.int64(MILLI_PER_CARD),
            node_stamp=np.zeros(n, np.int64),
            node_idx={node.name: i for i, node in enumerate(nodes)},
            evicted=evicted,
        )

    def kind_of(self, kind: int) -> CardKind | None:
        """What a number of a kind of card stands for; None for the last: no card."""
        kinds = card_kinds(self.models)
        return kinds[kind] if kind < len(kinds) else None

    def isolation_of(self, node_idx: int, place: int) -> Isolation:
        """How a card is shared."""
        return Isolation(int(self.card_isolation[node_idx, place]))

    @property
    def nodes_total(self) -> int:
        """N."""
        return len(self.node_names)

    @property
    def cards_total(self) -> int:
        """G, the cards that exist."""
        return int(self.card_exists.sum())

    # ---------------------------------------------------------------- reservations

    def memory_asked_mib(self, shape: Shape, node_idx: int, place: int) -> int:
        """MiB that one card of ``shape`` takes on this place; a slice takes 1 at least: none fits a full card."""
        total = int(self.memory_total_mib[node_idx, place])
        if shape.whole:
            return total
        if shape.memory_milli:
            return max(total * shape.memory_milli // MILLI_PER_CARD, 1)
        return shape.memory_mib

    def reserve(
        self,
        request: PodRequest,
        node_idx: int,
        places: Sequence[int],
        *,
        running: bool = False,
        lent_mib: int | None = None,
    ) -> Slice:
        """Give ``request`` its cards on a node. O(cards touched).

        places: distinct card places on the node, one per card asked.
        running: the pod is there already, so its CPU and host memory count whether or not they fit; cards never do so.
        lent_mib: of each card, lent beyond it. It was lent before, so whether it still may be is not asked: to take it
            back is reclaim's. None: what may be lent is taken first, by a shape that takes lent memory.
        Raises OversoldError if anything does not fit, ValueError if the pod already holds a slice or places are wrong;
        in both cases nothing has changed.
        """
        shape = request.shape
        places = tuple(sorted(int(p) for p in places))
        if not 0 <= node_idx < self.nodes_total:
            raise ValueError(f"pod {request.name}: the cluster has {self.nodes_total} nodes, got node_idx {node_idx}")
        if request.name in self.slices:
            raise ValueError(f"pod {request.name} already holds a slice")
        if len(set(places)) != shape.cards or len(places) != shape.cards:
            raise ValueError(f"pod {request.name} asks for {shape.cards} distinct cards, got places {places}")
        compute = MILLI_PER_CARD if shape.whole else shape.compute_milli
        if any(not 0 <= p < len(self.cards[node_idx]) for p in places):
            raise ValueError(f"{self.node_names[node_idx]} has {len(self.cards[node_idx])} cards, got places {places}")
        memory = tuple(self.memory_asked_mib(shape, node_idx, p) for p in places)
        lent = self._lent(shape, node_idx, places, memory, lent_mib)
        held = Slice(request, node_idx, places, memory, compute, lent)
        if not running:
            self._check_host(held)
        self._check_cards(held)
        self._apply(held, taken=True)
        if self._marks:
            self._journal.append((True, held))
        return held

    def _lent(
        self, shape: Shape, node_idx: int, places: Sequence[int], memory_mib: Sequence[int], told_mib: int | None
    ) -> tuple[int, ...]:
        """What of each card's memory is lent; empty if nothing is."""
        if told_mib is None and not shape.oversubscribe:
            return ()
        if told_mib is None:
            free = (int(self.memory_lent_free_mib[node_idx, place]) for place in places)
            lent = tuple(min(asked, left) for asked, left in zip(memory_mib, free, strict=True))
        elif 0 <= told_mib <= min(memory_mib, default=0):
            lent = (told_mib,) * len(places)
        else:
            raise ValueError(f"{told_mib} MiB cannot be lent of the {memory_mib} MiB that a pod takes of each card")
        return lent if any(lent) else ()

    def release(self, pod_name: str) -> Slice:
        """Give a pod's cards back, exactly what it took. Raises KeyError if it holds nothing."""
        held = self.slices[pod_name]
        self._apply(held, taken=False)
        if self._marks:
            self._journal.append((False, held))
        return held

    def mark(self) -> int:
        """Start to remember changes; the result goes to :meth:`undo` or :meth:`keep`. Marks nest."""
        self._marks += 1
        return len(self._journal)

    def undo(self, mark: int) -> None:
        """Take back every reservation and release since ``mark``, last first, and forget the mark."""
        for taken, held in reversed(self._journal[mark:]):
            self._apply(held, taken=not taken)
        self._forget(mark, keep_changes=False)

    def keep(self, mark: int) -> None:
        """Keep what was done since ``mark`` and forget the mark (an outer mark can still take it back)."""
        self._forget(mark, keep_changes=True)

    def _forget(self, mark: int, *, keep_changes: bool) -> None:
        self._marks -= 1
        if not keep_changes:
            del self._journal[mark:]
        elif not self._marks:
            self._journal.clear()

    def _check_host(self, held: Slice) -> None:
        shape, i = held.request.shape, held.node_idx
        cpu, memory = int(self.cpu_free_milli[i]), int(self.host_memory_free_mib[i])
        if shape.cpu_milli > cpu or shape.host_memory_mib > memory:
            raise OversoldError(
                f"{self.node_names[i]} has {cpu} milli CPU and {memory} MiB left, {held.request.name} asks for "
                f"{shape.cpu_milli} and {shape.host_memory_mib}"
            )

    def _check_cards(self, held: Slice) -> None:
        shape, i = held.request.shape, held.node_idx
        for place, memory_mib, _ in held.parts:
            free_mib = int(self.memory_free_mib[i, place])
            free_milli = int(self.compute_free_milli[i, place])
            slices = int(self.card_slices[i, place])
            alone = shape.whole or self.card_isolation[i, place] == Isolation.MIG
            if memory_mib > free_mib or held.compute_milli > free_milli or (slices and alone):
                wish = " as a whole card" if shape.whole else " of a MIG instance" if alone else ""
                raise OversoldError(
                    f"card {self.cards[i][place].uuid} on {self.node_names[i]} has {free_mib} MiB and {free_milli} "
                    f"milli left beside {slices} slices, {held.request.name} asks for {memory_mib} and "
                    f"{held.compute_milli}{wish}"
                )

    def _apply(self, held: Slice, *, taken: bool) -> None:
        """The one place where amounts change, in both directions."""
        request, i, sign = held.request, held.node_idx, 1 if taken else -1
        self.cpu_left_milli[i] -= sign * request.shape.cpu_milli
        self.host_memory_left_mib[i] -= sign * request.shape.host_memory_mib
        self.cpu_free_milli[i] = max(self.cpu_left_milli[i], 0)
        self.host_memory_free_mib[i] = max(self.host_memory_left_mib[i], 0)
        if taken:
            self.slices[request.name] = held
        else:
            del self.slices[request.name]
        if request.service:
            _join(self.service_slices, request.service, request.name, taken=taken)
        workload = _CLASSES.index(request.workload)
        for place, memory_mib, lent_mib in held.parts:
            self.memory_free_mib[i, place] -= sign * memory_mib
            if lent_mib:
                self.memory_lent_mib[i, place] += sign * lent_mib
                self._settle_lent(i, place)
            self.compute_free_milli[i, place] -= sign * held.compute_milli
            self.card_slices[i, place] += sign
            self.class_slices[i, place, workload, int(request.mixes)] += sign
            self.exclusive_slices[i, place] += sign * int(request.exclusive)
            self.exclusive_total += sign * int(request.exclusive)
            self.class_total[workload] += sign
            _join(self.on_card, (i, place), request.name, taken=taken)
            self.card_tenant[i, place] = self._tenant_of(i, place)
            self._settle(i, place)
        self._touch(i)

    def _settle(self, node_idx: int, place: int) -> None:
        """Bring what is derived from a card's state up to date."""
        i, p = node_idx, place
        healthy = bool(self.card_healthy[i, p])
        memory_milli = int(self.memory_free_mib[i, p]) * MILLI_PER_CARD // int(self.memory_total_mib[i, p])
        shut = not healthy or (self.card_isolation[i, p] == Isolation.MIG and self.card_slices[i, p])
        self.free_milli[i, p] = 0 if shut else min(memory_milli, int(self.compute_free_milli[i, p]))
        mode = int(self.card_model[i, p]) * len(Isolation) + int(self.card_isolation[i, p])
        self.card_kind[i, p] = (mode * 2 + healthy) * 2 + bool(self.card_binds[i, p])

    def _settle_lent(self, node_idx: int, place: int) -> None:
        left = int(self.memory_lendable_mib[node_idx, place] - self.memory_lent_mib[node_idx, place])
        self.memory_lent_free_mib[node_idx, place] = max(left, 0)

    def _tenant_of(self, node_idx: int, place: int) -> int:
        tenants = {self.tenant_id(self.slices[pod].request.tenant) for pod in self.on_card.get((node_idx, place), ())}
        if len(tenants) > 1:
            return MANY_TENANTS
        return tenants.pop() if tenants else NO_TENANT

    def tenant_id(self, tenant: str) -> int:
        """The number under which ``card_tenant`` knows a tenant, 1 or more."""
        return self._tenant_ids.setdefault(tenant, len(self._tenant_ids) + 1)

    def _touch(self, node_idx: int) -> None:
        self.stamp += 1
        self.node_stamp[node_idx] = self.stamp

    # ---------------------------------------------------------------- reports

    def set_schedulable(self, node_idx: int, schedulable: bool) -> None:
        """Cordon or uncordon a node."""
        self.node_schedulable[node_idx] = schedulable
        self._touch(node_idx)

    def fence(self, node_idx: int, fenced: bool) -> None:
        """Take no new pods on a node whose cards and slices contradict each other, or take them again."""
        if self.node_fenced[node_idx] != fenced:
            self.node_fenced[node_idx] = fenced
            self._touch(node_idx)

    def report_card(
        self,
        node_idx: int,
        place: int,
        *,
        healthy: bool | None = None,
        isolation: Isolation | None = None,
        compute_used_share: float | None = None,
        lendable_mib: int | None = None,
        evicted: frozenset[str] | None = None,
    ) -> None:
        """Take over what the node's agent reports of a card; None leaves a field as it is."""
        if healthy is not None:
            self.card_healthy[node_idx, place] = healthy
        if isolation is not None:
            self.card_isolation[node_idx, place] = isolation
        if compute_used_share is not None:
            self.compute_used_share[node_idx, place] = compute_used_share
            self.compute_free_reported_milli[node_idx, place] = self.compute_free_milli[node_idx, place]
        if lendable_mib is not None:
            self.memory_lendable_mib[node_idx, place] = lendable_mib
            self._settle_lent(node_idx, place)
        if evicted is not None:
            self._keep_away(evicted, (node_idx, place))
        self._settle(node_idx, place)
        self._touch(node_idx)

    def _keep_away(self, services: frozenset[str], card: tuple[int, int]) -> None:
        """From a card, these services and no others."""
        for service in [each for each, cards in self.evicted.items() if card in cards and each not in services]:
            _join(self.evicted, service, card, taken=False)
        for service in services:
            _join(self.evicted, service, card, taken=True)

    def report_cached_models(self, node_idx: int, models: Iterable[str]) -> None:
        """Take over which model weights the node holds on its disk."""
        self.cached_models[node_idx] = frozenset(models)
        self._touch(node_idx)

    # ---------------------------------------------------------------- copies

    def adopt(self, before: Cluster, names: Iterable[str]) -> None:
        """Take over what is reserved and measured on these nodes, whose specs are the same in ``before``.

        For a cluster just built: nothing is reserved on it yet. Costs O(slices taken over), without checking any.
        """
        rows = {before.node_idx[name]: self.node_idx[name] for name in names}
        theirs, ours = list(rows), list(rows.values())
        width = min(before.card_exists.shape[1], self.card_exists.shape[1])
        for name in _RESERVED_ARRAYS:
            mine, old = getattr(self, name), getattr(before, name)
            if mine.ndim == 1:
                mine[ours] = old[theirs]
            else:
                mine[ours, :width] = old[theirs, :width]
        left = self.memory_lendable_mib - self.memory_lent_mib
        self.memory_lent_free_mib = np.maximum(left, 0)
        self.exclusive_total = int(self.exclusive_slices.sum())
        self.class_total = self.class_slices.sum(axis=(0, 1, 3)).tolist()
        self._tenant_ids = dict(before._tenant_ids)
        for pod, held in before.slices.items():
            if held.node_idx in rows:
                self.slices[pod] = replace(held, node_idx=rows[held.node_idx])
        self.on_card = {(rows[i], place): set(pods) for (i, place), pods in before.on_card.items() if i in rows}
        services = {service: pods & self.slices.keys() for service, pods in before.service_slices.items()}
        self.service_slices = {service: pods for service, pods in services.items() if pods}

    def snapshot(self) -> Cluster:
        """A copy to try things on: changing arrays are copied, inventory is shared."""
        twin = copy.copy(self)
        for name in _CHANGING_ARRAYS:
            setattr(twin, name, getattr(self, name).copy())
        twin.cached_models = list(self.cached_models)
        twin.slices = dict(self.slices)
        twin.on_card = {card: set(pods) for card, pods in self.on_card.items()}
        twin.service_slices = {service: set(pods) for service, pods in self.service_slices.items()}
        twin.evicted = {service: set(cards) for service, cards in self.evicted.items()}
        twin.class_total = list(self.class_total)
        twin._tenant_ids = dict(self._tenant_ids)
        twin._journal, twin._marks = [], 0
        return twin


_RESERVED_ARRAYS = (
    "cpu_left_milli",
    "host_memory_left_mib",
    "cpu_free_milli",
    "host_memory_free_mib",
    "memory_free_mib",
    "memory_lent_mib",
    "compute_free_milli",
    "free_milli",
    "card_slices",
    "class_slices",
    "card_tenant",
    "exclusive_slices",
    "compute_used_share",
    "compute_free_reported_milli",
)
_CHANGING_ARRAYS = (
    *_RESERVED_ARRAYS,
    "memory_lendable_mib",
    "memory_lent_free_mib",
    "node_schedulable",
    "node_fenced",
    "card_healthy",
    "card_isolation",
    "card_kind",
    "node_stamp",
)


def _join(index: dict[_Key, set[_Member]], key: _Key, member: _Member, *, taken: bool) -> None:
    """Keep a set per key without leaving empty sets behind."""
    if taken:
        index.setdefault(key, set()).add(member)
        return
    index[key].discard(member)
    if not index[key]:
        del index[key]
