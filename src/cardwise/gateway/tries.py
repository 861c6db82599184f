"""One try: what is sent to a replica, and how its answer goes to who waits for it.

A request that goes alone is passed on and its answer passed back as it comes, read no faster than the client reads. A
batch is sent as one, its answer collected and split; so is a batch that happens to be of one, for what a client sees
must not depend on who else asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from cardwise.adapters.http1.client import Sending
from cardwise.adapters.http1.exchange import Exchange
from cardwise.adapters.http1.wire import JSON, Header, Headers, end_to_end, request_head, value_of
from cardwise.core.queue.retry import BUSY_STATUS, RETRIED_STATUSES, Failure
from cardwise.gateway.answers import Answers
from cardwise.gateway.oip import Item, WrongError
from cardwise.gateway.replicas import Replica
from cardwise.gateway.settings import ServiceSettings
from cardwise.gateway.ticket import Ticket

DEADLINE = b"x-cardwise-deadline-ms"
_OURS = frozenset({b"content-length", b"expect", b"host", b"x-forwarded-for", b"x-forwarded-proto", DEADLINE})
"""Headers of requests that are written anew."""
_TOLD = frozenset({b"x-cardwise-queue-ms", b"x-cardwise-batch-size", b"x-cardwise-attempts"})
_AGAIN = frozenset({b"retry-after", b"retry-after-ms"})
OF_ONE = frozenset({b"traceparent", b"tracestate", b"x-request-id"})
"""Headers that say who asks: of no use where several do."""
_UNWANTED = frozenset({400, 413, 422})
"""Said of a batch, it may be meant for one request in it: each is tried alone. Nothing has been executed."""


class Codec(NamedTuple):
    """How requests of a kind are read, joined and split."""

    read: Callable[[bytes], Item]
    join: Callable[[bytes, Sequence[Item]], bytes]
    split: Callable[[bytes, Sequence[Item]], list[bytes]]


class Owner(Protocol):
    """The service whose requests they are, as far as tries need it."""

    settings: ServiceSettings
    codec: Codec
    batch_headers: frozenset[bytes]
    alone_headers: frozenset[bytes]
    answers: Answers

    def note_time(self, attempt: Try) -> None:
        """Its answer has begun, or of a batch is there."""
        ...

    def over(self, attempt: Try, *, ok: bool, failure: Failure | None) -> None:
        """Its place is free again."""
        ...

    def answered(self, attempt: Try) -> None:
        """Its callers have their answers."""
        ...

    def retry_in_s(self, attempt: Try, failure: Failure, headers: Headers) -> float | None:
        """After how long it is tried again; None if it is not."""
        ...

    def again(self, attempt: Try, pause_s: float) -> None:
        """Try it once more."""
        ...

    def alone(self, batch: Try, body: bytes, kind: bytes, more: Sequence[Header]) -> None:
        """Try each of a batch alone."""
        ...


class Try:
    """Some requests at one replica. tried: replicas that have failed them before."""

    __slots__ = (
        "is_awaited",
        "is_over",
        "replica",
        "sending",
        "service",
        "since_s",
        "status",
        "swallows",
        "tickets",
        "tried",
    )

    def __init__(self, service: Owner, tickets: list[Ticket], tried: tuple[Replica, ...] = ()) -> None:
        """Not sent yet."""
        self.service = service
        self.tickets = tickets
        self.tried = tried
        self.replica: Replica | None = None
        self.sending: Sending | None = None
        self.since_s = 0.0
        self.status = 0
        self.is_over = False
        self.is_awaited = False
        """It holds a place, and its answer has not begun."""
        self.swallows: float | None = None
        """Its answer is not passed on: it is tried again after so long."""

    @property
    def rows(self) -> int:
        """Of all in it."""
        return sum(ticket.rows for ticket in self.tickets)

    @property
    def places(self) -> int:
        """Places of a batch that it takes."""
        return sum(ticket.places for ticket in self.tickets)

    def send(self, replica: Replica, now_s: float) -> None:
        """Send it. The place has been taken."""
        self.replica, self.since_s = replica, now_s
        for ticket in self.tickets:
            ticket.attempts += 1
            ticket.attempt, ticket.failure = self, None
        settings = self.service.settings
        timeout_s = settings.timeout_ms / 1000
        first = self.tickets[0]
        if len(self.tickets) == 1 and first.is_strict:
            timeout_s = max(min(timeout_s, first.deadline_s - now_s), 0.001)
        method, head, body = self._request(replica, now_s)
        self.sending = replica.pool.send(
            method, head, body, self, timeout_s=timeout_s, idle_s=settings.silence_ms / 1000
        )

    def _request(self, replica: Replica, now_s: float) -> tuple[str, bytes, bytes]:
        raise NotImplementedError

    # ---------------------------------------------------------------- of Receiver

    def on_status(self, status: int, headers: Headers) -> None:
        """Of Receiver."""
        self.status = status
        if status == BUSY_STATUS or status in RETRIED_STATUSES:
            self.swallows = self.service.retry_in_s(self, Failure.STATUS, headers)

    def on_part(self, part: bytes) -> None:
        """Of Receiver."""
        raise NotImplementedError

    def on_end(self) -> None:
        """Of Receiver."""
        self.over(ok=self.status < 500 and self.status != BUSY_STATUS)
        if self.swallows is not None:
            self.service.again(self, self.swallows)
        else:
            self._answered()

    def on_failure(self, failure: Failure) -> None:
        """Of Receiver."""
        self.over(ok=False, failure=failure)
        if (pause_s := self.service.retry_in_s(self, failure, [])) is not None:
            self.service.again(self, pause_s)
        else:
            self._failed(failure)

    def over(self, *, ok: bool, failure: Failure | None = None) -> None:
        """Give the place back, once."""
        if not self.is_over:
            self.is_over = True
            why = failure if self.swallows is None else Failure.STATUS
            for ticket in self.tickets:
                ticket.attempt, ticket.failure, ticket.status = None, why, self.status
            self.service.over(self, ok=ok, failure=failure)

    def hang_up(self, ticket: Ticket) -> None:
        """A client has left."""
        raise NotImplementedError

    def _answered(self) -> None:
        raise NotImplementedError

    def _failed(self, failure: Failure) -> None:
        raise NotImplementedError


class Passing(Try):
    """One request, passed on as it came, and its answer passed back as it comes."""

    __slots__ = ()

    def _request(self, replica: Replica, now_s: float) -> tuple[str, bytes, bytes]:
        ticket, exchange = self.tickets[0], self.tickets[0].exchange
        headers = [header for header in end_to_end(exchange.headers) if header[0] not in _OURS]
        headers.append((b"host", replica.authority))
        headers += forwarded(exchange)
        if ticket.is_strict:
            headers.append((DEADLINE, b"%d" % max(1000 * (ticket.deadline_s - now_s), 1)))
        if exchange.body or exchange.method not in {"GET", "HEAD", "OPTIONS", "DELETE"}:
            headers.append((b"content-length", b"%d" % len(exchange.body)))
        return exchange.method, request_head(exchange.method, exchange.target, headers), exchange.body

    def on_status(self, status: int, headers: Headers) -> None:
        """Begin the answer, unless it is tried again."""
        super().on_status(status, headers)
        self.service.note_time(self)
        if self.swallows is None:
            ticket = self.tickets[0]
            told = [header for header in end_to_end(headers) if header[0] not in _TOLD]
            ticket.exchange.begin(status, told + ticket.told(ticket.rows))

    def on_part(self, part: bytes) -> None:
        """Pass it on, and read no further while the client does not."""
        exchange, sending = self.tickets[0].exchange, self.sending
        if self.swallows is None and not exchange.write(part) and sending is not None and not sending.is_done:
            sending.pause()
            exchange.on_writable = sending.resume

    def hang_up(self, ticket: Ticket) -> None:
        """Nobody waits any more: stop the replica's work if closing the connection does, and free the place."""
        del ticket
        if self.sending is not None:
            self.sending.abort()
        self.over(ok=False)

    def _answered(self) -> None:
        self.service.answers.count(self.tickets[0], self.status)
        self.tickets[0].exchange.end()

    def _failed(self, failure: Failure) -> None:
        ticket = self.tickets[0]
        if ticket.exchange.is_begun:
            self.service.answers.count(ticket, self.status)
            ticket.exchange.abort()
        else:
            self.service.answers.tell_failure(ticket, failure)


