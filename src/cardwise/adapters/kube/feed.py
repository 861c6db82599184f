"""List, then watch, for ever: the API server's objects as a stream that never ends and never lies for long.

A broken watch goes on where it broke; if that point is forgotten, all objects are listed again. Deletes that happened
meanwhile are in no event: who reads the stream takes :class:`All` for the whole truth.
Source: client-go's Reflector; research on watch semantics, KEP-956 (bookmarks).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.kube.port import All, Gone, Listing, Lost, Put, Resumed
from cardwise.adapters.kube.shallow import decode_object
from cardwise.adapters.kube_objects import EndpointSlice, LocalPod, Node, Pod, Service
from cardwise.errors import ClusterError, ExpiredError

PAGE = 500
LIST_TIMEOUT_S = 30.0
WATCH_S = 300
IDLE_S = 120.0
"""The API server sends a bookmark about every minute: silence for twice as long means that the connection is dead."""
BACKOFF_FIRST_S, BACKOFF_MOST_S = 0.2, 15.0

_ObjectT = TypeVar("_ObjectT", Pod, LocalPod, Node, Service, EndpointSlice)


@dataclass(frozen=True, slots=True)
class Resource(Generic[_ObjectT]):
    """What is followed: where it lies, which of it, and how it is decoded."""

    path: str
    kind: type[_ObjectT]
    field_selector: str = ""
    label_selector: str = ""


PODS = Resource("/api/v1/pods", Pod, "status.phase!=Succeeded,status.phase!=Failed")
NODES = Resource("/api/v1/nodes", Node)


def pods_on(node: str) -> Resource[LocalPod]:
    """Pods of one node that have not ended."""
    return Resource("/api/v1/pods", LocalPod, f"spec.nodeName={node},{PODS.field_selector}")


def services_in(namespace: str) -> Resource[Service]:
    """Services of a namespace; of all of them if it is empty."""
    return Resource(f"/api/v1/{_within(namespace)}services", Service)


def slices_in(namespace: str, services: Collection[str] = ()) -> Resource[EndpointSlice]:
    """EndpointSlices of a namespace, or of all of them if it is empty; only of these Services where some are named."""
    path = f"/apis/discovery.k8s.io/v1/{_within(namespace)}endpointslices"
    named = f"{wire.LABEL_SERVICE_NAME} in ({','.join(sorted(services))})" if services else ""
    return Resource(path, EndpointSlice, label_selector=named)


def _within(namespace: str) -> str:
    return f"namespaces/{namespace}/" if namespace else ""


class Transport(Protocol):
    """The part of the client that a feed uses."""

    async def request(
        self, method: str, path: str, *, timeout_s: float = ..., params: Mapping[str, str] | None = ...
    ) -> bytes:
        """One answer."""
        ...

    def stream(
        self, path: str, params: Mapping[str, str], idle_timeout_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A long answer."""
        ...


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next: str = msgspec.field(name="continue", default="")


class _Change(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


async def follow(
    api: Transport, resource: Resource[_ObjectT]
) -> AsyncIterator[All[_ObjectT] | Put[_ObjectT] | Gone[_ObjectT] | Listing | Lost | Resumed]:
    """Events of one resource. Ends only when it is cancelled."""
    version, failures, lost = "", 0, False
    while True:
        try:
            if not version:
                yield Listing()
                objects, version = await list_all(api, resource)
                yield All(objects)
                lost = False
            async for change in _watch(api, resource, version):
                if lost:
                    lost = False
                    yield Resumed()
                if change is not None:
                    version, failures = change.version, 0
                    if change.event is not None:
                        yield change.event
            await asyncio.sleep(BACKOFF_FIRST_S)
        except ExpiredError:
            version, failures = "", failures + 1
            await asyncio.sleep(backoff_s(failures))
        except ClusterError as exc:
            failures, lost = failures + 1, True
            yield Lost(str(exc))
            await asyncio.sleep(backoff_s(failures))


def backoff_s(failures: int) -> float:
    """How long to wait after so many failures in a row: doubling up to 15 s, and spread."""
    return random.uniform(0.5, 1.0) * min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 10))  # noqa: S311


