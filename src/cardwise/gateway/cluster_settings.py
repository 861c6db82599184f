"""What the gateway's settings say about a cluster, and what a Service there may say about itself.

::

    [kubernetes]                       # Services that opt in by the annotation cardwise.dev/gateway: main
    gateway = "main"
    namespaces = ["models"]            # of these namespaces only; ["*"] for all
    defaults = {kind = "openai"}       # of each that opts in

    [[services]]
    name = "resnet"
    kind = "oip"
    kubernetes = {namespace = "models", service = "resnet", port = "http"}

Who may annotate a Service sets how it is served, not how others are: keys that name tenants and replicas are not among
those, and a path that is taken stays taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from cardwise.files import seen

ALL = "*"
EVERY_SCRAPE_MS = 5_000.0
OWN_KEYS = frozenset({
    "kind", "model", "path", "hosts", "batch", "max-batch", "max-batch-mib", "max-wait-ms", "one-ms", "full-batch-ms",
    "target-p99-ms", "depth", "limit", "first-limit", "idempotent", "timeout-ms", "silence-ms", "items-key",
    "answers-key", "probe-path", "scrape-path",
})  # fmt: skip
"""Of a service's settings, those that its Service's annotations may set."""
PORT_KEY = "port"
"""And this one, of ``kubernetes``."""
_LISTS = frozenset({"hosts"})
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PORT = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?|\d{1,5}|")

PortNumber = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class KubernetesService(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """The Service whose endpoints are a service's replicas. port: its name, or the pods' number; "": the only one."""

    namespace: str
    service: str
    port: str | PortNumber = ""


class Kubernetes(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """Services that opt in by annotation. defaults: of each, as in ``[[services]]``."""

    namespaces: Annotated[list[str], msgspec.Meta(min_length=1)]
    gateway: str = "cardwise"
    defaults: dict[str, Any] = msgspec.field(default_factory=dict)


def told_by(annotations: Mapping[str, str], prefix: str) -> tuple[dict[str, Any], str]:
    """Settings that annotations set, by key, and the port. Raises ValueError that names the annotation."""
    told: dict[str, Any] = {}
    port = ""
    for name, text in annotations.items():
        if not name.startswith(prefix):
            continue
        key = name.removeprefix(prefix)
        if key == PORT_KEY:
            port = text
        elif key not in OWN_KEYS:
            known = ", ".join(sorted({*OWN_KEYS, PORT_KEY}))
            raise ValueError(f"{name}: nothing is set by this; write {prefix}KEY with one of {known}")
        else:
            told[key] = _value(key, text.strip())
    return told, port


def _value(key: str, text: str) -> object:
    """Lists are comma-separated; numbers and flags stay text, for who converts knows their types."""
    return [each.strip() for each in text.split(",") if each.strip()] if key in _LISTS else text


def service_faults(told: KubernetesService) -> Iterator[tuple[str, str]]:
    """Keys with what is wrong."""
    for key, name in (("namespace", told.namespace), ("service", told.service)):
        if not _NAMESPACE.fullmatch(name):
            yield f"kubernetes.{key}", f"{seen(name)} is no name of a {key}"
    if not _PORT.fullmatch(str(told.port)):
        yield "kubernetes.port", f"{seen(told.port)} is no port; write its name or its number"


def cluster_faults(told: Kubernetes) -> Iterator[tuple[str, str]]:
    """Keys with what is wrong; the defaults are for who knows what a service is."""
    for name in told.namespaces:
        if name != ALL and not _NAMESPACE.fullmatch(name):
            yield "kubernetes.namespaces", f"{seen(name)} is no name of a namespace; write {ALL} for all"
    if not told.gateway:
        yield "kubernetes.gateway", "is empty; write the name that Services put into their annotation"