class Batch(Try):
    """Several requests as one."""

    __slots__ = ("_headers", "_parts")

    def __init__(self, service: Owner, tickets: list[Ticket], tried: tuple[Replica, ...] = ()) -> None:
        """Not sent yet."""
        super().__init__(service, tickets, tried)
        self._parts: list[bytes] = []
        self._headers: Headers = []

    def send(self, replica: Replica, now_s: float) -> None:
        """Send it. Who told a deadline hears at it, whenever the replica answers the others."""
        super().send(replica, now_s)
        for ticket in self.tickets:
            if ticket.is_strict and ticket.timer is None:
                left_s = max(ticket.deadline_s - now_s, 0.0)
                ticket.timer = asyncio.get_running_loop().call_later(left_s, self.service.answers.tell_late, ticket)

    def _request(self, replica: Replica, now_s: float) -> tuple[str, bytes, bytes]:
        del now_s
        exchange, is_one = self.tickets[0].exchange, len(self.tickets) == 1
        body = exchange.body if is_one else self.service.codec.join(exchange.body, list(map(_item_of, self.tickets)))
        wanted = self.service.alone_headers if is_one else self.service.batch_headers
        headers: Headers = [(b"host", replica.authority), (b"content-type", JSON), (b"accept", JSON)]
        headers += [header for header in exchange.headers if header[0] in wanted]
        headers.append((b"content-length", b"%d" % len(body)))
        return "POST", request_head("POST", exchange.target, headers), body

    def on_status(self, status: int, headers: Headers) -> None:
        """Keep it."""
        super().on_status(status, headers)
        self._headers = headers

    def on_part(self, part: bytes) -> None:
        """Keep it."""
        self._parts.append(part)

    def hang_up(self, ticket: Ticket) -> None:
        """The others still wait."""

    def on_end(self) -> None:
        """Split it."""
        self.service.note_time(self)
        super().on_end()
        self.service.answered(self)

    def _answered(self) -> None:
        body = b"".join(self._parts)
        if self.status == 200:
            self._split(body)
        else:
            self._hand_out(body)

    def _hand_out(self, body: bytes) -> None:
        """To each the whole answer, which is none to its rows, or each alone."""
        kind = value_of(self._headers, b"content-type") or JSON
        # when the replica wants to be asked again is as good for each of them as for all
        more = [header for header in self._headers if header[0] in _AGAIN]
        if self.status in _UNWANTED and len(self.tickets) > 1:
            self.service.alone(self, body, kind, more)
            return
        rows = self.rows
        for ticket in self.tickets:
            self.service.answers.finish(ticket, self.status, body, rows, kind, more)

    def _split(self, body: bytes) -> None:
        try:
            parts = self.service.codec.split(body, list(map(_item_of, self.tickets)))
        except WrongError as error:
            message = f"the replica's answer cannot be told apart: {error}"
            for ticket in self.tickets:
                self.service.answers.refuse_wrong(ticket, message)
            return
        if len(self.tickets) == 1:
            parts = [body]
        rows = self.rows
        for ticket, part in zip(self.tickets, parts, strict=True):
            self.service.answers.finish(ticket, 200, part, rows, JSON)

    def _failed(self, failure: Failure) -> None:
        for ticket in self.tickets:
            self.service.answers.tell_failure(ticket, failure)


