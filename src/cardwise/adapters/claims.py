"""A pod as a claim: what its containers ask of cards, and what its annotations say of it (SPEC A1, B8, E1).

All faults of a pod are told together, each with where it stands and what to write instead. Refuses to guess: a key that
looks like ours and is none is a fault, for an ask that is overlooked would run without a card, or with all of one.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TypeVar

from cardwise.adapters import wire
from cardwise.adapters.asks import GpuAsk, contradictions, gpu_ask, parts_without_a_card, requested, unread_names
from cardwise.adapters.dump import service_of
from cardwise.adapters.faults import Faults
from cardwise.adapters.kube_objects import Container, Pod
from cardwise.adapters.quantity import MAX_MILLI, MIB
from cardwise.core.capacity.engines import ENGINES
from cardwise.core.claim import Claim, ContainerAsk, LatencyClass, Stage
from cardwise.core.request import Isolation, Shape, WorkloadClass
from cardwise.errors import UserError
from cardwise.files import seen
from cardwise.units import MILLI_PER_PCT

MODES = {mode.name.lower().replace("_", "-"): mode for mode in Isolation if mode is not Isolation.ANY}
"""Isolation modes as users write them."""
MODE_NAMES = {mode: name for name, mode in MODES.items()} | {Isolation.ANY: "any"}
NAMED_MODES = {name: mode for mode, name in MODE_NAMES.items()}
"""Isolation modes as cardwise writes them, both ways: also of a card that has none yet."""
MOST_PROCESSES = 64
"""Of one container on one card; MPS serves no more clients than that at a time."""
PROCESSES = re.compile(r"[1-9][0-9]{0,3}")
"""How a number of them is written."""
MOST_TRAINING_PCT = 30
"""Of a card's compute, for training that shares cards with inference. Ours: training is never idle, so all that it may
take is gone."""
LONGEST_LIST = 4096
"""Characters of a list in an annotation: dozens of names, not all that a request can carry."""
LONGEST_NAME = 100
"""Characters of a name for which another may have been meant. Kubernetes' own are shorter."""
_ValueT = TypeVar("_ValueT")
_BOOLEANS = {"true": True, "false": False}
_LIMITS = {"hard": True, "soft": False}
_LATENCIES = {each.value: each for each in LatencyClass}
_WORKLOADS = {each.value: each for each in WorkloadClass}
_ENGINES = {name: name for name in ENGINES}


def claim_of(pod: Pod) -> Claim:
    """What the pod asks for. Raises UserError that tells every fault."""
    claim, faults = read_claim(pod)
    if faults:
        raise UserError("; ".join(faults))
    return claim


def read_claim(pod: Pod) -> tuple[Claim, list[str]]:
    """What the pod asks for as far as it can be read, and what is wrong with it."""
    faults = Faults()
    claim = read_faulty(pod, faults)
    return claim, faults.lines()


def read_faulty(pod: Pod, faults: Faults) -> Claim:
    """What the pod asks for as far as it can be read; what is wrong with it is added to ``faults``."""
    read = _Annotations(pod, faults)
    wanted, unwanted = read.wanted(), read.unwanted()
    latency = read.one_of(wire.ANNOTATION_CLASS, _LATENCIES, LatencyClass.SENSITIVE)
    allowed = Shape(
        0,
        models=wanted,
        unwanted_models=unwanted,
        isolation=read.modes(),
        binding=read.binding(),
        oversubscribe=read.oversubscribe(latency),
    )
    asks = [ask for ask in _asks(pod, allowed, faults) if ask.shape.cards]
    claim = Claim(
        uid=pod.metadata.uid or pod.name,
        name=pod.name,
        asks=tuple(asks),
        cpu_milli=_host(pod, "cpu", 1000, faults),
        host_memory_mib=_host(pod, "memory", Fraction(1, MIB), faults),
        service=service_of(pod),
        tenant=pod.metadata.namespace,
        exclusive=read.boolean(wire.ANNOTATION_EXCLUSIVE),
        workload=read.one_of(wire.ANNOTATION_WORKLOAD, _WORKLOADS, WorkloadClass.INFERENCE),
        mixes=read.boolean(wire.ANNOTATION_MIX),
        model_key=pod.metadata.annotations.get(wire.ANNOTATION_MODEL, ""),
        latency=latency,
        engine=read.one_of(wire.ANNOTATION_ENGINE, _ENGINES, ""),
        priority=pod.spec.priority or 0,
        preemptible=read.preemptible(latency),
    )
    read.processes()
    if claim.mixes and claim.workload is WorkloadClass.TRAINING:
        _tell_uncapped(asks, faults)
    _tell_misspelt(pod, faults)
    return claim


