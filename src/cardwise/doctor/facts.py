"""Everything that checks look at, gathered once and frozen: objects, who waits and why not, series, one node.

Why a pod waits is asked of the ledger and the rules that decide, as ``explain`` asks them, so that no two answers
differ. Refuses to judge: that is for the checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

import numpy as np

from cardwise.adapters import wire
from cardwise.adapters.capture import Capture, Measured
from cardwise.adapters.claims import read_claim
from cardwise.adapters.quantity import parse_milli
from cardwise.adapters.symptoms import Event, Lease, ToldContainer, ToldNode, ToldPod
from cardwise.adapters.watching import Watching
from cardwise.config import DEFAULT_POLICY, policies_by_class
from cardwise.core.claim import Claim
from cardwise.core.ledger import Ledger
from cardwise.core.placement.explain import NodeView, explain_node
from cardwise.core.placement.offer import offer
from cardwise.core.reasons import WORDINGS, Code, Reason
from cardwise.doctor.measures import Line, Metrics
from cardwise.doctor.nearby import Nearby
from cardwise.scheduler import telling

JUST_CREATED_S = 30.0
"""A pod that is younger waits for nothing but its turn."""
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

    @property
    def ours(self) -> bool:
        """Whether it is cardwise that is to place it."""
        return self.pod.spec.scheduler_name == wire.SCHEDULER_NAME


@dataclass(frozen=True, slots=True)
class CardNow:
    """A card as the ledger has it. used_share: measured compute in [0, 1], or None."""

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

    memo: what was worked out from the rest already; several checks ask the same of a thousand pods.
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
    living = [pod for pod in capture.pods if not pod.ended]
    watching = Watching(Ledger(policies_by_class(dict.fromkeys(DEFAULT_POLICY, RULES_ONLY), 0)))
    watching.hear_all(capture.nodes, living)
    for node in capture.nodes:
        if any((each.type, each.status) == (wire.CONDITION_CONSISTENT, "False") for each in node.status.conditions):
            watching.ledger.silence(node.metadata.name, "its condition CardwiseConsistent is False")
    metrics = _metrics(capture.beside.measured)
    cards = _cards(watching)
    with_cards = {card.node for card in cards}
    claims = {pod.metadata.uid: read_claim(pod) for pod in living}
    gpu_pods = tuple(pod for pod in living if claims[pod.metadata.uid][0].asks)
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
    )


def _offers(node: ToldNode) -> bool:
    names = (*node.status.capacity, *node.status.allocatable)
    return any(name in wire.COUNTS or name.startswith(wire.MIG_RESOURCES) for name in names)


def _gaps(capture: Capture, nearby: Nearby | None) -> tuple[str, ...]:
    gaps = [*capture.beside.gaps]
    measured = capture.beside.measured
    if capture.items and measured is None:
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
        claim, faults = claims[pod.metadata.uid]
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
        )
        for node in state["nodes"]
        for card in node["cards"]
    )


def _metrics(measured: Measured | None) -> Metrics:
    if measured is None:
        return Metrics()
    return Metrics(
        {
            name: tuple(
                Line(each.labels, np.array([np.nan if v is None else v for v in each.values], np.float64))
                for each in found
            )
            for name, found in measured.results.items()
        }
    )


def _services(metrics: Metrics) -> tuple[Served, ...]:
    pods = dict[str, set[str]]()
    for line in metrics.of("qps"):
        pods.setdefault(line.labels.get("service", ""), set())
    for line in metrics.of("replica_pods"):
        name = f"{line.labels.get('namespace', '')}/{line.labels.get('pod', '')}"
        pods.setdefault(line.labels.get("service", ""), set()).add(name)
    uuids = dict[str, set[str]]()
    for line in metrics.of("slice_memory_granted_mib"):
        name = f"{line.labels.get('namespace', '')}/{line.labels.get('pod', '')}"
        uuids.setdefault(name, set()).add(line.labels.get("uuid", ""))
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
    return sum(parse_milli(limit, up=False) for limit in limits if limit is not None) / 1000


def with_card(pod: ToldPod) -> tuple[ToldContainer, ...]:
    """The pod's containers that ask for a card."""
    return tuple(each for each in pod.spec.containers if _asks(each))


def _asks(container: ToldContainer) -> bool:
    names = {*container.resources.limits, *container.resources.requests}
    return bool(names & wire.READ_RESOURCES) or any(name.startswith(wire.MIG_RESOURCES) for name in names)
