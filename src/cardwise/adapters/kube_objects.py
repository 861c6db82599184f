"""Nodes and pods as Kubernetes tells them in JSON: only the fields that cardwise reads, typed.

A cluster of 10,000 pods is some 100 MB of JSON, nearly all of it of no use here; msgspec skips that unbuilt.
Refuses to interpret: quantities stay text, what is absent stays absent. ``inventory.py`` and ``asks.py`` give meaning.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec

Amounts = dict[str, str | int]
"""Resource name to quantity, as text: Kubernetes writes quantities as strings."""
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def since_epoch_s(at: datetime) -> float:
    """Seconds since 1970. Raises ValueError for a moment that could not be written again: in UTC it has no year."""
    try:
        return at.astimezone(UTC).timestamp()
    except OverflowError as exc:
        raise ValueError(f"{at} is no moment in UTC") from exc


class _Part(msgspec.Struct, rename="camel", gc=False, frozen=True):
    """A part of a Kubernetes object: camel case outside, ours inside."""


class Owner(_Part, frozen=True):
    """Who made the pod: a ReplicaSet, a Job, a DaemonSet."""

    kind: str
    name: str
    controller: bool = False
    uid: str = ""


class Metadata(_Part, frozen=True):
    """Name and marks of an object. A pod's namespace is always told; nodes have none."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: Moment | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[Owner] = []
    creation_timestamp: Moment | None = None


class Taint(_Part, frozen=True):
    """What keeps pods off a node unless they tolerate it."""

    key: str
    effect: str
    value: str = ""


class Toleration(_Part, frozen=True):
    """What lets a pod on a tainted node. An empty key tolerates all, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Gate(_Part, frozen=True):
    """What keeps a pod from being scheduled until somebody takes it away."""

    name: str


class Condition(_Part, frozen=True):
    """A state of a node or a pod, such as Ready."""

    type: str
    status: str


class NodeWish(_Part, frozen=True):
    """``spec`` of a node."""

    unschedulable: bool = False
    taints: list[Taint] = []


class NodeInfo(_Part, frozen=True):
    """What runs on a node."""

    kubelet_version: str = ""


class NodeStatus(_Part, frozen=True):
    """``status`` of a node."""

    node_info: NodeInfo = NodeInfo()
    capacity: Amounts = {}
    allocatable: Amounts = {}
    conditions: list[Condition] = []


class Node(_Part, frozen=True):
    """A node."""

    metadata: Metadata
    spec: NodeWish = NodeWish()
    status: NodeStatus = NodeStatus()


class Resources(_Part, frozen=True):
    """What a container asks for, and may take at most."""

    requests: Amounts = {}
    limits: Amounts = {}


class Container(_Part, frozen=True):
    """A container; ``restart_policy`` Always makes an init container a sidecar."""

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""


class Expression(_Part, frozen=True):
    """One condition on a node's labels."""

    key: str
    operator: str
    values: list[str] = []


class Term(_Part, frozen=True):
    """Conditions that hold together."""

    match_expressions: list[Expression] = []


class NodeSelector(_Part, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: list[Term] = []


class NodeAffinity(_Part, frozen=True):
    """Nodes that a pod must run on; what it merely prefers is not read."""

    required: NodeSelector = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default_factory=NodeSelector
    )


class Affinity(_Part, frozen=True):
    """Where a pod must run."""

    node_affinity: NodeAffinity = NodeAffinity()


class Volume(_Part, frozen=True):
    """A volume of a pod. persistent_volume_claim: what it claims by name; the claim outlives the pod."""

    persistent_volume_claim: dict[str, object] | None = None


class PodWish(_Part, frozen=True):
    """``spec`` of a pod."""

    node_name: str = ""
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: Amounts = {}
    resources: Resources = Resources()
    node_selector: dict[str, str] = {}
    affinity: Affinity = Affinity()
    scheduler_name: str = ""
    priority: int | None = None
    preemption_policy: str = ""
    tolerations: list[Toleration] = []
    scheduling_gates: list[Gate] = []
    termination_grace_period_seconds: int | None = None
    resource_claims: list[msgspec.Raw] = []
    volumes: list[Volume] = []


