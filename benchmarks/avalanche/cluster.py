"""The cluster under the services: the hollow one, with our scheduler's and our controller's own code on it.

Emulated beside them: kube-scheduler's cycle (``cardwise.up``), a ReplicaSet per service, and kubelets: a pod is warm a
while after it was bound, and one that was told to end takes its grace. Time is a number.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from benchmarks.avalanche.serving import Service
from benchmarks.hollow import Programs
from cardwise.adapters import wire
from cardwise.controller.preemption.settings import PreemptionSettings
from cardwise.core.inventory import CardSpec

CARD_MIB, CARDS = 24576, 4
YOUNG_S = 60
"""A victim that was warm for less had its warm-up paid for nothing."""


@dataclass(slots=True)
class Replica:
    """A pod's life, in seconds: when it was bound, when it was warm, when it was told to end."""

    service: str
    bound_s: int | None = None
    warm_s: int | None = None
    going_s: int | None = None


@dataclass(slots=True)
class Told:
    """What became of victims: all, and those that were cold or young."""

    victims: int = 0
    young: int = 0


@dataclass(slots=True)
class Emulation:
    """settings: of preemption. cold_s: from binding to warm. grace_s: that a victim takes to end."""

    services: Sequence[Service]
    settings: PreemptionSettings
    cold_s: int
    grace_s: int
    now_s: int = 0
    told: Told = field(default_factory=Told)
    replicas: dict[str, Replica] = field(default_factory=dict)
    _made: int = 0
    _programs: Programs = field(init=False)

    @contextlib.asynccontextmanager
    async def running(self, nodes: int) -> AsyncIterator[None]:
        """All programs on so many nodes, until the ``with`` ends."""
        self._programs = programs = Programs(self._utc, self._clock, self.settings)
        for i in range(nodes):
            name = f"n{i:02}"
            programs.put_node(name, [CardSpec(f"{name}-{card}", "A10", CARD_MIB) for card in range(CARDS)])
        async with programs.running():
            yield

    def _utc(self) -> datetime:
        return datetime.fromtimestamp(self.now_s, UTC)

    def _clock(self) -> float:
        return float(self.now_s)

    # ---------------------------------------------------------------- a second

    async def second(self) -> None:
        """Replicas are made and end, pods are placed, the controller takes its turn."""
        self.now_s += 1
        for service in self.services:
            self._replicate(service)
        self._live()
        self._programs.cycle.unpark()
        await self._programs.schedule()
        await self._programs.preempting.turn()
        await self._programs.cluster.heard()
        self._see_who_goes()

    def ready(self, service: str) -> int:
        """Replicas that serve now."""
        return sum(
            each.warm_s is not None and each.warm_s <= self.now_s and each.going_s is None
            for each in self.replicas.values()
            if each.service == service
        )

    def _replicate(self, service: Service) -> None:
        """The ReplicaSet's part: those that wait go first, then the youngest."""
        mine = {name: each for name, each in self.replicas.items() if each.service == service.name}
        staying = {name: each for name, each in mine.items() if each.going_s is None}
        for _ in range(service.wanted - len(staying)):
            self._create(service)
        surplus = sorted(staying, key=lambda name: (staying[name].bound_s is not None, -(staying[name].bound_s or 0)))
        for name in surplus[: max(len(staying) - service.wanted, 0)]:
            self._programs.cluster.delete_pod("default", name)
            del self.replicas[name]

    def _create(self, service: Service) -> None:
        self._made += 1
        name = f"{service.name}-{self._made:05}"
        asked = {wire.GPU: "1", wire.USER_MEMORY: str(service.memory_mib), wire.USER_CORES: "20"}
        told = {} if service.sensitive else {wire.ANNOTATION_CLASS: "best-effort"}
        owner = {"kind": "StatefulSet", "name": service.name, "controller": True, "uid": f"uid-{service.name}"}
        metadata = {"name": name, "annotations": told, "ownerReferences": [owner]}
        spec = {"containers": [{"name": "app", "resources": {"limits": asked}}], "priority": service.priority}
        self._programs.cluster.create_pod({"metadata": metadata, "spec": spec})
        self.replicas[name] = Replica(service.name)

    def _live(self) -> None:
        """The kubelets' part."""
        for name, each in list(self.replicas.items()):
            if each.warm_s == self.now_s:
                self._programs.cluster.ready_pod("default", name)
            if each.going_s is not None and self.now_s >= each.going_s + self.grace_s:
                self._programs.cluster.delete_pod("default", name)
                del self.replicas[name]

    def _see_who_goes(self) -> None:
        for pod in self._programs.preempting.seen.pods.values():
            each = self.replicas.get(pod.metadata.name)
            if each is None:
                continue
            if pod.spec.node_name and each.bound_s is None:
                each.bound_s, each.warm_s = self.now_s, self.now_s + self.cold_s
            if pod.metadata.deletion_timestamp is not None and each.going_s is None:
                each.going_s = self.now_s
                age_s = self.now_s - (each.warm_s if each.warm_s is not None else self.now_s)
                self.told.victims += 1
                self.told.young += age_s < YOUNG_S