def _item_of(ticket: Ticket) -> Item:
    assert ticket.item is not None  # noqa: S101 - only what has been read is put into batches
    return ticket.item


def forwarded(exchange: Exchange) -> Headers:
    """On whose behalf we ask."""
    before = [value for name, value in exchange.headers if name == b"x-forwarded-for"]
    told: Headers = []
    if exchange.peer or before:
        told.append((b"x-forwarded-for", b", ".join([*before, exchange.peer.encode()])))
    if (host := exchange.header(b"host")) is not None and exchange.header(b"x-forwarded-host") is None:
        told.append((b"x-forwarded-host", host))
    told.append((b"x-forwarded-proto", exchange.header(b"x-forwarded-proto") or b"http"))
    return told


def asked_after_s(headers: Headers) -> float | None:
    """When a replica wants to be asked again; None if it does not say so in seconds."""
    for name, scale in ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0)):
        value = value_of(headers, name)
        if value is not None and value.isdigit() and len(value) < 9:
            return int(value) / scale
    return None


def now() -> float:
    """The clock of all deadlines."""
    return time.monotonic()


def of(service: Owner, tickets: Sequence[Ticket], tried: tuple[Replica, ...] = ()) -> Try:
    """A try for these; what is not read, or must go alone, is passed on as it came."""
    item = tickets[0].item
    return (Passing if item is None or item.key is None else Batch)(service, list(tickets), tried)
