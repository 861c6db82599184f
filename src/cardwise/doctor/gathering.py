"""A live cluster, and Prometheus, read once into a capture. Changes nothing; what may not be read is a gap.

Refuses to fail because one kind is forbidden, or Prometheus is what is broken: nodes and pods must be there, all else
is said to be missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Protocol

import msgspec
import numpy as np

from cardwise.adapters.capture import Beside, Capture, Measured, Series
from cardwise.adapters.kube.port import Requests
from cardwise.adapters.kube.shallow import decode_object
from cardwise.adapters.prometheus import Prometheus
from cardwise.adapters.symptoms import KINDS, Symptom
from cardwise.core.arrays import FloatArray
from cardwise.doctor.queries import ENDS_ONLY, QUERIES, STEP_S, WINDOW_S
from cardwise.doctor.trying import hooks_of, try_webhook
from cardwise.errors import ClusterError, ExpiredError, NotFoundError, UserError

PAGE, LIST_TIMEOUT_S = 500, 30.0
TRIES, AGAIN_S = 3, 0.5
"""Of each page, and of a list whose place the API server has forgotten: a cluster that is looked at is seldom well."""
NAMESPACE = "cardwise-system"
"""Where cardwise is installed, if neither the user nor its webhook's configuration says another."""
HOOKS = "MutatingWebhookConfiguration"
AT_ONCE = 4
"""Questions to Prometheus at a time: it serves dashboards besides."""


class Api(Requests, Protocol):
    """The part of a client that is used."""

    async def date(self) -> str:
        """The API server's clock, as its answers' ``Date`` has it."""
        ...


