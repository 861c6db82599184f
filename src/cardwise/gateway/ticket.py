"""One request from its head to its answer, and how it is served. Refuses to act: it is what others keep of it."""

from __future__ import annotations

import asyncio
import enum
from typing import Protocol

from cardwise.adapters.http1.exchange import Exchange
from cardwise.adapters.http1.wire import Headers
from cardwise.core.queue.backlog import Admitted
from cardwise.core.queue.retry import Failure
from cardwise.gateway.oip import Item


class Mode(enum.Enum):
    """How a request is served."""

    BATCH = "batch"
    """It waits, and shares a batch with others alike."""
    QUEUE = "queue"
    """It waits, and goes alone."""
    ASIDE = "aside"
    """What is asked about a model, not of it: does not wait and takes no place."""


class Attempt(Protocol):
    """The try that a request is in."""

    def hang_up(self, ticket: Ticket) -> None:
        """Its client has left."""
        ...


class Ticket:
    """One request from its head to its answer. deadline_s: of its caller, on the monotonic clock; inf: none.

    is_strict: the caller told the deadline, so an answer after it is of no use.
    """

    __slots__ = (
        "attempt", "attempts", "deadline_s", "entry", "exchange", "failure", "is_late", "is_strict", "item", "key",
        "mode", "places", "priority", "since_s", "status", "taken_s", "tenant", "timer",
    )  # fmt: skip

    def __init__(
        self,
        exchange: Exchange,
        mode: Mode,
        *,
        priority: int,
        tenant: str,
        deadline_s: float,
        is_strict: bool,
    ) -> None:
        """A request of which the head has been read."""
        self.exchange = exchange
        self.mode = mode
        self.priority = priority
        self.tenant = tenant
        self.deadline_s = deadline_s
        self.is_strict = is_strict
        self.since_s = exchange.since_s
        self.taken_s = 0.0
        self.attempts = 0
        self.item: Item | None = None
        self.places = 1
        """What it takes in a batch and in the backlog: one for each row, more if its body is large."""
        self.key: object = None
        self.entry: Admitted[Ticket] | None = None
        self.attempt: Attempt | None = None
        self.failure: Failure | None = None
        """How its last try ended, while it waits for another."""
        self.status = 0
        """And what the replica said."""
        self.is_late = False
        """Its caller has been told at the deadline, while the batch that it is in goes on."""
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_counted(self) -> bool:
        """Whether it takes a place of a replica's limit."""
        return self.mode is not Mode.ASIDE

    @property
    def is_left(self) -> bool:
        """Nobody waits for its answer any more."""
        return self.is_late or self.exchange.is_gone

    def settle(self) -> None:
        """It has its answer, or needs none."""
        if self.timer is not None:
            self.timer.cancel()

    @property
    def rows(self) -> int:
        """Rows of its inputs."""
        return 1 if self.item is None else self.item.rows

    def told(self, batch_size: int) -> Headers:
        """The headers that say what happened."""
        waited_ms = 1000 * max(self.taken_s - self.since_s, 0.0) if self.taken_s else 0.0
        return [
            (b"x-cardwise-queue-ms", b"%.1f" % waited_ms),
            (b"x-cardwise-batch-size", b"%d" % batch_size),
            (b"x-cardwise-attempts", b"%d" % self.attempts),
        ]