async def list_all(api: Transport, resource: Resource[_ObjectT]) -> tuple[tuple[_ObjectT, ...], str]:
    """All objects, page by page, and the point in history from which to watch."""
    kind = _list_type(resource.kind)
    objects: list[_ObjectT] = []
    params = {"limit": str(PAGE), **_selector(resource)}
    while True:
        answer = await api.request("GET", resource.path, params=params, timeout_s=LIST_TIMEOUT_S)
        try:
            page = decode_object(answer, kind)
        except msgspec.DecodeError as exc:
            what = f"{resource.kind.__name__}List"
            raise ClusterError(f"the API server's answer is not a {what}: {exc}", retry=True) from exc
        objects += map(_slim, page.items)
        if not page.metadata.next:
            return tuple(objects), page.metadata.resource_version
        params["continue"] = page.metadata.next


def _slim(found: _ObjectT) -> _ObjectT:
    """Without annotations that nobody reads: some tools keep the whole manifest in one, and a list holds them all."""
    told = found.metadata.annotations
    kept = {name: text for name, text in told.items() if name.partition("/")[0] in wire.ANNOTATION_DOMAINS}
    msgspec.structs.force_setattr(found.metadata, "annotations", kept)
    return found


def _list_type(kind: type[_ObjectT]) -> Any:  # noqa: ANN401 - made at run time
    return msgspec.defstruct(f"{kind.__name__}List", [("metadata", _ListMeta), ("items", list[kind])])  # type: ignore[valid-type]


@dataclass(frozen=True, slots=True)
class _Seen(Generic[_ObjectT]):
    version: str
    event: Put[_ObjectT] | Gone[_ObjectT] | None


class _Bookmark(msgspec.Struct):
    """Only its version counts: the rest is an empty object, and a pod's has null for a list."""

    metadata: _ListMeta


async def _watch(api: Transport, resource: Resource[_ObjectT], version: str) -> AsyncIterator[_Seen[_ObjectT] | None]:
    """What is seen from a version on; first None, once the API server has agreed to tell."""
    params = {
        "watch": "true",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(random.randint(WATCH_S, 2 * WATCH_S)),  # noqa: S311 - so that watches do not end at once
        **_selector(resource),
    }
    async with api.stream(resource.path, params, IDLE_S) as chunks:
        yield None
        async for line in _lines(chunks):
            try:
                change = decode_object(line, _Change)
                seen = _seen(change, resource.kind)
            except msgspec.DecodeError as exc:
                raise ClusterError(f"GET {resource.path}: unreadable event: {exc}", retry=True) from exc
            yield seen


def _seen(change: _Change, kind: type[_ObjectT]) -> _Seen[_ObjectT]:
    if change.type == "ERROR":
        _raise_status(decode_object(change.object, _Status))
    if change.type == "BOOKMARK":
        return _Seen(decode_object(change.object, _Bookmark).metadata.resource_version, None)
    told = decode_object(change.object, kind)
    return _Seen(told.metadata.resource_version, _event(change.type, told))


def _event(kind: str, seen: _ObjectT) -> Put[_ObjectT] | Gone[_ObjectT] | None:
    if kind in {"ADDED", "MODIFIED"}:
        return Put(seen)
    return Gone(seen) if kind == "DELETED" else None


def _raise_status(status: _Status) -> None:
    if status.code == 410:
        raise ExpiredError(status.message, retry=True)
    raise ClusterError(status.message, retry=True)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _selector(resource: Resource[_ObjectT]) -> dict[str, str]:
    told = {"fieldSelector": resource.field_selector, "labelSelector": resource.label_selector}
    return {name: selector for name, selector in told.items() if selector}
