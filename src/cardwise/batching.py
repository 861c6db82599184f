"""Batching inside a Python model server, by the gateway's own rules.

::

    from cardwise.batching import batched

    @batched(max_batch=32)
    async def embed(texts: list[str]) -> list[Vector]:
        return model(texts)

    vector = await embed("one text")      # many callers at a time; each gets its own answer

One batch is under way at a time; what comes meanwhile waits, up to a bound, and callers beyond it hear so at once.
Refuses to guess: a function that answers more or fewer results than it was given items fails the whole batch, for
nobody could say whose is whose.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from cardwise.core.queue.backlog import Admitted, Backlog, Dropped, Reason, Shed
from cardwise.core.queue.batch import BatchPolicy, Wait, cohort_of
from cardwise.errors import CardwiseError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
Work = Callable[[list[ItemT]], Awaitable[Sequence[ResultT]]] | Callable[[list[ItemT]], Sequence[ResultT]]

GAP_S, CAP_S = 0.0005, 0.002
"""How long an idle function waits for the callers of its last batch. Measured best for a device of 4 + 0.35 b ms."""
DEPTH_IN_BATCHES = 3


class NotServedError(CardwiseError):
    """The call was not served. reason: why; retry_after_s: when to come again, None if that is no use."""

    def __init__(self, reason: Reason, retry_after_s: float | None) -> None:
        """Say when to come again, if it is of use."""
        self.reason, self.retry_after_s = reason, retry_after_s
        again = "" if retry_after_s is None else f"; come again in {retry_after_s:.2f} s"
        super().__init__(f"not served: {reason.value}{again}")


class WrongAnswerError(CardwiseError):
    """The batched function answered another number of results than it was given items."""


@dataclass(slots=True, eq=False)
class _Call(Generic[ItemT, ResultT]):
    item: ItemT
    answer: asyncio.Future[ResultT]


class Batched(Generic[ItemT, ResultT]):
    """A function of a list that is called with one item at a time. Belongs to the event loop that calls it first."""

    def __init__(
        self,
        work: Work[ItemT, ResultT],
        policy: BatchPolicy,
        depth: int,
        key: Callable[[ItemT], Hashable] | None,
        now_s: Callable[[], float],
    ) -> None:
        """Use :func:`batched`."""
        self._work, self._policy, self._key, self._now_s = work, policy, key, now_s
        self._backlog: Backlog[_Call[ItemT, ResultT]] = Backlog(depth)
        self._news: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._cohort = 1
        self._name = getattr(work, "__name__", type(work).__name__)
        self._is_async = any(map(inspect.iscoroutinefunction, (work, type(work).__call__)))
        functools.update_wrapper(self, work)

    @property
    def waiting(self) -> int:
        """Calls that wait for a batch."""
        return self._backlog.queued

    async def __call__(
        self, item: ItemT, *, priority: int = 1, tenant: str = "", deadline_s: float | None = None
    ) -> ResultT:
        """The result for one item. deadline_s: seconds from now by which it is of use.

        Raises NotServedError at once if too many wait, or the deadline cannot be met; and whatever the function raises.
        A call that is cancelled frees its place.
        """
        now_s = self._now_s()
        call: _Call[ItemT, ResultT] = _Call(item, asyncio.get_running_loop().create_future())
        entry = self._backlog.offer(
            call,
            now_s,
            priority=priority,
            tenant=tenant,
            key=self._key(item) if self._key else None,
            deadline_s=None if deadline_s is None else now_s + deadline_s,
        )
        self._refuse(entry.dropped)
        if isinstance(entry, Shed):
            raise NotServedError(entry.reason, entry.retry_after_s)
        self._wake()
        try:
            return await call.answer
        finally:
            self._backlog.cancel(entry)

    def _wake(self) -> None:
        """There is news for the loop that makes batches; it lives as long as something waits."""
        if self._news is None or self._task is None or self._task.done():
            self._news = asyncio.Event()
            self._task = asyncio.create_task(self._run(self._news), name=f"batches of {self._name}")
        self._news.set()

    async def _run(self, news: asyncio.Event) -> None:
        idle_since_s = self._now_s()
        while (head := self._backlog.head()) is not None:
            now_s = self._now_s()
            decided = self._policy.decide(
                now_s, head.queued, head.oldest_since_s, head.last_arrival_s, self._cohort, idle_since_s
            )
            if isinstance(decided, Wait):
                news.clear()
                await _until(news, decided.until_s - now_s)
                continue
            taken = self._backlog.take(now_s, decided.n)
            self._refuse(taken.dropped)
            if taken.entries:
                await self._answer(taken.entries)
                self._cohort = cohort_of(len(taken.entries), self._backlog.queued)
                idle_since_s = self._now_s()

    async def _answer(self, entries: Sequence[Admitted[_Call[ItemT, ResultT]]]) -> None:
        calls = [entry.item for entry in entries]
        try:
            results = await self._results([call.item for call in calls])
        except asyncio.CancelledError:  # of what the function waits for, or of all tasks of the loop
            self._fail(calls, RuntimeError(f"{self._name} was cancelled"))
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return
        except Exception as exc:  # noqa: BLE001 - whatever the function raises is its callers' to see
            self._fail(calls, exc)
            return
        for call, result in zip(calls, results, strict=True):
            if not call.answer.done():  # its caller went away
                call.answer.set_result(result)

    def _fail(self, calls: Sequence[_Call[ItemT, ResultT]], exc: Exception) -> None:
        for call in calls:
            if not call.answer.done():
                call.answer.set_exception(exc)

    async def _results(self, items: list[ItemT]) -> Sequence[ResultT]:
        """One per item, read here already: what a function answers may say one length and have another."""
        results = list(await self._call(items))
        if len(results) != len(items):
            told = f"{self._name} was given {len(items)} items and answered {len(results)} results"
            raise WrongAnswerError(told)
        return results

    async def _call(self, items: list[ItemT]) -> Sequence[ResultT]:
        """A plain function runs in a thread: it would hold up every caller of the loop."""
        if self._is_async:
            return await cast("Awaitable[Sequence[ResultT]]", self._work(items))
        return await asyncio.to_thread(self._beside, items)

    def _beside(self, items: list[ItemT]) -> Sequence[ResultT]:
        try:
            return cast("Sequence[ResultT]", self._work(items))
        except StopIteration as exc:  # no future takes it: its callers would wait for ever
            raise RuntimeError(f"{self._name} raised StopIteration") from exc

    def _refuse(self, dropped: Sequence[Dropped[_Call[ItemT, ResultT]]]) -> None:
        for each in dropped:
            if not each.entry.item.answer.done():
                each.entry.item.answer.set_exception(NotServedError(each.reason, each.retry_after_s))


def batched(
    max_batch: int = 32,
    *,
    max_wait_s: float = math.inf,
    gap_s: float = GAP_S,
    cap_s: float = CAP_S,
    depth: int | None = None,
    key: Callable[[Any], Hashable] | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> Callable[[Work[ItemT, ResultT]], Batched[ItemT, ResultT]]:
    """Make a function of a list one that is awaited with a single item.

    max_batch: items per call at most. max_wait_s: nobody waits longer than this for others. gap_s, cap_s: see
    :class:`~cardwise.core.queue.batch.BatchPolicy`. depth: how many may wait, by default three full batches. key: items
    of different keys never share a batch (shapes, languages). Raises ValueError for what cannot be meant.
    """
    if callable(max_batch):
        raise TypeError("write @batched(), with parentheses")
    if depth is not None and depth < 1:
        raise ValueError(f"depth is {depth}, and must be at least 1")
    policy = BatchPolicy(max_batch, gap_s, cap_s, max_wait_s)
    return lambda work: Batched(work, policy, depth or DEPTH_IN_BATCHES * max_batch, key, now_s)


async def _until(news: asyncio.Event, seconds: float) -> None:
    """Until something new came, or the time has passed."""
    if math.isinf(seconds):
        await news.wait()
        return
    try:
        async with asyncio.timeout(max(seconds, 0)):
            await news.wait()
    except TimeoutError:
        return
