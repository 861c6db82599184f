"""An HTTP/1.1 client that does little, so that it can do it ten thousand times a second.

One request at a time per connection, kept alive, the last used first; a new connection is made when none is free, and
nothing ever waits for it but the request it is for. Bodies are thrown away as they come.

Why not the client of ``adapters/http1``, whose server the engine and the gateway share: a receiver, a list of headers
and a deadline for each request cost a fifth to a quarter more per request (measured side by side), which the generator
takes from the rate it can offer; and that one must tell a replica that may be asked again from one that may not, this
one a reset from a cut and from what is no HTTP.

Refuses to follow redirects, to pipeline, and to try anything again: a failure is what the test is there to see.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import cast

import httptools

from cardwise.loadtest.stream import TokenTimes

OK, REJECTED, ERROR, TIMEOUT, UNFINISHED = "ok", "rejected", "error", "timeout", "unfinished"
CLOSING_S = 1.0
_REJECTING = frozenset({429, 503})


class Call:
    """One request: when it was due, and what became of it. Times are of the monotonic clock, in seconds."""

    __slots__ = (
        "attempts",
        "batch_size",
        "connection",
        "counted",
        "done_s",
        "due_s",
        "opening",
        "outcome",
        "queue_ms",
        "reason",
        "retry_after",
        "sent_s",
        "tokens",
    )

    def __init__(self, due_s: float, *, counted: bool) -> None:
        self.due_s = due_s
        self.counted = counted
        self.sent_s = self.done_s = 0.0
        self.outcome = self.reason = ""
        self.retry_after: bytes | None = None
        self.queue_ms: bytes | None = None
        self.batch_size: bytes | None = None
        self.attempts: bytes | None = None
        self.tokens: TokenTimes | None = None
        self.connection: Connection | None = None
        self.opening: asyncio.Task[None] | None = None


_HEADERS = {
    b"retry-after": "retry_after",
    b"x-cardwise-queue-ms": "queue_ms",
    b"x-cardwise-batch-size": "batch_size",
    b"x-cardwise-attempts": "attempts",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect to: resolved once, so that no request waits for a name server."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None


class Client:
    """Connections to one address. ``on_done`` is called once for each call that was sent, also if it was given up."""

    def __init__(
        self,
        address: Address,
        *,
        timeout_s: float,
        streaming: bool,
        on_done: Callable[[Call], None],
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._streaming = streaming
        self._on_done = on_done
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._sent: deque[Call] = deque()
        self._next = cycle((b"",)).__next__
        self.loop = asyncio.get_running_loop()
        self.time = time.monotonic  # uvloop's own counts in milliseconds
        self.unfinished = 0

    def use(self, requests: tuple[bytes, ...]) -> None:
        """What to send from now on, in turn."""
        self._next = cycle(requests).__next__

    def send(self, call: Call) -> None:
        """Send a request, over a connection that is free or a new one."""
        self.unfinished += 1
        self._sent.append(call)
        if self._streaming:
            call.tokens = TokenTimes()
        call.sent_s = self.time()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                connection.start(call, self._next())
                return
        call.opening = self.loop.create_task(self._connect(call))

    async def _connect(self, call: Call) -> None:
        to = self._address
        connection = Connection(self)
        try:
            await self.loop.create_connection(
                lambda: connection, to.host, to.port, ssl=to.tls, server_hostname=to.server_name
            )
        except OSError as error:  # ssl.SSLError is one
            self.done(call, ERROR, f"connect-{_name_of(error)}")
            return
        except asyncio.CancelledError:  # given up; uvloop then closes the transport and tells the protocol nothing
            connection.forget()
            raise
        call.opening = None
        if call.outcome:
            connection.abort()
        else:
            connection.start(call, self._next())

    def done(self, call: Call, outcome: str, reason: str = "") -> None:
        """The call's end. Only the first counts."""
        if call.outcome:
            return
        call.outcome, call.reason = outcome, reason
        call.done_s = self.time()
        call.connection = None
        self.unfinished -= 1
        self._on_done(call)

    def expire(self) -> None:
        """Give up what is older than the timeout, from the time it was due. To be called often."""
        oldest_s = self.time() - self._timeout_s
        while self._sent and (self._sent[0].outcome or self._sent[0].due_s <= oldest_s):
            self._give_up(self._sent.popleft(), TIMEOUT)

    def abandon(self) -> None:
        """Give up all that is unfinished."""
        while self._sent:
            self._give_up(self._sent.popleft(), UNFINISHED)

    def _give_up(self, call: Call, outcome: str) -> None:
        if call.outcome:
            return
        connection, opening = call.connection, call.opening
        self.done(call, outcome)
        if connection is not None:
            connection.abort()
        if opening is not None:
            opening.cancel()

    async def close(self) -> None:
        """Close every connection, and let the loop see it; not for longer than it takes."""
        self.abandon()
        for connection in list(self._open):
            connection.abort()
        until_s = self.time() + CLOSING_S
        while self._open and self.time() < until_s:
            await asyncio.sleep(0.001)

    def opened(self, connection: Connection) -> None:
        """It is connected."""
        self._open.add(connection)

    def freed(self, connection: Connection) -> None:
        """It can take the next request."""
        self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """It is closed."""
        self._open.discard(connection)


