"""The gateway's two doors: requests for the services, and what is asked about the gateway itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cardwise.adapters.http1.exchange import Exchange
from cardwise.adapters.http1.faults import Fault
from cardwise.adapters.http1.wire import TEXT
from cardwise.gateway.answers import error_body, retry_after
from cardwise.gateway.metrics import ClusterCounts, registry_of, text_of, unserved
from cardwise.gateway.refusals import Why, reason
from cardwise.gateway.routes import Routes
from cardwise.gateway.service import Given, Service


class Front:
    """Hands requests to their services."""

    def __init__(self, services: Sequence[Service]) -> None:
        """Serve these."""
        self.serve(services)
        self.is_synced = True
        """Whether all services are known that a cluster may tell of."""
        self.is_draining = False
        """Nothing new is served."""
        self.is_leaving = False
        """About to drain: still serves, and says that it is not ready."""
        self.unrouted = 0
        """Requests for what no service is at."""

    def serve(self, services: Sequence[Service]) -> None:
        """Serve these from now on. Who waits in another stays there."""
        self._services = list(services)
        self._routes = Routes(services)

    def on_head(self, exchange: Exchange) -> None:
        """Of Handler."""
        if self._tells_health(exchange):
            return
        found = self._routes.find(exchange)
        if found is None:
            self.unrouted += 1
            exchange.answer(404, error_body(exchange, 404, "no service is at this path"), reason(Why.NO_SERVICE))
            return
        service, mode = found
        if self.is_draining:
            service.answers.refuse(exchange, 503, Why.DRAINING, "the gateway is about to stop", 1.0)
            return
        service.on_head(exchange, mode)

    def on_request(self, exchange: Exchange) -> None:
        """Of Handler."""
        given = exchange.context
        assert isinstance(given, Given)  # noqa: S101 - a request without one was answered at its head
        if given.service.is_closed:
            self._begin_anew(exchange)
        else:
            given.service.on_request(given.ticket)

    def _begin_anew(self, exchange: Exchange) -> None:
        """Its service went while its body came; another may be there by now."""
        before = exchange.context
        self.on_head(exchange)
        if exchange.context is not before:  # else it was answered
            self.on_request(exchange)

    def _tells_health(self, exchange: Exchange) -> bool:
        """The inference protocol's own health: of the services here that speak it. Where none does, it is a path.

        Ready while any of them is, for one that is not must not take the others away; ``/v2/models/NAME/ready`` is of
        one, and goes to its replicas.
        """
        if not exchange.target.startswith("/v2/health/") or exchange.method not in {"GET", "HEAD"}:
            return False
        services = self._routes.oip_at(exchange)
        if not services:
            return False
        if exchange.path == "/v2/health/live":
            exchange.answer(200, b'{"live":true}')
        elif exchange.path == "/v2/health/ready":
            found = why_not_ready(self, services)
            if found is None:
                exchange.answer(200, b'{"ready":true}')
            else:
                exchange.answer(503, b'{"ready":false}', [*reason(found[0]), *retry_after(1.0)])
        else:
            return False
        return True

    @property
    def services(self) -> list[Service]:
        """In the settings' order."""
        return self._services


def why_not_ready(front: Front, services: Sequence[Service]) -> tuple[Why, str] | None:
    """Why no traffic for these should come here, or None. One without replicas does not take the others away."""
    if front.is_draining or front.is_leaving:
        return Why.DRAINING, "draining"
    if not services:
        return None if front.is_synced else (Why.NOT_READY, "the cluster has not told its services yet")
    if not any(service.is_ready for service in services):
        return Why.NO_REPLICA, f"no replica is ready of {_names_of(services)}"
    return None


def _names_of(services: Sequence[Service]) -> str:
    return ", ".join(service.settings.name for service in services)


class Admin:
    """Health and metrics."""

    def __init__(
        self, front: Front, faults: Mapping[Fault, int], cluster: Callable[[], ClusterCounts] | None = None
    ) -> None:
        """Tell about this gateway. faults: of its HTTP; cluster: what its cluster tells, if it follows one."""
        self._front = front
        self._registry = registry_of(
            lambda: [(service.settings.name, service.tally, service.gauges) for service in front.services],
            lambda: unserved(faults, front.unrouted),
            cluster,
        )

    def on_head(self, exchange: Exchange) -> None:
        """Of Handler."""

    def on_request(self, exchange: Exchange) -> None:
        """Of Handler."""
        path = exchange.path
        if exchange.method not in {"GET", "HEAD"}:
            exchange.answer(405, b"GET\n", [(b"allow", b"GET"), *reason(Why.NO_SERVICE)], TEXT)
        elif path == "/healthz":
            exchange.answer(200, b"ok\n", kind=TEXT)
        elif path == "/readyz":
            self._tell_ready(exchange)
        elif path == "/metrics":
            exchange.answer(200, text_of(self._registry), kind=TEXT)
        else:
            exchange.answer(404, b"/healthz /readyz /metrics\n", reason(Why.NO_SERVICE), TEXT)

    def _tell_ready(self, exchange: Exchange) -> None:
        """Yes while any service has a replica; and which have none, for who reads it."""
        services = self._front.services
        found = why_not_ready(self._front, services)
        if found is not None:
            why, text = found
            exchange.answer(503, f"{text}\n".encode(), [*reason(why), *retry_after(1.0)], TEXT)
            return
        without = [service for service in services if not service.is_ready]
        but = f", but no replica is ready of {_names_of(without)}" if without else ""
        exchange.answer(200, f"ok{but}\n".encode(), kind=TEXT)
