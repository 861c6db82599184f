"""The gateway's settings: one TOML file, read whole or refused with the key that is wrong.

::

    port = 8080
    admin-port = 9090

    [[services]]
    name = "resnet"
    kind = "oip"
    replicas = ["http://127.0.0.1:8100"]
    target-p99-ms = 250
    max-batch = 32
    one-ms = 4.35            # a batch of one, as `cardwise loadtest` measured it
    full-batch-ms = 15.2     # a batch of max-batch

A service that cannot meet its own target, at any hour, is refused with the numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import msgspec

from cardwise.core.queue.backlog import check, depth_for
from cardwise.core.queue.batch import BatchPolicy, check_wait
from cardwise.errors import InputError
from cardwise.files import seen
from cardwise.gateway.cluster_settings import (
    EVERY_SCRAPE_MS,
    Kubernetes,
    KubernetesService,
    cluster_faults,
    service_faults,
)
from cardwise.settings_file import MisfitError, converted, read_settings_file

WANT = "the gateway's settings in TOML (docs/howto/gateway.md)"
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
USUAL_DEPTH = 64
"""Where nothing is known from which to compute one."""
USUAL_GAP_S, USUAL_CAP_S = 0.0005, 0.002
"""How long an idle replica lingers where its times are not told."""
_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,99}")
_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_HEADER = re.compile(r"[a-z0-9][-a-z0-9_]*")

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
CountOrNone = Annotated[int, msgspec.Meta(ge=0, le=10**6)]
Millis = Annotated[float, msgspec.Meta(ge=0, le=86_400_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class WarmUp(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """The request that a replica must answer with 2xx before it gets traffic, and whenever it returns."""

    path: str
    method: Literal["GET", "POST"] = "GET"
    body: str = ""
    content_type: str = "application/json"
    timeout_ms: Millis = 30_000.0


class Profile(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """Other numbers between two times of the day, in a time zone that is always told. The first that fits counts.

    begin after end: over midnight; days are then those on which it begins.
    """

    timezone: str
    begin: str
    end: str
    days: list[str] = msgspec.field(default_factory=lambda: list(DAYS))
    max_batch: CountOrNone = 0
    depth: CountOrNone = 0
    max_wait_ms: Millis = 0.0


class ServiceSettings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """One service. 0 or "" stand for: not told, and then computed, found, or left out.

    path: of a list, the whole one; of ``openai`` and ``pass``, the beginning. model: of ``oip``, the only one served.
    batch: False to only queue and limit. one_ms, full_batch_ms: how long a batch of one, and a full one, takes.
    limit: requests in flight per replica, where the gateway does not batch; batches in flight, where it does.
    idempotent: a repeat does no harm, so what may have been executed may be tried again.
    replicas, kubernetes: addresses, or the Service whose endpoints they are; one of the two.
    scrape_path: where a replica tells how full it is itself.
    """

    name: str
    kind: Literal["oip", "openai", "list", "pass"]
    replicas: list[str] = msgspec.field(default_factory=list)
    kubernetes: KubernetesService | None = None
    path: str = ""
    model: str = ""
    hosts: list[str] = msgspec.field(default_factory=list)
    target_p99_ms: Millis = 0.0
    batch: bool = True
    max_batch: Count = 32
    max_batch_mib: Count = 8
    max_wait_ms: Millis = 0.0
    one_ms: Millis = 0.0
    full_batch_ms: Millis = 0.0
    depth: CountOrNone = 0
    limit: CountOrNone = 0
    first_limit: Count = 20
    idempotent: bool = False
    timeout_ms: Millis = 60_000.0
    silence_ms: Millis = 60_000.0
    connect_ms: Millis = 1_000.0
    keep_alive_s: Seconds = 4.0
    tenant_header: str = ""
    tenant_share: Share = 1.0
    priority_header: str = ""
    batch_headers: list[str] = msgspec.field(default_factory=lambda: ["authorization"])
    items_key: str = ""
    answers_key: str = ""
    warm_up: WarmUp | None = None
    probe_path: str = ""
    probe_every_ms: Millis = 2_000.0
    probe_timeout_ms: Millis = 1_000.0
    fail_after: Count = 3
    scrape_path: str = ""
    scrape_every_ms: Annotated[float, msgspec.Meta(ge=100, le=3_600_000)] = EVERY_SCRAPE_MS
    retry_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2
    retries_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 10.0
    profiles: list[Profile] = msgspec.field(default_factory=list)

    @property
    def batches(self) -> bool:
        """Whether the gateway makes batches of its requests."""
        return self.batch and self.kind in {"oip", "list"}

    @property
    def target_s(self) -> float | None:
        """The P99 that its callers shall see."""
        return self.target_p99_ms / 1000 or None


class Settings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """The gateway's. drain_delay_s: after SIGTERM, still serve for so long, while ``/readyz`` says no."""

    services: list[ServiceSettings] = msgspec.field(default_factory=list)
    kubernetes: Kubernetes | None = None
    host: str = "0.0.0.0"  # noqa: S104 - it is what clients come to
    port: Port = 8080
    admin_host: str = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus come from elsewhere
    admin_port: Port = 9090
    drain_s: Seconds = 30.0
    drain_delay_s: Seconds = 0.0
    max_connections: Count = 16384
    max_body_mib: Count = 16
    max_buffered_mib: Count = 512
    max_headers: Count = 100
    idle_s: Seconds = 75.0
    head_s: Seconds = 10.0
    body_s: Seconds = 60.0
    write_s: Seconds = 30.0

    @property
    def needs_cluster(self) -> bool:
        """Whether a cluster says which replicas there are."""
        return self.kubernetes is not None or any(each.kubernetes is not None for each in self.services)


