"""Why the gateway answered, and not a replica: each word of ``x-cardwise-reason`` once, with status and meaning.

The words are stable: clients branch on them, and metrics carry them. An answer without the header is a replica's.
Refuses a word for what only the log can explain: those who wait can do nothing with it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from cardwise.adapters.http1.faults import REASON, Fault
from cardwise.adapters.http1.wire import Headers
from cardwise.core.queue.backlog import Reason
from cardwise.core.queue.retry import Failure


class Why(enum.Enum):
    """What is not the backlog's word (``Reason``) nor HTTP's (``Fault``)."""

    NO_SERVICE = "no-service"
    NO_REPLICA = "no-replica"
    NOT_READY = "not-ready"
    DRAINING = "draining"
    WRONG = "wrong"
    DEADLINE = "deadline"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    TIMEOUT = "timeout"
    STATUS = "status"
    SHAPE = "shape"


class Failed(NamedTuple):
    """What is told of a try that failed, if there is no other. status: 0 for what the replica said."""

    why: Why
    status: int
    message: str


FAILED = {
    Failure.REFUSED: Failed(Why.UNREACHABLE, 503, "no replica can be reached"),
    Failure.LOST: Failed(Why.LOST, 502, "the replica's connection broke before its answer was complete"),
    Failure.TIMEOUT: Failed(Why.TIMEOUT, 504, "the replica did not answer in time"),
    Failure.STATUS: Failed(Why.STATUS, 0, "the replica answered with an error, and there was no time for another try"),
}


class Told(NamedTuple):
    """What the page says of a word."""

    statuses: str
    meaning: str


MEANINGS: dict[str, Told] = {
    Reason.FULL.value: Told("429", "the queue is full"),
    Reason.SHARE.value: Told("429", "the queue is full, and this tenant holds its share of it"),
    Reason.LATE.value: Told("429", "the wait would be longer than the deadline allows; said on arrival"),
    Reason.DISPLACED.value: Told("429", "its place went to a more urgent request, or to a tenant that holds less"),
    Reason.EXPIRED.value: Told("503", "the deadline passed in the queue"),
    Reason.SIZE.value: Told("413", "more rows than the whole queue has places"),
    Why.NO_REPLICA.value: Told("503", "no replica of the service is ready"),
    Why.UNREACHABLE.value: Told("503", "no connection to a replica was to be had, in any try"),
    Why.LOST.value: Told("502", "the replica's connection broke before its answer was complete"),
    Why.SHAPE.value: Told("502", "the replica's answer to a batch is not of the shape that was asked for"),
    Why.TIMEOUT.value: Told("504", "the replica did not answer in time, or not by the deadline that the caller told"),
    Why.STATUS.value: Told(
        "429, 502, 503, 504",
        "the replica answered so; it was to be tried once more, and the time for that ran out",
    ),
    Why.DRAINING.value: Told("503", "the gateway is about to stop"),
    Why.NOT_READY.value: Told("503", "of a health check: the answer is no"),
    Why.NO_SERVICE.value: Told("404, 405", "nothing is served at this path, or not by this method"),
    Why.WRONG.value: Told("400", "the body is not what this service takes; the message says what"),
    Why.DEADLINE.value: Told("400", "`x-cardwise-deadline-ms` is no number of milliseconds above 0"),
    Fault.MALFORMED.word: Told("400", "not HTTP/1.1, or such that it could be read in two ways"),
    Fault.UNSUPPORTED.word: Told("501", "a method or a transfer coding that is not taken"),
    Fault.LONG_HEAD.word: Told("431", "the head, or what stands around the body, is too long"),
    Fault.MANY_HEADERS.word: Told("431", "more than `max-headers`"),
    Fault.LARGE_BODY.word: Told("413", "more than `max-body-mib`"),
    Fault.SLOW_HEAD.word: Told("408", "the head was not there within `head-s`"),
    Fault.SLOW_BODY.word: Told("408", "the body was not there within `body-s`"),
    Fault.UNREAD.word: Told(
        "none", "the client read nothing of its answer for `write-s`, and was left; in metrics only"
    ),
    Fault.MEMORY.word: Told("503", "the bodies that are held take all of `max-buffered-mib`"),
    Fault.CONNECTIONS.word: Told("503", "there are `max-connections` already"),
    Fault.BUG.word: Told("500", "a fault of the gateway's own: its log has it"),
}


def reason(why: Why | Reason) -> Headers:
    """The header."""
    return [(REASON, why.value.encode())]
