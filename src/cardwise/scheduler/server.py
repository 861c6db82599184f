"""HTTP: kube-scheduler's three verbs, admission, health, metrics, and the answers to "why".

Only this module of the scheduler knows aiohttp. A request that cannot be read is answered with what was wrong; a bug of
ours ends as 500, which kube-scheduler shows in the pod's event and tries again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import structlog
from aiohttp import web
from prometheus_client import generate_latest

from cardwise.adapters.claims import claim_of
from cardwise.adapters.extender_v1 import ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult
from cardwise.adapters.kube.port import ClusterPort
from cardwise.adapters.kube.shallow import decode_object
from cardwise.adapters.watching import Watching
from cardwise.core.ledger import Ledger
from cardwise.errors import ClusterError, NotFoundError, UserError
from cardwise.scheduler import telling, webhook
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.engines import Rules
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.metrics import Metrics

log = structlog.get_logger()

MOST_BODY = 16 * 2**20
"""10,000 node names and a large pod are 0.4 MB; kube-scheduler never sends more."""
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
_ArgsT = TypeVar("_ArgsT")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Parts:
    """What the server speaks for. ready: None, or why this replica is not ready to decide. rules: of admission."""

    port: ClusterPort
    ledger: Ledger
    watching: Watching
    extender: Extender
    binder: Binder
    ready: Callable[[], str | None]
    rules: Rules = field(default_factory=Rules)


class Server:
    """The scheduler's doors."""

    def __init__(self, parts: Parts) -> None:
        """Serve ``parts``."""
        self._parts = parts
        self._tally = Metrics(parts.ledger, parts.extender, lambda: parts.binder.may_bind() is None)

    def extender_app(self, *, known_only: bool = False) -> web.Application:
        """kube-scheduler's verbs, health, metrics and answers.

        known_only: all but health and metrics ask for a client certificate.
        """
        app = web.Application(client_max_size=MOST_BODY, middlewares=[_known_only] if known_only else [])
        app.add_routes(
            [
                web.post("/filter", self._timed("filter", self._filter)),
                web.post("/prioritize", self._timed("prioritize", self._prioritize)),
                web.post("/bind", self._timed("bind", self._bind)),
                web.get("/explain/{namespace}/{name}", self._timed("explain", self._explain)),
                web.get("/state", self._timed("state", self._state)),
                web.get("/healthz", _alive),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
            ]
        )
        return app

    def webhook_app(self) -> web.Application:
        """Admission. Any replica answers it: it needs no state but the cards' sizes, and is careful without them."""
        app = web.Application(client_max_size=MOST_BODY)
        app.add_routes([web.post("/admit", self._timed("admit", self._admit)), web.get("/healthz", _alive)])
        return app

    # ---------------------------------------------------------------- verbs

    async def _filter(self, request: web.Request) -> web.Response:
        args = await _read(request, ExtenderArgs)
        why = self._parts.ready()
        result = ExtenderFilterResult(error=f"cardwise: {why}") if why else self._parts.extender.filter(args)
        return _json(result)

    async def _prioritize(self, request: web.Request) -> web.Response:
        return _json(self._parts.extender.prioritize(await _read(request, ExtenderArgs)))

    async def _bind(self, request: web.Request) -> web.Response:
        error = await self._parts.binder.bind(await _read(request, ExtenderBindingArgs))
        self._tally.answers.labels("bind", "refused" if error else "bound").inc()
        return _json(ExtenderBindingResult(error))

    async def _admit(self, request: web.Request) -> web.Response:
        answer = webhook.review(await request.read(), self._parts.rules)
        return web.Response(body=answer, content_type="application/json")

    # ---------------------------------------------------------------- answers

    async def _explain(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        claim = telling.claim_named(self._parts.watching, f"{namespace}/{name}")
        if claim is None:
            claim = claim_of(await self._parts.port.get_pod(namespace, name))
        return _json(telling.explain(self._parts.ledger, claim, request.query.get("node")))

    async def _state(self, _request: web.Request) -> web.Response:
        parts = self._parts
        return _json(telling.state(parts.ledger, parts.watching.pending, parts.extender.waiting))

    async def _readyz(self, _request: web.Request) -> web.Response:
        why = self._parts.ready()
        return web.Response(status=503, text=f"{why}\n") if why else web.Response(text="ok\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._tally.registry), content_type="text/plain", charset="utf-8")

    # ---------------------------------------------------------------- inside

    def _timed(self, verb: str, handler: Callable[[web.Request], Awaitable[web.Response]]) -> Handler:
        seconds = self._tally.seconds.labels(verb)

        async def timed(request: web.Request) -> web.StreamResponse:
            start_s = time.perf_counter()
            try:
                return await handler(request)
            except UserError as error:
                return web.Response(status=400, text=f"{error}\n")
            except NotFoundError as error:
                return web.Response(status=404, text=f"{error}\n")
            except ClusterError as error:
                return web.Response(status=502, text=f"{error}\n")
            finally:
                seconds.observe(time.perf_counter() - start_s)

        return timed


@web.middleware
async def _known_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse who shows no certificate; a wrong one has ended the handshake already."""
    peer = request.transport.get_extra_info("peercert") if request.transport else None
    if not peer and request.path not in OPEN_PATHS:
        return web.Response(status=403, text="show a client certificate (tlsConfig of the extender)\n")
    return await handler(request)


async def _alive(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _read(request: web.Request, kind: type[_ArgsT]) -> _ArgsT:
    try:
        return decode_object(await request.read(), kind)
    except msgspec.DecodeError as exc:
        raise UserError(f"not {kind.__name__}: {exc}") from exc


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
