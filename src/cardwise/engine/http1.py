"""HTTP/1.1 on a raw asyncio protocol, parsed by httptools (llhttp).

Why not aiohttp, which the scheduler uses: gateway, load generator and engine share a machine in a benchmark, so what
the engine spends is taken from what is measured; and a fault must be exact: a reset is a reset, a cut answer is cut
where the script says. Both are a few lines when the transport is ours.

Refuses to be a public server: no TLS, no time limits for slow clients; only sizes are limited, so that a wrong test
fails instead of filling memory.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast

import httptools
import structlog

from cardwise.errors import UserError

log = structlog.get_logger()

JSON = b"application/json"
EVENTS = b"text/event-stream"
TEXT = b"text/plain; charset=utf-8"
MOST_BODY = 16 * 2**20
MOST_HEAD = 64 * 2**10
MOST_PIPELINED = 32
"""Requests of one connection that are read before the first of them is answered."""
BACKLOG = 4096
"""Connections the kernel keeps while the loop is busy; with the usual 128, open-loop clients wait for resent SYNs."""
LINGER_S = 2.0
"""How long a client that was refused may go on sending."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class Exchange:
    """One request, and the way to answer it. Answering a client that has gone does nothing."""

    __slots__ = ("_chunked", "_connection", "body", "headers", "is_begun", "keep_alive", "method", "target")

    def __init__(self, connection: _Connection, method: str, target: str, headers: dict[bytes, bytes]) -> None:
        """A request whose body has still to come. Names of headers are in lower case."""
        self.method = method
        self.target = target
        self.headers = headers
        self.body = b""
        self.keep_alive = True
        self.is_begun = False
        self._chunked = True
        self._connection = connection

    def answer(self, status: int, body: bytes, kind: bytes = JSON, *, cut: bool = False) -> None:
        """A complete answer; with ``cut`` the connection closes half-way through the body that was promised."""
        head = self._head(status, kind) + b"content-length: %d\r\n\r\n" % len(body)
        self._connection.write(head if self.method == "HEAD" else head + (body[: len(body) // 2] if cut else body))
        if cut:
            self.cut()

    def begin(self, kind: bytes) -> None:
        """Begin an answer of unknown length."""
        self._chunked = self._connection.parser.get_http_version() == "1.1"
        self.keep_alive = self.keep_alive and self._chunked
        head = self._head(200, kind)
        self._connection.write(head + (b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n"))

    async def send(self, part: bytes) -> None:
        """A part of it; waits while the client reads slower than we write."""
        self._connection.write(b"%x\r\n%b\r\n" % (len(part), part) if self._chunked else part)
        await self._connection.writable.wait()

    def end(self) -> None:
        """The answer is complete."""
        if self._chunked:
            self._connection.write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Close the connection here, after what was written."""
        self._connection.transport.close()

    def reset(self) -> None:
        """Reset the connection (RST), losing what is not yet sent."""
        self._connection.reset()

    async def hang(self, *, deaf: bool) -> None:
        """Answer nothing for as long as the client stays; if deaf, not even notice that it leaves."""
        if deaf:
            self._connection.transport.pause_reading()
        await asyncio.Event().wait()

    def _head(self, status: int, kind: bytes) -> bytes:
        self.is_begun = True
        line = b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\n" % (status, _REASONS.get(status, b"-"), kind)
        return line if self.keep_alive else line + b"connection: close\r\n"


Handler = Callable[[Exchange], Awaitable[None]]


class Listener:
    """Accepts connections and gives each request to the handler; those of one connection one after the other."""

    def __init__(self, handler: Handler) -> None:
        """Nothing listens yet. A handler is cancelled when its client leaves."""
        self.handler = handler
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """The port that was taken, of use where 0 was asked for. Raises UserError if it is not to be had."""
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Connection(self), host, port, backlog=BACKLOG
            )
        except OSError as exc:
            raise UserError(f"cannot listen on {host}:{port}: {exc.strerror}; choose another port") from exc
        return cast("int", self._server.sockets[0].getsockname()[1])

    async def drain(self, most_s: float) -> None:
        """Accept no more, and wait until what is being answered is answered, at most so long."""
        self._stop()
        tasks = [each.task for each in self.connections if each.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=most_s)

    def abort(self) -> None:
        """Close everything at once, as the kernel does for a process that was killed."""
        self._stop()
        for each in tuple(self.connections):
            each.abort()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


class _Connection(asyncio.Protocol):
    """The protocol of one client; httptools calls its ``on_`` methods."""

    transport: asyncio.Transport

    def __init__(self, listener: Listener) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.writable = asyncio.Event()
        self.writable.set()
        self.task: asyncio.Task[None] | None = None
        self._listener = listener
        self._asked: deque[Exchange] = deque()
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_size = 0
        self._body: list[bytes] = []
        self._body_size = 0
        self._too_large = 0
        self._wrong = 0
        """Status of the refusal of what cannot be read; nothing is read after it."""

    # ---------------------------------------------------------------- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._listener.connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._listener.connections.discard(self)
        self.writable.set()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self._wrong:
            return
        self._wrong = self._feed(data)
        if self._wrong:
            self._ask(self._exchange())
        elif len(self._asked) > MOST_PIPELINED:
            self.transport.pause_reading()

    # ---------------------------------------------------------------- of httptools

    def on_message_begin(self) -> None:
        self._target, self._headers, self._head_size = b"", {}, 0
        self._body, self._body_size = [], 0

    def on_url(self, part: bytes) -> None:
        self._target += part
        self._demand_head(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value
        self._demand_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, part: bytes) -> None:
        self._body_size += len(part)
        if self._body_size > MOST_BODY:
            self._refuse(413)
        self._body.append(part)

    def on_message_complete(self) -> None:
        exchange = self._exchange()
        exchange.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        exchange.keep_alive = self.parser.should_keep_alive()
        self._ask(exchange)

    # ---------------------------------------------------------------- inside

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def reset(self) -> None:
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()

    def abort(self) -> None:
        self.transport.abort()

    def _feed(self, data: bytes) -> int:
        """0, or the status of a refusal."""
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return self._too_large or 400
        return 0

    def _demand_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > MOST_HEAD:
            self._refuse(431)

    def _refuse(self, status: int) -> None:
        self._too_large = status
        raise ValueError("refused")  # ends the parser's call; data_received answers

    def _exchange(self) -> Exchange:
        return Exchange(self, self.parser.get_method().decode(), self._target.decode("latin-1"), self._headers)

    def _ask(self, exchange: Exchange) -> None:
        self._asked.append(exchange)
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        """Answer what was asked, in order."""
        try:
            while self._asked and not self.transport.is_closing():
                exchange = self._asked.popleft()
                if self._wrong and not self._asked:
                    self._answer_unreadable(exchange)
                    return
                await self._handle(exchange)
                if not exchange.keep_alive:
                    self.transport.close()
                    return
                self.transport.resume_reading()
        finally:
            self.task = None

    def _answer_unreadable(self, exchange: Exchange) -> None:
        """Refuse, and go on taking what is sent: to close at once would reset the client before it reads the answer."""
        exchange.keep_alive = False
        exchange.answer(self._wrong, b'{"error": "%b"}' % _REASONS[self._wrong].lower())
        if self.transport.can_write_eof():
            self.transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)

    async def _handle(self, exchange: Exchange) -> None:
        try:
            await self._listener.handler(exchange)
        except Exception:  # a bug of ours must show, and not as a client that waits
            log.exception("cannot answer", target=exchange.target)
            if exchange.is_begun:
                exchange.cut()
            else:
                exchange.answer(500, b'{"error": "a bug of the engine; see its log"}')
