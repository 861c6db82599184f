"""Who is on the emulated card, and when who is done: pure, times are arguments.

Both timelines count in planned times, not in those at which somebody looked: a late look delays an answer, and never
the device, so that capacity is exactly the cost model's. Refuses times that run backwards.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cardwise.engine.model import Contention


def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class Job:
    """Work for the card. begun, ended: what its owner wants to be told; the timeline never calls them itself."""

    work_s: float
    begun: Callable[[], None] = _nothing
    ended: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Progress:
    """What happened since the last look, in order."""

    begun: tuple[Job, ...]
    ended: tuple[Job, ...]


class Timeline(Protocol):
    """A card's time, shared in some way."""

    def add(self, job: Job, now_s: float) -> None:
        """Job arrives now, to where ``advance`` has just been called. What it changes is told by the next one."""

    def drop(self, job: Job) -> bool:
        """Take out a job that still waits; False, and it runs to its end, if it has begun."""

    def advance(self, now_s: float) -> Progress:
        """Let time pass."""

    def next_end_s(self) -> float | None:
        """When the next job ends if none arrives; None if the card is idle."""


class SerialTimeline:
    """One job at a time, first come, first served."""

    def __init__(self) -> None:
        """An idle card."""
        self._waiting: deque[tuple[float, Job]] = deque()
        self._running: Job | None = None
        self._end_s = -math.inf
        """When the running job ends; when the last one ended if none runs."""

    def add(self, job: Job, now_s: float) -> None:
        """Queue the job."""
        self._waiting.append((now_s, job))

    def drop(self, job: Job) -> bool:
        """Leave the queue."""
        for place in self._waiting:
            if place[1] is job:
                self._waiting.remove(place)
                return True
        return False

    def advance(self, now_s: float) -> Progress:
        """End what is due, begin what waited: at the moment its predecessor ended."""
        begun: list[Job] = []
        ended: list[Job] = []
        while True:
            if self._running is None:
                if not self._waiting:
                    break
                came_s, self._running = self._waiting.popleft()
                self._end_s = max(self._end_s, came_s) + self._running.work_s
                begun.append(self._running)
            if self._end_s > now_s:
                break
            ended.append(self._running)
            self._running = None
        return Progress(tuple(begun), tuple(ended))

    def next_end_s(self) -> float | None:
        """When the running job ends."""
        return None if self._running is None else self._end_s


class SharedTimeline:
    """All at once, each slowed by the others: processor sharing with the USL's inflation.

    Every running job progresses at the same rate, so one virtual clock serves all: a job ends when it shows the job's
    start plus its work. most: how many run at a time, 0 for any number; the rest waits in order.
    """

    def __init__(self, contention: Contention, most: int = 0) -> None:
        """An idle card."""
        self.contention = contention
        """May be changed between two looks."""
        self._most = most
        self._waiting: deque[Job] = deque()
        self._running: list[tuple[float, int, Job]] = []
        self._numbers = itertools.count()
        self._virtual_s = 0.0
        self._seen_s = -math.inf

    def add(self, job: Job, now_s: float) -> None:
        """Queue the job; it begins at once if there is a place."""
        if now_s != self._seen_s:
            raise ValueError("advance to the time of arrival first: those that run must have had their part of it")
        self._waiting.append(job)

    def drop(self, job: Job) -> bool:
        """Leave the queue."""
        if job not in self._waiting:
            return False
        self._waiting.remove(job)
        return True

    def advance(self, now_s: float) -> Progress:
        """Let every running job progress, at the rate of how many there were."""
        begun = self._begin()
        ended: list[Job] = []
        while (end_s := self.next_end_s()) is not None and end_s <= now_s:
            self._virtual_s, _, job = heapq.heappop(self._running)
            self._seen_s = end_s
            ended.append(job)
            begun += self._begin()
        if self._running:
            self._virtual_s += (now_s - self._seen_s) / self.contention.inflation(len(self._running))
        self._seen_s = now_s
        return Progress(tuple(begun), tuple(ended))

    def next_end_s(self) -> float | None:
        """When the job with the least left ends."""
        if not self._running:
            return None
        left_s = self._running[0][0] - self._virtual_s
        return self._seen_s + left_s * self.contention.inflation(len(self._running))

    def _begin(self) -> list[Job]:
        begun: list[Job] = []
        while self._waiting and not 0 < self._most <= len(self._running):
            job = self._waiting.popleft()
            heapq.heappush(self._running, (self._virtual_s + job.work_s, next(self._numbers), job))
            begun.append(job)
        return begun
