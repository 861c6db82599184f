"""Samples every card on a thread of its own, so that a card whose driver call does not return holds up no other.

A call into the driver cannot be broken off. A thread that waits for one is therefore left to wait: its card is *stuck*
from the deadline on, which :meth:`Cards.state` says, and is well again when the call returns. There is one thread per
card for its whole life, so nothing piles up. Refuses to act on what it reads: ``core/card/health.py`` judges.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from cardwise.core.card.facts import CardSample
from cardwise.errors import CardwiseError

PERIOD_S, DEADLINE_S = 1.0, 5.0
"""Between two samples of a card; and how long a sample may take. Well cards need about a millisecond."""
CLOSE_WITHIN_S = 2.0
NOT_YET = "not sampled yet"
"""The problem of a card before its first sample."""


class Sampler(Protocol):
    """What is asked of the driver: :class:`cardwise.adapters.nvml.driver.Driver` has it."""

    def sample(self, uuid: str) -> CardSample:
        """The card as it is now; a CardwiseError if it cannot be told."""
        ...


@dataclass(frozen=True, slots=True)
class CardState:
    """A card as its worker last saw it. sample, age_s: None before the first; problem: None while all is well.

    stuck: the driver has not answered for longer than the deadline. The sample is then the last one there was.
    """

    sample: CardSample | None
    age_s: float | None
    problem: str | None
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class _Read:
    """What came of the last call that returned. at_s: of the sample, which an error does not replace."""

    sample: CardSample | None = None
    at_s: float = 0.0
    problem: str | None = None


class _Worker:
    """A card's thread. Its fields are replaced whole, by it alone: they are read without a lock."""

    def __init__(self, driver: Sampler, uuid: str, period_s: float, now_s: Callable[[], float]) -> None:
        self._driver, self._uuid, self._period_s, self._now_s = driver, uuid, period_s, now_s
        self._stop = threading.Event()
        self.read = _Read(problem=NOT_YET)
        self.since_s: float | None = None
        self.thread = threading.Thread(target=self._run, name=f"card-{uuid}", daemon=True)

    def stop(self) -> None:
        """End after the call that is under way."""
        self._stop.set()

    @property
    def lives(self) -> bool:
        """Whether it samples, will do so, or was told to stop."""
        return self.thread.is_alive() or self.thread.ident is None or self._stop.is_set()

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stop.is_set():
            self.since_s = self._now_s()
            self.read = self._sampled()
            self.since_s = None
            due_s = max(due_s + self._period_s, time.monotonic())  # what was missed is not made up for
            self._stop.wait(due_s - time.monotonic())

    def _sampled(self) -> _Read:
        try:
            sample = self._driver.sample(self._uuid)
        except CardwiseError as error:
            return _Read(self.read.sample, self.read.at_s, str(error))
        return _Read(sample, self._now_s())


class Cards:
    """The cards of the node, sampled each ``period_s`` between :meth:`start` and :meth:`close`. now_s: a steady clock.

    Readable from any thread or event loop: nothing here waits, except :meth:`close`.
    """

    def __init__(
        self,
        driver: Sampler,
        uuids: Iterable[str],
        *,
        period_s: float = PERIOD_S,
        deadline_s: float = DEADLINE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline_s, self._now_s = deadline_s, now_s
        self._workers = {uuid: _Worker(driver, uuid, period_s, now_s) for uuid in uuids}

    def start(self) -> None:
        """Start a thread for each card."""
        for worker in self._workers.values():
            worker.thread.start()

    def state(self, uuid: str) -> CardState:
        """How a card is. KeyError: it is not sampled here."""
        worker = self._workers[uuid]
        since_s, read, now_s = worker.since_s, worker.read, self._now_s()
        age_s = None if read.sample is None else now_s - read.at_s
        if since_s is not None and now_s - since_s > self._deadline_s:
            problem = f"card {uuid}: stuck: the driver has not answered for {now_s - since_s:.0f} s"
            return CardState(read.sample, age_s, problem, stuck=True)
        return CardState(read.sample, age_s, read.problem if worker.lives else _died(uuid))

    def states(self) -> dict[str, CardState]:
        """All cards, in the order in which they were given."""
        return {uuid: self.state(uuid) for uuid in self._workers}

    def close(self, within_s: float = CLOSE_WITHIN_S) -> tuple[str, ...]:
        """Stop sampling; wait for the threads no longer than ``within_s`` in all. Returns the cards that still hang.

        While there are such, the driver must not be closed: the process may only end.
        """
        for worker in self._workers.values():
            worker.stop()
        end_s = time.monotonic() + within_s
        for worker in self._workers.values():
            if worker.thread.ident is not None:
                worker.thread.join(max(0.0, end_s - time.monotonic()))
        return tuple(uuid for uuid, worker in self._workers.items() if worker.thread.is_alive())


def _died(uuid: str) -> str:
    return f"card {uuid}: its worker has died of a bug: see the log"