def _tell_uncapped(asks: Iterable[ContainerAsk], faults: Faults) -> None:
    """Training beside inference has a low cap of compute, and has one: without an ask it could take all (SPEC B8)."""
    for ask in asks:
        pct = ask.shape.compute_milli // MILLI_PER_PCT
        if ask.shape.is_slice and not 0 < pct <= MOST_TRAINING_PCT:
            told = f"{pct} % of a card's compute" if pct else "no limit of compute"
            faults.add(
                f"container {ask.container}: asks for {told}, and training that shares cards with inference gets "
                f"{MOST_TRAINING_PCT} % at most: write {wire.USER_CORES}: {MOST_TRAINING_PCT} or less, or leave out "
                f"{wire.ANNOTATION_MIX}"
            )


def _host(pod: Pod, resource: str, scale: Fraction | int, faults: Faults) -> int:
    """CPU or memory that kube-scheduler counts, rounded up; what is beyond every sum is a fault, and counted as most.

    Pods reach us before the API server has checked them, and pods with a node name are never checked by a scheduler.
    """
    try:
        amount = math.ceil(requested(pod.spec, resource) * scale)
    except ValueError as exc:
        faults.add(str(exc))
        return 0
    if amount > MAX_MILLI:
        faults.add(f"{resource}: {amount} {'milli' if resource == 'cpu' else 'MiB'} are more than any node has")
    return min(amount, MAX_MILLI)


def _asks(pod: Pod, allowed: Shape, faults: Faults) -> Iterable[ContainerAsk]:
    for container, stage in stages(pod):
        try:
            ask, parts = gpu_ask(container.resources), parts_without_a_card(container.resources)
            unclear = contradictions(container.resources)
        except ValueError as exc:
            faults.add(f"container {container.name}: {exc}")
            continue
        if parts:
            names = f"{' and '.join(parts)} {'ask' if len(parts) > 1 else 'asks'}"
            told = f"{names} for a part of a card, but 0 cards are asked; write {wire.GPU}: 1, or remove both"
            faults.add(f"container {container.name}: {told}")
        faults.add_each(unclear, partial(_of_container, container.name))
        lends = allowed.oversubscribe and stage is not Stage.INIT and not ask.whole
        yield ContainerAsk(container.name, stage, _shape(ask, replace(allowed, oversubscribe=lends)))


def _of_container(container: str, fault: str) -> str:
    return f"container {container}: {fault}"


def _shape(ask: GpuAsk, allowed: Shape) -> Shape:
    """The cards of one container, of the kinds that the pod allows."""
    return replace(
        allowed if ask.cards else Shape(0),
        cards=ask.cards,
        memory_mib=ask.memory_mib,
        memory_milli=ask.memory_pct * MILLI_PER_PCT,
        compute_milli=ask.cores_pct * MILLI_PER_PCT,
        whole=ask.whole,
    )


def stages(pod: Pod) -> Iterable[tuple[Container, Stage]]:
    """All containers in the order in which they start, and when each of them runs."""
    for container in pod.spec.init_containers:
        yield container, Stage.SIDECAR if container.restart_policy == "Always" else Stage.INIT
    for container in pod.spec.containers:
        yield container, Stage.APP


def _tell_misspelt(pod: Pod, faults: Faults) -> None:
    """Keys that look like ours and are none, each with what was probably meant."""
    for container, _ in stages(pod):
        names = [name for name in unread_names(container.resources) if not name.startswith(wire.MIG_RESOURCES)]
        faults.add_each(sorted(names), partial(_no_resource, container.name))
    faults.add_each([key for key in sorted(pod.metadata.annotations) if _is_wrong(key)], _no_annotation)


_WRITTEN = frozenset(
    {
        wire.ANNOTATION_ALLOC,
        wire.ANNOTATION_ENGINE_SHARE,
        wire.ANNOTATION_ENGINE_BEFORE,
        wire.ANNOTATION_NOMINATED,
        wire.ANNOTATION_PREEMPTED_FOR,
        wire.ANNOTATION_PREEMPTED_BY,
        wire.ANNOTATION_MOVING,
        wire.ANNOTATION_STAYS,
        wire.ANNOTATION_PREFETCH_NODE,
    }
)
"""Annotations of pods that cardwise writes."""


def _no_resource(container: str, name: str) -> str:
    return f"container {container}: no resource is called {name}{_hint(name, wire.READ_RESOURCES)}"


def _is_wrong(key: str) -> bool:
    known = key in wire.POD_ANNOTATIONS or key in _WRITTEN
    return key in wire.READ_RESOURCES or (key.startswith("cardwise.dev/") and not known)


