"""Everything that checks look at, gathered once and frozen: objects, who waits and why not, series, one node.

Why a pod waits is asked of the ledger and the rules that decide, as ``explain`` asks them, so that no two answers
differ. Refuses to judge: that is for the checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

import msgspec
import numpy as np

from cardwise.adapters import wire
from cardwise.adapters.capture import Capture, Measured
from cardwise.adapters.claims import read_claim
from cardwise.adapters.node_cards import node_spec
from cardwise.adapters.quantity import parse_milli
from cardwise.adapters.symptoms import Event, Lease, ToldContainer, ToldNode, ToldPod
from cardwise.adapters.watching import Watching
from cardwise.config import DEFAULT_POLICY, policies_by_class
from cardwise.core.allocation import BoundPod
from cardwise.core.claim import Claim
from cardwise.core.ledger import Ledger
from cardwise.core.placement.explain import NodeView, explain_node
from cardwise.core.placement.offer import offer
from cardwise.core.reasons import WORDINGS, Code, Reason
from cardwise.core.request import Isolation
from cardwise.doctor.measures import Line, Metrics
from cardwise.doctor.nearby import Nearby
from cardwise.doctor.words import denied, fails_again
from cardwise.scheduler import telling

JUST_CREATED_S = 30.0
"""A pod that is younger waits for nothing but its turn."""
SETTLING_S = 120.0
"""From an agent's start to all that it tells: it measures, registers, and the kubelet tells of its slots."""
LABEL_COMPONENT = "app.kubernetes.io/component"
RULES_ONLY = "first-fit"
"""The policy that is asked: whether a pod fits is the same for all of them, and this one works out no prices."""
TEXTS = 3
"""Nodes of each reason whose numbers are told."""
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that asks for cards and has no node.

    refused: by reason, the names of the nodes with cards that give it. fits: nodes that would take it. long: by node,
    the reason with its numbers, of the first few of each reason. advice: by reason. said: kube-scheduler's own words,
    from the pod's condition.
    """

    pod: ToldPod
    claim: Claim
    faults: tuple[str, ...]
    fits: tuple[str, ...] = ()
    refused: Mapping[Code, tuple[str, ...]] = field(default_factory=dict)
    long: Mapping[str, str] = field(default_factory=dict)
    advice: Mapping[Code, str] = field(default_factory=dict)
    said: str = ""

    @property
    def name(self) -> str:
        """Namespace and name."""
        return self.pod.name

    @property
    def place(self) -> str:
        """Where findings about it are."""
        return f"pod:{self.pod.name}"

    def told(self, code: Code) -> str:
        """How many nodes refuse it for this, and the words of one."""
        nodes = self.refused[code]
        return f"{len(nodes)} nodes: {code.value}, such as {nodes[0]}: {self.long[nodes[0]]}"

    @property
    def ours(self) -> bool:
        """Whether it is cardwise that is to place it."""
        return self.pod.spec.scheduler_name == wire.SCHEDULER_NAME


@dataclass(frozen=True, slots=True)
class CardNow:
    """A card as the ledger has it. time_sliced: its agent says that slices take turns on it, held to nothing."""

    uuid: str
    node: str
    model: str
    memory_free_mib: int
    memory_total_mib: int
    compute_free_pct: float
    healthy: bool
    fenced: bool
    slices: int
    pods: tuple[str, ...] = ()
    time_sliced: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """A service behind a gateway. pods: "namespace/name" of its replicas; uuids: the cards that they are on."""

    name: str
    pods: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()

    @property
    def places(self) -> frozenset[str]:
        """Where findings about it are."""
        return frozenset(
            {f"service:{self.name}", *(f"pod:{pod}" for pod in self.pods), *(f"card:{uuid}" for uuid in self.uuids)}
        )


@dataclass(frozen=True)
class Facts:
    """One snapshot. gpu_nodes: those whose agent tells of cards, or that offer some. gaps: what was not looked at.

    claims: by name of living pods, what they ask for and what is wrong with that. troubles: by node, what the books
    cannot make true or read of it. memo: what was worked out from the rest already; several checks ask the same of a
    thousand pods.
    """

    capture: Capture
    taken: datetime
    waiting: tuple[Waiting, ...] = ()
    cards: tuple[CardNow, ...] = ()
    gpu_nodes: tuple[ToldNode, ...] = ()
    gpu_pods: tuple[ToldPod, ...] = ()
    services: tuple[Served, ...] = ()
    metrics: Metrics = field(default_factory=Metrics)
    nearby: Nearby | None = None
    gaps: tuple[str, ...] = ()
    claims: Mapping[str, tuple[Claim, list[str]]] = field(default_factory=dict, compare=False, repr=False)
    troubles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    memo: dict[object, object] = field(default_factory=dict, compare=False, repr=False)

    def saw(self, kind: str) -> bool:
        """Whether this kind of object was looked at: none found is then a fact."""
        return kind in self.capture.kinds

    def age_s(self, at: datetime | None) -> float | None:
        """Seconds from a time to when the snapshot was taken."""
        return None if at is None else (self.taken - at).total_seconds()

    def pod(self, name: str) -> ToldPod | None:
        """The pod of this "namespace/name" among those with cards."""
        return self._pods.get(name)

    @cached_property
    def _pods(self) -> dict[str, ToldPod]:
        return {pod.name: pod for pod in self.gpu_pods}

    @cached_property
    def card_sizes_mib(self) -> tuple[int, ...]:
        """The sizes of cards that there are, the smallest first."""
        return tuple(sorted({card.memory_total_mib for card in self.cards}))

    @cached_property
    def card_kinds(self) -> tuple[str, ...]:
        """Models and sizes of cards that there are, in words."""
        return tuple(sorted({f"{card.model} of {card.memory_total_mib} MiB" for card in self.cards}))

    @cached_property
    def most_cards(self) -> int:
        """Cards of the node that has most of them."""
        return max(Counter(card.node for card in self.cards).values(), default=0)

    def claim(self, pod: ToldPod) -> Claim:
        """What a living pod asks for."""
        return self.claims[pod.name][0]

    def settling(self, node: ToldNode) -> bool:
        """Whether a node or its agent began just now, and not again and again: not all of it is told yet."""
        return self._is_new(node.metadata.creation_timestamp) or any(
            pod.metadata.deletion_timestamp or self._is_new(pod.metadata.creation_timestamp) or self._restarted(pod)
            for pod in self.pods_on(node.metadata.name)
            if pod.metadata.labels.get(LABEL_COMPONENT) == "agent"
        )

    def _restarted(self, pod: ToldPod) -> bool:
        return any(
            each.state.running and self._is_new(each.state.running.started_at) and not fails_again(each, self.taken)
            for each in pod.status.container_statuses
        )

    def _is_new(self, at: datetime | None) -> bool:
        age = self.age_s(at)
        return age is not None and age < SETTLING_S

    def pods_on(self, node: str) -> tuple[ToldPod, ...]:
        """All pods of a node, those that ended too."""
        return tuple(self._by_node.get(node, ()))

    @cached_property
    def _by_node(self) -> dict[str, list[ToldPod]]:
        found = dict[str, list[ToldPod]]()
        for pod in self.capture.pods:
            found.setdefault(pod.spec.node_name, []).append(pod)
        return found

    def events_of(self, kind: str, namespace: str, name: str) -> tuple[Event, ...]:
        """Events about one object."""
        return tuple(self._events.get((kind, namespace, name), ()))

    @cached_property
    def _events(self) -> dict[tuple[str, str, str], list[Event]]:
        found = dict[tuple[str, str, str], list[Event]]()
        for event in self.capture.of(Event):
            about = event.involved_object
            found.setdefault((about.kind, about.namespace, about.name), []).append(event)
        return found

    def lease(self, name: str) -> Lease | None:
        """A Lease by name."""
        return self._leases.get(name)

    @cached_property
    def _leases(self) -> dict[str, Lease]:
        return {lease.metadata.name: lease for lease in self.capture.of(Lease)}


def facts_of(capture: Capture, nearby: Nearby | None = None) -> Facts:
    """Everything from a capture, and from the node that we are on."""
    taken = capture.taken or LONG_AGO
    living = [_known(pod) for pod in capture.pods if not pod.ended]
    watching = Watching(Ledger(policies_by_class(dict.fromkeys(DEFAULT_POLICY, RULES_ONLY), 0)))
    watching.hear_all(capture.nodes, living)
    for node in capture.nodes:
        if denied(node, wire.CONDITION_CONSISTENT):
            watching.ledger.silence(node.metadata.name, "its condition CardwiseConsistent is False")
    metrics = _metrics(capture.beside.measured)
    cards = _cards(watching)
    with_cards = {card.node for card in cards}
    claims = {pod.name: _claim(pod, watching.ledger.pods.get(pod.metadata.uid)) for pod in living}
    gpu_pods = tuple(pod for pod in living if claims[pod.name][0].asks)
    return Facts(
        capture,
        taken,
        waiting=_waiting(watching, living, claims, taken, with_cards),
        cards=cards,
        gpu_nodes=tuple(node for node in capture.nodes if node.metadata.name in with_cards or _offers(node)),
        gpu_pods=gpu_pods,
        services=_services(metrics),
        metrics=metrics,
        nearby=nearby,
        gaps=_gaps(capture, nearby),
        claims=claims,
        troubles=_troubles(capture, watching, with_cards),
    )


def _claim(pod: ToldPod, held: BoundPod | None) -> tuple[Claim, list[str]]:
    """What a pod asks for, as the books have read it already where it is bound; an allocation may be unreadable."""
    if held is None or (wire.ANNOTATION_ALLOC in pod.metadata.annotations and not held.claim.asks):
        return read_claim(pod)
    return held.claim, []


def _known(pod: ToldPod) -> ToldPod:
    """A pod with an identity: lists that were written by hand, or cut down, may have no UIDs."""
    if pod.metadata.uid:
        return pod
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=pod.name))


def _troubles(capture: Capture, watching: Watching, with_cards: set[str]) -> Mapping[str, tuple[str, ...]]:
    """Why the books fence a node, whether or not its condition says so yet; and inventories that cannot be read."""
    found = dict[str, list[str]]()
    for conflict in watching.ledger.conflicts.values():
        found.setdefault(conflict.node, []).append(": ".join(filter(None, (conflict.pod, conflict.text))))
    for node in capture.nodes:
        name = node.metadata.name
        if wire.ANNOTATION_CARDS in node.metadata.annotations and name not in with_cards:
            try:
                node_spec(node)
            except ValueError as exc:
                found.setdefault(name, []).append(f"its inventory cannot be read: {exc}")
    return {name: tuple(sorted(each)) for name, each in found.items()}


def _offers(node: ToldNode) -> bool:
    names = (*node.status.capacity, *node.status.allocatable)
    return any(name in wire.COUNTS or name.startswith(wire.MIG_RESOURCES) for name in names)


def _gaps(capture: Capture, nearby: Nearby | None) -> tuple[str, ...]:
    gaps = [*capture.beside.gaps]
    measured = capture.beside.measured
    if capture.items and measured is None and not any(gap.startswith("Prometheus") for gap in gaps):
        gaps.append("no Prometheus was asked: latency, load and limits in force were not looked at (--prometheus URL)")
    elif measured is not None:
        gaps += measured.gaps
    if capture.items and "Event" not in capture.kinds:
        gaps.append("no events are in it: what kubelets and controllers said was not looked at")
    return (*gaps, *(nearby.gaps if nearby else ()))


# ---------------------------------------------------------------- who waits


def _waiting(
    watching: Watching,
    living: list[ToldPod],
    claims: Mapping[str, tuple[Claim, list[str]]],
    taken: datetime,
    with_cards: set[str],
) -> tuple[Waiting, ...]:
    found, answers = list[Waiting](), dict[Claim, _Answer]()
    for pod in living:
        claim, faults = claims[pod.name]
        created = pod.metadata.creation_timestamp
        young = created is not None and taken - created < timedelta(seconds=JUST_CREATED_S)
        if pod.spec.node_name or young or pod.metadata.deletion_timestamp or not (claim.asks or faults):
            continue
        kind = replace(claim, uid="", name="")  # replicas of one template are asked about once
        if kind not in answers:
            answers[kind] = _ask(watching.ledger, claim, with_cards) if claim.asks else _Answer()
        said = next((each.message for each in pod.status.conditions if each.type == "PodScheduled"), "")
        told = answers[kind]
        found.append(Waiting(pod, claim, tuple(faults), told.fits, told.refused, told.long, told.advice, said))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Answer:
    """Of all nodes with cards; texts of the first few of each code only."""

    fits: tuple[str, ...] = ()
    refused: Mapping[Code, tuple[str, ...]] = field(default_factory=dict)
    long: Mapping[str, str] = field(default_factory=dict)
    advice: Mapping[Code, str] = field(default_factory=dict)


def _ask(ledger: Ledger, claim: Claim, with_cards: set[str]) -> _Answer:
    """What the scheduler would answer if it were offered all nodes, and in which words."""
    if ledger.outdated:
        ledger.rebuild()
    policy, total = ledger.policy(claim), ledger.cluster.nodes_total
    with ledger.asking(claim.uid):  # what is kept for it is free for it
        found = offer(policy, claim, np.arange(total), total)
        names = {i: name for i, name in enumerate(ledger.cluster.node_names) if name in with_cards}
        refused = dict[Code, list[int]]()
        for idx in sorted(found.refused.keys() & names.keys()):
            refused.setdefault(found.refused[idx], []).append(idx)
        long = {
            names[idx]: _words(explain_node(policy, claim.lead, idx), code)
            for code, rows in refused.items()
            for idx in rows[:TEXTS]
        }
    return _Answer(
        tuple(names[idx] for idx in found.ranked if idx in names),
        {code: tuple(names[idx] for idx in rows) for code, rows in refused.items()},
        long,
        {code: Reason(code).advice for code in refused},
    )


def _words(view: NodeView, code: Code) -> str:
    """The reason with its numbers, of the card that has most free among those that give it; else the node's own."""
    said = [card for card in view.cards if card.reason is not None and card.reason.code is code]
    if said:
        best = max(said, key=lambda card: card.memory_free_mib)
        return f"card {best.uuid}: {best.reason.long if best.reason else code.value}"
    return view.reason.long if view.reason is not None else WORDINGS[code].short


