"""ServicePolicy, our one custom resource, and what it speaks of: the Deployment, its scale, its Service.

The definition is ``charts/cardwise/files/servicepolicies.yaml``. The API server checks types, ranges and what goes
with what before an object is written; here is checked what it cannot: time zones and cron expressions. A policy that
cannot be read is told as one with a *fault*, by the path of the field, and does not hide the others. Refuses to
decide, and to keep anything: what was done stands in the objects. Source: Kubernetes, "Extend the Kubernetes API with
CustomResourceDefinitions"; autoscaling/v1 Scale.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import quote
from zoneinfo import ZoneInfo

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.kube.shallow import decode_object
from cardwise.adapters.kube_objects import Metadata, Pod, Selector, Service
from cardwise.core.fleet.scale import COOL_DOWN_S, STEP_DOWN, STEP_UP, Limits
from cardwise.core.fleet.windows import DAYS, Cron, Hours, Window, check, holds_at, next_change
from cardwise.errors import ClusterError, NotFoundError
from cardwise.files import seen
from cardwise.settings_file import MisfitError, converted

API = f"/apis/{wire.POLICY_GROUP}/{wire.POLICY_VERSION}"
KIND = "ServicePolicy"
FIELD_MANAGER = "cardwise-controller"
"""Under this name the API server keeps what we wrote (``managedFields``)."""
LIST_TIMEOUT_S = 30.0
MERGE_PATCH = "application/merge-patch+json"

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    """A part of the spec. The API server has taken out what it does not know."""


class TargetRef(_Spec, frozen=True):
    """Whose replicas."""

    name: str
    kind: Literal["Deployment"] = "Deployment"


class Replicas(_Spec, frozen=True):
    """Bounds. max: as min where it is not told."""

    min: Count
    max: Count | None = None


class GatewayNumbers(_Spec, frozen=True):
    """How a gateway batches and queues. None: not told."""

    max_batch: Count | None = None
    max_wait_ms: float | None = None
    depth: Count | None = None


class GatewaySpec(GatewayNumbers, frozen=True, kw_only=True):
    """Before which Service, and what it is told outside the windows."""

    service: str


class WindowSpec(_Spec, frozen=True):
    """Other numbers for some hours."""

    name: str
    timezone: str
    begin: str = ""
    end: str = ""
    days: list[str] = msgspec.field(default_factory=lambda: list(DAYS))
    start_cron: str = ""
    end_cron: str = ""
    replicas: Replicas | None = None
    gateway: GatewayNumbers | None = None


class ForecastSpec(_Spec, frozen=True):
    """How far back, and how far ahead."""

    history_days: Count = 28
    horizon_minutes: Count = 60


class LoadSpec(_Spec, frozen=True):
    """What the service carries."""

    query: str
    per_replica: Positive
    p99_query: str = msgspec.field(name="p99Query", default="")
    fill_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 80
    max_age_seconds: Count = 120
    forecast: ForecastSpec | None = None


class ScalingSpec(_Spec, frozen=True):
    """How fast."""

    step_up: Count = STEP_UP
    step_down: Count = STEP_DOWN
    cool_down_seconds: Annotated[int, msgspec.Meta(ge=0)] = int(COOL_DOWN_S)


class PolicySpec(_Spec, frozen=True):
    """``spec``."""

    scale_target_ref: TargetRef
    replicas: Replicas
    target_p99_ms: Positive | None = msgspec.field(name="targetP99Ms", default=None)
    two_nodes: bool = False
    windows: list[WindowSpec] = msgspec.field(default_factory=list)
    load: LoadSpec | None = None
    scaling: ScalingSpec = msgspec.field(default_factory=ScalingSpec)
    gateway: GatewaySpec | None = None
    oversubscribable: bool | None = None
    preemptible: bool | None = None


class Condition(msgspec.Struct, rename="camel", frozen=True):
    """One condition as the object has it."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int | None = None
    last_transition_time: str = ""