def _no_annotation(key: str) -> str:
    if key in wire.READ_RESOURCES:
        return f"annotation {key}: is a resource; write it under a container's resources.limits"
    return f"annotation {key}: is none of cardwise's{_hint(key, wire.POD_ANNOTATIONS)}"


def _hint(name: str, known: Iterable[str]) -> str:
    near = sorted(known) if len(name) <= LONGEST_NAME else []
    close = difflib.get_close_matches(name, near, n=1, cutoff=0.8)  # names share their domain
    return f"; write {close[0]}" if close else f"; known are {', '.join(sorted(known))}"


class _Annotations:
    """Reads a pod's annotations and notes what cannot be read."""

    def __init__(self, pod: Pod, faults: Faults) -> None:
        self._annotations, self._faults = pod.metadata.annotations, faults

    def boolean(self, key: str) -> bool:
        return self.one_of(key, _BOOLEANS, otherwise=False)

    def one_of(self, key: str, known: Mapping[str, _ValueT], otherwise: _ValueT) -> _ValueT:
        text = self._annotations.get(key)
        if text is None:
            return otherwise
        if text not in known:
            self._faults.add(f"annotation {key}: {seen(text)} is none of {', '.join(known)}")
        return known.get(text, otherwise)

    def wanted(self) -> frozenset[str]:
        return self._models(wire.ANNOTATION_GPU_MODEL) | self._models(wire.ANNOTATIONS_HAMI_TYPES[0])

    def unwanted(self) -> frozenset[str]:
        wanted, unwanted = self.wanted(), self._models(key := wire.ANNOTATIONS_HAMI_TYPES[1])
        if wanted and not any(Shape(0, unwanted_models=unwanted).takes(model) for model in wanted):
            self._faults.add(f"annotation {key}: leaves none of {', '.join(sorted(wanted))}; name other models")
        return unwanted

    def processes(self) -> None:
        """How many processes of a container use a card: a matter of the node's agent, but told here if it is wrong."""
        text = self._annotations.get(key := wire.ANNOTATION_PROCESSES, "1")
        if not (PROCESSES.fullmatch(text) and int(text) <= MOST_PROCESSES):
            told = f"{seen(text)} is no number of processes; write a whole number from 1 to {MOST_PROCESSES}"
            self._faults.add(f"annotation {key}: {told}")

    def _models(self, key: str) -> frozenset[str]:
        return frozenset(map(wire.model_token, self._list(key)))

    def binding(self) -> bool:
        return self.one_of(wire.ANNOTATION_LIMITS, _LIMITS, otherwise=False)

    def oversubscribe(self, latency: LatencyClass) -> bool:
        """Whether the pod's slices may be of lent memory: best-effort ones only (SPEC E1)."""
        wanted = self.boolean(key := wire.ANNOTATION_OVERSUBSCRIBE)
        if wanted and latency is not LatencyClass.BEST_EFFORT:
            told = f"only best-effort pods are lent memory; write {wire.ANNOTATION_CLASS}: best-effort, or leave it out"
            self._faults.add(f"annotation {key}: {told}")
        return wanted and latency is LatencyClass.BEST_EFFORT

    def preemptible(self, latency: LatencyClass) -> bool:
        """Whether the pod may have to go for another: best-effort ones, unless they say no (SPEC E3)."""
        best_effort = latency is LatencyClass.BEST_EFFORT
        wanted = self.one_of(key := wire.ANNOTATION_PREEMPTIBLE, _BOOLEANS, otherwise=best_effort)
        if wanted and not best_effort:
            told = f"only best-effort pods are preempted; write {wire.ANNOTATION_CLASS}: best-effort, or leave it out"
            self._faults.add(f"annotation {key}: {told}")
        return wanted and best_effort

    def modes(self) -> frozenset[Isolation]:
        names = self._list(wire.ANNOTATION_ISOLATION)
        self._faults.add_each([name for name in names if name not in MODES], self._no_mode)
        return frozenset(MODES.get(name, Isolation.ANY) for name in names)

    def _no_mode(self, name: str) -> str:
        return f"annotation {wire.ANNOTATION_ISOLATION}: {seen(name)} is none of {', '.join(MODES)}"

    def _list(self, key: str) -> list[str]:
        text = self._annotations.get(key, "")
        if len(text) > LONGEST_LIST:
            told = f"is {len(text):,} characters long; write a list of at most {LONGEST_LIST:,}"
            self._faults.add(f"annotation {key}: {told}")
            return []
        return [name.strip() for name in text.split(",") if name.strip()]
