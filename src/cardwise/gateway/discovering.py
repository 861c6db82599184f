"""Follows a cluster: which Services this gateway stands before, and which replicas they have.

1. follow the EndpointSlices of the Services that the settings name, and of the namespaces where Services may opt in;
2. there, follow the Services too: one that opts in becomes a service, one that no longer does drains;
3. keep each service's replicas as its endpoints are.

Refuses to forget: while the API server is away, and until it has told everything anew, what it said last holds.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import structlog

from cardwise.adapters import kube_objects as kube
from cardwise.adapters import wire
from cardwise.adapters.endpoints import places_of, port_of
from cardwise.adapters.kube.port import All, EndpointPort, Gone, Listing, Lost, Put, Resumed
from cardwise.gateway.cluster_settings import ALL, KubernetesService
from cardwise.gateway.membership import Membership
from cardwise.gateway.metrics import ClusterCounts
from cardwise.gateway.opting import Key, is_ours, opted_in
from cardwise.gateway.server import Front
from cardwise.gateway.service import Service
from cardwise.gateway.settings import ServiceSettings, Settings
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

TICK_S = 0.1
SETTLE_S = 1.0
"""From one start of a Service's service to the next: each start warms up all its replicas, and whoever may write an
annotation may write it a hundred times a second. The last word counts."""
_ObjectT = TypeVar("_ObjectT", kube.Service, kube.EndpointSlice)
_Event: TypeAlias = All[_ObjectT] | Put[_ObjectT] | Gone[_ObjectT]


class Slices:
    """EndpointSlices by their Service."""

    def __init__(self) -> None:
        self._all: dict[Key, kube.EndpointSlice] = {}
        self._of: dict[Key, dict[Key, kube.EndpointSlice]] = {}

    def of(self, service: Key) -> list[kube.EndpointSlice]:
        """All of one Service."""
        return list(self._of.get(service, {}).values())

    def put(self, each: kube.EndpointSlice) -> set[Key]:
        """One that is new or changed; the Services whose slices are others now."""
        changed = self.drop(each)
        if service := each.metadata.labels.get(wire.LABEL_SERVICE_NAME):
            owner = each.metadata.namespace, service
            self._all[_key(each)] = each
            self._of.setdefault(owner, {})[_key(each)] = each
            changed.add(owner)
        return changed

    def drop(self, each: kube.EndpointSlice) -> set[Key]:
        """One that is gone."""
        old = self._all.pop(_key(each), None)
        if old is None:
            return set()
        owner = _owner(old)
        del self._of[owner][_key(each)]
        if not self._of[owner]:
            del self._of[owner]
        return {owner}

    def reset(self, slices: Iterable[kube.EndpointSlice], is_old: Callable[[Key], bool]) -> set[Key]:
        """All there are of those that ``is_old`` says were told by the same stream, by their Services."""
        told = {_key(each) for each in slices}
        gone = [each for each in self._all.values() if _key(each) not in told and is_old(_owner(each))]
        return {key for each in gone for key in self.drop(each)} | {key for each in slices for key in self.put(each)}


@dataclass(eq=False, slots=True)
class Running:
    """A service whose replicas are a Service's endpoints. successor: it with other settings, until that is ready."""

    service: Service
    at: KubernetesService
    membership: Membership
    successor: Running | None = None

    @classmethod
    def of(cls, service: Service) -> Running:
        """Of a service that the settings give a Service."""
        at = service.settings.kubernetes
        assert at is not None  # noqa: S101
        return cls(service, at, Membership(service.members))

    @property
    def key(self) -> Key:
        """Of its Service."""
        return self.at.namespace, self.at.service


