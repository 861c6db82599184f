"""ServicePolicy, our one custom resource: what is written in it, and what of that is in force at an hour.

The definition is ``charts/cardwise/files/servicepolicies.yaml``. The API server checks types, ranges and what goes
with what before an object is written; here is checked what it cannot: time zones and cron expressions. A policy that
cannot be read is told as one with a *fault*, by the path of the field, and does not hide the others. Refuses to
decide. Source: Kubernetes, "Extend the Kubernetes API with CustomResourceDefinitions".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.kube.shallow import decode_object
from cardwise.adapters.kube_objects import Metadata
from cardwise.core.fleet.scale import COOL_DOWN_S, STEP_DOWN, STEP_UP, Limits
from cardwise.core.fleet.windows import DAYS, Cron, Hours, Window, check, holds_at, next_change
from cardwise.files import seen
from cardwise.settings_file import MisfitError, converted

API = f"/apis/{wire.POLICY_GROUP}/{wire.POLICY_VERSION}"
KIND = "ServicePolicy"

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