class PolicyStatus(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """``status``: what was found and done. Written whole; what it does not have is removed."""

    observed_generation: int | None = None
    window: str | None = None
    next_change: str | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    replicas: int | None = None
    wanted_replicas: int | None = None
    why: str | None = None
    demand: str | None = None
    forecast: str | None = None
    target_uid: str | None = msgspec.field(name="targetUID", default=None)
    scaled_replicas: int | None = None
    last_scale_time: str | None = None
    hands_off_until: str | None = None
    hands_off_by: str | None = None
    conditions: list[Condition] = msgspec.field(default_factory=list)


class _PolicyMeta(Metadata, frozen=True):
    generation: int = 0


class _RawPolicy(msgspec.Struct):
    metadata: _PolicyMeta
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


@dataclass(frozen=True, slots=True)
class ServicePolicy:
    """One policy. spec: None if it cannot be read; then ``fault`` says where and why. created: seconds since 1970."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: PolicySpec | None
    windows: tuple[Window, ...] = ()
    fault: str = ""
    created: float = 0.0
    status: PolicyStatus = field(default_factory=PolicyStatus)

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class InForce:
    """What a policy says at an instant. window: its name, empty outside all of them; until: when it changes."""

    window: str
    replicas: Replicas
    gateway: GatewayNumbers | None
    until: datetime | None


def in_force(policy: ServicePolicy, now: datetime) -> InForce:
    """What holds at this instant. Raises ValueError for a policy that cannot be read."""
    spec = policy.spec
    if spec is None:
        raise ValueError(policy.fault)
    index = holds_at(policy.windows, now)
    window = None if index is None else spec.windows[index]
    return InForce(
        "" if window is None else window.name,
        (window and window.replicas) or spec.replicas,
        _merged(spec.gateway, window.gateway if window else None),
        next_change(policy.windows, now),
    )


def limits_of(spec: PolicySpec, replicas: Replicas) -> Limits:
    """What may be chosen while these bounds hold. Raises ValueError for bounds that contradict each other."""
    load, least = spec.load, max(replicas.min, 2 if spec.two_nodes else 1)
    return Limits(
        least,
        replicas.max or least,
        None if load is None else load.per_replica,
        spec.target_p99_ms,
        (load.fill_percent if load else 80) / 100,
        spec.scaling.step_up,
        spec.scaling.step_down,
        float(spec.scaling.cool_down_seconds),
    )


def _merged(base: GatewayNumbers | None, over: GatewayNumbers | None) -> GatewayNumbers | None:
    if base is None:
        return None
    told = {name: getattr(over, name) for name in GatewayNumbers.__struct_fields__ if over is not None}
    return GatewayNumbers(
        **{
            name: told.get(name) if told.get(name) is not None else getattr(base, name)
            for name in GatewayNumbers.__struct_fields__
        }
    )


def annotations_of(numbers: GatewayNumbers) -> dict[str, str]:
    """As a gateway reads them on its Service; see ``gateway/opting.py``."""
    told = {"max-batch": numbers.max_batch, "max-wait-ms": numbers.max_wait_ms, "depth": numbers.depth}
    return {
        f"{wire.ANNOTATION_GATEWAY_PREFIX}{key}": f"{value:.12g}" for key, value in told.items() if value is not None
    }


# ---------------------------------------------------------------- reading


def read_policy(raw: bytes | msgspec.Raw) -> ServicePolicy:
    """A policy from the API server's JSON. One whose spec is wrong is told with its fault."""
    found = decode_object(raw, _RawPolicy)
    meta = found.metadata
    made = 0.0 if meta.creation_timestamp is None else meta.creation_timestamp.timestamp()
    try:
        status = decode_object(found.status, PolicyStatus)
    except msgspec.DecodeError:
        status = PolicyStatus()  # it is ours, and written anew
    spec, windows, fault = None, tuple[Window, ...](), ""
    try:
        spec = converted(msgspec.json.decode(found.spec), PolicySpec)
        windows = tuple(_window(each, i) for i, each in enumerate(spec.windows))
        for each in (spec.replicas, *(window.replicas for window in spec.windows)):
            limits_of(spec, each or spec.replicas)
    except MisfitError as error:
        spec, fault = None, f"spec.{error.key}: {error}" if error.key else f"spec: {error}"
    except ValueError as error:
        spec, fault = None, f"spec.{error}"
    return ServicePolicy(meta.namespace, meta.name, meta.uid, meta.generation, spec, windows, fault, made, status)


def _window(told: WindowSpec, index: int) -> Window:
    """Raises ValueError that begins with the field's path below ``spec``."""
    where = f"windows[{index}]"
    try:
        zone = ZoneInfo(told.timezone)
    except (KeyError, ValueError, OSError) as exc:  # an OSError: a folder of zones, such as "Europe"
        text = f"{seen(told.timezone)} is no time zone here; write one such as Europe/Berlin or UTC"
        raise ValueError(f"{where}.timezone: {text}") from exc
    when: Hours | Cron
    if told.begin:
        days = frozenset(DAYS.index(day) for day in told.days)
        when = Hours(_minutes(told.begin), _minutes(told.end), days)
    else:
        when = Cron(told.start_cron, told.end_cron)
    if faults := check(when):
        raise ValueError(f"{where}: {'; '.join(faults)}")
    return Window(told.name, zone, when)


def _minutes(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)


# ---------------------------------------------------------------- what policies speak of


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


class Requests(Protocol):
    """The part of the API server's client that is used here."""

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
        """One answer. Raises ClusterError, NotFoundError, ConflictError."""
        ...


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


AUTOSCALERS = "/apis/autoscaling/v2/horizontalpodautoscalers"
_MANAGER = {"fieldManager": FIELD_MANAGER}


def about_policy(policy: ServicePolicy) -> dict[str, str]:
    """Whom an event of a policy is about."""
    version = f"{wire.POLICY_GROUP}/{wire.POLICY_VERSION}"
    return {
        "kind": KIND,
        "name": policy.name,
        "namespace": policy.namespace,
        "uid": policy.uid,
        "apiVersion": version,
    }


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
