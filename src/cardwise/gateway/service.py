"""One service: backlog, then a batch or a limit, then a replica, then the answer.

Everything here happens in callbacks of the event loop, in one thread: no request has a task of its own, and one that
waits is an entry of the backlog. What enters is decided by the core (cardwise.core.queue); here it is carried out.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import structlog

from cardwise.adapters.http1.exchange import Exchange
from cardwise.adapters.http1.wire import Header, Headers
from cardwise.core.queue.backlog import BULK, NORMAL, URGENT, Backlog, Dropped, Reason, Shed
from cardwise.core.queue.batch import Wait, cohort_of
from cardwise.core.queue.choose import choose
from cardwise.core.queue.expect import Expectation
from cardwise.core.queue.retry import RETRIED_STATUSES, Failure, RetryBudget, may_retry, wait_s
from cardwise.gateway import oip, tries
from cardwise.gateway.answers import Answers
from cardwise.gateway.lists import Lists
from cardwise.gateway.members import Members
from cardwise.gateway.metrics import Gauges, Tally
from cardwise.gateway.oip import WrongError
from cardwise.gateway.refusals import Why
from cardwise.gateway.replicas import Replica
from cardwise.gateway.settings import ServiceSettings, full_batch_s, plan_at
from cardwise.gateway.ticket import Mode, Ticket
from cardwise.gateway.tries import DEADLINE, Codec, Try, asked_after_s

log = structlog.get_logger()

TICK_S = 0.1
PLAN_EVERY_S = 1.0
PATIENCE_S = 1.0
"""How long those who wait are kept waiting while no replica is ready."""
ASIDE_MOST = 64
_TURN_S = 0.001
"""Timers of the loop are no finer."""
_PRIORITIES = {
    b"urgent": URGENT, b"normal": NORMAL, b"bulk": BULK, b"0": URGENT, b"1": NORMAL, b"2": BULK
}  # fmt: skip


class Given(NamedTuple):
    """What an exchange carries from its head to its body: who will serve it, and as what."""

    service: Service
    ticket: Ticket


def codec_of(settings: ServiceSettings) -> Codec:
    """By the kind of service."""
    if settings.kind == "list":
        lists = Lists(settings.items_key, settings.answers_key)
        return Codec(lists.read, lists.join, lists.split)
    return Codec(oip.read, oip.join, oip.split)


class Service:
    """A service while it runs. Needs a running event loop."""

    def __init__(
        self,
        settings: ServiceSettings,
        *,
        draw: Callable[[], float] = random.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Nothing runs yet."""
        self.settings = settings
        self.tally = Tally()
        self.answers = Answers(self.tally)
        self.codec = codec_of(settings)
        self.batch_headers = frozenset(name.lower().encode() for name in settings.batch_headers)
        self.alone_headers = self.batch_headers | tries.OF_ONE
        self.plan = plan_at(settings, wall())
        self.backlog: Backlog[Ticket] = Backlog(self.plan.depth, tenant_share=settings.tenant_share)
        self.members = Members(settings, self.dispatch)
        self.replicas = self.members.active
        self.budget = RetryBudget(share=settings.retry_share, least_per_s=settings.retries_per_s)
        self._draw, self._wall = draw, wall
        self._tenant_header = settings.tenant_header.encode()
        self._priority_header = settings.priority_header.encode()
        self._again: list[Try] = []
        self._pausing = 0
        self.is_closed = False
        self._cohort = 0
        self._expected = Expectation()
        self._ahead: tuple[float, Replica | None] | None = None
        """Which busy replica is free first, and when it may be sent to; None: not known now."""
        self._aside = 0
        self._nobody_since_s: float | None = None
        self._was_ready = False
        self._planned_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ticking: asyncio.TimerHandle | None = None

    # ---------------------------------------------------------------- running

    def start(self) -> None:
        """Probe the replicas, and keep time."""
        self.members.start()
        self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    async def close(self) -> None:
        """End at once; what is in flight is not answered."""
        self.is_closed = True
        for timer in (self._timer, self._ticking):
            if timer is not None:
                timer.cancel()
        await self.members.close()

    @property
    def is_ready(self) -> bool:
        """Whether any replica gets traffic."""
        return any(replica.ready for replica in self.replicas)

    @property
    def gauges(self) -> Gauges:
        """What it is like now."""
        return Gauges(
            self.backlog.queued, self.backlog.depth, self.members.limits, self.members.pods, self.settings.target_s
        )

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, pauses or is in flight."""
        return not (self.backlog.queued or self._again or self._pausing or self._aside) and not any(
            replica.in_flight for replica in self.members.known
        )

    def _tick(self) -> None:
        now_s = tries.now()
        for dropped in self.backlog.expire(now_s):
            self._tell_dropped(dropped)
        if now_s - self._planned_s >= PLAN_EVERY_S:
            self._planned_s = now_s
            self._plan()
            self.members.sweep()
        if self.members.leaving:
            self.members.let_go()
        self._note_readiness()
        self._refuse_if_nobody(now_s)
        self.dispatch()
        self._ticking = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _note_readiness(self) -> None:
        """The gateway stays ready for the others' sake, so of a service without replicas the log must speak."""
        if self.is_ready == self._was_ready:
            return
        self._was_ready = self.is_ready
        if self._was_ready:
            log.info("the service has a replica", service=self.settings.name)
        else:
            log.warning("no replica of the service is ready", service=self.settings.name)

    def _plan(self) -> None:
        """The numbers of the hour."""
        plan = plan_at(self.settings, self._wall(), len(self.replicas))
        if plan != self.plan:
            log.info("new numbers", service=self.settings.name, depth=plan.depth, max_batch=plan.policy.max_batch)
            self.plan = plan
            self.backlog.resize(plan.depth)

    def _refuse_if_nobody(self, now_s: float) -> None:
        """Nobody waits long for replicas of which none is there."""
        if self.is_ready or not (self.backlog.queued or self._again):
            self._nobody_since_s = None
            return
        if self._nobody_since_s is None:
            self._nobody_since_s = now_s
        if now_s - self._nobody_since_s < PATIENCE_S:
            return
        again, self._again = self._again, []
        waiting = [ticket for each in again for ticket in each.tickets]
        while self.backlog.queued:
            taken = self.backlog.take(now_s, self.backlog.queued)
            for dropped in taken.dropped:
                self._tell_dropped(dropped)
            waiting += taken.items
        for ticket in waiting:
            if not ticket.is_left:
                ticket.settle()
                self.answers.refuse_for_nobody(ticket.exchange)

    # ---------------------------------------------------------------- in

    def on_head(self, exchange: Exchange, mode: Mode) -> None:
        """Refuse at once what cannot be served; else remember it until its body is there."""
        if not self.is_ready:
            self.answers.refuse_for_nobody(exchange)
            return
        ticket = self._ticket(exchange, mode)
        if ticket is None:
            self.answers.refuse(
                exchange, 400, Why.DEADLINE, "x-cardwise-deadline-ms is no number of milliseconds above 0"
            )
            return
        if mode is Mode.ASIDE:
            if self._aside >= ASIDE_MOST:
                self.answers.refuse(exchange, 429, Reason.FULL, "too many such requests at a time", 1.0)
                return
        elif self._is_full_for(ticket):
            self.answers.shed(exchange, Reason.FULL, self.backlog.retry_after_s(tries.now()))
            return
        exchange.context = Given(self, ticket)

    def on_request(self, ticket: Ticket) -> None:
        """Its body is there."""
        ticket.exchange.on_gone = partial(self._hang_up, ticket)
        if ticket.mode is Mode.ASIDE:
            self._send_aside(ticket)
            return
        if ticket.mode is Mode.BATCH and not self._read(ticket):
            return
        self._offer(ticket)

    def _ticket(self, exchange: Exchange, mode: Mode) -> Ticket | None:
        """What the head says about who asks and until when; None if the deadline is none."""
        deadline_s, is_strict, target_s = float("inf"), False, self.settings.target_s
        told = exchange.header(DEADLINE)
        if told is not None:
            deadline_ms = _millis(told)
            if deadline_ms is None:
                return None
            deadline_s, is_strict = exchange.since_s + deadline_ms / 1000, True
        elif target_s is not None:
            deadline_s = exchange.since_s + target_s
        priority, tenant = NORMAL, ""
        if self._priority_header:
            priority = _PRIORITIES.get((exchange.header(self._priority_header) or b"").lower(), NORMAL)
        if self._tenant_header:
            tenant = (exchange.header(self._tenant_header) or b"").decode("latin-1")[:256]
        return Ticket(exchange, mode, priority=priority, tenant=tenant, deadline_s=deadline_s, is_strict=is_strict)

    def _is_full_for(self, ticket: Ticket) -> bool:
        """Whether it is sure, before the body is read, that there will be no place."""
        if self.backlog.queued < self.backlog.depth or self.backlog.next_deadline_s <= tries.now():
            return False
        return not self.backlog.has_rivals(ticket.priority, ticket.tenant)

    def _read(self, ticket: Ticket) -> bool:
        """Read what is asked; False if it was refused."""
        exchange = ticket.exchange
        if exchange.header(b"content-encoding") or exchange.header(b"inference-header-content-length"):
            ticket.key = object()  # not JSON to read: goes alone, as it came
            return True
        try:
            item = self.codec.read(exchange.body)
        except WrongError as error:
            self.answers.refuse(exchange, 400, Why.WRONG, str(error))
            return False
        ticket.item = item
        ticket.places = self._places(item.rows, len(exchange.body))
        if item.key is None:
            ticket.key = object()
        else:
            shared = tuple(header for header in exchange.headers if header[0] in self.batch_headers)
            ticket.key = (exchange.target, shared, item.key)
        return True

    def _places(self, rows: int, size: int) -> int:
        """Of a batch: so that a full one has about the MiB that it may have. A large body alone is no larger for it."""
        most = self.plan.policy.max_batch
        return max(rows, min(math.ceil(size * most / (self.settings.max_batch_mib * 2**20)), most))

    def _offer(self, ticket: Ticket) -> None:
        now_s = tries.now()
        deadline_s = ticket.deadline_s
        found = self.backlog.offer(
            ticket,
            now_s,
            priority=ticket.priority,
            tenant=ticket.tenant,
            key=ticket.key,
            size=ticket.places,
            deadline_s=None if deadline_s == float("inf") else deadline_s,
            service_s=self._service_s(ticket.rows),
        )
        for dropped in found.dropped:
            self._tell_dropped(dropped)
        if isinstance(found, Shed):
            self.answers.shed(ticket.exchange, found.reason, found.retry_after_s)
            return
        ticket.entry = found
        self.budget.note_request(now_s)
        self.dispatch()

    # ---------------------------------------------------------------- to a replica

    def dispatch(self) -> None:
        """Send what may be sent now."""
        if self._again:
            self._dispatch_again()
        if self.backlog.queued:
            if self.settings.batches:
                self._dispatch_batches()
            else:
                self._dispatch_singles()

    def _dispatch_singles(self) -> None:
        while self.backlog.queued and (replica := choose(self.replicas, self._draw)) is not None:
            self._take(1, replica, tries.now())

    def _dispatch_batches(self) -> None:
        now_s = tries.now()
        while (head := self.backlog.head()) is not None:
            replica = choose(self.replicas, self._draw)
            if replica is None:
                self._dispatch_ahead(head.queued, now_s)
                return
            decision = self.plan.policy.decide(
                now_s, head.queued, head.oldest_since_s, head.last_arrival_s, self._cohort, replica.idle_since_s
            )
            if isinstance(decision, Wait):
                self._wake_at(decision.until_s, now_s)
                return
            self._take(decision.n, replica, now_s)

    def _dispatch_ahead(self, queued: int, now_s: float) -> None:
        """All replicas are busy: a full batch may leave a moment before one of them is free."""
        max_batch = self.plan.policy.max_batch
        if queued < max_batch:
            return
        if self._ahead is None:
            due = [
                (due_s, i)
                for i, replica in enumerate(self.replicas)
                if replica.ready and not replica.draining and replica.ahead is not None
                if (due_s := replica.ahead.due_s(queued, max_batch)) is not None
            ]
            due_s, i = min(due, default=(float("inf"), -1))
            self._ahead = due_s, self.replicas[i] if due else None
        due_s, replica = self._ahead
        if replica is None:
            return
        if due_s <= now_s + _TURN_S:
            self._take(max_batch, replica, now_s)
        else:
            self._wake_at(due_s, now_s)

    def _take(self, n: int, replica: Replica, now_s: float) -> None:
        taken = self.backlog.take(now_s, n, service_s=self._service_s(n))
        for dropped in taken.dropped:
            self._tell_dropped(dropped)
        tickets = taken.items
        if not tickets:
            return
        for ticket in tickets:
            ticket.taken_s = now_s
            self.tally.wait_s.observe(now_s - ticket.since_s)
        self._send(tries.of(self, tickets), replica, now_s)

    def _send(self, attempt: Try, replica: Replica, now_s: float) -> None:
        if attempt.tickets[0].is_counted:
            replica.limits.acquire()
            if replica.ahead is not None:
                replica.ahead.begin(now_s)
            self._ahead = None
            self._expected.begin()
            attempt.is_awaited = True
        else:
            self._aside += 1
        self.tally.batch_size.observe(attempt.rows)
        attempt.send(replica, now_s)

    def _send_aside(self, ticket: Ticket) -> None:
        ready = [replica for replica in self.replicas if replica.ready]
        if not ready:
            self.answers.refuse_for_nobody(ticket.exchange)
            return
        now_s = ticket.taken_s = tries.now()
        self.budget.note_request(now_s)
        self._send(tries.of(self, [ticket]), min(ready, key=lambda replica: replica.in_flight), now_s)

    def _wake_at(self, until_s: float, now_s: float) -> None:
        """Whole milliseconds, for uvloop rounds them, up too; what is left of one is spent in turns of the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if until_s < float("inf"):
            wait_s = max(int(1000 * (until_s - now_s)), 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.dispatch)

    def _service_s(self, rows: int) -> float:
        """How long a try of so many rows will take."""
        if not self.settings.batches:
            return self._expected.time_s
        return full_batch_s(self.settings, rows) or self._expected.time_s

    # ---------------------------------------------------------------- back from it

    def note_time(self, attempt: Try) -> None:
        """Its answer has begun, or of a batch is there."""
        if attempt.is_awaited:
            attempt.is_awaited = False
            self._expected.answered(tries.now() - attempt.since_s)

    def over(self, attempt: Try, *, ok: bool, failure: Failure | None) -> None:
        """Its place is free again."""
        replica, now_s = attempt.replica, tries.now()
        assert replica is not None  # noqa: S101
        if attempt.is_awaited:
            attempt.is_awaited = False
            self._expected.gave_up()
        if attempt.tickets[0].is_counted:
            replica.limits.release(now_s, now_s - attempt.since_s, ok=ok)
            if replica.ahead is not None:
                replica.ahead.end(now_s, attempt.places, self.plan.policy.max_batch, ok=ok)
            self._ahead = None
            replica.idle_since_s = now_s
            if ok and self.settings.batches:
                self._cohort = cohort_of(attempt.places, self.backlog.queued)
        else:
            self._aside -= 1
        self._judge(replica, attempt, failure, now_s)
        self.dispatch()

    def answered(self, attempt: Try) -> None:
        """Its callers have their answers: only from now on can they come back."""
        replica = attempt.replica
        if replica is not None and replica.in_flight < replica.limit:
            replica.idle_since_s = tries.now()
            self.dispatch()

    def _judge(self, replica: Replica, attempt: Try, failure: Failure | None, now_s: float) -> None:
        """Whether it speaks against the replica."""
        if failure is None and attempt.status in RETRIED_STATUSES:
            failure = Failure.STATUS
        if failure is None:
            if attempt.status:
                replica.worked()
            return
        self.tally.failures[failure.value] += 1
        if failure is Failure.LOST and attempt.sending is not None and attempt.sending.reused and not attempt.status:
            return  # a kept connection that the replica had closed says nothing of the replica
        if failure is Failure.TIMEOUT and now_s - attempt.since_s < 0.9 * self.settings.timeout_ms / 1000:
            return  # the caller's time was up, not the replica's
        replica.failed(failure, self.settings.fail_after)

    def retry_in_s(self, attempt: Try, failure: Failure, headers: Headers) -> float | None:
        """After how long it is tried again, paid for; None if it is not."""
        tickets = [ticket for ticket in attempt.tickets if not ticket.is_left]
        sent_bytes = 0 if attempt.sending is None else attempt.sending.sent_bytes
        if not tickets or not all(self._may_repeat(ticket, failure, attempt.status, sent_bytes) for ticket in tickets):
            return None
        now_s = tries.now()
        elsewhere = any(each.ready and each is not attempt.replica for each in self.replicas)
        left_s = max(ticket.deadline_s for ticket in tickets) - now_s - self._service_s(attempt.rows)
        pause_s = wait_s(
            tickets[0].attempts,
            self._draw,
            retry_after_s=None if elsewhere else asked_after_s(headers),
            left_s=left_s,
        )
        if pause_s is None or not all(self.budget.spend(now_s) for _ in tickets):
            return None
        self.tally.retries += len(tickets)
        return pause_s

    def _may_repeat(self, ticket: Ticket, failure: Failure, status: int, sent_bytes: int) -> bool:
        key = ticket.exchange.header(b"idempotency-key")
        return may_retry(
            failure,
            method=ticket.exchange.method,
            idempotent=self.settings.idempotent,
            idempotency_key=None if key is None else key.decode("latin-1"),
            status=status,
            sent_bytes=sent_bytes,
            streamed=ticket.exchange.is_begun,
            attempts=ticket.attempts,
        )

    def again(self, attempt: Try, pause_s: float) -> None:
        """Try it once more, elsewhere if there is an elsewhere."""
        assert attempt.replica is not None  # noqa: S101
        fresh = tries.of(self, attempt.tickets, (*attempt.tried, attempt.replica))
        self._pausing += 1
        asyncio.get_running_loop().call_later(pause_s, self._again_due, fresh)

    def _again_due(self, attempt: Try) -> None:
        self._pausing -= 1
        self._again.append(attempt)
        self.dispatch()

    def alone(self, batch: Try, body: bytes, kind: bytes, more: Sequence[Header]) -> None:
        """A batch was refused, perhaps for one of them: each alone, as far as the budget goes."""
        now_s = tries.now()
        for ticket in batch.tickets:
            if ticket.is_left:
                continue
            if self.budget.spend(now_s):
                self.tally.retries += 1
                self._again.append(tries.of(self, [ticket]))
            else:
                self.answers.finish(ticket, batch.status, body, batch.rows, kind, more)
        self.dispatch()

    def _dispatch_again(self) -> None:
        """Second tries, before all that has not been tried."""
        now_s, waiting = tries.now(), self._again
        self._again = []
        for attempt in waiting:
            for ticket in self._late(attempt, now_s):
                self.answers.tell_failure(ticket, ticket.failure or Failure.TIMEOUT)
            if not attempt.tickets:
                continue
            replica = self._elsewhere(attempt)
            if replica is None:
                self._again.append(attempt)
            else:
                self._send(tries.of(self, attempt.tickets, attempt.tried), replica, now_s)

    def _late(self, attempt: Try, now_s: float) -> list[Ticket]:
        """Those whose time is up, taken out; and with them, untold, those that nobody waits for."""
        waiting = [ticket for ticket in attempt.tickets if not ticket.is_left]
        attempt.tickets = [ticket for ticket in waiting if ticket.deadline_s >= now_s]
        return [ticket for ticket in waiting if ticket.deadline_s < now_s]

    def _elsewhere(self, attempt: Try) -> Replica | None:
        others = [each for each in self.replicas if each.ready and each not in attempt.tried]
        return choose(others or self.replicas, self._draw)

    def _hang_up(self, ticket: Ticket) -> None:
        """A client has left: free what it holds."""
        ticket.settle()
        self.tally.gone += 1
        if ticket.entry is not None and self.backlog.cancel(ticket.entry):
            return
        if ticket.attempt is not None:
            ticket.attempt.hang_up(ticket)

    def _tell_dropped(self, dropped: Dropped[Ticket]) -> None:
        self.answers.shed(dropped.entry.item.exchange, dropped.reason, dropped.retry_after_s)


def _millis(text: bytes) -> float | None:
    """A number above 0, of at most a day; None if it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 86_400_000 else None
