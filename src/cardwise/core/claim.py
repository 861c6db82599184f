"""What one pod asks for: its containers' asks of cards, when each of them runs, and who the pod is.

A pod is one decision, but its containers get cards of their own, and not all of them run at once. Refuses to decide.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from cardwise.core.request import PodRequest, Shape, WorkloadClass


class Stage(enum.Enum):
    """When a container runs. Source: KEP-753; Kubernetes, "Resource sharing within containers"."""

    INIT = "init"
    """Until it ends, beside the sidecars that stand before it."""
    SIDECAR = "sidecar"
    """From its turn among the init containers on, to the pod's end."""
    APP = "app"
    """After all init containers, to the pod's end."""


class LatencyClass(enum.Enum):
    """The two workload classes of SPEC: what a pod is promised, and which policy places it."""

    SENSITIVE = "latency-sensitive"
    BEST_EFFORT = "best-effort"


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """One container's ask. ``shape`` has cards, and neither CPU nor host memory: those are the pod's."""

    container: str
    stage: Stage
    shape: Shape


@dataclass(frozen=True, slots=True)
class Claim:
    """One pod.

    uid: unique over time, unlike ``name`` ("namespace/name").
    asks: of the containers that ask for cards, in the order in which they start.
    cpu_milli, host_memory_mib: what kube-scheduler counts for the pod.
    engine: the inference engine in it, a name of :mod:`cardwise.core.capacity.engines`; empty if none is told.
    priority: Kubernetes', of the pod's class. preemptible: may have to go for a pod of higher priority (SPEC E3).
    The rest: see :class:`PodRequest`.
    """

    uid: str
    name: str
    asks: tuple[ContainerAsk, ...] = ()
    cpu_milli: int = 0
    host_memory_mib: int = 0
    service: str = ""
    tenant: str = ""
    exclusive: bool = False
    workload: WorkloadClass = WorkloadClass.INFERENCE
    mixes: bool = False
    model_key: str = ""
    latency: LatencyClass = LatencyClass.SENSITIVE
    engine: str = ""
    priority: int = 0
    preemptible: bool = False

    @property
    def running_asks(self) -> tuple[ContainerAsk, ...]:
        """Asks of the containers that run to the pod's end, in order."""
        return tuple(ask for ask in self.asks if ask.stage is not Stage.INIT)

    @property
    def lead(self) -> PodRequest:
        """The pod as one request: its largest ask with all of its CPU and host memory. What policies compare."""
        largest = max(self.running_asks or self.asks, key=lambda ask: size(ask.shape), default=None)
        return self.request(largest.shape if largest else Shape(0), host=True)

    def request(self, shape: Shape, *, host: bool, name: str = "") -> PodRequest:
        """One part of the pod as a request of its own. ``host``: this part carries the pod's CPU and host memory."""
        if host:
            shape = replace(shape, cpu_milli=self.cpu_milli, host_memory_mib=self.host_memory_mib)
        return PodRequest(
            name or self.uid,
            shape,
            service=self.service,
            tenant=self.tenant,
            exclusive=self.exclusive,
            workload=self.workload,
            mixes=self.mixes,
            model_key=self.model_key,
        )


def size(shape: Shape) -> tuple[int, int, int, int]:
    """Orders shapes by how hard they are to place: whole cards first, then more cards, memory and compute."""
    return (shape.cards * shape.whole, shape.cards, shape.memory_mib + shape.memory_milli, shape.compute_milli)
