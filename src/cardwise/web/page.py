"""The page's server: what ``cardwise up`` shows, and what a real cluster is, live in a browser.

Listens on loopback only, needs no network, and loads nothing from elsewhere. Refuses requests under another host's
name: a site in the same browser must not read it (DNS rebinding). Read only: there is nothing to send. Who may see a
real cluster's page is decided by who may reach that loopback: docs/decisions/0011-who-sees-the-page.md.
"""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

import msgspec
from aiohttp import web

from cardwise.errors import UserError
from cardwise.process import end_if_failed
from cardwise.web.news import News
from cardwise.web.whole import Whole

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
HOST = re.compile(rf"({'|'.join(map(re.escape, HOSTS))})(:\d{{1,5}})?", re.IGNORECASE | re.ASCII)
"""The header Host, whole. It is matched as it came: what is no host at all is another's name too."""
FILES = {
    "/page.css": ("page.css", "text/css"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript")
        for name in ("page", "dom", "state", "lists", "cards", "map", "why")
    },
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Source(Protocol):
    """What is shown."""

    @property
    def latest(self) -> Mapping[str, Any]:
        """The state now: docs/reference/state.md. ``version`` is another one whenever something changed."""
        ...

    def explain(self, name: str) -> Mapping[str, Any] | None:
        """Why the pod "namespace/name" is where it is, or nowhere; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands above the page: its name, and what one looks at."""

    title: str
    hint: str


UP = Frame("cardwise up", "Simulated cards, the scheduler's own code. Nothing here runs on a GPU.")


def page_app(source: Source, frame: Frame = UP) -> web.Application:
    """The page and its data."""
    news = News(lambda: source.latest)
    whole = Whole(news.shown)

    async def explain(request: web.Request) -> web.Response:
        told = source.explain("{namespace}/{name}".format(**request.match_info))
        if told is None:
            return web.Response(status=404, text="no pod that asks for cards is called so; it may be gone\n")
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")

    async def told(_app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(news.run(), name="news")
        task.add_done_callback(end_if_failed)
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    app = web.Application(middlewares=[_guarded])
    app.on_response_prepare.append(_harden)
    app.on_shutdown.append(_closer(news))
    app.cleanup_ctx.append(told)
    app.add_routes(
        [
            web.get("/", _fixed(_index(frame), "text/html")),
            web.get("/state", whole.answer),
            web.get("/healthz", _alive),
            web.get("/events", news.answer, allow_head=False),  # it would never end
            web.get("/explain/{namespace}/{name}", explain),
            *(web.get(path, _fixed(_file(name), kind)) for path, (name, kind) in FILES.items()),
        ]
    )
    return app


@asynccontextmanager
async def serve_page(
    source: Source, port: int, frame: Frame = UP, remedy: str = "give another --port"
) -> AsyncIterator[str]:
    """Serve on loopback until the ``with`` ends; yields the address.

    remedy: what to do if the port is taken. Raises UserError if it is.
    """
    runner = web.AppRunner(page_app(source, frame), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, LOOPBACK, port).start()
        except OSError as exc:
            raise UserError(f"cannot listen on {LOOPBACK}:{port}: {exc.strerror}; {remedy}") from exc
        yield f"http://{LOOPBACK}:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


# ---------------------------------------------------------------- inside


@web.middleware
async def _guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not HOST.fullmatch(request.headers.get("Host", "")):
        return web.Response(status=403, text=f"this page answers to {' and '.join(HOSTS)} only\n")
    return await handler(request)


async def _harden(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


async def _alive(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _closer(news: News) -> Callable[[web.Application], Awaitable[None]]:
    async def close(_app: web.Application) -> None:
        news.close()

    return close


def _index(frame: Frame) -> bytes:
    """The page's frame with its two texts; everything else its script draws."""
    text = _file("page.html").decode()
    return text.replace("{{title}}", html.escape(frame.title)).replace("{{hint}}", html.escape(frame.hint)).encode()


def _file(name: str) -> bytes:
    return (resources.files("cardwise.web") / name).read_bytes()


def _fixed(body: bytes, kind: str) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return answer
