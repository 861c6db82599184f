"""Services that opt in by annotation: what each is served by, and which may not be.

Nobody takes away by an annotation what another is asked: a path that a service of the file, or an older Service, serves
is taken. Refuses in words, one Service at a time: a wrong one does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    routes = [(each.name, route_of(each)) for each in taken]
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
        routes.append((settings.name, route_of(settings)))
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


def _refuse_taken(settings: ServiceSettings, routes: Sequence[tuple[str, Route]]) -> None:
    mine = route_of(settings)
    for name, theirs in routes:
        if name == settings.name:
            raise ValueError(f"the settings have a service {name} of their own")
        if mine.meets(theirs):
            where = f"{mine.path} of {', '.join(sorted(mine.hosts)) or 'any host'}"
            raise ValueError(
                f"{where} is served by {name}; write {wire.ANNOTATION_GATEWAY_PREFIX}hosts, "
                f"{wire.ANNOTATION_GATEWAY_PREFIX}path or {wire.ANNOTATION_GATEWAY_PREFIX}model of its own"
            )


def _age(service: kube.Service) -> tuple[float, str, str]:
    metadata = service.metadata
    made = metadata.creation_timestamp
    return (0.0 if made is None else made.timestamp()), metadata.namespace, metadata.name
