"""An emulation of kube-scheduler's cycle, small and honest: it is not kube-scheduler, and it decides no card.

One pod at a time: by priority, then in order of creation; nodes with CPU, memory and labels for it; then the
extender's filter and scores, the highest score (ties by name), and the extender's bind. A pod that no node takes is
parked until something happens in the cluster. Not emulated: taints, pod affinity, topology spread, volumes,
preemption, and kube-scheduler's own scores beside the extender's. Pods without an ask for cards take the node with
the most CPU and memory left. Source: Kubernetes, "Scheduling Framework".
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from cardwise.adapters import wire
from cardwise.adapters.claims import read_claim
from cardwise.adapters.extender_v1 import ExtenderArgs, ExtenderBindingArgs
from cardwise.adapters.hollow import HollowCluster
from cardwise.adapters.kube.port import All, Binding, Gone, NodeEvent, PodEvent, Put
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.node_cards import node_spec
from cardwise.adapters.quantity import parse_count
from cardwise.adapters.selecting import is_selected
from cardwise.core.claim import Claim
from cardwise.errors import ClusterError
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.extender import Extender

OURS = frozenset({"", wire.DEFAULT_SCHEDULER, wire.SCHEDULER_NAME})
NO_CPU, NO_MEMORY = "Insufficient cpu", "Insufficient memory"


@dataclass(slots=True)
class Room:
    """What of a node is left beside its cards."""

    labels: dict[str, str]
    schedulable: bool
    cpu_milli: int
    memory_mib: int
    pods: int
    cpu_total_milli: int = 0
    memory_total_mib: int = 0

    @classmethod
    def of(cls, node: Node) -> Room:
        """All of the node."""
        spec = node_spec(node)
        pods = parse_count(node.status.allocatable.get("pods", 0))
        labels = node.metadata.labels
        return cls(labels, spec.schedulable, spec.cpu_milli, spec.memory_mib, pods, spec.cpu_milli, spec.memory_mib)

    def take(self, claim: Claim, sign: int = 1) -> None:
        """Count a pod, or with ``sign`` -1 give back what it had."""
        self.cpu_milli -= sign * claim.cpu_milli
        self.memory_mib -= sign * claim.host_memory_mib
        self.pods -= sign

    def refusal(self, pod: Pod, claim: Claim) -> str:
        """Why the node does not take the pod, in kube-scheduler's words; empty if it does."""
        if not self.schedulable:
            return "node(s) were unschedulable"
        if not is_selected(pod, self.labels):
            return "node(s) didn't match Pod's node affinity/selector"
        if self.pods < 1:
            return "Too many pods"
        if claim.cpu_milli > self.cpu_milli:
            return NO_CPU
        return NO_MEMORY if claim.host_memory_mib > self.memory_mib else ""

    @property
    def free_share(self) -> float:
        """Mean of CPU and memory left, in [0, 1]."""
        return (self.cpu_milli / max(self.cpu_total_milli, 1) + self.memory_mib / max(self.memory_total_mib, 1)) / 2


@dataclass(frozen=True, slots=True)
class Parked:
    """Why a pod waits, as a pod event says it. said: what its nodes said, what most of them said first."""

    why: str
    said: tuple[str, ...] = ()


