"""A live cluster, and Prometheus, read once into a capture. Reads only; what may not be read is a gap.

Pages of lists come from the API server's cache. Refuses to fail because one kind is forbidden: nodes and pods must be
there, all else is said to be missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Protocol, TypeVar

import msgspec

from cardwise.adapters.capture import Beside, Capture, Measured, Series
from cardwise.adapters.kube.shallow import decode_object
from cardwise.adapters.kube_objects import EndpointSlice
from cardwise.adapters.prometheus import Prometheus
from cardwise.adapters.symptoms import (
    Event,
    Lease,
    RuntimeClass,
    Symptom,
    TlsSecret,
    ToldNode,
    ToldPod,
    ToldWorkload,
    WebhookConfiguration,
)
from cardwise.doctor.queries import QUERIES, STEP_S, WINDOW_S
from cardwise.errors import ClusterError, NotFoundError, UserError

PAGE, LIST_TIMEOUT_S = 500, 30.0
AT_ONCE = 4
"""Questions to Prometheus at a time: it serves dashboards besides."""
_T = TypeVar("_T", bound=Symptom)


class Api(Protocol):
    """The part of a client that is used."""

    async def request(
        self, method: str, path: str, *, timeout_s: float = ..., params: Mapping[str, str] | None = ...
    ) -> bytes:
        """One answer."""
        ...

    async def date(self) -> str:
        """The API server's clock, as its answers' ``Date`` has it."""
        ...


def paths(namespace: str) -> tuple[tuple[str, str, type[Symptom], Mapping[str, str]], ...]:
    """Kind, path, how it is decoded, and parameters. namespace: where cardwise is installed."""
    ours = f"namespaces/{namespace}"
    return (
        ("Node", "/api/v1/nodes", ToldNode, {}),
        ("Pod", "/api/v1/pods", ToldPod, {}),
        ("Event", "/api/v1/events", Event, {}),
        ("Lease", f"/apis/coordination.k8s.io/v1/{ours}/leases", Lease, {}),
        ("Lease", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", Lease, {}),
        ("EndpointSlice", f"/apis/discovery.k8s.io/v1/{ours}/endpointslices", EndpointSlice, {}),
        (
            "MutatingWebhookConfiguration",
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            WebhookConfiguration,
            {},
        ),
        ("RuntimeClass", "/apis/node.k8s.io/v1/runtimeclasses", RuntimeClass, {}),
        ("Workload", "/apis/kueue.x-k8s.io/v1beta2/workloads", ToldWorkload, {}),
        ("Secret", f"/api/v1/{ours}/secrets", TlsSecret, {"fieldSelector": "type=kubernetes.io/tls"}),
    )


class _Meta(msgspec.Struct, rename="camel"):
    next: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    items: list[msgspec.Raw] | None = None
    metadata: _Meta = msgspec.field(default_factory=_Meta)


async def gather(api: Api, namespace: str, prometheus: Prometheus | None, now: datetime) -> Capture:
    """Everything that may be read. now: this machine's. Raises ClusterError if nodes or pods may not."""
    items, kinds, gaps = list[Symptom](), set[str](), list[str]()
    for kind, path, decoded, params in paths(namespace):
        try:
            items += await _list(api, path, decoded, params)
            kinds.add(kind)
        except NotFoundError:
            if kind != "Workload":  # Kueue is not installed
                gaps.append(f"{path} is not there")
        except ClusterError as exc:
            if kind in {"Node", "Pod"}:
                raise
            gaps.append(f"{kind}: {exc}")
    taken = parsedate_to_datetime(await api.date())
    measured = None
    if prometheus is not None:
        measured = await measure(prometheus, now)
    off = (datetime.now(UTC) - taken).total_seconds()
    return Capture(tuple(items), Beside(taken, round(off, 1), measured, gaps), frozenset(kinds))


async def _list(api: Api, path: str, kind: type[_T], params: Mapping[str, str]) -> list[_T]:
    items, going = list[_T](), ""
    while True:
        asked = {**params, "limit": str(PAGE), **({"continue": going} if going else {})}
        content = await api.request("GET", path, params=asked, timeout_s=LIST_TIMEOUT_S)
        try:
            page = decode_object(content, _Page)
            items += [decode_object(raw, kind) for raw in page.items or ()]
        except msgspec.DecodeError as exc:
            raise ClusterError(f"GET {path}: {exc}", retry=False) from exc
        going = page.metadata.next
        if not going:
            return items


async def measure(prometheus: Prometheus, now: datetime) -> Measured:
    """Ask everything of ``queries.py``. What one question fails for is a gap; nobody answers at all: ClusterError."""
    begin = now - timedelta(seconds=WINDOW_S)
    turn, gaps = asyncio.Semaphore(AT_ONCE), list[str]()

    async def one(query: str) -> list[Series] | ClusterError:
        async with turn:
            try:
                found = await prometheus.range(query, begin, now, STEP_S)
            except UserError as exc:
                return ClusterError(str(exc), retry=False)
            except ClusterError as exc:
                return exc
        return [
            Series(dict(each.labels), [None if value != value else float(value) for value in each.values])  # noqa: PLR0124 - NaN
            for each in found
        ]

    answers = await asyncio.gather(*(one(query) for query in QUERIES.values()))
    results = dict[str, list[Series]]()
    for name, answer in zip(QUERIES, answers, strict=True):
        if isinstance(answer, ClusterError):
            gaps.append(f"Prometheus, {name}: {answer}")
        else:
            results[name] = answer
    if not results:
        raise next(each for each in answers if isinstance(each, ClusterError))
    empty = [name for name in ("qps", "card_busy_pct", "pod_cpu_cores") if not results.get(name)]
    if empty:
        gaps.append(f"Prometheus has no series for {', '.join(empty)}: checks that need them saw nothing")
    return Measured(begin, STEP_S, results, gaps)
