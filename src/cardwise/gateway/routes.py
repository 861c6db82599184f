"""Which service a request is for, and how it is served. By host, then the longest path.

``oip`` takes ``/v2/models/{its model}...``, and of these only ``POST .../infer`` waits and is batched; ``openai`` takes
what begins with its path (/v1), ``list`` exactly its path, ``pass`` what begins with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from cardwise.adapters.http1.exchange import Exchange
from cardwise.gateway.service import Service
from cardwise.gateway.settings import ServiceSettings
from cardwise.gateway.ticket import Mode

MODELS = "/v2/models/"
_ASIDE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Route:
    """What one service is asked for. hosts: none for all. base: the path, without a slash at its end."""

    hosts: frozenset[str]
    path: str
    is_exact: bool
    base: str = field(init=False, repr=False, compare=False)
    _beneath: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Every request is held against it, so what follows from the path is worked out here."""
        base = self.path.rstrip("/")
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "_beneath", f"{base}/")

    @property
    def place(self) -> str:
        """In words."""
        return f"{self.path} of {', '.join(sorted(self.hosts)) or 'any host'}"

    def meets(self, other: Route) -> bool:
        """Whether a request may fit both."""
        if self.hosts and other.hosts and not self.hosts & other.hosts:
            return False
        return self._covers(other) or other._covers(self)

    def _covers(self, other: Route) -> bool:
        return self.path == other.path or (not self.is_exact and other._beneath.startswith(self._beneath))

    def fits(self, host: str, path: str) -> bool:
        """Whether a request is for it."""
        if self.hosts and host not in self.hosts:
            return False
        if self.is_exact:
            return path == self.path
        return path == self.base or path.startswith(self._beneath)


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