@dataclass(slots=True)
class Cycle:
    """The queue and the cycle. parked: why, by UID. pods: all that have not ended, by UID."""

    cluster: HollowCluster
    extender: Extender
    binder: Binder
    pods: dict[str, Pod] = field(default_factory=dict)
    parked: dict[str, Parked] = field(default_factory=dict)
    rooms: dict[str, Room] = field(default_factory=dict)
    _claims: dict[str, Claim] = field(default_factory=dict)
    _ready: list[tuple[int, int, str]] = field(default_factory=list)
    _arrivals: dict[str, int] = field(default_factory=dict)
    _seen: int = 0

    # ---------------------------------------------------------------- what the cluster tells

    async def follow(self) -> None:
        """Read both streams until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_nodes())
            tasks.create_task(self._follow_pods())

    async def _follow_nodes(self) -> None:
        async for event in self.cluster.follow_nodes():
            self.hear_node(event)

    async def _follow_pods(self) -> None:
        async for event in self.cluster.follow_pods():
            self.hear_pod(event)

    def hear_node(self, event: NodeEvent) -> None:
        """One event of the stream of nodes. Whatever happens to a node, parked pods get another try."""
        match event:
            case All(nodes):
                self.rooms = {}
                for node in nodes:
                    self._put_node(node)
            case Put(node):
                self._put_node(node)
            case Gone(node):
                self.rooms.pop(node.metadata.name, None)
        self.unpark()

    def _put_node(self, node: Node) -> None:
        name = node.metadata.name
        room = Room.of(node)
        for uid, pod in self.pods.items():
            if pod.spec.node_name == name:
                room.take(self._claims[uid])
        self.rooms[name] = room

    def hear_pod(self, event: PodEvent) -> None:
        """One event of the stream of pods."""
        match event:
            case All(pods):
                for uid in list(self.pods):
                    self._drop_pod(uid)
                for pod in pods:
                    self._put_pod(pod)
            case Put(pod):
                self._put_pod(pod)
            case Gone(pod):
                self._drop_pod(pod.metadata.uid)

    def _put_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        before = self.pods.get(uid)
        self.pods[uid] = pod
        if before is None:
            self._claims[uid] = read_claim(pod)[0]
            self._seen += 1
            self._arrivals[uid] = self._seen
        if pod.spec.node_name:
            self.parked.pop(uid, None)
            if before is None or not before.spec.node_name:
                self._count(uid, 1)
        else:
            self.parked.pop(uid, None)
            self._enqueue(uid)

    def _drop_pod(self, uid: str) -> None:
        pod = self.pods.get(uid)
        if pod is None:
            return
        if pod.spec.node_name:
            self._count(uid, -1)
            self.unpark()
        self.parked.pop(uid, None)
        self.extender.forget(uid)
        del self.pods[uid], self._claims[uid], self._arrivals[uid]

    def _count(self, uid: str, sign: int) -> None:
        room = self.rooms.get(self.pods[uid].spec.node_name)
        if room is not None:
            room.take(self._claims[uid], sign)

    # ---------------------------------------------------------------- the queue

    def _enqueue(self, uid: str) -> None:
        heapq.heappush(self._ready, (-(self.pods[uid].spec.priority or 0), self._arrivals[uid], uid))

    def unpark(self) -> None:
        """Something happened: who was parked gets another try."""
        for uid in self.parked:
            self._enqueue(uid)
        self.parked.clear()

    def _next(self) -> Pod | None:
        """The next pod; entries of the queue may be old news."""
        while self._ready:
            uid = heapq.heappop(self._ready)[2]
            pod = self.pods.get(uid)
            if pod is not None and not pod.spec.node_name and uid not in self.parked:
                return pod
        return None

    @property
    def pending(self) -> list[Pod]:
        """Pods without a node, in the order of the queue."""
        waiting = [pod for pod in self.pods.values() if not pod.spec.node_name]
        return sorted(waiting, key=lambda pod: (-(pod.spec.priority or 0), self._arrivals[pod.metadata.uid]))

    # ---------------------------------------------------------------- the cycle

    async def step(self) -> bool:
        """Schedule the next pod, or park it. False if none was ready."""
        pod = self._next()
        if pod is None:
            return False
        parked = await self._schedule(pod)
        if parked:
            self.parked[pod.metadata.uid] = parked
        else:  # the kubelet's part: containers start at once
            self.cluster.start_pod(pod.metadata.namespace, pod.metadata.name)
        return True

    async def _schedule(self, pod: Pod) -> Parked | None:
        """1. the node's own rules, 2. the extender's, 3. scores, 4. bind. Returns why not, or None."""
        if pod.spec.scheduler_name not in OURS:
            return Parked(f"waits for the scheduler {pod.spec.scheduler_name}, which is not emulated here")
        claim = self._claims[pod.metadata.uid]
        refused = {name: room.refusal(pod, claim) for name, room in self.rooms.items()}
        names = [name for name, why in refused.items() if not why]
        if not _asks_for_cards(pod):
            return await self._bind_plain(pod, names) if names else self._told(refused)
        if names:
            answer = self.extender.filter(ExtenderArgs(pod, names))
            if answer.error:
                return Parked(answer.error)
            refused |= answer.failed_and_unresolvable_nodes | answer.failed_nodes
            names = answer.node_names
        if not names:
            return self._told(refused)
        scores = {each.host: each.score for each in self.extender.prioritize(ExtenderArgs(pod, names))}
        node = min(names, key=lambda name: (-scores[name], name))
        metadata = pod.metadata
        why = await self.binder.bind(ExtenderBindingArgs(metadata.name, metadata.namespace, metadata.uid, node))
        return Parked(why) if why else None

    async def _bind_plain(self, pod: Pod, names: Iterable[str]) -> Parked | None:
        """Pods without an ask for cards never reach the extender."""
        node = min(names, key=lambda name: (-self.rooms[name].free_share, name))
        metadata = pod.metadata
        try:
            await self.cluster.bind(Binding(metadata.namespace, metadata.name, metadata.uid, node, {}, {}))
        except ClusterError as exc:
            return Parked(str(exc))
        return None

    def _told(self, refused: dict[str, str]) -> Parked:
        counts = Counter(why for why in refused.values() if why)
        ranked = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
        said = ", ".join(f"{count} {why}" for why, count in ranked)
        text = f"0/{len(self.rooms)} nodes are available" + (f": {said}" if said else "")
        return Parked(text, tuple(why for why, _ in ranked))


def _asks_for_cards(pod: Pod) -> bool:
    """As kube-scheduler asks an extender only about pods with one of its managed resources."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return any(wire.OWN_COUNT in {**each.resources.requests, **each.resources.limits} for each in containers)
