"""What the programs need of a cluster. Behind it stands the API server, or ``hollow.py`` without one.

Everything is small on purpose: no general client, only the calls that are made. Errors are ours: NotFoundError,
ConflictError, ExpiredError, and ClusterError that says whether to try again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from cardwise.adapters.kube_objects import Budget, EndpointSlice, LocalPod, Node, Pod, Service, Workload
from cardwise.adapters.prefetches import PodTemplate

_ObjectT = TypeVar("_ObjectT")


@dataclass(frozen=True, slots=True)
class All(Generic[_ObjectT]):
    """Everything there is now: what was told before and is not in it is gone."""

    objects: tuple[_ObjectT, ...]


@dataclass(frozen=True, slots=True)
class Put(Generic[_ObjectT]):
    """An object is new or changed."""

    object: _ObjectT


@dataclass(frozen=True, slots=True)
class Gone(Generic[_ObjectT]):
    """An object is no longer there; this was its last state."""

    object: _ObjectT


@dataclass(frozen=True, slots=True)
class Listing:
    """A list begins: what happens from here on may not be in its :class:`All`, only in what comes after it."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream broke: what is known may be old until the next event. ``why``: for the log."""

    why: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The stream goes on where it broke: nothing was missed, whether or not anything happened."""


PodEvent: TypeAlias = All[Pod] | Put[Pod] | Gone[Pod] | Listing | Lost | Resumed
LocalPodEvent: TypeAlias = All[LocalPod] | Put[LocalPod] | Gone[LocalPod] | Listing | Lost | Resumed
NodeEvent: TypeAlias = All[Node] | Put[Node] | Gone[Node] | Listing | Lost | Resumed
ServiceEvent: TypeAlias = All[Service] | Put[Service] | Gone[Service] | Listing | Lost | Resumed
SliceEvent: TypeAlias = All[EndpointSlice] | Put[EndpointSlice] | Gone[EndpointSlice] | Listing | Lost | Resumed


@dataclass(frozen=True, slots=True)
class Binding:
    """A pod and its node, with annotations and labels that land on the pod in the same write."""

    namespace: str
    pod: str
    uid: str
    node: str
    annotations: Mapping[str, str]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A Lease: who holds it and since how many holders. ``version`` guards the next write."""

    holder: str = ""
    duration_s: int = 15
    transitions: int = 0
    renewed: str = ""
    version: str = ""


class ClusterPort(Protocol):
    """A cluster, as programs see it."""

    def follow_pods(self) -> AsyncIterator[PodEvent]:
        """Pods that have not ended, for ever: first :class:`All`, then what changes, :class:`All` again if need be.

        A list that takes a while is announced by :class:`Listing`.
        """
        ...

    def follow_nodes(self) -> AsyncIterator[NodeEvent]:
        """Nodes, in the same way."""
        ...

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """One pod as it is now. Raises NotFoundError."""
        ...

    async def bind(self, binding: Binding) -> None:
        """Bind a pod. Raises ConflictError if it is bound, another, or being deleted; NotFoundError if it is gone."""
        ...

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of a node, or remove those that are None."""
        ...

    async def set_node_condition(self, name: str, condition: Mapping[str, str]) -> None:
        """Set one condition of a node's status; the others stay."""
        ...

    async def post_event(self, event: Mapping[str, Any], namespace: str) -> None:
        """Write an event."""
        ...

    async def list_leases(self, namespace: str, prefix: str) -> dict[str, str]:
        """Versions of the Leases whose names begin with ``prefix``, by the rest of the name."""
        ...

    async def read_lease(self, namespace: str, name: str) -> LeaseRecord:
        """A Lease. Raises NotFoundError."""
        ...

    async def write_lease(self, namespace: str, name: str, record: LeaseRecord) -> LeaseRecord:
        """Create a Lease (``version`` empty) or replace the version that was read. Raises ConflictError."""
        ...


@dataclass(frozen=True, slots=True)
class Evictee:
    """A pod to evict, this very one. grace_s: at most so long it may take to end; None: as the pod says itself."""

    namespace: str
    name: str
    uid: str
    grace_s: int | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """A pod, this very one, and the ReplicaSet that controls it. pod_hash: of the label that makes it the set's."""

    namespace: str
    name: str
    uid: str
    owner_uid: str
    pod_hash: str


