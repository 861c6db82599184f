"""ServicePolicies in a cluster, and what they speak of: a Deployment, its scale and pods, its Service.

Refuses to keep anything: what was done stands in the objects. Source: Kubernetes, autoscaling/v1 Scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from cardwise.adapters.kube.port import Requests
from cardwise.adapters.kube.shallow import decode_object
from cardwise.adapters.kube_objects import Metadata, Pod, Selector, Service
from cardwise.adapters.service_policy import API, PolicyStatus, ServicePolicy, read_policy
from cardwise.errors import ClusterError, NotFoundError

FIELD_MANAGER = "cardwise-controller"
"""Under this name the API server keeps what we wrote (``managedFields``)."""
LIST_TIMEOUT_S = 30.0
MERGE_PATCH = "application/merge-patch+json"
AUTOSCALERS = "/apis/autoscaling/v2/horizontalpodautoscalers"
_MANAGER = {"fieldManager": FIELD_MANAGER}


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


class _Fields(msgspec.Struct):
    manager: str = ""
    operation: str = ""
    fields: msgspec.Raw = msgspec.field(name="fieldsV1", default=msgspec.Raw(b"{}"))


class _TargetMeta(Metadata, frozen=True):
    managed_fields: list[_Fields] = msgspec.field(default_factory=list)


class _Template(msgspec.Struct):
    metadata: Metadata = Metadata()


class _TargetSpec(msgspec.Struct, rename="camel"):
    replicas: int = 1
    selector: Selector = Selector()
    template: _Template = msgspec.field(default_factory=_Template)


class _TargetStatus(msgspec.Struct, rename="camel"):
    ready_replicas: int = 0


class _Deployment(msgspec.Struct):
    metadata: _TargetMeta
    spec: _TargetSpec = msgspec.field(default_factory=_TargetSpec)
    status: _TargetStatus = msgspec.field(default_factory=_TargetStatus)


@dataclass(frozen=True, slots=True)
class Target:
    """A Deployment.

    writer: who wrote the number of replicas last, as the API server knows it; empty if nobody is known. annotations: of
    its pods' template. version: guards the next write.
    """

    namespace: str
    name: str
    uid: str
    version: str
    replicas: int
    ready: int
    writer: str
    selector: Selector
    annotations: Mapping[str, str]


class _ScaleRef(msgspec.Struct):
    kind: str = ""
    name: str = ""


class _AutoscalerSpec(msgspec.Struct, rename="camel"):
    scale_target_ref: _ScaleRef = msgspec.field(default_factory=_ScaleRef)


class _Autoscaler(msgspec.Struct):
    metadata: Metadata
    spec: _AutoscalerSpec = msgspec.field(default_factory=_AutoscalerSpec)


class _Autoscalers(msgspec.Struct):
    items: list[_Autoscaler]


class _Pods(msgspec.Struct):
    items: list[Pod]


class Policies:
    """ServicePolicies of a cluster, and the few calls that applying them takes."""

    def __init__(self, api: Requests) -> None:
        """By this client."""
        self._api = api

    async def all(self) -> list[ServicePolicy] | None:
        """All of them; None where the definition is not installed."""
        try:
            content = await self._api.request("GET", f"{API}/servicepolicies", timeout_s=LIST_TIMEOUT_S)
        except NotFoundError:
            return None
        return [read_policy(each) for each in _decoded(content, _List).items]

    async def target(self, namespace: str, name: str) -> Target:
        """The Deployment as it is now. Raises NotFoundError."""
        found = _decoded(await self._api.request("GET", _deployment(namespace, name)), _Deployment)
        meta, spec = found.metadata, found.spec
        return Target(
            meta.namespace,
            meta.name,
            meta.uid,
            meta.resource_version,
            spec.replicas,
            found.status.ready_replicas,
            _writer(meta.managed_fields),
            spec.selector,
            spec.template.metadata.annotations,
        )

    async def scale(self, target: Target, replicas: int) -> None:
        """Set the number of replicas, if the Deployment is still as it was read. Raises ConflictError if it is not."""
        body = {"metadata": {"resourceVersion": target.version}, "spec": {"replicas": replicas}}
        path = f"{_deployment(target.namespace, target.name)}/scale"
        await self._api.request("PATCH", path, body, MERGE_PATCH, params=_MANAGER)

    async def autoscalers(self) -> dict[tuple[str, str], str]:
        """HorizontalPodAutoscalers by namespace and the name of the Deployment that they scale."""
        content = await self._api.request("GET", AUTOSCALERS, timeout_s=LIST_TIMEOUT_S)
        return {
            (each.metadata.namespace, each.spec.scale_target_ref.name): each.metadata.name
            for each in _decoded(content, _Autoscalers).items
            if each.spec.scale_target_ref.kind == "Deployment"
        }

    async def pods_of(self, target: Target) -> list[Pod]:
        """The Deployment's pods, those that have ended and those that are being deleted left out."""
        params = {"labelSelector": selector_text(target.selector)}
        path = f"/api/v1/namespaces/{_part(target.namespace)}/pods"
        content = await self._api.request("GET", path, timeout_s=LIST_TIMEOUT_S, params=params)
        return [
            pod for pod in _decoded(content, _Pods).items if not pod.ended and pod.metadata.deletion_timestamp is None
        ]

    async def service(self, namespace: str, name: str) -> Service:
        """A Service as it is now. Raises NotFoundError."""
        return _decoded(await self._api.request("GET", _service(namespace, name)), Service)

    async def annotate_service(self, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of a Service; the others stay. Raises NotFoundError."""
        body = {"metadata": {"annotations": dict(annotations)}}
        await self._api.request("PATCH", _service(namespace, name), body, MERGE_PATCH, params=_MANAGER)

    async def write_status(self, policy: ServicePolicy, status: PolicyStatus) -> None:
        """Write the status whole. Raises NotFoundError if the policy is gone, ConflictError if it is another."""
        told = msgspec.to_builtins(status)
        gone = dict.fromkeys(msgspec.to_builtins(policy.status).keys() - told.keys())
        body = {"metadata": {"uid": policy.uid}, "status": {**gone, **told}}
        path = f"{API}/namespaces/{_part(policy.namespace)}/servicepolicies/{_part(policy.name)}/status"
        await self._api.request("PATCH", path, body, MERGE_PATCH, params=_MANAGER)


def selector_text(selector: Selector) -> str:
    """As a query's labelSelector has it."""
    parts = [f"{key}={text}" for key, text in selector.match_labels.items()]
    for each in selector.match_expressions:
        values = f"({','.join(each.values)})"
        match each.operator:
            case "In" | "NotIn":
                parts.append(f"{each.key} {each.operator.lower()} {values}")
            case "Exists":
                parts.append(each.key)
            case "DoesNotExist":
                parts.append(f"!{each.key}")
    return ",".join(parts)


def _writer(managed: Collection[_Fields]) -> str:
    """Who holds the field of the number of replicas; of several, who applied the same number, another than us."""
    held = [each.manager for each in managed if _holds_replicas(each.fields)]
    return next((each for each in held if each != FIELD_MANAGER), held[0] if held else "")


def _holds_replicas(fields: msgspec.Raw) -> bool:
    try:
        told = msgspec.json.decode(fields)
    except msgspec.DecodeError:
        return False
    return isinstance(told, dict) and "f:replicas" in (told.get("f:spec") or {})


def _part(name: str) -> str:
    """Of a path: whatever somebody wrote, it leads nowhere else."""
    return quote(name, safe="")


def _deployment(namespace: str, name: str) -> str:
    return f"/apis/apps/v1/namespaces/{_part(namespace)}/deployments/{_part(name)}"


def _service(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{_part(namespace)}/services/{_part(name)}"


def _decoded(content: bytes, kind: type[Any]) -> Any:  # noqa: ANN401 - of the kind that was asked for
    try:
        return decode_object(content, kind)
    except msgspec.DecodeError as exc:
        raise ClusterError(f"the API server's answer is no {kind.__name__.strip('_')}: {exc}", retry=True) from exc
