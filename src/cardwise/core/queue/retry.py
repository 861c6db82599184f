"""What may be tried again, when, and how often: a second try must be safe, and must not become a storm.

Retries are paid from a budget that grows with requests, so that a service that fails wholly gets a fifth more load, not
twice as much. Refuses anything of which a byte has been passed on, and what might happen twice.

Sources: Finagle's retry budget (20 %, 10/s, 10 s); AWS, Exponential backoff and jitter (2015); RFC 9110, 9.2.2.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Callable


class Failure(enum.Enum):
    """How a try ended."""

    REFUSED = "refused"
    """No connection was made: refused, unreachable, no answer to the handshake."""
    LOST = "lost"
    """The connection broke before an answer was complete."""
    TIMEOUT = "timeout"
    """No answer in time; the replica may still be working on it."""
    STATUS = "status"
    """An answer with an error status."""


IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Of those that RFC 9110 calls idempotent, the ones that change nothing; PUT and DELETE need to be marked."""
BUSY_STATUS = 429
"""Told before any work was done."""
RETRIED_STATUSES = frozenset({502, 503, 504})
"""The replica was not reached, not ready or too late; 500 is a bug that the next replica has too."""


def may_retry(
    failure: Failure,
    *,
    method: str,
    idempotent: bool = False,
    idempotency_key: str | None = None,
    status: int | None = None,
    sent_bytes: int = 0,
    streamed: bool = False,
    attempts: int = 1,
    most_attempts: int = 2,
) -> bool:
    """Whether another try is safe. The budget and the deadline have their say besides.

    idempotent: the route's operator said that a repeat does no harm (inference); idempotency_key: the client said so.
    sent_bytes: of the request, to the replica. streamed: a byte of the answer has been passed on. attempts: tries so
    far.
    """
    if streamed or attempts >= most_attempts:
        return False
    if failure is Failure.REFUSED or (failure is Failure.LOST and not sent_bytes):
        return True
    if failure is Failure.STATUS:
        if status == BUSY_STATUS:
            return True
        if status not in RETRIED_STATUSES:
            return False
    return idempotent or idempotency_key is not None or method.upper() in IDEMPOTENT_METHODS


def backoff_s(attempt: int, draw: Callable[[], float], *, base_s: float = 0.025, cap_s: float = 1.0) -> float:
    """How long to wait before the next try: exponential, with full jitter.

    attempt: tries so far, from 1. draw: uniform in [0, 1).
    """
    return draw() * min(cap_s, math.ldexp(base_s, min(max(attempt - 1, 0), 32)))


def wait_s(
    attempt: int,
    draw: Callable[[], float],
    *,
    retry_after_s: float | None = None,
    left_s: float = math.inf,
    base_s: float = 0.025,
    cap_s: float = 1.0,
) -> float | None:
    """How long to wait before the next try, or None if it would then be too late.

    retry_after_s: what the replica asked for, of any try at the same replica; the jitter comes on top, so that those
    who were told the same do not return at the same time. left_s: time to the deadline, less what a try takes.
    """
    wait = backoff_s(attempt, draw, base_s=base_s, cap_s=cap_s) + max(retry_after_s or 0.0, 0.0)
    return wait if wait <= left_s else None


class RetryBudget:
    """Retries of the last ``window_s``: at most ``share`` of the requests and ``least_per_s`` more. All O(1).

    Time is counted in tenths of the window.
    """

    __slots__ = ("_requests", "_retries", "_slot_s", "_slots", "least", "share")
    _SLOTS = 10

    def __init__(self, *, share: float = 0.2, least_per_s: float = 10.0, window_s: float = 10.0) -> None:
        if not (share >= 0 and least_per_s >= 0 and 0 < window_s < math.inf):
            raise ValueError(
                f"share {share} and least_per_s {least_per_s} must be at least 0, window_s {window_s} above"
            )
        self.share = share
        self.least = least_per_s * window_s
        self._slot_s = window_s / self._SLOTS
        self._slots: deque[list[int]] = deque()
        """[slot, requests, retries], the oldest first."""
        self._requests = 0
        self._retries = 0

    def note_request(self, now_s: float) -> None:
        """A request was sent for the first time."""
        self._slot(now_s)[1] += 1
        self._requests += 1

    def spend(self, now_s: float) -> bool:
        """Pay for one retry; False if the budget is used up."""
        slot = self._slot(now_s)
        if self._retries + 1 > self.share * self._requests + self.least:
            return False
        slot[2] += 1
        self._retries += 1
        return True

    def left(self, now_s: float) -> float:
        """Retries that could be paid for now."""
        self._slot(now_s)
        return max(self.share * self._requests + self.least - self._retries, 0.0)

    def _slot(self, now_s: float) -> list[int]:
        """The present tenth of the window, after the old ones are forgotten; never back."""
        number, slots = int(now_s // self._slot_s), self._slots
        if not slots or number > slots[-1][0]:
            while slots and slots[0][0] <= number - self._SLOTS:
                _, requests, retries = slots.popleft()
                self._requests -= requests
                self._retries -= retries
            slots.append([number, 0, 0])
        return slots[-1]