class Connection(asyncio.Protocol):
    """One connection and the call that it is busy with."""

    __slots__ = ("_call", "_client", "_close_ends", "_parser", "_transport", "_undelimited", "is_closed")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._call: Call | None = None
        self.is_closed = False
        self._undelimited = True
        self._close_ends = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._client.opened(self)

    def start(self, call: Call, request: bytes) -> None:
        """Send a request."""
        if self.is_closed:
            self._client.done(call, ERROR, "reset")
            return
        self._call = call
        self._undelimited, self._close_ends = True, False
        call.connection = self
        self._transport.write(request)

    def abort(self) -> None:
        """Close now: the answer is not wanted any more."""
        self._call = None
        self.is_closed = True
        self._transport.abort()

    def forget(self) -> None:
        """Its transport is gone, though nobody says so."""
        self._call = None
        self.is_closed = True
        self._client.lost(self)

    def data_received(self, data: bytes) -> None:
        """Of asyncio."""
        if self.is_closed or self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a bug of ours
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("malformed")

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio."""
        self.is_closed = True
        self._client.lost(self)
        if self._call is not None and self._close_ends and exc is None:
            self._finish()
        elif self._call is not None:
            self._fail("cut" if self._close_ends or not self._undelimited else "reset")
        self._parser = None  # it refers to us: without this the garbage collector must find both

    def on_message_begin(self) -> None:
        """Of httptools: an answer, or an unasked one."""
        self._undelimited, self._close_ends = True, False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of httptools."""
        key = name.lower()
        if key in {b"content-length", b"transfer-encoding"}:
            self._undelimited = False
        elif key in _HEADERS and self._call is not None:
            setattr(self._call, _HEADERS[key], value)

    def on_headers_complete(self) -> None:
        """Of httptools."""
        self._close_ends = self._undelimited
        self._undelimited = False

    def on_body(self, body: bytes) -> None:
        """Of httptools."""
        if self._call is not None and self._call.tokens is not None:
            self._call.tokens.feed(body, self._client.time())

    def on_message_complete(self) -> None:
        """Of httptools."""
        parser = self._parser
        if parser is None or parser.get_status_code() < 200:
            return  # 100 Continue, 103 Early Hints: the answer is still to come
        if self._call is None:
            self._fail("malformed")
        elif parser.should_keep_alive():
            self._finish(keep=True)
        else:
            self._finish()

    def _finish(self, *, keep: bool = False) -> None:
        call, self._call = self._call, None
        assert call is not None and self._parser is not None  # noqa: S101, PT018 - the callers looked
        outcome, reason = _judged(self._parser.get_status_code(), call.tokens)
        if keep:
            self._client.freed(self)
        elif not self.is_closed:
            self.is_closed = True
            self._transport.close()
        self._client.done(call, outcome, reason)

    def _fail(self, reason: str) -> None:
        call, self._call = self._call, None
        if not self.is_closed:
            self.is_closed = True
            self._transport.abort()
        if call is not None:
            self._client.done(call, ERROR, reason)


def _judged(status: int, tokens: TokenTimes | None) -> tuple[str, str]:
    if status in _REJECTING:
        return REJECTED, ""
    if not 200 <= status < 300:
        return ERROR, f"status-{status}"
    if tokens is None:
        return OK, ""
    if tokens.fault:
        return ERROR, tokens.fault
    return (OK, "") if tokens.is_done else (ERROR, "cut")


def _name_of(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "TLS"
    return errno.errorcode.get(error.errno or 0, type(error).__name__)
