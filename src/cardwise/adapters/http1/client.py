"""The client's side of HTTP/1.1: kept connections to one replica, answers handed on as they come.

One request at a time per connection, the last used first, so that the others grow old and close. A request is sent at
once over a kept connection or a new one; nothing waits for a place, for how much enters a replica is decided before.
A kept connection is not used when it is closing, nor near the age at which the other side said it would close it.

Refuses to try anything again: whether that is safe is known to who asked. It tells how many bytes were sent.
"""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
import time
from typing import Protocol, cast

import httptools

from cardwise.adapters.http1.wire import Headers, has_body
from cardwise.core.queue.retry import Failure

_HEAD_MOST = 64 * 2**10
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL})
"""Errors of connecting that say nothing of the replica: too many connections of others, who may leave."""
_OURS_PAUSE_S = 0.02
_LATE_S = 0.1
"""A timer that comes so late was held up with the rest of the loop, which has not yet seen who answered meanwhile."""
_KEEP_ALIVE = re.compile(rb"timeout=(\d+)")


class Receiver(Protocol):
    """Who takes an answer. Exactly one of ``on_end`` and ``on_failure`` is called, unless it is aborted."""

    def on_status(self, status: int, headers: Headers) -> None:
        """The head of the answer."""
        ...

    def on_part(self, part: bytes) -> None:
        """A part of its body."""
        ...

    def on_end(self) -> None:
        """The answer is complete."""
        ...

    def on_failure(self, failure: Failure) -> None:
        """There will be no answer, or no more of it."""
        ...


class Sending:
    """One request on its way. sent_bytes: of it, given to the kernel or about to be."""

    __slots__ = (
        "_connection",
        "_idle_s",
        "_opening",
        "_timer",
        "_until_s",
        "body",
        "head",
        "is_done",
        "method",
        "receiver",
        "reused",
        "sent_bytes",
    )

    def __init__(self, method: str, head: bytes, body: bytes, receiver: Receiver, idle_s: float) -> None:
        """Not sent yet. idle_s: longest silence within an answer."""
        self.method = method
        self.head = head
        self.body = body
        self.receiver = receiver
        self.sent_bytes = 0
        self.reused = self.is_done = False
        self._idle_s = idle_s
        self._until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._connection: _Connection | None = None
        self._opening: asyncio.Task[None] | None = None

    def abort(self) -> None:
        """Give it up: the connection closes, the receiver hears nothing more."""
        self._finish()
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.abort()

    def pause(self) -> None:
        """Read no more of the answer for now. Silence is ours then, not the replica's."""
        if self._connection is not None and not self.is_done:
            self._connection.transport.pause_reading()
            self._until_s = float("inf")

    def resume(self) -> None:
        """Read on."""
        if self._connection is not None and not self.is_done:
            self._until_s = time.monotonic() + self._idle_s
            self._connection.transport.resume_reading()

    def limit(self, timeout_s: float) -> None:
        """Fail with TIMEOUT unless the answer begins by then."""
        self._until_s = time.monotonic() + timeout_s
        self._timer = asyncio.get_running_loop().call_later(min(timeout_s, self._idle_s), self._look)

    def heard(self) -> None:
        """Something of the answer has come."""
        self._until_s = time.monotonic() + self._idle_s

    def _look(self) -> None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0.001:
            self.fail(Failure.TIMEOUT)
            return
        self._timer = asyncio.get_running_loop().call_later(min(left_s, self._idle_s), self._look)

    def begin(self, connection: _Connection) -> None:
        """Write it."""
        self._connection, self._opening = connection, None
        self.sent_bytes = len(self.head) + len(self.body)

    def end(self) -> None:
        """The answer is complete."""
        if not self.is_done:
            self._finish()
            self.receiver.on_end()

    def fail(self, failure: Failure) -> None:
        """No answer, or no more of it."""
        if not self.is_done:
            self.abort()
            self.receiver.on_failure(failure)

    def _finish(self) -> None:
        self.is_done = True
        if self._timer is not None:
            self._timer.cancel()


