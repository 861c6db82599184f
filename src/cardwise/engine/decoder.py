"""Continuous batching of token sequences on the emulated card: each step gives every running sequence one token.

Refuses to model what a scheduler of tokens does beyond that: no chunked prefill, no preemption, no prefix cache.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from cardwise.engine.device import Device, OutOfMemoryError


@dataclass(slots=True, eq=False)
class _Sequence:
    prompt_tokens: int
    left: int
    begun: Callable[[], None]
    made: asyncio.Queue[bool] = field(default_factory=asyncio.Queue)
    """True for each token; False when there will be no more because the card crashed."""


class Decoder:
    """The loop of steps. It runs while there are sequences.

    step_s: time of a step with so many sequences, of which the new ones bring so many prompt tokens. most: sequences at
    a time, 0 for any number.
    """

    def __init__(self, device: Device, step_s: Callable[[int, int], float], most: int) -> None:
        """Nothing to do yet."""
        self._device = device
        self._step_s = step_s
        self._most = most
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._loop: asyncio.Task[None] | None = None

    async def tokens(self, prompt_tokens: int, wanted: int, begun: Callable[[], None]) -> AsyncGenerator[int]:
        """Yield 0 .. wanted-1, each when its token is made. Closing it early frees the place at the next step.

        begun: called when it has a place. Raises OutOfMemoryError when the card crashes.
        """
        sequence = _Sequence(prompt_tokens, wanted, begun)
        self._waiting.append(sequence)
        if self._loop is None:
            self._loop = asyncio.get_running_loop().create_task(self._steps(), name="decoder")
        try:
            for number in range(wanted):
                if not await sequence.made.get():
                    raise OutOfMemoryError
                yield number
        finally:
            self._leave(sequence)

    def close(self) -> None:
        """Stop."""
        if self._loop is not None:
            self._loop.cancel()

    async def _steps(self) -> None:
        try:
            while self._running or self._waiting:
                new = self._admit()
                prompt_tokens = sum(each.prompt_tokens for each in new)
                await self._device.execute(self._step_s(len(self._running), prompt_tokens))
                self._give()
        except OutOfMemoryError:
            for each in (*self._running, *self._waiting):
                each.made.put_nowait(False)
        finally:
            self._loop = None

    def _admit(self) -> list[_Sequence]:
        new: list[_Sequence] = []
        while self._waiting and not 0 < self._most <= len(self._running):
            sequence = self._waiting.popleft()
            self._running.append(sequence)
            sequence.begun()
            new.append(sequence)
        return new

    def _give(self) -> None:
        for each in self._running:
            each.left -= 1
            each.made.put_nowait(True)
        self._running = [each for each in self._running if each.left > 0]

    def _leave(self, sequence: _Sequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
