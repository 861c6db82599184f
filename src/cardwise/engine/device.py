"""The emulated card on a running event loop: work goes in, and is awaited until the timeline says that it is done.

Refuses to be repaired: after it has crashed it takes nothing, as a process that is gone; make another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable

from cardwise.engine import clock
from cardwise.engine.model import Contention
from cardwise.engine.timelines import Job, SharedTimeline, Timeline


class OutOfMemoryError(Exception):
    """The card's memory is over: what was in flight is lost."""


class NeverFitsError(Exception):
    """More than the whole card has."""


class Device:
    """A card: its time, and its memory for tokens (0 for no limit)."""

    def __init__(self, timeline: Timeline, kv_tokens: int) -> None:
        """An idle card. Needs a running event loop."""
        self.kv_tokens = kv_tokens
        self.kv_used = 0
        self.busy_s = 0.0
        """Work that has begun, in seconds of an idle card."""
        self._timeline = timeline
        self._alarm = clock.alarm(self._look)
        self._jobs: set[asyncio.Future[None]] = set()
        self._for_memory: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_gone = False

    async def execute(
        self, work_s: float, begun: Callable[[], None] | None = None, ended: Callable[[], None] | None = None
    ) -> None:
        """Return when the card has done it. Cancelled: leaves the queue, or runs to its end if it has begun.

        begun, ended: called when it begins and ends, also if nobody waits any more. Raises OutOfMemoryError on a crash.
        """
        self._demand()
        future = asyncio.get_running_loop().create_future()
        job = Job(work_s)
        job.begun = lambda: self._begin(work_s, begun)
        job.ended = lambda: _end(future, ended)
        self._jobs.add(future)
        now_s = clock.now_s()
        self._look(now_s)
        self._timeline.add(job, now_s)
        self._look(now_s)
        try:
            await future
        finally:
            self._jobs.discard(future)
            if future.cancelled():
                self._timeline.drop(job)

    @contextlib.asynccontextmanager
    async def memory(self, tokens: int, *, may_wait: bool) -> AsyncIterator[None]:
        """Hold memory for so many tokens, first come, first served.

        Raises NeverFitsError if it may wait and would for ever; OutOfMemoryError if it may not and there is too little.
        """
        await self._take(tokens, may_wait=may_wait)
        try:
            yield
        finally:
            self.kv_used -= tokens
            self._grant()

    def crash(self) -> None:
        """Lose all that is in flight."""
        self.close()
        waiting = [future for _, future in self._for_memory]
        for future in (*self._jobs, *waiting):
            if not future.done():
                future.set_exception(OutOfMemoryError())
        self._for_memory.clear()

    def close(self) -> None:
        """Take nothing more."""
        self._is_gone = True
        self._alarm.close()

    def contend(self, contention: Contention) -> None:
        """Change what simultaneous requests do to each other, from now on. A serial card has none."""
        if isinstance(self._timeline, SharedTimeline):
            self._look()
            self._timeline.contention = contention
            self._look()

    # ---------------------------------------------------------------- inside

    def _demand(self) -> None:
        if self._is_gone:
            raise OutOfMemoryError

    def _begin(self, work_s: float, told: Callable[[], None] | None) -> None:
        self.busy_s += work_s
        if told is not None:
            told()

    def _look(self, now_s: float | None = None) -> None:
        if self._is_gone:
            return
        progress = self._timeline.advance(clock.now_s() if now_s is None else now_s)
        for job in progress.begun:
            job.begun()
        for job in progress.ended:
            job.ended()
        self._alarm.set(self._timeline.next_end_s())

    async def _take(self, tokens: int, *, may_wait: bool) -> None:
        self._demand()
        if self._fits(tokens) and not self._for_memory:
            self.kv_used += tokens
            return
        if not may_wait:
            raise OutOfMemoryError
        if tokens > self.kv_tokens:
            raise NeverFitsError
        place = tokens, asyncio.get_running_loop().create_future()
        self._for_memory.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            self._leave(place)
            raise

    def _fits(self, tokens: int) -> bool:
        return not self.kv_tokens or self.kv_used + tokens <= self.kv_tokens

    def _grant(self) -> None:
        while self._for_memory and self._fits(self._for_memory[0][0]):
            tokens, future = self._for_memory.popleft()
            if not future.done():
                self.kv_used += tokens
                future.set_result(None)

    def _leave(self, place: tuple[int, asyncio.Future[None]]) -> None:
        """Cancelled while waiting; if the memory was granted in the same moment, it goes back."""
        tokens, future = place
        if place in self._for_memory:
            self._for_memory.remove(place)
        elif future.done() and not future.cancelled() and future.exception() is None:
            self.kv_used -= tokens
        self._grant()


def _end(future: asyncio.Future[None], told: Callable[[], None] | None) -> None:
    if told is not None:
        told()
    if not future.done():
        future.set_result(None)
