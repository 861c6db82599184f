"""Which service a request is for, and how it is served. By host, then the longest path.

``oip`` takes ``/v2/models/{its model}...``, and of these only ``POST .../infer`` waits and is batched; ``openai`` takes
what begins with its path (/v1), ``list`` exactly its path, ``pass`` what begins with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from cardwise.adapters.http1.server import Exchange
from cardwise.gateway.service import Service
from cardwise.gateway.tries import Mode

MODELS = "/v2/models/"
_ASIDE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class _Route:
    service: Service
    hosts: frozenset[str]
    path: str
    is_exact: bool

    def fits(self, host: str, path: str) -> bool:
        if self.hosts and host not in self.hosts:
            return False
        if self.is_exact:
            return path == self.path
        own = self.path.rstrip("/")
        return path == own or path.startswith(own + "/")


class Routes:
    """All routes, the most exact first."""

    def __init__(self, services: Sequence[Service]) -> None:
        """By the services' settings."""
        routes = [_route_of(service) for service in services]
        self._routes = sorted(routes, key=lambda each: (not each.hosts, not each.is_exact, -len(each.path)))

    def find(self, exchange: Exchange) -> tuple[Service, Mode] | None:
        """The service for a request; None if there is none."""
        host = (exchange.header(b"host") or b"").decode("latin-1").lower()
        host = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        path = exchange.path
        if "%" in path:
            path = unquote(path)
        if "/../" in path or path.endswith("/.."):
            return None  # a replica may see another path than we do
        for route in self._routes:
            if route.fits(host, path):
                return route.service, _mode(route.service, exchange.method, path)
        return None


def _route_of(service: Service) -> _Route:
    settings = service.settings
    hosts = frozenset(host.lower() for host in settings.hosts)
    if settings.kind == "oip":
        return _Route(service, hosts, f"{MODELS}{settings.model}", is_exact=False)
    path = settings.path or ("/v1" if settings.kind == "openai" else "/")
    return _Route(service, hosts, path, is_exact=settings.kind == "list")


def _mode(service: Service, method: str, path: str) -> Mode:
    if service.settings.kind == "oip":
        if method == "POST" and path.endswith("/infer"):
            return Mode.BATCH if service.settings.batches else Mode.QUEUE
        return Mode.ASIDE
    if service.settings.kind == "list" and service.settings.batches and method == "POST":
        return Mode.BATCH
    if service.settings.kind == "openai" and method in _ASIDE:
        return Mode.ASIDE
    return Mode.ASIDE if service.settings.batches else Mode.QUEUE