@dataclass(eq=False, slots=True)
class Discovery:
    """What the cluster said last, and the services that follow from it.

    breaks: of watches, by namespace. Rising: the API server is away, and replicas are as they were told last.
    refused: why Services that want to be served are not.
    """

    settings: Settings
    front: Front
    fixed: Sequence[Service]
    refused: dict[Key, str] = field(default_factory=dict)
    breaks: Counter[str] = field(default_factory=Counter)
    _slices: Slices = field(default_factory=Slices)
    _services: dict[Key, kube.Service] = field(default_factory=dict)
    _named: list[Running] = field(default_factory=list)
    _joined: dict[Key, Running] = field(default_factory=dict)
    _leaving: list[Running] = field(default_factory=list)
    _unheard: set[str] = field(default_factory=set)
    _begun_s: dict[Key, float] = field(default_factory=dict)
    _settling: dict[Key, ServiceSettings] = field(default_factory=dict)
    _reconciled_s: float = -math.inf
    _is_stale: bool = False
    _said: Said = field(default_factory=lambda: Said(most=MOST_REMEMBERED))

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        self._named = [Running.of(each) for each in self.fixed if each.settings.kubernetes is not None]
        self._unheard = set(self._open)
        self.breaks.update({namespace or ALL: 0 for namespace in (*self._open, *self._told_by_name())})
        self.front.is_synced = not self._unheard

    @property
    def _open(self) -> list[str]:
        """Namespaces where Services may opt in; one "" for all."""
        told = self.settings.kubernetes
        if told is None:
            return []
        return [""] if ALL in told.namespaces else sorted(set(told.namespaces))

    # ---------------------------------------------------------------- streams

    async def follow(self, port: EndpointPort) -> None:
        """Read all streams until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for namespace in self._open:
                tasks.create_task(self._read_services(port, namespace))
                tasks.create_task(self._read_slices(port, namespace))
            for namespace, services in self._told_by_name().items():
                tasks.create_task(self._read_slices(port, namespace, services))
            tasks.create_task(self._tick())

    def _told_by_name(self) -> dict[str, frozenset[str]]:
        """Services that the settings name and no stream of a whole namespace tells of, by namespace."""
        found: dict[str, set[str]] = {}
        for each in self._named:
            if not {"", each.at.namespace} & set(self._open):
                found.setdefault(each.at.namespace, set()).add(each.at.service)
        return {namespace: frozenset(services) for namespace, services in found.items()}

    async def _read_slices(self, port: EndpointPort, namespace: str, services: frozenset[str] = frozenset()) -> None:
        def is_own(owner: Key) -> bool:
            return namespace in {"", owner[0]} and (not services or owner[1] in services)

        async for event in self._told(port.follow_slices(namespace, services), namespace, "endpoint slices"):
            changed: set[Key] = set()
            match event:
                case All(slices):
                    changed = self._slices.reset(slices, is_own)
                case Put(each):
                    changed = self._slices.put(each)
                case Gone(each):
                    changed = self._slices.drop(each)
            for running in self._all_running():
                if running.key in changed:
                    self._hear(running)

    async def _read_services(self, port: EndpointPort, namespace: str) -> None:
        async for event in self._told(port.follow_services(namespace), namespace, "services"):
            match event:
                case All(services):
                    kept = {key: each for key, each in self._services.items() if namespace not in {"", key[0]}}
                    self._services = kept
                    for each in services:
                        self._put_service(each)
                    self._unheard.discard(namespace)
                    self._reconcile()
                    self.front.is_synced = not self._unheard
                case Put(each):
                    self._is_stale |= self._put_service(each)
                case Gone(each):
                    self._is_stale |= self._services.pop(_key(each), None) is not None
            if self._is_stale and time.monotonic() - self._reconciled_s >= TICK_S:  # else with the next tick
                self._reconcile()

    async def _told(
        self, events: AsyncIterator[_Event[_ObjectT] | Listing | Lost | Resumed], where: str, what: str
    ) -> AsyncIterator[_Event[_ObjectT]]:
        """What says something of the objects."""
        async for event in events:
            if isinstance(event, Lost):
                self.breaks[where or ALL] += 1
                if self._said.is_news((what, where), event.why):
                    log.warning("the watch broke; replicas stay as they are", what=what, namespace=where, why=event.why)
            elif not isinstance(event, Listing | Resumed):
                yield event

    def _put_service(self, each: kube.Service) -> bool:
        """Whether that changes anything: most Services of a cluster are not ours."""
        told = self.settings.kubernetes
        if told is None or not is_ours(each, told):
            return self._services.pop(_key(each), None) is not None
        before = self._services.get(_key(each))
        self._services[_key(each)] = each
        return before != each

    # ---------------------------------------------------------------- services

    def _reconcile(self) -> None:
        """Serve those that opted in, by what they say now."""
        self._reconciled_s, self._is_stale = time.monotonic(), False
        told = self.settings.kubernetes
        assert told is not None  # noqa: S101 - nobody opts in without it
        wanted, refused = opted_in(self._services.values(), told, [each.settings for each in self.fixed])
        for key, why in refused.items():
            if self.refused.get(key) != why:
                log.warning("a Service cannot be served", namespace=key[0], name=key[1], why=why)
        self.refused = refused
        for key in self._joined.keys() - wanted.keys():
            self._retire(self._joined.pop(key))
        for key in self._settling.keys() - wanted.keys():
            del self._settling[key]
        for key, settings in wanted.items():
            self._want(key, settings)
        self._serve()

    def _want(self, key: Key, settings: ServiceSettings) -> None:
        self._settling.pop(key, None)
        running = self._joined.get(key)
        if running is not None:
            latest = running.successor or running
            if latest.service.settings == settings:
                return
            if running.successor is not None:
                self._retire(running.successor)
                running.successor = None
            if running.service.settings == settings:
                return
        if time.monotonic() - self._begun_s.get(key, -math.inf) < SETTLE_S:
            self._settling[key] = settings
        elif running is None:
            self._joined[key] = self._begin(key, settings)
        else:
            running.successor = self._begin(key, settings)

    def _settle(self, now_s: float) -> None:
        """Begin what had to wait for its turn."""
        self._begun_s = {key: at_s for key, at_s in self._begun_s.items() if now_s - at_s < SETTLE_S}
        settled = [key for key in self._settling if key not in self._begun_s]
        for key in settled:
            self._want(key, self._settling[key])
        if settled:
            self._serve()

    def _begin(self, key: Key, settings: ServiceSettings) -> Running:
        log.info("service joins", service=settings.name)
        self._begun_s[key] = time.monotonic()
        service = Service(settings)
        service.start()
        running = Running.of(service)
        self._hear(running)
        return running

    def _retire(self, running: Running) -> None:
        """It hears of no more changes, so that who waits is served by the replicas it has."""
        log.info("service drains", service=running.service.settings.name)
        self._leaving.append(running)
        if running.successor is not None:
            self._retire(running.successor)

    def _serve(self) -> None:
        self.front.serve([*self.fixed, *(each.service for _, each in sorted(self._joined.items()))])

    # ---------------------------------------------------------------- replicas

    def _all_running(self) -> list[Running]:
        joined = [each for one in self._joined.values() for each in (one, one.successor) if each is not None]
        return [*self._named, *joined]

    def _hear(self, running: Running) -> None:
        slices, port = self._slices.of(running.key), str(running.at.port)
        if any(each.endpoints for each in slices) and all(port_of(each, port) is None for each in slices):
            name = running.service.settings.name
            if self._said.is_news(name, port):
                log.warning("no endpoint has the port, so there is no replica", service=name, port=port)
        running.membership.hear(places_of(slices, port))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            for running in self._all_running():
                running.membership.tick(TICK_S)  # however late it comes
            self._succeed()
            if self._is_stale:
                self._reconcile()
            self._settle(now_s)
            for running in [each for each in self._leaving if each.service.is_idle]:
                self._leaving.remove(running)
                await running.service.close()
                log.info("service is gone", service=running.service.settings.name)

    def _succeed(self) -> None:
        """New settings count once a replica has been warmed up under them, or where nothing is lost."""
        for key, running in self._joined.items():
            later = running.successor
            if later is not None and (later.service.is_ready or not running.service.is_ready):
                running.successor = None
                self._joined[key] = later
                self._retire(running)
                self._serve()

    def counts(self) -> ClusterCounts:
        """For metrics."""
        return ClusterCounts(self.breaks, len(self.refused))

    async def close(self) -> None:
        """End all that joined; what is in flight is not answered."""
        for running in (*(each for each in self._all_running() if each not in self._named), *self._leaving):
            await running.service.close()


def _key(each: kube.Service | kube.EndpointSlice) -> Key:
    return each.metadata.namespace, each.metadata.name


def _owner(each: kube.EndpointSlice) -> Key:
    return each.metadata.namespace, each.metadata.labels[wire.LABEL_SERVICE_NAME]