class Pool:
    """Connections to one replica. Needs a running event loop to send."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        connect_s: float = 1.0,
        keep_s: float = 4.0,
        most_idle: int = 256,
    ) -> None:
        """keep_s: how long an unused connection is kept; less than most servers keep theirs (uvicorn: 5 s)."""
        self._host, self._port, self._tls = host, port, tls
        self._connect_s = connect_s
        self.keep_s = keep_s
        self._most_idle = most_idle
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()

    def send(
        self, method: str, head: bytes, body: bytes, receiver: Receiver, *, timeout_s: float, idle_s: float
    ) -> Sending:
        """Send a request now. timeout_s: until its answer begins, connecting included; idle_s: within it."""
        sending = Sending(method, head, body, receiver, idle_s)
        sending.limit(timeout_s)
        connection = self._pop()
        if connection is not None:
            sending.reused = True
            connection.start(sending)
        else:
            self._open(sending)
        return sending

    def sweep(self) -> None:
        """Close what has not been used for long."""
        now_s = time.monotonic()
        old = [each for each in self._idle if each.keep_until_s <= now_s]
        for each in old:
            self._idle.remove(each)
            each.close()

    @property
    def in_use(self) -> int:
        """Connections that are being opened, or that carry a request."""
        return len(self._opening) + len(self._all) - len(self._idle)

    def close(self) -> None:
        """Close all, also what is in use: its receivers hear nothing more."""
        for task in tuple(self._opening):
            task.cancel()
        for each in tuple(self._all):
            each.drop()

    def _pop(self) -> _Connection | None:
        now_s = time.monotonic()
        while self._idle:
            found = self._idle.pop()
            if not found.transport.is_closing() and found.keep_until_s > now_s:
                return found
            found.close()
        return None

    def _open(self, sending: Sending) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(sending))
        sending._opening = task
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, sending: Sending) -> None:
        try:
            connection = await self._dial_in_time()
        except (OSError, TimeoutError):  # an SSLError is an OSError
            sending._opening = None  # else failing would cancel the task that tells of it
            sending.fail(Failure.REFUSED)
            return
        if sending.is_done:
            self.free(connection)
        else:
            connection.start(sending)

    async def _dial_in_time(self) -> _Connection:
        """Raises TimeoutError if it takes too long; not where it was we who stood still: then it is dialled again."""
        while True:
            start_s = time.monotonic()
            try:
                async with asyncio.timeout(self._connect_s):
                    return await self._dial()
            except TimeoutError:
                if time.monotonic() - start_s < self._connect_s + _LATE_S:
                    raise

    async def _dial(self) -> _Connection:
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, connection = await loop.create_connection(
                    lambda: _Connection(self), self._host, self._port, ssl=self._tls
                )
            except OSError as exc:
                if exc.errno not in _OURS:
                    raise
                await asyncio.sleep(_OURS_PAUSE_S)
            else:
                return connection

    def made(self, connection: _Connection) -> None:
        """A connection is open."""
        self._all.add(connection)

    def lost(self, connection: _Connection) -> None:
        """A connection is closed."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def free(self, connection: _Connection) -> None:
        """A connection can be used again."""
        if len(self._idle) >= self._most_idle or connection.transport.is_closing():
            connection.close()
            return
        connection.keep_until_s = time.monotonic() + min(self.keep_s, connection.told_s)
        self._idle.append(connection)


