"""One emulated process that serves a model: it loads, gets ready, works, runs out of memory, starts again or dies.

Knows no protocol: rows, tokens and identities in; time passes; the fault that the request met comes out. Refuses work
while it loads, as a server does that has no model yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from cardwise.engine.decoder import Decoder
from cardwise.engine.device import Device, NeverFitsError, OutOfMemoryError
from cardwise.engine.faults import Counting, Fault, Script, When
from cardwise.engine.model import Contention, DeviceKind, TokenCost
from cardwise.engine.settings import OverMemory, Settings
from cardwise.engine.timelines import SerialTimeline, SharedTimeline
from cardwise.engine.tokenizer import Tokenizer

EXIT_KILLED = 137
"""What a container that was killed for memory reports."""
MOST_IDS = 1_000_000
"""Identities whose executions are counted; a benchmark that sends more hears how many were not."""


class Phase(StrEnum):
    """Where a process is in its life."""

    LOADING = "loading"
    READY = "ready"
    DEAD = "dead"


class FaultedError(Exception):
    """The request met a fault that strikes before its answer is there."""

    def __init__(self, fault: Fault) -> None:
        """Carry the fault to who speaks the protocol."""
        super().__init__(fault.kind)
        self.fault = fault


class RefusedError(Exception):
    """Not served, with the HTTP status that says whose turn it is."""

    def __init__(self, status: int, message: str) -> None:
        """Carry both to who speaks the protocol."""
        super().__init__(message)
        self.status = status


class Executed:
    """How often the work of each identity was begun and ended: more than once is a double side effect."""

    def __init__(self, *, keeps: bool) -> None:
        """Count; remember identities only if asked to."""
        self.requests = 0
        self.rows = 0
        self.forgotten = 0
        self.begun: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self._keeps = keeps

    def begin(self, ids: Sequence[str]) -> None:
        """The card has begun the work of these."""
        self._count(self.begun, ids)

    def end(self, rows: int, ids: Sequence[str]) -> None:
        """The card has done it, whoever may still wait for the answer."""
        self.requests += 1
        self.rows += rows
        self._count(self.ended, ids)

    def _count(self, counts: dict[str, int], ids: Sequence[str]) -> None:
        if not self._keeps:
            return
        for each in ids:
            if each in counts or len(counts) < MOST_IDS:
                counts[each] = counts.get(each, 0) + 1
            else:
                self.forgotten += 1


@dataclass(slots=True)
class Tally:
    """Requests by where they are."""

    waiting: int = 0
    running: int = 0


class _Place:
    """One request's way through the tally."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._is_waiting = True
        tally.waiting += 1

    def begin(self) -> None:
        """The card has taken it."""
        self.leave()
        self._tally.running += 1

    def end(self) -> None:
        """Nothing if it has not begun: that is for ``leave``."""
        if not self._is_waiting:
            self._tally.running -= 1

    def leave(self) -> None:
        """Gone without having begun, or begun."""
        if self._is_waiting:
            self._is_waiting = False
            self._tally.waiting -= 1


