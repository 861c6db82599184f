"""Each request a task, and the ways to break a connection: what the gateway's server has no use for, and a fault has.

Refuses to be a public server: no TLS, no time limits for slow clients; only sizes are limited, so that a wrong test
fails instead of filling memory.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Awaitable, Callable

import structlog

from cardwise.adapters.http1.exchange import Exchange
from cardwise.adapters.http1.limits import Limits
from cardwise.adapters.http1.wire import JSON
from cardwise.files import plain

log = structlog.get_logger()

PATIENT = Limits(idle_s=math.inf, head_s=math.inf, body_s=math.inf, write_s=math.inf)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Tasks:
    """Gives each request to a coroutine, which is cancelled when its client leaves."""

    def __init__(self, serve: Callable[[Exchange], Awaitable[None]]) -> None:
        """serve: answers it, or leaves it unanswered."""
        self._serve = serve

    def on_head(self, exchange: Exchange) -> None:
        """Of the server's handler: nothing is refused before its body is there."""

    def on_request(self, exchange: Exchange) -> None:
        """Of the server's handler."""
        task = asyncio.get_running_loop().create_task(self._run(exchange))

        def leave() -> None:
            task.cancel()

        exchange.on_gone = leave  # and what keeps the task alive while it waits

    async def _run(self, exchange: Exchange) -> None:
        try:
            await self._serve(exchange)
        except Exception:  # a bug of ours must show, and not as a client that waits
            log.exception("cannot answer", target=plain(exchange.target))
            if exchange.is_begun:
                cut(exchange)
            else:
                exchange.answer(500, b'{"error": "a bug of the engine; see its log"}')


async def send(exchange: Exchange, part: bytes) -> None:
    """A part of a stream; waits while the client reads slower than we write."""
    if not exchange.write(part):
        writable = asyncio.Event()
        exchange.on_writable = writable.set
        await writable.wait()


def answer_half(exchange: Exchange, body: bytes) -> None:
    """The connection closes half-way through the body that was promised."""
    exchange.begin(200, [(b"content-type", JSON), (b"content-length", b"%d" % len(body))])
    exchange.write(body[: len(body) // 2])
    cut(exchange)


def cut(exchange: Exchange) -> None:
    """Close the connection here, after what was written."""
    if not exchange.is_gone:
        exchange.detach().close()


def reset(exchange: Exchange) -> None:
    """Reset the connection (RST), losing what is not yet sent."""
    if exchange.is_gone:
        return
    transport = exchange.detach()
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


async def hang(exchange: Exchange, *, deaf: bool) -> None:
    """Answer nothing for as long as the client stays; if deaf, not even notice that it leaves."""
    if deaf and not exchange.is_gone:
        exchange.detach().pause_reading()
    await asyncio.Event().wait()
