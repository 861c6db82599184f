"""One client: its bytes are read into exchanges, which are handed out and answered in order, each within its time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Protocol, cast

import httptools
import structlog

from cardwise.adapters.http1.exchange import Exchange, Handler
from cardwise.adapters.http1.faults import REASON, Fault
from cardwise.adapters.http1.limits import Limits
from cardwise.adapters.http1.wire import REASONS, Headers, response_head
from cardwise.files import plain

log = structlog.get_logger()
_LINGER_S = 2.0
"""How long a closing connection still reads, so that the client sees the answer and not a reset (RFC 9112, 9.6)."""
_TURNED_AWAY_SHARE = 1 / 16
"""Connections too many that are given that time, of those that may be open; those beyond are closed at once."""
_PIPELINED = 2
"""Requests of a connection that may be waiting before it is read no further."""
_READ_MOST = 64 * 2**10
"""Bytes given to the parser at a time: bounds how many tiny requests it may find before it is stopped."""
_SEND_AT_ONCE = 2**14
"""Parts of this size are sent on their own: who writes large ones must hear soon that the client does not read."""
_DEAF_N = 3
"""Times in a row that a connection comes too early before it rests. One that many share is also let in now and then."""
_REST_MOST_S = 0.25
"""A connection rests no longer than this, for a proxy may have put another client on it."""
_NEVER_S = float("inf")


class Host(Protocol):
    """The server, as far as a connection knows it; what each says stands where it is made."""

    handler: Handler
    limits: Limits
    connections: set[Connection]
    turned_away: set[Connection]
    faults: Counter[Fault]
    is_leaving: bool
    is_draining: bool
    is_storm: bool
    grace_s: float
    buffered: int
    sent_away: int


class Connection(asyncio.Protocol):
    """The protocol of one client; httptools calls its ``on_`` methods."""

    __slots__ = (
        "_asked",
        "_away_until_s",
        "_head_size",
        "_headers",
        "_in_head",
        "_is_advancing",
        "_is_blocked",
        "_is_closing",
        "_is_paused",
        "_is_resting",
        "_newest",
        "_out",
        "_parser",
        "_raw_size",
        "_refused",
        "_target",
        "early_n",
        "peer",
        "server",
        "transport",
        "until_s",
    )
    transport: asyncio.Transport

    def __init__(self, server: Host) -> None:
        self.server = server
        self.peer = ""
        self.until_s = _NEVER_S
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._asked: deque[Exchange] = deque()
        self._out: list[bytes] = []
        self._newest: Exchange | None = None
        """The one whose body is being read."""
        self._headers: Headers = []
        self._target = b""
        self._head_size = self._raw_size = 0
        self._in_head = self._is_advancing = self._is_blocked = self._is_closing = self._is_paused = False
        self._is_resting = False
        self._away_until_s = 0.0
        self.early_n = 0
        """Times in a row that it was sent away before it was to come again."""
        self._refused: Fault | None = None
        """Why the rest cannot be read; nothing is read after it."""

    # ---------------------------------------------------------------- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self.transport = cast("asyncio.Transport", transport)
        server = self.server
        if server.is_draining or len(server.connections) >= server.limits.connections:
            self._turn_away(Fault.STOPPING if server.is_draining else Fault.CONNECTIONS)
            return
        server.connections.add(self)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self.until_s = time.monotonic() + server.limits.idle_s

    def _turn_away(self, fault: Fault) -> None:
        self.server.faults[fault] += 1
        headers = [*_headers_of(fault), (b"connection", b"close")]
        self.transport.write(response_head(fault.status, headers))
        self._is_closing = True
        if len(self.server.turned_away) >= self.server.limits.connections * _TURNED_AWAY_SHARE:
            self.transport.close()
        else:
            self.server.turned_away.add(self)
            self._linger()

    def connection_lost(self, _exc: Exception | None) -> None:
        """It has gone."""
        self._is_closing = True
        self.server.connections.discard(self)
        self.server.turned_away.discard(self)
        self._parser = None  # it refers to us: without this the garbage collector must find both
        asked = tuple(self._asked)
        self._asked.clear()
        for exchange in asked:
            exchange.leave()

    def pause_writing(self) -> None:
        """It reads slower than we write."""
        self._is_blocked = True
        self.until_s = time.monotonic() + self.server.limits.write_s

    def resume_writing(self) -> None:
        """It reads again."""
        self._is_blocked = False
        self._set_deadline()
        told = self._asked[0].on_writable if self._asked else None
        if told is not None:
            told()

    def data_received(self, data: bytes) -> None:
        """Bytes of it."""
        if self._is_closing or self._refused:
            return
        for start in range(0, len(data), _READ_MOST):
            part = data if len(data) <= _READ_MOST else data[start : start + _READ_MOST]
            if not self._read(part):
                break
        self.advance()

    # ---------------------------------------------------------------- of httptools

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._newest is not None:
            return  # a parser that only takes over its body, see _read_over_offer
        self._target, self._headers = b"", []
        self._head_size = self._raw_size = 0
        self._in_head = True

    def on_url(self, part: bytes) -> None:
        """A part of its target."""
        self._target += part
        self._count_head(len(part))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of it, or a trailer."""
        if self._in_head:
            self._headers.append((name.lower(), value))
            if len(self._headers) > self.server.limits.headers:
                self._refuse(Fault.MANY_HEADERS)
        self._count_head(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        """Its head is there."""
        parser = self._parser
        assert parser is not None  # noqa: S101 - it is who calls
        if self._newest is not None:
            return
        exchange = Exchange(self, parser.get_method().decode(), self._target.decode("latin-1"), self._headers)
        exchange.version_1_0 = parser.get_http_version() == "1.0"
        exchange.keep_alive = parser.should_keep_alive()
        self._in_head = False
        self._newest = exchange
        self._asked.append(exchange)
        self._check_head(exchange, upgrade=parser.should_upgrade())

    def on_body(self, part: bytes) -> None:
        """A part of its body."""
        exchange = self._newest
        assert exchange is not None  # noqa: S101
        exchange.take(part)
        if exchange.received > self.server.limits.body:
            self._refuse(Fault.LARGE_BODY)
        if self.server.buffered > self.server.limits.buffered and not exchange.is_begun:
            self._refuse(Fault.MEMORY)

    def on_message_complete(self) -> None:
        """All of it is there."""
        exchange, parser = self._newest, self._parser
        if exchange is not None and parser is not None and not parser.should_upgrade():
            exchange.finish()
            self._newest = None

    # ---------------------------------------------------------------- reading

    def _read(self, data: bytes) -> bool:
        """Give bytes to the parser; False if nothing after them is read."""
        while self._parser is not None:
            self._raw_size += len(data)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                self._raw_size = max(self._raw_size - len(data), 0)
                self._read_over_offer()
                continue
            except httptools.HttpParserError:
                self._fail(self._refused or Fault.MALFORMED)
                return False
            return self._demand_overhead()
        return False

    def _read_over_offer(self) -> None:
        """Read on as if no upgrade had been offered: the parser stops behind such a head, so another takes its body."""
        exchange = self._newest
        assert exchange is not None  # noqa: S101 - it offers
        length = exchange.content_length
        framed = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        kept = b"keep-alive" if exchange.keep_alive else b"close"
        self._head_size = 0  # what is counted of the head below is ours
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\nconnection: %b\r\n%b\r\n\r\n" % (kept, framed))

    def _demand_overhead(self) -> bool:
        """Refuse heads, trailers and chunks of which the parser keeps more than it shows."""
        body = 0 if self._newest is None else self._newest.received
        if self._raw_size - 8 * body <= self.server.limits.head + _READ_MOST and not (
            self._in_head and self._raw_size > self.server.limits.head + _READ_MOST
        ):
            return True
        if self._newest is None and not self._in_head:
            self._raw_size = 0  # the message they belonged to is complete
            return True
        self._fail(Fault.LONG_HEAD)
        return False

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self.server.limits.head:
            self._refuse(Fault.LONG_HEAD)

    def _refuse(self, fault: Fault) -> None:
        self._refused = fault
        raise ValueError("refused")  # ends the parser's call, which raises to _read

    def _check_head(self, exchange: Exchange, *, upgrade: bool) -> None:
        """What the parser leaves open: how long the body is, and what is not supported."""
        hosts = [value for name, value in exchange.headers if name == b"host"]
        if len(hosts) > 1 or not (hosts or exchange.version_1_0):
            self._refuse(Fault.MALFORMED)
        coding = exchange.header(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or exchange.version_1_0):
            self._refuse(Fault.UNSUPPORTED)
        length = int(exchange.header(b"content-length") or 0)
        if length > self.server.limits.body:
            self._refuse(Fault.LARGE_BODY)
        exchange.content_length = length if coding is None else None
        exchange.expects = (exchange.header(b"expect") or b"").lower() == b"100-continue"
        if upgrade and exchange.method == "CONNECT":
            self._refuse(Fault.UNSUPPORTED)

    def _fail(self, fault: Fault) -> None:
        """Answer what cannot be read, after what was asked before it."""
        if self._asked and not self._asked[-1].keep_alive and self._asked[-1].is_complete:
            self._refused = Fault.MALFORMED  # bytes after the last request of a connection: nobody waits for an answer
            return
        exchange = self._newest
        if exchange is None:
            exchange = Exchange(self, "GET", "", [])
            self._asked.append(exchange)
        self._refused = exchange.fault = fault
        self.server.faults[fault] += 1
        exchange.keep_alive = False
        self._newest = None

    # ---------------------------------------------------------------- answering, in order

    def advance(self) -> None:
        """Hand out what is next, for as long as answers come at once."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._asked and self._advance(self._asked[0]):
                pass
        finally:
            self._is_advancing = False
        self._pause(paused=self._is_resting or len(self._asked) >= _PIPELINED)
        self._set_deadline()

    def _advance(self, exchange: Exchange) -> bool:
        """Whether this one is done with, and the next may begin."""
        if not exchange.is_shown:
            exchange.is_shown = True
            if not exchange.fault:
                self._show(exchange)
        if exchange.fault and not exchange.is_begun:
            _tell_fault(exchange, exchange.fault)
        if exchange.fault and not exchange.is_ended:  # it had begun an answer, and the rest cannot be read
            self.abort()
            return False
        if exchange.is_complete and not exchange.is_begun and not exchange.is_given:
            exchange.is_given = True
            self._call(self.server.handler.on_request, exchange)
        if not exchange.is_ended or self._is_closing:
            return False
        if not exchange.keep_alive:
            self._close(exchange)
            return False
        if not exchange.is_complete:
            return False  # the rest of its body is read and thrown away
        self._asked.popleft()
        if self.server.is_draining:
            self.close_if_idle()  # its answer had begun before, and did not say so
        return True

    def _show(self, exchange: Exchange) -> None:
        self._call(self.server.handler.on_head, exchange)
        if exchange.expects and not exchange.is_begun and not exchange.is_complete and not exchange.received:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _call(self, step: Callable[[Exchange], None], exchange: Exchange) -> None:
        try:
            step(exchange)
        except Exception:  # a bug of ours must show, and not as a client that waits
            log.exception("cannot answer", target=plain(exchange.target))
            self.server.faults[Fault.BUG] += 1
            if exchange.is_begun:
                self.abort()
            else:
                _tell_fault(exchange, Fault.BUG)

    def write(self, data: bytes) -> bool:
        """False if the client reads slower than we write. Sent at the end of this turn of the loop, in one piece.

        A head and a first part that come together cost the kernel, and the client, once instead of twice.
        """
        if not self._out:
            asyncio.get_running_loop().call_soon(self.flush)
        self._out.append(data)
        if len(data) >= _SEND_AT_ONCE:
            self.flush()
        return not self._is_blocked

    def flush(self) -> None:
        """Send what has been written."""
        if self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out.clear()
            if not self.transport.is_closing():
                self.transport.write(data)

    # ---------------------------------------------------------------- closing

    def _close(self, exchange: Exchange) -> None:
        """Close after an answer; if more of the request may come, only when the client has had time to read it."""
        for each in self._asked:
            each.let_go()
        self._asked.clear()
        self._is_closing = True
        if exchange.is_complete and not exchange.fault:
            self.until_s = time.monotonic() + self.server.limits.write_s
            self.flush()
            self.transport.close()
            return
        self.flush()
        self._linger()

    def _linger(self) -> None:
        self.until_s = time.monotonic() + _LINGER_S
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError, RuntimeError):
                self.transport.write_eof()

    def close_if_idle(self) -> None:
        """Close unless something is being asked or answered, or may be within the grace."""
        if self._asked or self._in_head or self._is_closing:
            return
        if self.server.grace_s:
            self._set_deadline()
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self.transport.abort()

    def detach(self) -> asyncio.Transport:
        """Leave the transport to others."""
        self.flush()
        self._is_closing = True
        self.until_s = _NEVER_S
        return self.transport

    def expire(self) -> None:
        """The client is out of time."""
        if self._is_blocked:
            self.server.faults[Fault.UNREAD] += 1
        if self._is_closing or self._is_blocked:
            self.transport.abort()
        elif self._in_head or (self._newest is not None and not self._newest.is_begun):
            self._fail(Fault.SLOW_HEAD if self._in_head else Fault.SLOW_BODY)
            self.advance()
        else:
            self.transport.close()

    def sent_away(self, wait_s: float) -> None:
        """Rest, if it comes again and again before it was told to, and many do."""
        server, now_s = self.server, time.monotonic()
        server.sent_away += 1
        self.early_n = self.early_n + 1 if now_s < self._away_until_s else 0
        self._away_until_s = now_s + min(wait_s, _REST_MOST_S)
        if server.is_storm and self.early_n >= _DEAF_N and not self._is_resting:
            self._is_resting = True
            asyncio.get_running_loop().call_later(self._away_until_s - now_s, self._wake)

    def _wake(self) -> None:
        self._is_resting = False
        self._pause(paused=len(self._asked) >= _PIPELINED)

    def _pause(self, *, paused: bool) -> None:
        if paused == self._is_paused or self._is_closing or self.transport.is_closing():
            return
        self._is_paused = paused
        if paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _set_deadline(self) -> None:
        """When the client is out of time, by what we wait for from it."""
        if self._is_closing or self._is_blocked:
            return
        limits, now_s = self.server.limits, time.monotonic()
        if self._newest is not None:
            self.until_s = self._newest.since_s + limits.body_s
        elif self._asked:
            self.until_s = _NEVER_S
        elif self._in_head:
            self.until_s = min(self.until_s, now_s + limits.head_s)
        else:
            self.until_s = now_s + (self.server.grace_s if self.server.is_draining else limits.idle_s)


def _headers_of(fault: Fault) -> Headers:
    """What an answer of ours says besides its status."""
    more: Headers = [(b"retry-after", b"1")] if fault.status == 503 else []
    return [(REASON, fault.word.encode()), *more]


def _tell_fault(exchange: Exchange, fault: Fault) -> None:
    exchange.keep_alive = False
    body = b'{"error": "%b"}' % REASONS[fault.status].lower()
    exchange.answer(fault.status, body, _headers_of(fault))