class PodStatus(_Part, frozen=True):
    """``status`` of a pod."""

    phase: str = ""
    conditions: list[Condition] = []
    nominated_node_name: str = ""


class Pod(_Part, frozen=True):
    """A pod."""

    metadata: Metadata
    spec: PodWish = PodWish()
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        """Namespace and name: names are unique within a namespace only."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def ended(self) -> bool:
        """True once its containers have ended for good: it holds nothing any more."""
        return self.status.phase in ENDED

    @property
    def initialized(self) -> bool:
        """True once all init containers have ended."""
        return any(each.type == "Initialized" and each.status == "True" for each in self.status.conditions)

    @property
    def ready(self) -> bool:
        """True while it may be sent requests."""
        return any(each.type == "Ready" and each.status == "True" for each in self.status.conditions)


class Ended(_Part, frozen=True):
    """How a container ended."""

    exit_code: int = 0


class ContainerState(_Part, frozen=True):
    """What a container does: one of these, or nothing that is known yet."""

    running: dict[str, str] | None = None
    terminated: Ended | None = None


class ContainerStatus(_Part, frozen=True):
    """A container as its kubelet tells of it. container_id: ``containerd://`` and the runtime's id."""

    name: str = ""
    container_id: str = msgspec.field(name="containerID", default="")
    restart_count: int = 0
    state: ContainerState = ContainerState()


class LocalCondition(Condition, frozen=True):
    """A state of a pod, and since when."""

    last_transition_time: Moment | None = None


class LocalPodStatus(PodStatus, frozen=True):
    """``status`` of a pod, with its containers."""

    conditions: list[LocalCondition] = []  # type: ignore[assignment]  # a list of more
    init_container_statuses: list[ContainerStatus] = []
    container_statuses: list[ContainerStatus] = []


class LocalPod(Pod, frozen=True):
    """A pod as the agent of its node reads it."""

    status: LocalPodStatus = LocalPodStatus()


ENDED = frozenset({"Succeeded", "Failed"})


class Selector(_Part, frozen=True):
    """Which labels: an empty one means all, none at all (None) means nothing."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Expression] = []


class BudgetWish(_Part, frozen=True):
    """``spec`` of a PodDisruptionBudget."""

    selector: Selector | None = None


class BudgetStatus(_Part, frozen=True):
    """``status`` of a PodDisruptionBudget. API server and controller count down ``disruptions_allowed``."""

    disruptions_allowed: int = 0


class Budget(_Part, frozen=True):
    """A PodDisruptionBudget."""

    metadata: Metadata
    spec: BudgetWish = BudgetWish()
    status: BudgetStatus = BudgetStatus()

    @property
    def name(self) -> str:
        """Namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class WorkloadStatus(_Part, frozen=True):
    """``status`` of a Workload."""

    conditions: list[Condition] = []


class Workload(_Part, frozen=True):
    """Kueue's Workload: what it admits, and evicts, as one."""

    metadata: Metadata
    status: WorkloadStatus = WorkloadStatus()


class Service(_Part, frozen=True):
    """A Service: of it only its name and what its annotations say."""

    metadata: Metadata


class EndpointConditions(_Part, frozen=True):
    """What is absent is unknown."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ObjectReference(_Part, frozen=True):
    """Whom an endpoint is: a pod, mostly."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class Endpoint(_Part, frozen=True):
    """One replica of a Service. Its addresses are all the same to callers; kube-proxy takes the first, so do we."""

    addresses: list[str] = []
    conditions: EndpointConditions = EndpointConditions()
    target_ref: ObjectReference | None = None


class SlicePort(_Part, frozen=True):
    """A port of all endpoints of a slice. port: None for all of them."""

    name: str | None = None
    port: int | None = None
    protocol: str | None = None


class EndpointSlice(_Part, frozen=True):
    """Some endpoints of a Service, of one family of addresses. The API server writes empty lists as null."""

    metadata: Metadata
    address_type: str = ""
    endpoints: list[Endpoint] | None = None
    ports: list[SlicePort] | None = None
