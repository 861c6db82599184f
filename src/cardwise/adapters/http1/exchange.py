"""One request of a client, and the way to answer it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from cardwise.adapters.http1.faults import Fault
from cardwise.adapters.http1.wire import JSON, LAST_CHUNK, Headers, chunk, has_body, response_head, value_of

_DISCARD_MOST = 64 * 2**10
"""What is left of a refused body is read and thrown away up to this size; else the connection closes."""


class Host(Protocol):
    """The server, as far as an answer depends on it. buffered: bytes of bodies that are held."""

    is_leaving: bool
    buffered: int


class Way(Protocol):
    """The connection, as far as an exchange uses it. early_n: times in a row that its client came too early."""

    peer: str
    early_n: int

    @property
    def server(self) -> Host:
        """Whose connection it is."""
        ...

    def write(self, data: bytes) -> bool:
        """False if the client reads slower than this."""
        ...

    def flush(self) -> None:
        """Send what has been written."""
        ...

    def advance(self) -> None:
        """Go on to the next exchange."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...

    def detach(self) -> asyncio.Transport:
        """Leave the transport to others."""
        ...

    def sent_away(self, wait_s: float) -> None:
        """The client was told to come again after so long."""
        ...


class Exchange:
    """One request, and the way to answer it. Answering a client that has gone does nothing.

    headers: names in lower case. on_gone: called once if the client leaves before its answer is complete; on_writable:
    when it reads again, after :meth:`write` said False.
    """

    __slots__ = (
        "_body_parts",
        "_connection",
        "_held",
        "_is_chunked",
        "_method_has_body",
        "body",
        "content_length",
        "context",
        "expects",
        "fault",
        "headers",
        "is_begun",
        "is_complete",
        "is_ended",
        "is_given",
        "is_gone",
        "is_shown",
        "keep_alive",
        "method",
        "on_gone",
        "on_writable",
        "received",
        "since_s",
        "target",
        "version_1_0",
    )

    def __init__(self, connection: Way, method: str, target: str, headers: Headers) -> None:
        """A request of which the head has been read."""
        self.method = method
        self.target = target
        self.headers = headers
        self.body = b""
        self.content_length: int | None = None
        self.received = 0
        self.expects = self.version_1_0 = False
        self.fault: Fault | None = None
        self.keep_alive = True
        self.is_shown = self.is_given = self.is_complete = False
        self.is_begun = self.is_ended = self.is_gone = False
        self.on_gone: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.context: object = None
        """The handler's own, from ``on_head`` to ``on_request``."""
        self.since_s = time.monotonic()
        self._body_parts: list[bytes] = []
        self._held = 0
        self._connection = connection
        self._is_chunked = False
        self._method_has_body = True

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._connection.peer

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header."""
        return value_of(self.headers, name)

    def answer(self, status: int, body: bytes, headers: Headers | None = None, kind: bytes = JSON) -> None:
        """A complete answer. kind: its content type, unless the headers tell one."""
        if self.is_gone or self.is_begun:
            return
        told = list(headers or ())
        if body and value_of(told, b"content-type") is None:
            told.insert(0, (b"content-type", kind))
        if status not in {204, 304}:
            told.append((b"content-length", b"%d" % len(body)))
        head = self._begin(status, told)
        self._connection.write(head + body if has_body(self.method, status) else head)
        self.end()

    def begin(self, status: int, headers: Headers) -> None:
        """Begin an answer whose body follows in parts. Without a ``content-length`` it is chunked."""
        if self.is_gone or self.is_begun:
            return
        told = list(headers)
        self._method_has_body = has_body(self.method, status)
        if self._method_has_body and value_of(headers, b"content-length") is None:
            self._is_chunked = not self.version_1_0
            if self._is_chunked:
                told.append((b"transfer-encoding", b"chunked"))
            else:
                self.keep_alive = False
        self._connection.write(self._begin(status, told))

    def write(self, part: bytes) -> bool:
        """A part of the body; False if the client reads slower than this, then wait for ``on_writable``."""
        if self.is_gone or not part or not self._method_has_body:
            return True
        return self._connection.write(chunk(part) if self._is_chunked else part)

    def end(self) -> None:
        """The answer is complete."""
        if self.is_gone or self.is_ended:
            return
        if self._is_chunked:
            self._connection.write(LAST_CHUNK)
        self._connection.flush()
        self.let_go()
        self.is_ended = True
        self.on_gone = self.on_writable = None
        self._connection.advance()

    def abort(self) -> None:
        """Close the connection: the only way to say that an answer which has begun will not be completed."""
        self._connection.flush()
        self.on_gone = self.on_writable = None
        self._connection.abort()

    def come_again_in(self, wait_s: float) -> None:
        """The answer will say so. Who never waits as told is, while very many do so, not read until then.

        Refusing is cheap, but who asks again at once has it done without end, and takes the CPU from the others.
        """
        self._connection.sent_away(wait_s)

    def detach(self) -> asyncio.Transport:
        """The connection, for who must break it in a way of its own. What was written is sent, nothing more is read.

        ``on_gone`` still tells of its end.
        """
        return self._connection.detach()

    def _begin(self, status: int, headers: Headers) -> bytes:
        self.is_begun = True
        if status < 400:
            self._connection.early_n = 0
        if not self.is_complete and not self._is_rest_small():
            self.keep_alive = False
        if self._connection.server.is_leaving:
            self.keep_alive = False
        if not self.keep_alive:
            headers.append((b"connection", b"close"))
        elif self.version_1_0:
            headers.append((b"connection", b"keep-alive"))
        return response_head(status, headers)

    def _is_rest_small(self) -> bool:
        """Whether the rest of the body is sure to come, and not worth a new connection."""
        length = self.content_length
        return not self.expects and length is not None and length - self.received <= _DISCARD_MOST

    def take(self, part: bytes) -> None:
        """A part of the request's body has come."""
        self.received += len(part)
        if not self.is_begun:
            self._body_parts.append(part)
            self._held += len(part)
            self._connection.server.buffered += len(part)

    def let_go(self) -> None:
        """Its body is needed no more."""
        self._connection.server.buffered -= self._held
        self._held = 0
        self.body, self._body_parts = b"", []

    def finish(self) -> None:
        """The request's body is complete."""
        parts, self._body_parts = self._body_parts, []
        self.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.is_complete = True

    def leave(self) -> None:
        """The client is gone."""
        told, self.on_gone, self.on_writable = self.on_gone, None, None
        self.is_gone = True
        self.let_go()
        if told is not None:
            told()


class Handler(Protocol):
    """What is done with requests. Neither may block; the answer may be given at once or later."""

    def on_head(self, exchange: Exchange) -> None:
        """A head has been read. To refuse the request, answer it here."""
        ...

    def on_request(self, exchange: Exchange) -> None:
        """The body is there too. Not called for a request that has been answered."""
        ...