# ---------------------------------------------------------------- what follows from them


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers of one hour."""

    depth: int
    policy: BatchPolicy


def plan_at(service: ServiceSettings, now: datetime, replicas: int = 0) -> Plan:
    """The numbers at a moment, which needs a time zone of its own. replicas: how many there are now; 0: as told."""
    return plan_of(service, next((each for each in service.profiles if _fits(each, now)), None), replicas)


def plan_of(service: ServiceSettings, profile: Profile | None = None, replicas: int = 0) -> Plan:
    """The numbers under a profile, or outside all."""
    replicas = replicas or len(service.replicas) or 1
    max_batch = (profile and profile.max_batch) or service.max_batch
    max_wait_ms = (profile and profile.max_wait_ms) or service.max_wait_ms
    depth = (profile and profile.depth) or service.depth or _usual_depth(service, max_batch, replicas)
    return Plan(depth, _policy(service, max_batch, max_wait_ms / 1000 or math.inf))


def full_batch_s(service: ServiceSettings, max_batch: int) -> float:
    """How long a full batch takes, on the line through the two that are told; 0 if they are not."""
    if service.full_batch_ms <= 0:
        return 0.0
    one_ms = service.one_ms or service.full_batch_ms / service.max_batch
    each_ms = (service.full_batch_ms - one_ms) / max(service.max_batch - 1, 1)
    return max(one_ms + each_ms * (max_batch - 1), 0.0) / 1000


def _usual_depth(service: ServiceSettings, max_batch: int, replicas: int) -> int:
    """SPEC D1 where rate and target are known; else a few full batches, or a moderate number."""
    if not service.batches:
        return USUAL_DEPTH * replicas
    batch_s, target_s = full_batch_s(service, max_batch), service.target_s
    if not batch_s or target_s is None:
        return 3 * max_batch * replicas
    return depth_for(target_s, max_batch / batch_s, max_batch) * replicas


def _policy(service: ServiceSettings, max_batch: int, max_wait_s: float) -> BatchPolicy:
    full_s = full_batch_s(service, max_batch)
    if service.one_ms and full_s:
        return BatchPolicy.scaled(max_batch, service.one_ms / 1000, full_s, max_wait_s=max_wait_s)
    return BatchPolicy(max_batch, USUAL_GAP_S, USUAL_CAP_S, max_wait_s)


def _fits(profile: Profile, now: datetime) -> bool:
    local = now.astimezone(ZoneInfo(profile.timezone))
    begin, end = time.fromisoformat(profile.begin), time.fromisoformat(profile.end)
    clock, day = local.time().replace(tzinfo=None), local.weekday()
    if begin < end:
        return begin <= clock < end and DAYS[day] in profile.days
    if clock >= begin:
        return DAYS[day] in profile.days
    return clock < end and DAYS[day - 1] in profile.days


# ---------------------------------------------------------------- what is wrong with them


def read_settings(path: Path) -> Settings:
    """Read and check the file. Raises InputError that names every key that is wrong."""
    settings = read_settings_file(path, WANT, Settings)
    wrong = list(faults_of(settings))
    if wrong:
        raise InputError(str(path), "\n".join(f"{key}: {what}" for key, what in wrong))
    return settings


def faults_of(settings: Settings) -> Iterator[tuple[str, str]]:
    """Keys with what is wrong."""
    names: set[str] = set()
    if not settings.services and settings.kubernetes is None:
        yield "services", "there is none; write [[services]], or [kubernetes] for Services that opt in"
    if settings.kubernetes is not None:
        yield from cluster_faults(settings.kubernetes)
        yield from _default_faults(settings.kubernetes)
    for service in settings.services:
        if not _NAME.fullmatch(service.name):
            yield "services.name", f"{seen(service.name)} is no name; write letters, digits, '-', '_' and '.'"
        if service.name in names:
            yield "services.name", f"{seen(service.name)} is there twice; give each service its own"
        names.add(service.name)
        for key, what in faults_of_service(service):
            yield f"services.{service.name}.{key}", what


def faults_of_service(service: ServiceSettings) -> Iterator[tuple[str, str]]:
    """Keys of one service with what is wrong."""
    if bool(service.replicas) == (service.kubernetes is not None):
        yield "replicas", "write either addresses, or kubernetes: the Service whose endpoints they are"
    if service.kubernetes is not None:
        yield from service_faults(service.kubernetes)
    yield from (("replicas", what) for url in service.replicas if (what := url_fault(url)) is not None)
    yield from _path_faults(service)
    yield from _name_faults(service)
    yield from _time_faults(service)
    for profile in service.profiles:
        yield from _profile_faults(profile)
    for each in (None, *service.profiles):
        yield from _target_faults(service, each)


def _path_faults(service: ServiceSettings) -> Iterator[tuple[str, str]]:
    if service.kind == "list" and not service.path:
        yield "path", "a list needs one: write where it is taken, such as /predict"
    warm_up = "" if service.warm_up is None else service.warm_up.path
    paths = {"path": service.path, "probe-path": service.probe_path, "scrape-path": service.scrape_path}
    for key, path in {**paths, "warm-up.path": warm_up}.items():
        if path and not (path.startswith("/") and path.isprintable() and path.isascii() and " " not in path):
            yield key, f"{seen(path)} is no path; it begins with / and has no spaces"


def _name_faults(service: ServiceSettings) -> Iterator[tuple[str, str]]:
    for key, name in (("tenant-header", service.tenant_header), ("priority-header", service.priority_header)):
        if name and not _HEADER.fullmatch(name):
            yield key, f"{seen(name)} is no header's name in lower case"
    if service.tenant_share < 1 and not service.tenant_header:
        yield "tenant-share", "needs a tenant-header by which tenants are told apart"
    if bool(service.items_key) != bool(service.answers_key):
        yield "items-key", "goes with answers-key: where the list stands in the request, and in the answer"


def _time_faults(service: ServiceSettings) -> Iterator[tuple[str, str]]:
    """Two times make a line; one of them, or a line that falls, makes wrong numbers of all that follows from it."""
    one_ms, full_ms = service.one_ms, service.full_batch_ms
    if service.batches and one_ms and not full_ms:
        what = f"a batch of max-batch ({service.max_batch}) takes, as cardwise loadtest measures it"
        yield "one-ms", f"goes with full-batch-ms: write there how many ms {what}, or leave both out"
    if service.batches and full_ms and not one_ms:
        what = "a batch of one takes, as cardwise loadtest measures it"
        yield "full-batch-ms", f"goes with one-ms: write there how many ms {what}, or leave both out"
    if one_ms and full_ms and full_ms < one_ms:
        yield "full-batch-ms", f"is {full_ms:g}, less than one-ms, {one_ms:g}: write the time of a batch of max-batch"


def url_fault(url: str) -> str | None:
    """What is wrong with a replica's address, or None."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        fine, parts = False, urlsplit("")
    fine = fine and url.isascii() and url.isprintable() and " " not in url
    if fine and parts.path in {"", "/"} and not parts.query and not parts.username:
        return None
    return f"{seen(url)} is no address of a replica; write http://host:port"


