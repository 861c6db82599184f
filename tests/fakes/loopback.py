"""A web server on loopback, whose answers a test writes."""

from __future__ import annotations

import contextlib

from aiohttp import web


@contextlib.asynccontextmanager
async def served(*routes, port=0):
    """Serve these until the ``with`` ends; the port."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
