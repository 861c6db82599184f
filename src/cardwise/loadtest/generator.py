"""One step of a load test: a load held for some seconds, and what became of every request of it.

Open loop: requests are due at times drawn beforehand from the rate alone, and are sent then whatever the service does.
Latency counts from the time a request was due, so a stall of the service, or of this very process, is in the latencies
of all requests that were due in it (no coordinated omission; Tene, "How NOT to Measure Latency", 2015).
Closed loop: N callers, each waiting for its answer; a stall then delays requests instead of their latencies, which is
why the knee is searched in the open loop by default.

Refuses to lose a request: issued = ok + rejected + error + timeout + unfinished, and what was due but would have made
too many unfinished requests is ``held_back``, not forgotten.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cardwise.loadtest.client import ERROR, OK, REJECTED, TIMEOUT, UNFINISHED, Call, Client
from cardwise.loadtest.curve import Outcomes, Step, Stream
from cardwise.loadtest.measure import Histogram, merged
from cardwise.loadtest.plan import Arrivals, Load, Plan
from cardwise.loadtest.timer import Timer

BLOCKS = 20
"""Parts of the counted time with a histogram each: what the bootstrap draws from, for neighbours in time are alike."""
TICK_S = 0.005
"""How often timeouts are looked for and the generator's own stalls measured."""
MOST_AT_ONCE = 64
"""Overdue requests sent before answers are read again."""
PAUSE_S, LONGEST_PAUSE_S = 0.01, 1.0
"""A closed-loop caller that was refused waits as long as Retry-After says, within these; else it would count its own
spinning."""


@dataclass(slots=True)
class Tally:
    """What was seen of the counted requests. Times in seconds."""

    target_s: float
    judges_first_token: bool
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    batch_sizes: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    with_retry_after: int = 0
    good: int = 0
    tokens: int = 0
    latency: Histogram = field(default_factory=Histogram)
    rejection: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    between: Histogram = field(default_factory=Histogram)
    blocks: list[Histogram] = field(default_factory=lambda: [Histogram() for _ in range(BLOCKS)])

    def count(self, call: Call, block: int) -> None:
        """One request's end."""
        self.outcomes[call.outcome] += 1
        self.lag.add(call.sent_s - call.due_s)
        if call.outcome == OK:
            self._count_ok(call, block)
        elif call.outcome == REJECTED:
            self.rejection.add(call.done_s - call.due_s)
            self.with_retry_after += call.retry_after is not None
        elif call.outcome == ERROR:
            self.errors[call.reason] += 1

    def _count_ok(self, call: Call, block: int) -> None:
        self.latency.add(call.done_s - call.due_s)
        judged = self.judged_s(call)
        if judged is not None:
            self.blocks[block].add(judged)
            self.good += judged <= self.target_s
        if call.tokens is not None:
            self.tokens += call.tokens.tokens
            at = call.tokens.at_s
            for i in range(1, len(at)):
                self.between.add(at[i] - at[i - 1])
        self._count_headers(call)

    def _count_headers(self, call: Call) -> None:
        if call.queue_ms is not None and (queue_ms := number_of(call.queue_ms)) is not None:
            self.queue.add(queue_ms / 1000)
        if call.batch_size is not None and (size := number_of(call.batch_size)) is not None:
            self.batch_sizes[f"{size:g}"] += 1
        if call.attempts is not None and (attempts := number_of(call.attempts)) is not None:
            self.attempts[f"{attempts:g}"] += 1

    def judged_s(self, call: Call) -> float | None:
        """What the target is for: the whole answer, or a stream's first token; None if no token came."""
        if not self.judges_first_token or call.tokens is None:
            return call.done_s - call.due_s
        return call.tokens.at_s[0] - call.due_s if call.tokens.at_s else None

    def fold(self) -> None:
        """Keep lists short; cheap if they are."""
        for each in (self.latency, self.rejection, self.lag, self.queue, self.between, *self.blocks):
            each.fold(always=False)