# ---------------------------------------------------------------- cards and services


def _cards(watching: Watching) -> tuple[CardNow, ...]:
    state = telling.state(watching.ledger, {}, {})
    modes = {card.uuid: card.isolation for node in watching.ledger.nodes.values() for card in node.cards}
    return tuple(
        CardNow(
            card["uuid"],
            node["name"],
            card["model"],
            card["memory_free_mib"],
            card["memory_total_mib"],
            card["compute_free_pct"],
            card["healthy"],
            node["fenced"],
            len(card["slices"]),
            tuple(sorted({each["pod"] for each in card["slices"]})),
            modes[card["uuid"]] is Isolation.TIME_SLICING,
        )
        for node in state["nodes"]
        for card in node["cards"]
    )


def _metrics(measured: Measured | None) -> Metrics:
    if measured is None:
        return Metrics()
    return Metrics(
        {name: tuple(Line(each.labels, each.values) for each in found) for name, found in measured.results.items()}
    )


def _services(metrics: Metrics) -> tuple[Served, ...]:
    pods = dict[str, set[str]]()
    for line in metrics.of("qps"):
        pods.setdefault(line.labels.get("service", ""), set())
    for line in metrics.of("replica_pods"):
        pods.setdefault(line.labels.get("service", ""), set()).add(line.pod)
    uuids = dict[str, set[str]]()
    for line in metrics.of("slice_memory_granted_mib"):
        uuids.setdefault(line.pod, set()).add(line.labels.get("uuid", ""))
    return tuple(
        Served(service, tuple(sorted(names)), tuple(sorted(set().union(*(uuids.get(name, set()) for name in names)))))
        for service, names in sorted(pods.items())
        if service
    )


def cpu_limit_cores(pod: ToldPod | None) -> float | None:
    """CPU that a pod's containers may take together, in cores; None if one of them has no limit."""
    if pod is None or not pod.spec.containers:
        return None
    limits = [each.resources.limits.get("cpu") for each in pod.spec.containers]
    if any(limit is None for limit in limits):
        return None
    try:
        return sum(parse_milli(limit, up=False) for limit in limits if limit is not None) / 1000
    except ValueError:  # of a list that no API server has checked
        return None


def with_card(pod: ToldPod) -> tuple[ToldContainer, ...]:
    """The pod's containers that ask for a card."""
    return tuple(each for each in pod.spec.containers if _asks(each))


def _asks(container: ToldContainer) -> bool:
    names = {*container.resources.limits, *container.resources.requests}
    return bool(names & wire.READ_RESOURCES) or any(name.startswith(wire.MIG_RESOURCES) for name in names)
