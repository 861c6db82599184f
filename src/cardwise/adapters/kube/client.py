"""The API server over HTTP. The only module that imports lightkube and httpx2.

Credentials come from lightkube, which reads kubeconfigs and service accounts; requests are ours, for its models would
cost a second per thousand pods.
Refuses to retry what may have happened: a write that timed out is the caller's to read back.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Collection, Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx2
import msgspec
import yaml
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ConfigError

from cardwise.adapters import wire
from cardwise.adapters.kube.feed import (
    LIST_TIMEOUT_S,
    NODES,
    PODS,
    follow,
    list_all,
    pods_on,
    services_in,
    slices_in,
)
from cardwise.adapters.kube.port import (
    Binding,
    Evictee,
    LeaseRecord,
    LocalPodEvent,
    NodeEvent,
    PodEvent,
    Release,
    ServiceEvent,
    SliceEvent,
)
from cardwise.adapters.kube.shallow import decode_object
from cardwise.adapters.kube_objects import Budget, LocalPod, Node, Pod, Workload
from cardwise.adapters.prefetches import PodTemplate
from cardwise.errors import BudgetError, ClusterError, ConflictError, ExpiredError, NotFoundError, UserError
from cardwise.files import seen

WRITE_TIMEOUT_S = 4.0
"""Less than the time between a leader's last renewal and the end of its lease, see ``adapters/kube/leader.py``."""
CONNECT_TIMEOUT_S = 3.0
AT_ONCE = 8
"""Requests at a time. More would each shake hands anew, which costs the API server more than the request itself."""
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=2 * AT_ONCE, keepalive_expiry=90.0)
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""What the API server takes as a name of pods, nodes, leases and namespaces."""
_DecodedT = TypeVar("_DecodedT")
_ItemT = TypeVar("_ItemT")
BUDGET_CAUSE = "DisruptionBudget"
"""Cause of an eviction's refusal. Source: policy/v1, DisruptionBudgetCause."""
UID_FIELD = "metadata.uid"
BUDGETS, WORKLOADS = "/apis/policy/v1/poddisruptionbudgets", "/apis/kueue.x-k8s.io/v1beta2/workloads"


class _Cause(msgspec.Struct):
    reason: str = ""
    field: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] = []


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    details: _Details | None = None


class _Items(msgspec.Struct, Generic[_ItemT]):
    items: list[_ItemT]


class _LeaseMeta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    renew_time: str | None = None


class _Lease(msgspec.Struct):
    metadata: _LeaseMeta
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


class _LeaseName(msgspec.Struct):
    metadata: _LeaseMeta


class _LeaseNames(msgspec.Struct):
    items: list[_LeaseName]