class _Connection(asyncio.Protocol):
    """The protocol of one connection; httptools calls its ``on_`` methods."""

    __slots__ = (
        "_ended",
        "_ends_by_close",
        "_head_size",
        "_headers",
        "_in_head",
        "_keeps",
        "_parser",
        "_pool",
        "_sending",
        "keep_until_s",
        "told_s",
        "transport",
    )
    transport: asyncio.Transport

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._sending: Sending | None = None
        self._ended: Sending | None = None
        """What was answered by the bytes that are being read: told when they are, for the next may begin at once."""
        self._keeps = False
        self._headers: Headers = []
        self._ends_by_close = False
        self._in_head = True
        self._head_size = 0
        self.keep_until_s = 0.0
        self.told_s = float("inf")

    def start(self, sending: Sending) -> None:
        """Send a request."""
        self._sending = sending
        self._in_head, self._head_size, self._headers = True, 0, []
        sending.begin(self)
        if len(sending.body) < 2**16:
            self.transport.write(sending.head + sending.body)
        else:
            self.transport.writelines((sending.head, sending.body))

    def close(self) -> None:
        """Close; nothing is in flight."""
        self.transport.close()

    def abort(self) -> None:
        """Close at once; what is in flight has been given up."""
        self._sending = None
        self.transport.abort()

    def drop(self) -> None:
        """Close at once, and let nobody hear of what was in flight."""
        if self._sending is not None:
            self._sending.abort()
        else:
            self.transport.abort()

    # ---------------------------------------------------------------- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._pool.made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.lost(self)
        self._parser = None
        sending, self._sending = self._sending, None
        if sending is None:
            return
        if self._ends_by_close and exc is None:
            sending.end()
        else:
            sending.fail(Failure.LOST)

    def data_received(self, data: bytes) -> None:
        if self._sending is None or self._parser is None:
            self.transport.abort()  # an answer that nobody asked for
            return
        self._head_size += len(data) if self._in_head else 0
        self._sending.heard()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._keeps = False
            self._lose()
        if self._in_head and self._head_size > _HEAD_MOST:
            self._lose()
        self._tell_end()

    def _tell_end(self) -> None:
        ended, self._ended = self._ended, None
        if ended is None:
            return
        if self._keeps:
            if not self.transport.is_reading():  # its end came together with more than its client takes
                self.transport.resume_reading()
            self._pool.free(self)
        else:
            self.transport.close()
        ended.end()

    # ---------------------------------------------------------------- of httptools

    def on_message_begin(self) -> None:
        if self._sending is None:
            raise ValueError("more than was asked for")
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, sending = self._parser, self._sending
        if parser is None or sending is None:
            raise ValueError("an answer that nobody asked for")
        status = parser.get_status_code()
        if status < 200:
            return  # 100 Continue, 103 Early Hints: the answer is still to come
        self._in_head = False
        self._ends_by_close = True
        for name, value in self._headers:
            if name in {b"content-length", b"transfer-encoding"}:
                self._ends_by_close = False
            elif name == b"keep-alive" and (told := _KEEP_ALIVE.search(value)):
                self.told_s = max(float(told[1]) - 1.0, 0.0)
        sending.receiver.on_status(status, self._headers)
        if not has_body(sending.method, status):
            self._end(keep=sending.method != "HEAD" and parser.should_keep_alive())

    def on_body(self, part: bytes) -> None:
        if self._sending is not None:
            self._sending.receiver.on_part(part)

    def on_message_complete(self) -> None:
        parser = self._parser
        if parser is not None and parser.get_status_code() >= 200 and self._sending is not None:
            self._end(keep=parser.should_keep_alive() and not self._ends_by_close)

    def _end(self, *, keep: bool) -> None:
        self._ended, self._sending = self._sending, None
        self._keeps = keep

    def _lose(self) -> None:
        """What comes is no answer."""
        sending, self._sending = self._sending, None
        self.transport.abort()
        if sending is not None:
            sending.fail(Failure.LOST)


class Fetched:
    """A whole answer, for probes. status 0: there was none."""

    __slots__ = ("_done", "_most", "_parts", "_size", "body", "status")

    def __init__(self, most: int = 2**20) -> None:
        """most: bytes of the body that are kept."""
        self.status = 0
        self.body = b""
        self._most, self._size = most, 0
        self._parts: list[bytes] = []
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_status(self, status: int, headers: Headers) -> None:  # noqa: ARG002
        """Of Receiver."""
        self.status = status

    def on_part(self, part: bytes) -> None:
        """Of Receiver."""
        self._size += len(part)
        if self._size <= self._most:
            self._parts.append(part)

    def on_end(self) -> None:
        """Of Receiver."""
        self.body = b"".join(self._parts)
        if not self._done.done():
            self._done.set_result(None)

    def on_failure(self, failure: Failure) -> None:  # noqa: ARG002
        """Of Receiver."""
        self.status = 0
        if not self._done.done():
            self._done.set_result(None)

    async def wait(self, sending: Sending) -> None:
        """Until the answer is there, or will not be."""
        try:
            await self._done
        except asyncio.CancelledError:
            sending.abort()
            raise


async def fetch(pool: Pool, method: str, head: bytes, body: bytes, *, timeout_s: float) -> tuple[int, bytes]:
    """Status and body of one request; status 0 if there was no answer."""
    fetched = Fetched()
    await fetched.wait(pool.send(method, head, body, fetched, timeout_s=timeout_s, idle_s=timeout_s))
    return fetched.status, fetched.body
