"""Why a pod waits in its queue: its Workload's conditions, and its place among those that wait.

Refuses to know why quota is short: Kueue's own words are told. Where its visibility API is not served, only the place
is missing.
Source: apis/kueue/v1beta2 (Workload) and apis/visibility/v1beta2 in sigs.k8s.io/kueue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.kube.instants import stamp
from cardwise.adapters.kube.port import Requests
from cardwise.adapters.kube.shallow import decode_object
from cardwise.adapters.kube_objects import Metadata, Moment, Pod
from cardwise.adapters.kueue import APIS, READ_TIMEOUT_S
from cardwise.errors import ClusterError, NotFoundError

VISIBILITY = "/apis/visibility.kueue.x-k8s.io/v1beta2"
_MOST_PENDING = 1000


class _Part(msgspec.Struct, rename="camel", frozen=True):
    """A part of an object of Kueue's."""


class Condition(_Part, frozen=True):
    """A state, and why."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class _Requeue(_Part, frozen=True):
    count: int | None = None
    requeue_at: Moment | None = None


class _Admission(_Part, frozen=True):
    cluster_queue: str = ""


class _Status(_Part, frozen=True):
    conditions: list[Condition] = []
    requeue_state: _Requeue | None = None
    admission: _Admission | None = None


class _Spec(_Part, frozen=True):
    queue_name: str = ""
    active: bool | None = None


class _Workload(_Part, frozen=True):
    metadata: Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Workloads(_Part, frozen=True):
    items: list[_Workload]


class _Waiting(_Part, frozen=True):
    metadata: Metadata
    position_in_cluster_queue: int = 0
    position_in_local_queue: int = 0


class _Summary(_Part, frozen=True):
    items: list[_Waiting] | None = None


class _QueueSpec(_Part, frozen=True):
    cluster_queue: str = ""


class _LocalQueue(_Part, frozen=True):
    spec: _QueueSpec = _QueueSpec()


@dataclass(frozen=True, slots=True)
class QueueState:
    """Where a pod stands with Kueue. workload: empty while Kueue has made none for it.

    position, of: in the ClusterQueue, from 1; 0 where Kueue's visibility API does not tell.
    """

    queue: str
    cluster_queue: str
    workload: str = ""
    admitted: bool = False
    conditions: tuple[Condition, ...] = ()
    position: int = 0
    of: int = 0
    requeue_at: str = ""
    note: str = ""

    def lines(self) -> Iterator[str]:
        """In words."""
        where = f"queue {self.queue}" + (f", ClusterQueue {self.cluster_queue}" if self.cluster_queue else "")
        if not self.workload:
            yield f"{where}: {self.note}"
            return
        place = f", {self.position} of {self.of} that wait" if self.position else ""
        yield f"{where}: {'admitted' if self.admitted else 'waits for quota'}{place}"
        for each in self.conditions:
            yield f"  {each.type} {each.status} ({each.reason}): {each.message}"
        if self.requeue_at:
            yield f"  Kueue tries again at {self.requeue_at}"
        if self.note:
            yield f"  {self.note}"


_TELLING = ("QuotaReserved", "Admitted", "PodsReady", "Evicted", "Preempted", "Requeued")
_NO_VISIBILITY = "its place in the queue is not told: Kueue's visibility API is not served here"


async def queue_state(api: Requests, pod: Pod) -> QueueState | None:
    """Where a pod stands with Kueue; None if Kueue has no part in it."""
    labels, namespace = pod.metadata.labels, pod.metadata.namespace
    queue = labels.get(wire.LABEL_KUEUE_QUEUE, "")
    if not queue and wire.LABEL_KUEUE_MANAGED not in labels:
        return None
    try:
        listed = await _get(api, f"{APIS}/namespaces/{namespace}/workloads", _Workloads)
    except NotFoundError:
        return QueueState(queue, "", note="Kueue's API v1beta2 is not served here, so nothing admits the pod")
    mine = [
        each for each in listed.items if any(owner.uid == pod.metadata.uid for owner in each.metadata.owner_references)
    ]
    if not mine:
        cluster_queue = await _cluster_queue_of(api, namespace, queue)
        note = "Kueue has made no Workload of this pod" + ("" if cluster_queue else f": there is no LocalQueue {queue}")
        return QueueState(queue, cluster_queue, note=note)
    return await _state(api, namespace, queue, mine[0])


async def _state(api: Requests, namespace: str, queue: str, workload: _Workload) -> QueueState:
    status, name = workload.status, workload.metadata.name
    queue = queue or workload.spec.queue_name
    admission = status.admission.cluster_queue if status.admission else ""
    cluster_queue = admission or await _cluster_queue_of(api, namespace, queue)
    admitted = any(each.type == "Admitted" and each.status == "True" for each in status.conditions)
    waiting: list[_Waiting] | None = []
    if not admitted and cluster_queue:
        waiting = await _pending(api, cluster_queue)
    note = _NO_VISIBILITY if waiting is None else ""
    if not cluster_queue:
        note = f"there is no LocalQueue {queue} in {namespace}"
    if workload.spec.active is False:
        note = "the Workload is deactivated: Kueue does not try it again"
    place = next(
        (
            each.position_in_cluster_queue + 1
            for each in waiting or ()
            if (each.metadata.namespace, each.metadata.name) == (namespace, name)
        ),
        0,
    )
    requeue = status.requeue_state.requeue_at if status.requeue_state and not admitted else None
    told = tuple(each for kind in _TELLING for each in status.conditions if each.type == kind and each.message)
    at = stamp(requeue) if requeue else ""
    return QueueState(queue, cluster_queue, name, admitted, told, place, len(waiting or ()), at, note)


async def _pending(api: Requests, cluster_queue: str) -> list[_Waiting] | None:
    """Who waits, in order; None where that is not served."""
    path = f"{VISIBILITY}/clusterqueues/{quote(cluster_queue, safe='')}/pendingworkloads"
    try:
        return (await _get(api, path, _Summary, {"limit": str(_MOST_PENDING)})).items or []
    except NotFoundError:
        return None
    except ClusterError as exc:
        if f": {HTTPStatus.SERVICE_UNAVAILABLE.value}:" in str(exc) or f": {HTTPStatus.FORBIDDEN.value}:" in str(exc):
            return None
        raise


async def _cluster_queue_of(api: Requests, namespace: str, queue: str) -> str:
    if not queue:
        return ""
    try:
        found = await _get(api, f"{APIS}/namespaces/{namespace}/localqueues/{quote(queue, safe='')}", _LocalQueue)
    except NotFoundError:
        return ""
    return found.spec.cluster_queue


async def _get(api: Requests, path: str, kind: Any, params: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - as asked
    content = await api.request("GET", path, params=params, timeout_s=READ_TIMEOUT_S)
    try:
        return decode_object(content, kind)
    except msgspec.DecodeError as exc:
        raise ClusterError(f"GET {path}: unreadable: {exc}", retry=True) from exc
