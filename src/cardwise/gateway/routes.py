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
from cardwise.gateway.settings import ServiceSettings
from cardwise.gateway.ticket import Mode

MODELS = "/v2/models/"
_ASIDE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Route:
    """What one service is asked for. hosts: none for all."""

    hosts: frozenset[str]
    path: str
    is_exact: bool

    def meets(self, other: Route) -> bool:
        """Whether a request may fit both."""
        if self.hosts and other.hosts and not self.hosts & other.hosts:
            return False
        return self._covers(other) or other._covers(self)

    def _covers(self, other: Route) -> bool:
        own = self.path.rstrip("/")
        return self.path == other.path or (not self.is_exact and f"{other.path.rstrip('/')}/".startswith(f"{own}/"))

    def fits(self, host: str, path: str) -> bool:
        """Whether a request is for it."""
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
        routes = [(route_of(service.settings), service) for service in services]
        self._routes = sorted(routes, key=lambda each: (not each[0].hosts, not each[0].is_exact, -len(each[0].path)))

    def oip_at(self, exchange: Exchange) -> list[Service]:
        """The services of the inference protocol at the host that was asked: what its server's health is about."""
        host = _host_of(exchange)
        own = [(route, service) for route, service in self._routes if service.settings.kind == "oip"]
        return [service for route, service in own if not route.hosts or host in route.hosts]

    def find(self, exchange: Exchange) -> tuple[Service, Mode] | None:
        """The service for a request; None if there is none."""
        host = _host_of(exchange)
        path = exchange.path
        if "%" in path:
            path = unquote(path)
        if "/../" in path or path.endswith("/.."):
            return None  # a replica may see another path than we do
        for route, service in self._routes:
            if route.fits(host, path):
                return service, _mode(service, exchange.method, path)
        return None


def _host_of(exchange: Exchange) -> str:
    """As it was asked, without the port."""
    host = (exchange.header(b"host") or b"").decode("latin-1").lower()
    return host.rsplit(":", 1)[0] if not host.endswith("]") else host


def route_of(settings: ServiceSettings) -> Route:
    """By its kind."""
    hosts = frozenset(host.lower() for host in settings.hosts)
    if settings.kind == "oip":
        return Route(hosts, f"{MODELS}{settings.model}", is_exact=False)
    path = settings.path or ("/v1" if settings.kind == "openai" else "/")
    return Route(hosts, path, is_exact=settings.kind == "list")


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
