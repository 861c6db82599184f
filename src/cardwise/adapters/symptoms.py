"""Kubernetes objects as a diagnosis reads them: more of each than decisions need, and kinds that no decision reads.

Nodes and pods are those of ``kube_objects.py`` with what tells of faults beside it, so that both readers see one pod.
Refuses secrets: of a Secret only certificates are decoded, never a key. Sources: Kubernetes API reference, core/v1,
admissionregistration.k8s.io/v1, coordination.k8s.io/v1, node.k8s.io/v1.
"""

# ruff: noqa: RUF012 - msgspec copies defaults; ruff sees that only where the base class is in the same file
from __future__ import annotations

from typing import TypeAlias

import msgspec

from cardwise.adapters.kube_objects import (
    Condition,
    Container,
    ContainerStatus,
    Ended,
    EndpointSlice,
    Metadata,
    Moment,
    Node,
    NodeInfo,
    NodeStatus,
    Pod,
    PodStatus,
    PodWish,
    Workload,
    WorkloadStatus,
)


class _Part(msgspec.Struct, rename="camel", gc=False, frozen=True):
    """A part of a Kubernetes object: camel case outside, ours inside."""


class ToldCondition(Condition, frozen=True):
    """A state with its reason. last_heartbeat_time: when the kubelet said so last, by its own clock."""

    reason: str = ""
    message: str = ""
    last_heartbeat_time: Moment | None = None
    last_transition_time: Moment | None = None


class ToldNodeInfo(NodeInfo, frozen=True):
    """What runs on a node, the container runtime too: ``containerd://1.7.2``."""

    container_runtime_version: str = ""
    kernel_version: str = ""


class ToldNodeStatus(NodeStatus, frozen=True):
    """``status`` of a node."""

    node_info: ToldNodeInfo = ToldNodeInfo()
    conditions: list[ToldCondition] = []  # type: ignore[assignment]  # a list of more


class ToldNode(Node, frozen=True):
    """A node."""

    status: ToldNodeStatus = ToldNodeStatus()


class EnvVar(_Part, frozen=True):
    """A variable; value empty where it comes from elsewhere."""

    name: str
    value: str = ""


class HttpGet(_Part, frozen=True):
    """An HTTP probe."""

    path: str = "/"
    port: int | str = ""


class Exec(_Part, frozen=True):
    """A probe by a command."""

    command: list[str] = []


class Probe(_Part, frozen=True):
    """A probe with Kubernetes' defaults. Source: core/v1 Probe."""

    http_get: HttpGet | None = None
    exec: Exec | None = None
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    failure_threshold: int = 3


class ToldContainer(Container, frozen=True):
    """A container with what it runs and how it is probed."""

    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None


class ToldPodWish(PodWish, frozen=True):
    """``spec`` of a pod."""

    containers: list[ToldContainer] = []  # type: ignore[assignment]  # a list of more
    init_containers: list[ToldContainer] = []  # type: ignore[assignment]
    runtime_class_name: str = ""


class Waits(_Part, frozen=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class ToldEnded(Ended, frozen=True):
    """How a container ended: ``OOMKilled`` is the kernel's word; the message may be the program's last lines."""

    reason: str = ""
    message: str = ""
    started_at: Moment | None = None
    finished_at: Moment | None = None


class Runs(_Part, frozen=True):
    """Since when a container runs."""

    started_at: Moment | None = None


class ToldState(_Part, frozen=True):
    """What a container does, or did before."""

    running: Runs | None = None
    waiting: Waits | None = None
    terminated: ToldEnded | None = None


class ToldContainerStatus(ContainerStatus, frozen=True):
    """A container as its kubelet tells of it."""

    state: ToldState = ToldState()  # type: ignore[assignment]  # more than that
    last_state: ToldState = ToldState()
    ready: bool = False


class ToldPodStatus(PodStatus, frozen=True):
    """``status`` of a pod."""

    conditions: list[ToldCondition] = []  # type: ignore[assignment]  # a list of more
    reason: str = ""
    message: str = ""
    start_time: Moment | None = None
    init_container_statuses: list[ToldContainerStatus] = []
    container_statuses: list[ToldContainerStatus] = []


class ToldPod(Pod, frozen=True):
    """A pod."""

    spec: ToldPodWish = ToldPodWish()
    status: ToldPodStatus = ToldPodStatus()


class About(_Part, frozen=True):
    """Whom an event is about."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Event(_Part, frozen=True):
    """An event; its times may be null."""

    metadata: Metadata
    involved_object: About = About()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    last_timestamp: Moment | None = None
    event_time: Moment | None = None


class LeaseWish(_Part, frozen=True):
    """``spec`` of a Lease. renew_time: by the holder's clock."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: Moment | None = None


class Lease(_Part, frozen=True):
    """A Lease."""

    metadata: Metadata
    spec: LeaseWish = LeaseWish()


class HookService(_Part, frozen=True):
    """Where a webhook is asked."""

    name: str = ""
    namespace: str = ""


class HookClient(_Part, frozen=True):
    """How a webhook is reached. ca_bundle: PEM in base64."""

    service: HookService | None = None
    ca_bundle: str = ""


class Hook(_Part, frozen=True):
    """One webhook of a configuration. failure_policy: ``Ignore`` lets what it cannot be asked about pass as it is."""

    name: str = ""
    client_config: HookClient = HookClient()
    failure_policy: str = ""


class WebhookConfiguration(_Part, frozen=True):
    """A MutatingWebhookConfiguration."""

    metadata: Metadata
    webhooks: list[Hook] = []


class CertificateData(_Part, frozen=True):
    """Of a TLS Secret its certificates, PEM in base64. Keys are left where they are."""

    certificate: str = msgspec.field(name="tls.crt", default="")
    authority: str = msgspec.field(name="ca.crt", default="")


class TlsSecret(_Part, frozen=True):
    """A Secret of certificates."""

    metadata: Metadata
    type: str = ""
    data: CertificateData = CertificateData()


class RuntimeClass(_Part, frozen=True):
    """A RuntimeClass: the name that pods write, and the runtime's own."""

    metadata: Metadata
    handler: str = ""


class ToldWorkloadStatus(WorkloadStatus, frozen=True):
    """``status`` of a Workload."""

    conditions: list[ToldCondition] = []  # type: ignore[assignment]  # a list of more


class ToldWorkload(Workload, frozen=True):
    """Kueue's Workload, with its reasons."""

    status: ToldWorkloadStatus = ToldWorkloadStatus()


Symptom: TypeAlias = (
    ToldNode | ToldPod | Event | Lease | EndpointSlice | WebhookConfiguration | TlsSecret | RuntimeClass | ToldWorkload
)
KINDS: dict[str, type[Symptom]] = {
    "Node": ToldNode,
    "Pod": ToldPod,
    "Event": Event,
    "Lease": Lease,
    "EndpointSlice": EndpointSlice,
    "MutatingWebhookConfiguration": WebhookConfiguration,
    "Secret": TlsSecret,
    "RuntimeClass": RuntimeClass,
    "Workload": ToldWorkload,
}
"""By kind, as items of a list name it."""
