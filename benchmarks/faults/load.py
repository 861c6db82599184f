"""Clients that ask without end, and count how each request ended: answered, refused, failed, or hung up.

issued = ok + refused + failed + gone. Wrong answers and lost ones are counted besides, and must not be.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.faults.asked import Asked, any_of
from benchmarks.faults.client import Answer, Connection, CutError, UnansweredError

MIX = ("once", "once", "again", "chat")
"""Whom one caller after the other asks: half of them what must not be done twice."""
MOST_PAUSE_S = 0.1
_OF_REPLICAS = frozenset({"", "lost", "shape", "status", "timeout", "unreachable"})
"""Reasons of failures; the others are the gateway's own refusals, of what no replica got to see."""


@dataclass(slots=True)
class Count:
    """How the requests of a phase ended.

    unread: of the failed, those to which the connection was closed without a byte; the engines tell whether they had
    been executed. surplus: connections on which more came than was asked for.
    """

    ok: int = 0
    refused: int = 0
    failed: int = 0
    gone: int = 0
    issued: int = 0
    wrong: int = 0
    surplus: int = 0
    unread: list[Asked] = field(default_factory=list)
    answered: list[Asked] = field(default_factory=list)
    """With 200, and rightly."""
    ids: list[str] = field(default_factory=list)
    """Of what must not be executed twice."""
    asked: Counter[str] = field(default_factory=Counter)
    """Requests by service."""
    told: Counter[str] = field(default_factory=Counter)
    """Answers that were not 200, by status and reason."""
    notes: list[str] = field(default_factory=list)
    """What was wrong, the first few."""

    def issue(self, asked: Asked) -> None:
        """It is about to be sent."""
        self.issued += 1
        self.asked[asked.service] += 1
        if asked.service != "again":
            self.ids += asked.ids

    def take(self, asked: Asked, answer: Answer) -> None:
        """Sort an answer."""
        if answer.status == 200:
            self.ok += 1
            if asked.is_right(answer.body):
                self.answered.append(asked)
            else:
                self.blame(f"not its answer: {asked.path} {asked.ids[:4]} got {answer.body[:300]!r}")
            return
        reason = answer.headers.get("x-cardwise-reason", "")
        self.told[f"{answer.status} {reason}".strip()] += 1
        if reason not in _OF_REPLICAS:
            self.refused += 1
            if answer.status in {429, 503} and "retry-after" not in answer.headers:
                self.blame(f"refused ({answer.status} {reason}) without saying until when")
        else:
            self.failed += 1

    def lose(self, asked: Asked, error: Exception) -> None:
        """There was no complete answer."""
        self.failed += 1
        if isinstance(error, UnansweredError):
            self.unread.append(asked)
            self.told["closed unread"] += 1
            self.note(f"closed unread: {asked.service}, {error}")
        else:
            self.told["cut"] += 1
            if not asked.text:  # only a stream can have begun before its end was known
                self.blame(f"an answer that is no stream was cut: {error}")

    def expect(self, what: str, status: int, wanted: tuple[int, ...]) -> None:
        """A hostile request, and what it got; 0: closed."""
        self.issued += 1
        self.told[f"{status} to hostile"] += 1
        self.refused += 1
        if status not in wanted:
            self.blame(f"{what}: got {status}, not {' or '.join(map(str, wanted))}")

    def blame(self, note: str) -> None:
        """Something that must not happen."""
        self.wrong += 1
        self.note(note)

    def note(self, text: str) -> None:
        """Remember the first few."""
        if len(self.notes) < 8:
            self.notes.append(text)


class Load:
    """Callers, each with its own connection, one request at a time, until stopped."""

    def __init__(self, port: int, count: Count, seed: int = 0) -> None:
        """Not asking yet."""
        self.port, self.count = port, count
        self._seed = seed
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(
        self, callers: int, make: Callable[[str, random.Random], Asked] = any_of, services: tuple[str, ...] = MIX
    ) -> None:
        """Ask."""
        for number in range(callers):
            service = services[number % len(services)]
            dice = random.Random(f"{self._seed} {number}")  # noqa: S311
            self._tasks.append(asyncio.create_task(self._call(service, dice, make)))

    async def stop(self) -> None:
        """Ask nothing new, and wait for what was asked."""
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _call(self, service: str, dice: random.Random, make: Callable[[str, random.Random], Asked]) -> None:
        connection: Connection | None = None
        while not self._is_over:
            if connection is None:
                try:
                    connection = await Connection.open(self.port)
                except OSError:  # nobody listens: nothing was issued
                    await asyncio.sleep(MOST_PAUSE_S)
                    continue
            connection = await self._once(connection, make(service, dice), dice)
        if connection is not None:
            self.count.surplus += await connection.has_surplus()
            connection.abort()

    async def _once(self, connection: Connection, asked: Asked, dice: random.Random) -> Connection | None:
        """Ask one; the connection if it can be used again."""
        self.count.issue(asked)
        try:
            answer = await connection.ask("POST", asked.path, asked.service, asked.body, asked.headers)
        except (UnansweredError, CutError) as error:
            self.count.lose(asked, error)
            connection.abort()
            return None
        self.count.take(asked, answer)
        if answer.status in {429, 503}:
            after_s = int(answer.headers.get("retry-after-ms", 1000)) / 1000
            await asyncio.sleep(min(after_s, MOST_PAUSE_S) * dice.uniform(0.5, 1))
        if connection.is_kept:
            return connection
        connection.abort()
        return None