def _profile_faults(profile: Profile) -> Iterator[tuple[str, str]]:
    try:
        ZoneInfo(profile.timezone)
    except (KeyError, ValueError, OSError):
        yield "profiles.timezone", f"{seen(profile.timezone)} is no time zone here; write one such as Europe/Berlin"
    for key, value in (("begin", profile.begin), ("end", profile.end)):
        if not _TIME.fullmatch(value):
            yield f"profiles.{key}", f"{seen(value)} is no time of the day; write 00:00 to 23:59"
    if profile.begin == profile.end:
        yield "profiles.end", f"is the same as begin ({profile.begin}): the profile would never fit"
    if not profile.days:
        yield "profiles.days", "is empty: the profile would never fit; write days, or leave it out for all of them"
    for day in profile.days:
        if day not in DAYS:
            yield "profiles.days", f"{seen(day)} is no day; write {', '.join(DAYS)}"


def _target_faults(service: ServiceSettings, profile: Profile | None) -> Iterator[tuple[str, str]]:
    """Where the numbers of an hour contradict its target. What is not told is not refused."""
    target_s = service.target_s
    if target_s is None or not service.batches:
        return
    plan, where = plan_of(service, profile), "" if profile is None else f"profiles ({profile.begin}): "
    batch_s = full_batch_s(service, plan.policy.max_batch)
    if batch_s:
        # what one replica has to work off if all share the backlog alike
        mine = math.ceil(plan.depth / len(service.replicas)) if service.replicas else _depth_of_one(service, plan)
        if (what := check(mine, plan.policy.max_batch, batch_s, target_s)) is not None:
            yield "depth", f"{where}per replica, {what}"
    if plan.policy.max_wait_s < math.inf and (what := check_wait(plan.policy.max_wait_s, target_s)) is not None:
        yield "max-wait-ms", f"{where}{what}"


def _depth_of_one(service: ServiceSettings, plan: Plan) -> int:
    """Of one replica where their number is the cluster's: a depth that is told is for all of them, however many."""
    told = {service.depth, *(each.depth for each in service.profiles)}
    return plan.policy.max_batch if plan.depth in told else plan.depth


def _default_faults(told: Kubernetes) -> Iterator[tuple[str, str]]:
    """What is wrong with the defaults, whoever opts in."""
    own = [key for key in ("name", "replicas", "kubernetes") if key in told.defaults]
    yield from ((f"kubernetes.defaults.{key}", "is each Service's own; leave it out") for key in own)
    if own:
        return
    somewhere = {"namespace": "a", "service": "b"}
    given = {"kind": "pass", "path": "/x", **told.defaults, "name": "x", "kubernetes": somewhere}
    try:
        service = converted(given, ServiceSettings)
    except MisfitError as error:
        yield f"kubernetes.defaults.{error.key}", str(error)
        return
    yield from ((f"kubernetes.defaults.{key}", what) for key, what in faults_of_service(service))
