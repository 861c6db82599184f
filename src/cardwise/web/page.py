"""A page of this machine for this machine: what ``cardwise up`` shows, live in a browser.

Listens on loopback only, needs no network, and loads nothing from elsewhere. Refuses requests under another host's
name: a site in the same browser must not read it (DNS rebinding). Read only: there is nothing to send.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

import msgspec
from aiohttp import web

from cardwise.errors import UserError

LOOPBACK = "127.0.0.1"
HOSTS = frozenset({LOOPBACK, "localhost"})
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def page_app(latest: Callable[[], Mapping[str, Any]]) -> web.Application:
    """The page and its data. ``latest``: the state to show now."""

    async def state(_request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(latest()), content_type="application/json")

    app = web.Application(middlewares=[_guarded])
    app.add_routes([web.get("/state", state), *(web.get(path, _file(*told)) for path, told in FILES.items())])
    return app


@asynccontextmanager
async def serve_page(latest: Callable[[], Mapping[str, Any]], port: int) -> AsyncIterator[str]:
    """Serve on loopback until the ``with`` ends; yields the address. Raises UserError if the port is taken."""
    runner = web.AppRunner(page_app(latest), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, LOOPBACK, port, shutdown_timeout=1.0).start()
        except OSError as exc:
            message = f"cannot listen on {LOOPBACK}:{port}: {exc.strerror}; give another --port, or --no-page"
            raise UserError(message) from exc
        yield f"http://{LOOPBACK}:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.url.host not in HOSTS:
        return web.Response(status=403, text=f"this page answers to {' and '.join(sorted(HOSTS))} only\n")
    response = await handler(request)
    response.headers.update(HEADERS)
    return response


def _file(name: str, kind: str) -> Handler:
    body = (resources.files("cardwise.web") / name).read_bytes()

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return answer
