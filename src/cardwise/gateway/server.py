"""The gateway's two doors: requests for the services, and what is asked about the gateway itself."""

from __future__ import annotations

import msgspec

from cardwise.adapters.http1.server import Exchange
from cardwise.adapters.http1.wire import TEXT
from cardwise.gateway.metrics import registry_of, text_of
from cardwise.gateway.routes import Routes
from cardwise.gateway.service import Service, error_body
from cardwise.gateway.tries import Ticket, retry_after


class Front:
    """Hands requests to their services."""

    def __init__(self, services: list[Service]) -> None:
        """Serve these."""
        self._services = services
        self._routes = Routes(services)
        self.is_draining = False
        """Nothing new is served."""
        self.is_leaving = False
        """About to drain: still serves, and says that it is not ready."""

    def on_head(self, exchange: Exchange) -> None:
        """Of Handler."""
        if self._tells_health(exchange):
            return
        found = self._routes.find(exchange)
        if found is None:
            exchange.answer(404, error_body(exchange, 404, "no service is at this path"))
            return
        service, mode = found
        if self.is_draining:
            service.refuse(exchange, 503, "draining", "the gateway is about to stop", 1.0)
            return
        service.on_head(exchange, mode)

    def on_request(self, exchange: Exchange) -> None:
        """Of Handler."""
        ticket = exchange.context
        assert isinstance(ticket, Ticket)  # noqa: S101 - a request without one was answered at its head
        ticket.service.on_request(ticket)

    def _tells_health(self, exchange: Exchange) -> bool:
        """The inference protocol's own health, of the gateway as a whole."""
        if not exchange.target.startswith("/v2/health/") or exchange.method not in {"GET", "HEAD"}:
            return False
        if exchange.path == "/v2/health/live":
            exchange.answer(200, b'{"live":true}')
        elif exchange.path == "/v2/health/ready":
            ready = why_not_ready(self) is None
            exchange.answer(200 if ready else 503, msgspec.json.encode({"ready": ready}))
        else:
            return False
        return True

    @property
    def services(self) -> list[Service]:
        """In the settings' order."""
        return self._services


def why_not_ready(front: Front) -> str | None:
    """Why no traffic should come here, or None. One service without replicas does not take the others away."""
    if front.is_draining or front.is_leaving:
        return "draining"
    if not any(service.is_ready for service in front.services):
        return f"no replica is ready of {', '.join(service.settings.name for service in front.services)}"
    return None


class Admin:
    """Health and metrics."""

    def __init__(self, front: Front) -> None:
        """Tell about this gateway."""
        self._front = front
        self._registry = registry_of(
            lambda: [(service.settings.name, service.tally, service.gauges) for service in front.services]
        )

    def on_head(self, exchange: Exchange) -> None:
        """Of Handler."""

    def on_request(self, exchange: Exchange) -> None:
        """Of Handler."""
        path = exchange.path
        if exchange.method not in {"GET", "HEAD"}:
            exchange.answer(405, b"GET\n", [(b"allow", b"GET")], TEXT)
        elif path == "/healthz":
            exchange.answer(200, b"ok\n", kind=TEXT)
        elif path == "/readyz":
            why = why_not_ready(self._front)
            if why is None:
                exchange.answer(200, b"ok\n", kind=TEXT)
            else:
                exchange.answer(503, f"{why}\n".encode(), retry_after(1.0), TEXT)
        elif path == "/metrics":
            exchange.answer(200, text_of(self._registry), kind=TEXT)
        else:
            exchange.answer(404, b"/healthz /readyz /metrics\n", kind=TEXT)
