"""What clients are told: answers of replicas, and refusals of our own, each counted once."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec

from cardwise.adapters.http1.exchange import Exchange
from cardwise.adapters.http1.wire import Header, Headers
from cardwise.core.queue.backlog import Reason
from cardwise.core.queue.retry import Failure
from cardwise.gateway.metrics import Tally
from cardwise.gateway.refusals import FAILED, Why, reason
from cardwise.gateway.ticket import Ticket

_BUSY = {
    Reason.FULL: "the queue is full",
    Reason.SHARE: "the queue is full, and this tenant holds its share of it",
    Reason.LATE: "the wait is longer than the deadline allows",
    Reason.DISPLACED: "the place in the queue went to another",
    Reason.EXPIRED: "the deadline passed in the queue",
    Reason.SIZE: "larger than the whole queue",
}
_STATUS = {Reason.SIZE: 413, Reason.EXPIRED: 503}
"""Of refusals; the others are 429."""


class Answers:
    """Of one service. tally: where they are counted."""

    def __init__(self, tally: Tally) -> None:
        """None yet."""
        self.tally = tally

    def count(self, ticket: Ticket, status: int) -> None:
        """An answer."""
        ticket.settle()
        self.tally.answers[status] += 1
        self.tally.latency_s.observe(time.monotonic() - ticket.since_s)

    def finish(
        self, ticket: Ticket, status: int, body: bytes, batch_size: int, kind: bytes, more: Sequence[Header] = ()
    ) -> None:
        """The answer to one of a batch. more: headers of the replica's that go with it."""
        if ticket.is_late:
            return
        self.count(ticket, status)
        ticket.exchange.answer(status, body, [*ticket.told(batch_size), *more], kind)

    def refuse_wrong(self, ticket: Ticket, message: str) -> None:
        """The replica's answer is none."""
        self.tally.failures["shape"] += 1
        if ticket.is_late:
            return
        self.count(ticket, 502)
        headers = [*ticket.told(ticket.rows), *reason(Why.SHAPE)]
        ticket.exchange.answer(502, error_body(ticket.exchange, 502, message), headers)

    def tell_failure(self, ticket: Ticket, failure: Failure) -> None:
        """No replica has answered, and there is no other try."""
        if ticket.is_late:
            return
        why, status, message = FAILED[failure]
        status = status or ticket.status
        self.count(ticket, status)
        more = retry_after(1.0) if status in {429, 503} else []
        headers = [*ticket.told(ticket.rows), *reason(why), *more]
        ticket.exchange.answer(status, error_body(ticket.exchange, status, message), headers)

    def tell_late(self, ticket: Ticket) -> None:
        """Its caller's time is up; of the batch it is in, or waits to be tried again in, its rows are for nobody."""
        self.tell_failure(ticket, ticket.failure or Failure.TIMEOUT)
        ticket.is_late = True

    def shed(self, exchange: Exchange, why: Reason, retry_after_s: float | None) -> None:
        """Not let in, or dropped from the backlog."""
        self.refuse(exchange, _STATUS.get(why, 429), why, _BUSY[why], retry_after_s)

    def refuse_for_nobody(self, exchange: Exchange) -> None:
        """There is nobody to send it to."""
        self.refuse(exchange, 503, Why.NO_REPLICA, "no replica is ready", 1.0)

    def refuse(
        self, exchange: Exchange, status: int, why: Why | Reason, message: str, retry_after_s: float | None = None
    ) -> None:
        """Answer without a replica."""
        self.tally.refused[why.value] += 1
        self.tally.answers[status] += 1
        headers = reason(why)
        if retry_after_s is not None:
            headers += retry_after(retry_after_s)
            exchange.come_again_in(retry_after_s)
        exchange.answer(status, error_body(exchange, status, message), headers)


def error_body(exchange: Exchange, status: int, message: str) -> bytes:
    """An error as the clients of this path read it: OpenAI's shape below /v1, else that of the inference protocol."""
    if exchange.target.startswith("/v1/"):
        kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
        return msgspec.json.encode({"error": {"message": message, "type": kind, "code": status}})
    return msgspec.json.encode({"error": message})


def retry_after(seconds: float) -> Headers:
    """When to come again: in whole seconds as RFC 9110 has it, and exactly."""
    return [
        (b"retry-after", b"%d" % max(math.ceil(seconds), 1)),
        (b"retry-after-ms", b"%d" % max(math.ceil(1000 * seconds), 1)),
    ]