def number_of(value: bytes) -> float | None:
    """A header's number, if it is one that can be counted."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


class Running:
    """A step while it runs."""

    def __init__(self, client: Client, load: Load, plan: Plan, *, seed: int, judges_first_token: bool) -> None:
        self._client, self._load, self._plan = client, load, plan
        self._gaps = gaps(load.rate_per_s, plan.arrivals, seed) if load.rate_per_s is not None else None
        self.tally = Tally(plan.target_p99_ms / 1000, judges_first_token)
        self.issued = self.held_back = self.warm_up_issued = 0
        self._left = 0
        self._answered = self._answered_well = self._tokens = 0
        self._stall_s = 0.0
        self._over = asyncio.Event()
        self._stopped = False
        self._begin_s = self._end_s = self._due_s = 0.0

    async def run(self, until_s: float) -> Step | None:
        """Hold the load, then wait for the answers. None if it was stopped, or ``until_s`` came, during warm-up."""
        client = self._client
        start_s = client.time()
        self._begin_s = start_s + self._plan.warm_up_s
        self._end_s = min(self._begin_s + self._plan.seconds, until_s)
        self._due_s = start_s
        timer = Timer(client.loop, self._send_due)
        ticks = client.loop.create_task(self._tick(until_s))
        over = client.loop.create_task(self._over.wait())
        try:
            self._begin(timer, start_s)
            await asyncio.wait({ticks, over}, return_when=asyncio.FIRST_COMPLETED)
            if ticks.done():
                ticks.result()  # it only ends by a bug of ours, and without it nothing else would end
        finally:
            over.cancel()
            ticks.cancel()
            timer.close()
        client.abandon()
        return self._result()

    def stop(self) -> None:
        """End now: what is under way is unfinished."""
        self._stopped = True
        self._end_s = min(self._end_s, self._client.time())
        self._over.set()

    def told(self) -> tuple[float, int, int, int]:
        """For progress: the share of the time, requests so far, good answers, unfinished."""
        whole_s = max(self._plan.warm_up_s + self._plan.seconds, 1e-9)
        share = 1 - max(self._end_s - self._client.time(), 0) / whole_s
        sent = self.warm_up_issued + self.issued
        return min(share, 1.0), sent, self.tally.outcomes[OK], self._client.unfinished

    def _begin(self, timer: Timer, start_s: float) -> None:
        if self._gaps is not None:
            self._timer = timer
            self._due_s = start_s + next(self._gaps)
            self._send_due()
            return
        for _ in range(self._load.concurrency or 0):
            self._call(start_s)

    def _send_due(self) -> None:
        """Send what is due, and be called when the next is."""
        assert self._gaps is not None  # noqa: S101 - an open loop's
        if self._stopped:
            return
        now_s = self._client.time()
        for _ in range(MOST_AT_ONCE):
            if self._due_s > now_s or self._due_s >= self._end_s:
                break
            self._arrive(self._due_s)
            self._due_s += next(self._gaps)
        if self._due_s < self._end_s:
            self._timer.start(self._due_s - self._client.time())

    def _arrive(self, due_s: float) -> None:
        if self._client.unfinished < self._plan.most_unfinished:
            self._call(due_s)
        elif due_s >= self._begin_s:
            self.held_back += 1

    def _call(self, due_s: float) -> None:
        counted = due_s >= self._begin_s
        if counted:
            self.issued += 1
            self._left += 1
        else:
            self.warm_up_issued += 1
        self._client.send(Call(due_s, counted=counted))

    def done(self, call: Call) -> None:
        """A call of this step has ended: the client's ``on_done``."""
        if call.counted:
            self._left -= 1
            self.tally.count(call, self._block_of(call.due_s))
        if call.outcome == OK and self._begin_s <= call.done_s < self._end_s:
            self._count_answer(call)
        if self._gaps is None:
            self._call_again(call)

    def _count_answer(self, call: Call) -> None:
        self._answered += 1
        judged = self.tally.judged_s(call)
        self._answered_well += judged is not None and judged <= self.tally.target_s
        if call.tokens is not None:
            self._tokens += call.tokens.tokens

    def _block_of(self, due_s: float) -> int:
        return min(int((due_s - self._begin_s) / self._plan.seconds * BLOCKS), BLOCKS - 1)

    def _call_again(self, call: Call) -> None:
        """The caller's next request: at once after an answer, after a pause if it was refused."""
        if call.outcome == OK and not self._stopped:
            if call.done_s < self._end_s:
                self._client.loop.call_soon(self._caller, call.done_s)
            return
        if call.outcome == UNFINISHED or self._stopped:
            return
        pause_s = PAUSE_S
        if call.outcome == REJECTED and call.retry_after is not None:
            pause_s = min(max(number_of(call.retry_after) or 0.0, PAUSE_S), LONGEST_PAUSE_S)
        self._client.loop.call_later(pause_s, self._caller, None)

    def _caller(self, due_s: float | None) -> None:
        now_s = self._client.time()
        if now_s < self._end_s and not self._stopped:
            self._call(now_s if due_s is None else due_s)

    async def _tick(self, until_s: float) -> None:
        """Time out, measure our own stalls, and notice the end."""
        client = self._client
        due_s = client.time() + TICK_S
        while True:
            await asyncio.sleep(max(due_s - client.time(), 0))
            now_s = client.time()
            if now_s >= self._begin_s:
                self._stall_s = max(self._stall_s, now_s - due_s)
            due_s = now_s + TICK_S
            client.expire()
            self.tally.fold()
            if now_s >= until_s:
                self.stop()
            elif now_s >= self._end_s and self._left == 0 and not self._is_behind():
                self._over.set()

    def _is_behind(self) -> bool:
        """Whether requests that were due before the end are still to be sent, as we could not keep up."""
        return self._gaps is not None and self._due_s < self._end_s

    def _result(self) -> Step | None:
        seconds = self._end_s - self._begin_s
        if seconds <= 0:
            return None
        tally, load = self.tally, self._load
        return Step(
            rate_per_s=load.rate_per_s,
            concurrency=load.concurrency,
            batch_window_ms=load.batch_window_ms,
            seconds=seconds,
            offered=self.issued + self.held_back,
            issued=self.issued,
            held_back=self.held_back,
            warm_up_issued=self.warm_up_issued,
            outcomes=Outcomes(**{each: tally.outcomes[each] for each in (OK, REJECTED, ERROR, TIMEOUT, UNFINISHED)}),
            rejected_with_retry_after=tally.with_retry_after,
            errors=dict(tally.errors),
            ok_per_s=self._answered / seconds,
            goodput_per_s=self._answered_well / seconds,
            good=tally.good,
            latency_ms=tally.latency.quantiles(),
            rejection_ms=tally.rejection.quantiles(),
            lag_ms=tally.lag.quantiles(),
            stall_ms=1000 * self._stall_s,
            stream=self._stream(seconds),
            queue_ms=tally.queue.quantiles(),
            batch_sizes=dict(tally.batch_sizes),
            attempts=dict(tally.attempts),
            blocks=[each.stored() for each in tally.blocks],
            cut_short=self._stopped,
            holds=False,
            why="",
        )

    def _stream(self, seconds: float) -> Stream | None:
        if not self.tally.judges_first_token:
            return None
        return Stream(
            first_token_ms=merged(self.tally.blocks).quantiles(),
            between_tokens_ms=self.tally.between.quantiles(),
            tokens=self.tally.tokens,
            tokens_per_s=self._tokens / seconds,
        )


def gaps(rate_per_s: float, arrivals: Arrivals, seed: int) -> Iterator[float]:
    """Seconds between arrivals: the same ones for the same seed."""
    if arrivals is Arrivals.CONSTANT:
        while True:
            yield 1 / rate_per_s
    draw: Callable[[float], float] = random.Random(seed).expovariate  # noqa: S311 - not for secrets
    while True:
        yield draw(rate_per_s)