class Requests(Protocol):
    """Any request: for what few programs need of the API."""

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        *,
        timeout_s: float = ...,
        params: Mapping[str, str] | None = ...,
    ) -> bytes:
        """The body of a good answer. Raises ClusterError, NotFoundError, ConflictError."""
        ...


class EvictingPort(ClusterPort, Protocol):
    """What a controller needs besides, that makes pods go."""

    async def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of this very pod, or remove those that are None. Raises ConflictError if it is another."""
        ...

    async def nominate(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Say in the pod's status where it will most likely go; nowhere if ``node`` is empty."""
        ...

    async def evict(self, evictee: Evictee, *, dry_run: bool = False) -> None:
        """Evict a pod. Raises BudgetError if a PodDisruptionBudget forbids it, NotFoundError, ConflictError."""
        ...

    async def list_budgets(self) -> list[Budget]:
        """All PodDisruptionBudgets."""
        ...

    async def list_workloads(self) -> list[Workload]:
        """Kueue's Workloads; none where Kueue is not installed."""
        ...


class MovingPort(EvictingPort, Protocol):
    """What rescuing needs besides."""

    async def release_pod(self, release: Release, annotations: Mapping[str, str | None]) -> None:
        """Take this very pod out of its ReplicaSet, which then makes another. Raises ConflictError, NotFoundError.

        It goes with the ReplicaSet if that is deleted, for it still names it as an owner, though not as its controller.
        """
        ...

    async def take_back_pod(self, release: Release, annotations: Mapping[str, str | None]) -> None:
        """Undo that: the ReplicaSet adopts it, and ends another, one that is not ready first."""
        ...


class LoadingPort(ClusterPort, Protocol):
    """What prefetching needs besides."""

    async def list_templates(self) -> list[PodTemplate]:
        """PodTemplates that load weights."""
        ...

    async def list_loads(self) -> list[Pod]:
        """Pods that were made of them, those that have ended too."""
        ...

    async def create_pod(self, namespace: str, body: Mapping[str, Any]) -> None:
        """Create a pod. Raises ConflictError if its name is taken."""
        ...

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete this very pod. Raises NotFoundError if it is gone, ConflictError if another has its name by now."""
        ...


class NodePort(Protocol):
    """What the agent of one node needs of a cluster."""

    def follow_pods_on(self, node: str) -> AsyncIterator[LocalPodEvent]:
        """Pods of one node that have not ended, for ever."""
        ...

    async def get_local_pod(self, namespace: str, name: str) -> LocalPod:
        """One pod as it is now. Raises NotFoundError."""
        ...

    async def evict(self, evictee: Evictee) -> None:
        """Evict a pod, as :meth:`ClusterPort.evict`."""
        ...

    async def get_node(self, name: str) -> Node:
        """One node as it is now. Raises NotFoundError."""
        ...

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of a node, or remove those that are None."""
        ...

    async def set_node_condition(self, name: str, condition: Mapping[str, str]) -> None:
        """Set one condition of a node's status; the others stay."""
        ...

    async def post_event(self, event: Mapping[str, Any], namespace: str) -> None:
        """Write an event."""
        ...

    async def read_lease(self, namespace: str, name: str) -> LeaseRecord:
        """A Lease. Raises NotFoundError."""
        ...

    async def write_lease(self, namespace: str, name: str, record: LeaseRecord) -> LeaseRecord:
        """Create a Lease or replace the version that was read. Raises ConflictError."""
        ...


class EndpointPort(Protocol):
    """What a gateway needs of a cluster."""

    def follow_services(self, namespace: str) -> AsyncIterator[ServiceEvent]:
        """Services of a namespace, or of all of them if it is empty, for ever."""
        ...

    def follow_slices(self, namespace: str, services: Collection[str] = ()) -> AsyncIterator[SliceEvent]:
        """EndpointSlices, in the same way; only of these Services where some are named."""
        ...
