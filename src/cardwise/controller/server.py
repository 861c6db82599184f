"""HTTP: metrics, and whether the controller is well. Every replica is ready once it knows the cluster, leading or not.

Only this module of the controller knows aiohttp.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from cardwise.adapters.listening import serve


def pages(registry: CollectorRegistry, why_not_ready: Callable[[], str | None]) -> web.Application:
    """``/metrics`` of this registry, ``/healthz``, ``/readyz``."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain", charset="utf-8")

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        why = why_not_ready()
        return web.Response(status=503, text=f"{why}\n") if why else web.Response(text="ok\n")

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)])
    return app


@asynccontextmanager
async def serving(app: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the ``with`` ends; the port that was taken. Raises UserError if it cannot be had."""
    runner, taken = await serve(app, host, port)
    try:
        yield taken
    finally:
        await runner.cleanup()