class Replica:
    """A process and its card.

    settings: what it costs. script: what goes wrong. died: called once with the exit code when it ends itself.
    """

    def __init__(self, settings: Settings, script: Script, died: Callable[[int], None]) -> None:
        """Start to load. Needs a running event loop."""
        self.settings = settings
        self.executed = Executed(keeps=settings.test_doors)
        self.tally = Tally()
        self.phase = Phase.LOADING
        self.starts = 0
        self._died = died
        self._dice = random.Random(settings.seed)  # noqa: S311 - noise, not secrets
        self._counting = Counting(script)
        self._tokens = TokenCost(settings.device, settings.cost, settings.contention, settings.prefill_ms / 1e3)
        self._tokenizer = Tokenizer(settings.tokenize_cpu_ms / 1e3)
        self._boot()

    # ---------------------------------------------------------------- life

    @property
    def script(self) -> Script:
        """What goes wrong now."""
        return self._counting.script

    @script.setter
    def script(self, script: Script) -> None:
        self._counting = Counting(script)
        self.device.contend(self._contention())

    @property
    def is_ready(self) -> bool:
        """Whether the readiness probe says so."""
        return self.phase is Phase.READY and self.script.ready

    def die(self, code: int = EXIT_KILLED) -> None:
        """End as a killed process does: at once, with all that is in flight."""
        if self.phase is not Phase.DEAD:
            self.close()
            self._died(code)

    def close(self) -> None:
        """Free what the event loop holds for it."""
        self.phase = Phase.DEAD
        self._loading.cancel()
        self._tokenizer.close()
        self.decoder.close()
        self.device.close()

    def _boot(self) -> None:
        settings = self.settings
        self.starts += 1
        self.phase = Phase.LOADING
        self.tally = Tally()  # what the old process had in flight is told by nobody
        self.device = Device(self._timeline(), settings.kv_tokens)
        self.decoder = Decoder(self.device, self._step_s, settings.max_running)
        self._debt_s = 0.0 if settings.warm_up else settings.first_request_s
        load_s = settings.load_s + (settings.first_request_s if settings.warm_up else 0.0)
        self._loading = asyncio.get_running_loop().call_later(load_s, self._loaded)
        if load_s == 0:
            self._loading.cancel()
            self._loaded()

    def _loaded(self) -> None:
        self.phase = Phase.READY

    def _timeline(self) -> SerialTimeline | SharedTimeline:
        if self.settings.device == DeviceKind.SERIAL:
            return SerialTimeline()
        return SharedTimeline(self._contention(), self.settings.max_running)

    # ---------------------------------------------------------------- work

    def meet(self) -> Fault | None:
        """Count a request; the fault that it will meet during or after its work.

        Raises RefusedError while it loads, FaultedError if the fault strikes before the work.
        """
        if self.phase is not Phase.READY:
            raise RefusedError(503, "the model is still loading; ask /v2/health/ready")
        fault = self._counting.strike()
        if fault is not None and fault.moment is When.BEFORE:
            raise FaultedError(fault)
        return fault

    async def execute(self, rows: int, ids: Sequence[str], fault: Fault | None) -> None:
        """Do one batch. ids: whose work it is; fault: as ``meet`` told.

        Raises RefusedError for what never fits or is lost with the card's memory, FaultedError half-way.
        """
        if 0 < self.settings.max_batch < rows:
            raise RefusedError(400, f"a batch of {rows} rows; this model takes {self.settings.max_batch}")
        await self._tokenize(rows)
        async with self._admitted(rows * self.settings.tokens_per_row) as (place, device):
            work_s = self._noisy_s(self.settings.cost.batch_time_s(rows)) + self._pay_debt_s()

            def begun() -> None:
                place.begin()
                self.executed.begin(ids)

            def ended() -> None:
                place.end()
                self.executed.end(rows, ids)

            if fault is not None and fault.moment is When.DURING:
                await device.execute(work_s / 2, begun, place.end)
                raise FaultedError(fault)
            await device.execute(work_s, begun, ended)

    async def generate(
        self, prompt_tokens: int, wanted: int, ids: Sequence[str], fault: Fault | None
    ) -> AsyncGenerator[int]:
        """Yield each token's number when it is made; may be closed early. Arguments and errors as of ``execute``."""
        await self._tokenize(1)
        async with self._admitted(prompt_tokens + wanted) as (place, _):

            def begun() -> None:
                place.begin()
                self.executed.begin(ids)

            steps = self.decoder.tokens(prompt_tokens, wanted, begun)
            last = wanted // 2 if fault is not None and fault.moment is When.DURING else None
            try:
                async for number in steps:
                    if fault is not None and number == last:
                        raise FaultedError(fault)
                    yield number
                self.executed.end(1, ids)
            finally:
                await steps.aclose()
                place.end()

    async def _tokenize(self, items: int) -> None:
        """The step before the card. No gauge tells of it: engines count what their scheduler has."""
        starts = self.starts
        await self._tokenizer.take(items)
        if self.starts != starts:
            raise RefusedError(500, "out of memory: another request ended the process")

    @contextlib.asynccontextmanager
    async def _admitted(self, tokens: int) -> AsyncIterator[tuple[_Place, Device]]:
        """A place in the tally, and memory; running out of it is what the settings say."""
        place, device = _Place(self.tally), self.device
        may_wait = self.settings.over_memory == OverMemory.QUEUE
        try:
            async with device.memory(tokens, may_wait=may_wait):
                yield place, device
        except NeverFitsError as exc:
            most = self.settings.kv_tokens
            raise RefusedError(400, f"needs memory for {tokens} tokens; the card has it for {most}") from exc
        except OutOfMemoryError as exc:
            self._lose_all(device)
            raise RefusedError(500, "out of memory: the card's memory for tokens is over") from exc
        finally:
            place.leave()

    def _lose_all(self, device: Device) -> None:
        """The first to run out takes the process with it; the others find its card gone."""
        if device is not self.device or self.phase is Phase.DEAD:
            return
        if self.settings.over_memory == OverMemory.EXIT:
            self.die()
            return
        device.crash()
        self._boot()

    # ---------------------------------------------------------------- cost

    def _contention(self) -> Contention:
        usual = self.settings.contention
        return replace(usual, kappa=usual.kappa * self.script.contention_factor)

    def _step_s(self, sequences: int, prompt_tokens: int) -> float:
        cost = replace(self._tokens, contention=self._contention())
        return self._noisy_s(cost.step_s(sequences, prompt_tokens)) + self._pay_debt_s()

    def _noisy_s(self, work_s: float) -> float:
        return self.settings.jitter.applied(work_s, self._dice) * self.script.slow_factor

    def _pay_debt_s(self) -> float:
        """What the first request after a start takes longer."""
        debt_s, self._debt_s = self._debt_s, 0.0
        return debt_s