class KubeClient:
    """A connection to one API server; a :class:`~cardwise.adapters.kube.port.ClusterPort`."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        """Use :func:`connect`."""
        self._http = http
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    # ---------------------------------------------------------------- reading

    def follow_pods(self) -> AsyncIterator[PodEvent]:
        """See the port."""
        return follow(self, PODS)

    def follow_nodes(self) -> AsyncIterator[NodeEvent]:
        """See the port."""
        return follow(self, NODES)

    def follow_pods_on(self, node: str) -> AsyncIterator[LocalPodEvent]:
        """Pods of one node that have not ended, as :meth:`follow_pods` tells of all."""
        return follow(self, pods_on(_named("node", node)))

    def follow_services(self, namespace: str) -> AsyncIterator[ServiceEvent]:
        """Services of a namespace, or of all of them if it is empty."""
        return follow(self, services_in(namespace and _named("namespace", namespace)))

    def follow_slices(self, namespace: str, services: Collection[str] = ()) -> AsyncIterator[SliceEvent]:
        """EndpointSlices, in the same way; only of these Services where some are named."""
        for service in services:
            _named("service", service)
        return follow(self, slices_in(namespace and _named("namespace", namespace), services))

    async def get_local_pod(self, namespace: str, name: str) -> LocalPod:
        """One pod with its containers' states. Raises NotFoundError."""
        return _decode(await self.request("GET", _pod(namespace, name)), LocalPod)

    async def get_node(self, name: str) -> Node:
        """One node. Raises NotFoundError."""
        return _decode(await self.request("GET", _node(name)), Node)

    async def list_pods(self) -> list[Pod]:
        """Pods that have not ended, as they are now."""
        return list((await list_all(self, PODS))[0])

    async def list_nodes(self) -> list[Node]:
        """Nodes as they are now."""
        return list((await list_all(self, NODES))[0])

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """See the port."""
        return _decode(await self.request("GET", _pod(namespace, name)), Pod)

    async def list_leases(self, namespace: str, prefix: str) -> dict[str, str]:
        """See the port. From the API server's cache: what is a moment old will do."""
        content = await self.request(
            "GET", _leases(namespace), params={"resourceVersion": "0"}, timeout_s=LIST_TIMEOUT_S
        )
        found = [each.metadata for each in _decode(content, _LeaseNames).items]
        return {each.name.removeprefix(prefix): each.resource_version for each in found if each.name.startswith(prefix)}

    async def read_lease(self, namespace: str, name: str) -> LeaseRecord:
        """See the port."""
        return _lease_record(await self.request("GET", _leases(namespace, name)))

    async def list_budgets(self) -> list[Budget]:
        """See the port."""
        return _decode(await self.request("GET", BUDGETS, timeout_s=LIST_TIMEOUT_S), _Items[Budget]).items

    async def list_workloads(self) -> list[Workload]:
        """See the port."""
        try:
            content = await self.request("GET", WORKLOADS, timeout_s=LIST_TIMEOUT_S)
        except NotFoundError:
            return []
        return _decode(content, _Items[Workload]).items

    async def list_templates(self) -> list[PodTemplate]:
        """See the port."""
        selected = {"labelSelector": f"{wire.LABEL_PREFETCH}=true"}
        content = await self.request("GET", "/api/v1/podtemplates", params=selected, timeout_s=LIST_TIMEOUT_S)
        return _decode(content, _Items[PodTemplate]).items

    async def list_loads(self) -> list[Pod]:
        """See the port."""
        selected = {"labelSelector": wire.LABEL_PREFETCH}
        content = await self.request("GET", PODS.path, params=selected, timeout_s=LIST_TIMEOUT_S)
        return _decode(content, _Items[Pod]).items

    # ---------------------------------------------------------------- writing

    async def bind(self, binding: Binding) -> None:
        """See the port."""
        metadata = {
            "name": binding.pod,
            "namespace": binding.namespace,
            "uid": binding.uid,
            "annotations": dict(binding.annotations),
            "labels": dict(binding.labels),
        }
        target = {"apiVersion": "v1", "kind": "Node", "name": binding.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await self.request("POST", f"{_pod(binding.namespace, binding.pod)}/binding", body)

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """See the port."""
        body = {"metadata": {"annotations": dict(annotations)}}
        await self.request("PATCH", _node(name), body, MERGE_PATCH)

    async def set_node_condition(self, name: str, condition: Mapping[str, str]) -> None:
        """See the port."""
        body = {"status": {"conditions": [dict(condition)]}}
        await self.request("PATCH", f"{_node(name)}/status", body, STRATEGIC_PATCH)

    async def post_event(self, event: Mapping[str, Any], namespace: str) -> None:
        """See the port."""
        await self.request("POST", f"{_namespace(namespace)}/events", event)

    async def write_lease(self, namespace: str, name: str, record: LeaseRecord) -> LeaseRecord:
        """See the port."""
        spec = {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": record.duration_s,
            "leaseTransitions": record.transitions,
            "renewTime": record.renewed,
        }
        metadata = {"name": name, "namespace": namespace}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        if not record.version:
            return _lease_record(await self.request("POST", _leases(namespace), body))
        metadata["resourceVersion"] = record.version
        return _lease_record(await self.request("PUT", _leases(namespace, name), body))

    async def annotate_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str | None]) -> None:
        """See the port."""
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        await self.request("PATCH", _pod(namespace, name), body, MERGE_PATCH)

    async def nominate(self, namespace: str, name: str, uid: str, node: str) -> None:
        """See the port."""
        body = {"metadata": {"uid": uid}, "status": {"nominatedNodeName": node or None}}
        await self.request("PATCH", f"{_pod(namespace, name)}/status", body, MERGE_PATCH)

    async def evict(self, evictee: Evictee, *, dry_run: bool = False) -> None:
        """See the port."""
        options: dict[str, Any] = {"preconditions": {"uid": evictee.uid}}
        if evictee.grace_s is not None:
            options["gracePeriodSeconds"] = evictee.grace_s
        if dry_run:
            options["dryRun"] = ["All"]
        metadata = {"name": evictee.name, "namespace": evictee.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
        await self.request("POST", f"{_pod(evictee.namespace, evictee.name)}/eviction", body)

    async def create_pod(self, namespace: str, body: Mapping[str, Any]) -> None:
        """See the port."""
        await self.request("POST", f"{_namespace(namespace)}/pods", body)

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """See the port."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        await self.request("DELETE", _pod(namespace, name), body)

    async def release_pod(self, release: Release, annotations: Mapping[str, str | None]) -> None:
        """See the port."""
        owners = [{"uid": release.owner_uid, "controller": False, "blockOwnerDeletion": False}]
        await self._relabel(release, None, annotations, {"ownerReferences": owners})

    async def take_back_pod(self, release: Release, annotations: Mapping[str, str | None]) -> None:
        """See the port. The ReplicaSet makes itself the controller again."""
        await self._relabel(release, release.pod_hash, annotations, {})

    async def _relabel(
        self, release: Release, pod_hash: str | None, annotations: Mapping[str, str | None], more: Mapping[str, Any]
    ) -> None:
        labels = {wire.LABEL_POD_HASHES[0]: pod_hash}
        metadata = {"uid": release.uid, "labels": labels, "annotations": dict(annotations), **more}
        await self.request("PATCH", _pod(release.namespace, release.name), {"metadata": metadata}, STRATEGIC_PATCH)

    # ---------------------------------------------------------------- HTTP

    async def date(self) -> str:
        """The API server's clock, as its answers' ``Date`` has it, to the second. Raises ClusterError."""
        with _translated("GET", "/version"):
            answer = await self._http.get("/version", timeout=LIST_TIMEOUT_S)
        told: str | None = answer.headers.get("Date")
        if told is None:
            raise ClusterError("GET /version: the answer has no Date", retry=False)
        return told

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        *,
        timeout_s: float = WRITE_TIMEOUT_S,
        params: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body of a good answer. Raises ClusterError or one of its kinds, ``timeout_s`` from now at the latest.

        That counts the wait for a turn, and an answer that trickles: the HTTP client's own timeout begins anew with
        every piece, and a write that ends late might land after another has taken the lease.
        """
        with _translated(method, path):
            async with asyncio.timeout(timeout_s), self._turn:
                answer = await self._http.request(
                    method,
                    path,
                    content=None if body is None else msgspec.json.encode(body),
                    headers={"Content-Type": content_type},
                    params=params,
                    timeout=timeout_s,
                )
        _raise_for(answer.status_code, answer.content, f"{method} {path}")
        return answer.content

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], idle_timeout_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The chunks of a long answer. Raises as :meth:`request`, also when it goes silent for too long."""
        timeout = httpx2.Timeout(CONNECT_TIMEOUT_S, read=idle_timeout_s)
        with _translated("GET", path):
            async with self._http.stream("GET", path, params=dict(params), timeout=timeout) as answer:
                if answer.status_code != HTTPStatus.OK:
                    _raise_for(answer.status_code, await answer.aread(), f"GET {path}")
                yield answer.aiter_bytes()


# ---------------------------------------------------------------- paths


def _named(what: str, name: str) -> str:
    """A name that may stand in a path. Raises NotFoundError: by another, whoever wrote it, nothing can be called."""
    if not _NAME.fullmatch(name):
        raise NotFoundError(f"{what} {seen(name)}: there is none, for that is no name", retry=False)
    return name


def _namespace(namespace: str) -> str:
    return f"/api/v1/namespaces/{_named('namespace', namespace)}"


def _pod(namespace: str, name: str) -> str:
    return f"{_namespace(namespace)}/pods/{_named('pod', name)}"


def _node(name: str) -> str:
    return f"/api/v1/nodes/{_named('node', name)}"


def _leases(namespace: str, name: str | None = None) -> str:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{_named('namespace', namespace)}/leases"
    return leases if name is None else f"{leases}/{_named('lease', name)}"


_NO_WAY = (AssertionError, AttributeError, KeyError, TypeError, ValueError, OSError, RecursionError)
"""What lightkube raises over a kubeconfig with parts missing, of another kind, or unreadable."""


def connect(kubeconfig: Path | None = None, context: str | None = None) -> KubeClient:
    """A client for a kubeconfig file, or for the cluster in which we run, or for the user's default kubeconfig.

    Raises UserError if there is no way to a cluster.
    """
    try:
        if kubeconfig is not None:
            config = KubeConfig.from_file(kubeconfig).get(context)
        else:
            config = KubeConfig.from_env().get(context)
        if config is None:
            raise UserError(f"{kubeconfig or 'KUBECONFIG'}: names no current context; pass --context NAME")
        parameters = ConnectionParams(timeout=httpx2.Timeout(WRITE_TIMEOUT_S)).httpx_params(config)
        http = httpx2.AsyncClient(**parameters, limits=LIMITS)
    except (*_NO_WAY, yaml.YAMLError, ConfigError, httpx2.InvalidURL) as exc:
        raise UserError(f"no way to a cluster: {exc}; set KUBECONFIG or pass --kubeconfig FILE") from exc
    return KubeClient(http)


@contextlib.contextmanager
def _translated(method: str, path: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    try:
        yield
    except (httpx2.TimeoutException, TimeoutError) as exc:
        raise ClusterError(f"{method} {path}: no answer in time ({type(exc).__name__})", retry=True) from exc
    except httpx2.HTTPError as exc:
        raise ClusterError(f"{method} {path}: {str(exc) or type(exc).__name__}", retry=True) from exc
    except ConfigError as exc:
        raise ClusterError(f"{method} {path}: {exc}", retry=True) from exc


_KINDS: dict[int, type[ClusterError]] = {
    HTTPStatus.NOT_FOUND: NotFoundError,
    HTTPStatus.CONFLICT: ConflictError,
    HTTPStatus.GONE: ExpiredError,
}


def _raise_for(status: int, content: bytes, what: str) -> None:
    if status < HTTPStatus.BAD_REQUEST:
        return
    causes: list[_Cause] = []
    try:
        answer = decode_object(content, _Status)
        told, causes = answer.message, answer.details.causes if answer.details else []
    except msgspec.DecodeError:
        told = content[:200].decode(errors="replace")
    if status == HTTPStatus.TOO_MANY_REQUESTS and any(each.reason == BUDGET_CAUSE for each in causes):
        raise BudgetError(f"{what}: {status}: {told}", retry=True)
    if any(each.field == UID_FIELD for each in causes):  # a patch that names another UID is "invalid" (422)
        raise ConflictError(f"{what}: {status}: {told}", retry=False)
    retry = status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    raise _KINDS.get(status, ClusterError)(f"{what}: {status}: {told}", retry=retry)


def _decode(content: bytes, kind: type[_DecodedT]) -> _DecodedT:
    try:
        return decode_object(content, kind)
    except msgspec.DecodeError as exc:
        raise ClusterError(f"the API server's answer is not a {kind.__name__}: {exc}", retry=True) from exc


def _lease_record(content: bytes) -> LeaseRecord:
    lease = _decode(content, _Lease)
    spec = lease.spec
    return LeaseRecord(
        holder=spec.holder_identity or "",
        duration_s=spec.lease_duration_seconds or 0,
        transitions=spec.lease_transitions or 0,
        renewed=spec.renew_time or "",
        version=lease.metadata.resource_version,
    )