def paths(namespace: str) -> tuple[tuple[str, str, Mapping[str, str]], ...]:
    """Kind, path, and parameters. namespace: where cardwise is installed.

    Leases last: their ages are counted from when all was listed, and a slow cluster would make its nodes silent.
    """
    ours = f"namespaces/{namespace}"
    return (
        (HOOKS, "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", {}),
        ("Node", "/api/v1/nodes", {}),
        ("Pod", "/api/v1/pods", {}),
        ("Event", "/api/v1/events", {"fieldSelector": "type=Warning"}),
        ("EndpointSlice", f"/apis/discovery.k8s.io/v1/{ours}/endpointslices", {}),
        ("RuntimeClass", "/apis/node.k8s.io/v1/runtimeclasses", {}),
        ("Workload", "/apis/kueue.x-k8s.io/v1beta2/workloads", {}),
        ("Secret", f"/api/v1/{ours}/secrets", {"fieldSelector": "type=kubernetes.io/tls"}),
        ("Lease", f"/apis/coordination.k8s.io/v1/{ours}/leases", {}),
        ("Lease", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", {}),
    )


class _Meta(msgspec.Struct, rename="camel"):
    next: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    items: list[msgspec.Raw] | None = None
    metadata: _Meta = msgspec.field(default_factory=_Meta)


async def gather(api: Api, namespace: str | None, prometheus: Prometheus | None, now: datetime) -> Capture:
    """Everything that may be read, and whether the webhook answers. Raises ClusterError if nodes or pods may not.

    namespace: where cardwise is installed; None: where its webhook's configuration says. now: this machine's.
    """
    items, kinds, gaps = list[Symptom](), set[str](), list[str]()
    for i in range(len(paths(NAMESPACE))):
        kind, path, params = paths(namespace or _installed_in(items) or NAMESPACE)[i]
        try:
            items += await _list(api, path, KINDS[kind], params)
            kinds.add(kind)
        except NotFoundError:
            if kind != "Workload":  # Kueue is not installed
                gaps.append(f"{path} is not there")
        except ClusterError as exc:
            if kind in {"Node", "Pod"}:
                raise _told(exc) from exc
            gaps.append(f"{kind}: {exc}")
    installed = _installed_in(items)
    if namespace and installed and namespace != installed:
        gaps.append(f"cardwise is installed in {installed}: leave --namespace {namespace} out to have it looked at")
    asked = datetime.now(UTC)
    taken = parsedate_to_datetime(await api.date())
    off_s = _least_off_s(asked, taken, datetime.now(UTC))
    tried, why = await try_webhook(api, items)
    measured = None
    try:
        measured = None if prometheus is None else await measure(prometheus, now)
    except ClusterError as exc:
        gaps.append(f"{exc}: latency, load and limits in force were not looked at")
    gaps += [why] if why else []
    return Capture(tuple(items), Beside(taken, round(off_s, 1), measured, tried, gaps), frozenset(kinds))


def _least_off_s(asked: datetime, date: datetime, heard: datetime) -> float:
    """By how much our clock goes before the API server's at least; below zero behind it.

    The date is of some moment in between, cut to its second: an answer that comes late is no clock that is off.
    """
    ahead_s, most_s = (asked - date).total_seconds() - 1.0, (heard - date).total_seconds()
    return ahead_s if ahead_s > 0 else min(most_s, 0.0)


def _told(error: ClusterError) -> ClusterError:
    """With what to do, where it is the user's rights that are short."""
    if f": {HTTPStatus.FORBIDDEN.value}: " not in str(error):
        return error
    return ClusterError(
        f"{error}; doctor needs the right to list nodes and pods: kubectl auth can-i list nodes", retry=False
    )


def _installed_in(items: Iterable[Symptom]) -> str:
    """The namespace that our webhook's configuration names; empty if it names none."""
    services = [hook.client_config.service for each in hooks_of(items) for hook in each.webhooks]
    return next((each.namespace for each in services if each is not None), "")


async def _list(api: Api, path: str, kind: type[Symptom], params: Mapping[str, str]) -> list[Symptom]:
    """All pages, from the beginning again where the API server has forgotten the place in between."""
    for _ in range(TRIES - 1):
        try:
            return await _pages(api, path, kind, params)
        except ExpiredError:
            continue
    return await _pages(api, path, kind, params)


async def _page(api: Api, path: str, params: Mapping[str, str]) -> bytes:
    for _ in range(TRIES - 1):
        try:
            return await api.request("GET", path, params=params, timeout_s=LIST_TIMEOUT_S)
        except ClusterError as exc:
            if not exc.retry or isinstance(exc.__cause__, Exception):  # it has said nothing: it will not the next time
                raise
            await asyncio.sleep(AGAIN_S)
    return await api.request("GET", path, params=params, timeout_s=LIST_TIMEOUT_S)


async def _pages(api: Api, path: str, kind: type[Symptom], params: Mapping[str, str]) -> list[Symptom]:
    items, going = list[Symptom](), ""
    while True:
        content = await _page(api, path, {**params, "limit": str(PAGE), **({"continue": going} if going else {})})
        try:
            page = decode_object(content, _Page)
            items += [decode_object(raw, kind) for raw in page.items or ()]
        except msgspec.DecodeError as exc:
            raise ClusterError(f"GET {path}: {exc}", retry=False) from exc
        going = page.metadata.next
        if not going:
            return items


def _spread(values: FloatArray) -> FloatArray:
    """On the window's grid, float64 [T]: what was asked at its ends only is unknown in between."""
    steps = int(WINDOW_S / STEP_S) + 1
    if len(values) == steps:
        return values
    made = np.full(steps, np.nan)
    made[0], made[-1] = values[0], values[-1]
    return made


async def measure(prometheus: Prometheus, now: datetime) -> Measured:
    """Ask everything of ``queries.py``. What one question fails for is a gap; nobody answers at all: ClusterError."""
    begin = now - timedelta(seconds=WINDOW_S)
    turn, gaps, failed = asyncio.Semaphore(AT_ONCE), list[str](), list[ClusterError]()
    answered, warned = False, set[str]()

    async def one(name: str, query: str) -> list[Series] | ClusterError:
        nonlocal answered
        async with turn:
            if len(failed) >= AT_ONCE and not answered:
                return failed[0]  # it answers nothing: the other twenty need not wait as well
            try:
                found = await prometheus.range(query, begin, now, WINDOW_S if name in ENDS_ONLY else STEP_S)
                answered = True
                warned.update(text for each in found for text in each.warnings)
            except UserError as exc:
                return ClusterError(str(exc), retry=False)
            except ClusterError as exc:
                failed.append(exc)
                return exc
        return [Series(dict(each.labels), _spread(each.values)) for each in found]

    answers = await asyncio.gather(*(one(name, query) for name, query in QUERIES.items()))
    results = dict[str, list[Series]]()
    for name, answer in zip(QUERIES, answers, strict=True):
        if isinstance(answer, ClusterError):
            gaps.append(f"Prometheus, {name}: {answer}")
        else:
            results[name] = answer
    if not results:
        raise next(each for each in answers if isinstance(each, ClusterError))
    gaps += [f"Prometheus answered in part: {text}" for text in sorted(warned)]
    empty = [name for name in ("qps", "card_busy_pct", "pod_cpu_cores") if not results.get(name)]
    if empty:
        gaps.append(f"Prometheus has no series for {', '.join(empty)}: checks that need them saw nothing")
    return Measured(begin, STEP_S, results, gaps)
