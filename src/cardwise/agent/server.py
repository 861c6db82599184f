"""HTTP: metrics, and whether the agent is well. ``/healthz`` fails when it should be started anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from cardwise.agent.metrics import Metrics
from cardwise.errors import UserError


@asynccontextmanager
async def serving(metrics: Metrics, host: str, port: int) -> AsyncIterator[int]:
    """Serve until the ``with`` ends; the port that was taken. Raises UserError if it cannot be had."""

    async def tell(_request: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), content_type="text/plain", charset="utf-8")

    async def alive(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_request: web.Request) -> web.Response:
        problem = metrics.registering.problem
        return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)

    app = web.Application()
    app.add_routes([web.get("/metrics", tell), web.get("/healthz", alive), web.get("/readyz", ready)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as exc:
            raise UserError(f"cannot listen on {host}:{port}: {exc.strerror}; set another port") from exc
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
