"""Services that opt in by annotation: what each is served by, and which may not be.

Nobody takes away by an annotation what another is asked: a path that a service of the file, or an older Service, serves
is taken. Refuses in words, one Service at a time: a wrong one does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cardwise.adapters import kube_objects as kube
from cardwise.adapters import wire
from cardwise.gateway.cluster_settings import Kubernetes, told_by
from cardwise.gateway.routes import Route, route_of
from cardwise.gateway.settings import ServiceSettings, faults_of_service
from cardwise.settings_file import MisfitError, converted

Key = tuple[str, str]
"""Namespace and name."""


def is_ours(service: kube.Service, told: Kubernetes) -> bool:
    """Whether this Service wants this gateway before it."""
    metadata = service.metadata
    return metadata.deletion_timestamp is None and metadata.annotations.get(wire.ANNOTATION_GATEWAY) == told.gateway


def opted_in(
    services: Iterable[kube.Service], told: Kubernetes, taken: Sequence[ServiceSettings]
) -> tuple[dict[Key, ServiceSettings], dict[Key, str]]:
    """Settings of those that can be served, and why the others cannot. taken: services of the file.

    A Service that the file names is the file's, whatever its annotations. The older comes first, then the name: in
    whatever order they are told, the same ones are refused.
    """
    found: dict[Key, ServiceSettings] = {}
    refused: dict[Key, str] = {}
    routes = Taken()
    for each in taken:
        routes.add(each)
    named = {(each.kubernetes.namespace, each.kubernetes.service) for each in taken if each.kubernetes is not None}
    for service in sorted(services, key=_age):
        key = service.metadata.namespace, service.metadata.name
        if key in named:
            continue
        try:
            settings = settings_of(service, told)
            _refuse_taken(settings, routes)
        except ValueError as exc:
            refused[key] = str(exc)
            continue
        found[key] = settings
        routes.add(settings)
    return found, refused


def settings_of(service: kube.Service, told: Kubernetes) -> ServiceSettings:
    """What serves a Service that opted in. Raises ValueError that says what is wrong with its annotations."""
    namespace, name = service.metadata.namespace, service.metadata.name
    own, port = told_by(service.metadata.annotations, wire.ANNOTATION_GATEWAY_PREFIX)
    given: dict[str, Any] = {**told.defaults, **own}
    if given.get("kind") == "oip":
        given.setdefault("model", name)
    given["name"] = f"{namespace}.{name}"
    given["kubernetes"] = {"namespace": namespace, "service": name, "port": port}
    try:
        settings = converted(given, ServiceSettings, strict=False)
    except MisfitError as error:
        raise ValueError(f"{error.key}: {error}" if error.key else str(error)) from error
    wrong = list(faults_of_service(settings))
    if wrong:
        raise ValueError("; ".join(f"{key}: {what}" for key, what in wrong))
    return settings


class Taken:
    """Routes that are served, by the beginnings of their paths: a Service that changes is not held against all others.

    Two routes meet only where one's path begins with all of the other's segments; so a route is found under each of its
    first segments, and short ones once more under exactly theirs.
    """

    DEPTH = 3
    """Segments: ``/v2/models/NAME``."""

    def __init__(self) -> None:
        """None."""
        self._names: set[str] = set()
        self._beneath: dict[tuple[str, ...], list[tuple[str, Route]]] = {}
        self._short: dict[tuple[str, ...], list[tuple[str, Route]]] = {}

    def add(self, settings: ServiceSettings) -> None:
        """One more, after those that are there."""
        route = route_of(settings)
        named, begin = (settings.name, route), self._begin(route)
        self._names.add(settings.name)
        for depth in range(len(begin) + 1):
            self._beneath.setdefault(begin[:depth], []).append(named)
        if len(begin) < self.DEPTH:
            self._short.setdefault(begin, []).append(named)

    def near(self, route: Route) -> Iterator[tuple[str, Route]]:
        """All that may meet it, and others."""
        begin = self._begin(route)
        for depth in range(len(begin)):
            yield from self._short.get(begin[:depth], ())
        yield from self._beneath.get(begin, ())

    def __contains__(self, name: str) -> bool:
        """Whether a service has this name."""
        return name in self._names

    def _begin(self, route: Route) -> tuple[str, ...]:
        return tuple(route.base.split("/", self.DEPTH + 1)[1 : self.DEPTH + 1])


def _refuse_taken(settings: ServiceSettings, taken: Taken) -> None:
    if settings.name in taken:
        raise ValueError(f"the settings have a service {settings.name} of their own")
    mine = route_of(settings)
    for name, theirs in taken.near(mine):
        if mine.meets(theirs):
            raise ValueError(
                f"{mine.place} is served by {name}; write {wire.ANNOTATION_GATEWAY_PREFIX}hosts, "
                f"{wire.ANNOTATION_GATEWAY_PREFIX}path or {wire.ANNOTATION_GATEWAY_PREFIX}model of its own"
            )


def _age(service: kube.Service) -> tuple[float, str, str]:
    metadata = service.metadata
    made = metadata.creation_timestamp
    return (0.0 if made is None else made.timestamp()), metadata.namespace, metadata.name
