"""One replica binds. A Lease says which, and its counter numbers the leaders.

Time is read on this machine's own steady clock only: a lease is taken over when its record has not changed for its
whole duration *as seen from here*, whatever its timestamps say (case C15). The leader stops binding well before others
may take over, so that a write under way has ended by then.

A lease that is not there was deleted, and its holder may bind on its last renewal for a while. It writes the lease
again, so it is left the time to. Who creates it in the end was not renewed upon since, and begins a whole duration
after that: no order of deletions makes two lead. The one exception is a first look on a cluster without a single
allocation: there an installation begins at once. (A leader that has not one pod bound, whose lease is deleted in the
moment in which another replica starts, would bind beside it until its next renewal, two seconds later.)
Refuses to stand before the pods are known: without them a first lease cannot be told from one that was deleted.
Source: client-go's leaderelection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import structlog

from cardwise.adapters.kube.instants import lease_stamp_now
from cardwise.adapters.kube.port import ClusterPort, LeaseRecord
from cardwise.errors import ClusterError, ConflictError, NotFoundError
from cardwise.said import Said

log = structlog.get_logger()

DURATION_S, RENEW_WITHIN_S, PERIOD_S = 15, 9.0, 2.0
"""A lease lasts 15 s; its holder binds for 9 s after the last renewal, and a write takes 4 s at most."""
LEFT_S = 3 * PERIOD_S
"""So long a lease that was deleted is left to its holder to write again."""
LOOK_S = 0.1
GIVEN_UP_S = 1
"""Duration of a lease that its holder gave up, as client-go writes it. One that somebody blanked has another."""
MOST_TERMS = 2**31 - 1
"""leaseTransitions is an int32."""


@dataclass(slots=True)
class Leader:
    """This replica's standing.

    on_elected: called with the new epoch before the first binding. It may take its time: the lease is renewed beside
    it, and if another takes the lease, it is cancelled.
    last_epoch: the highest epoch of the allocations that are known, 0 if there are none; None while no pods are known.
    _from_s: when a lease that we created begins to count. _first: it was never there, and nobody ever led.
    """

    port: ClusterPort
    namespace: str
    name: str
    identity: str
    now_s: Callable[[], float]
    on_elected: Callable[[int], Awaitable[None]]
    last_epoch: Callable[[], int | None]
    _record: LeaseRecord | None = None
    _seen_s: float = field(default=-math.inf)
    _renewed_s: float = field(default=-math.inf)
    _from_s: float = field(default=-math.inf)
    _first: bool = False
    _term: int = -1
    _ready_epoch: int = -1
    _said: Said = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was said yet."""
        self._said = Said(self.now_s)

    @property
    def leads(self) -> bool:
        """True while this replica may bind."""
        return self._is_ours(self._ready_epoch) and self.now_s() - self._renewed_s < RENEW_WITHIN_S

    @property
    def holder(self) -> str:
        """Who led when the lease was last seen."""
        return self._record.holder if self._record else ""

    async def run(self) -> None:
        """Take the lease whenever it is free, and keep it, until cancelled; then give it up."""
        try:
            while self.last_epoch() is None:
                await asyncio.sleep(LOOK_S)
            while True:
                try:
                    await self._step()
                except ClusterError as exc:
                    if self._said.is_news("step", str(exc)):
                        log.warning("the lease could not be renewed, or what comes first not be done", why=str(exc))
                await asyncio.sleep(PERIOD_S)
        finally:
            await self._give_up()

    async def _step(self) -> None:
        if await self._hold() and self._ready_epoch != self._term and self.now_s() >= self._from_s:
            await self._begin(self._term)

    async def _hold(self) -> bool:
        """Renew the lease, or take it if it is free; whether it is ours now."""
        asked_s = self.now_s()
        record = await self._look()
        if not self._is_free(record, asked_s):
            return False
        mine = record.holder == self.identity
        # a restarted process of the same name is a new leader too: it knows nothing of the holds of the old one
        if not mine or self._term != record.transitions:
            self._ready_epoch = -1
            wanted = replace(record, transitions=self._next_term(record.transitions))
        else:
            wanted = record
        created = not (record.version or mine)
        if created and not self._first:
            self._from_s = math.inf  # until it is known that the write was done: its answer may be lost
        try:
            self._record = await self.port.write_lease(self.namespace, self.name, self._signed(wanted))
        except ConflictError:
            return False
        self._renewed_s = self._seen_s = asked_s
        self._term = self._record.transitions
        if not (mine or created):
            self._from_s = -math.inf  # taken from one who is known to bind no more
        elif self._from_s == math.inf:
            self._from_s = self.now_s() + DURATION_S
        return True

    async def _look(self) -> LeaseRecord:
        """The lease as it is now. One that was deleted or blanked while we lead is our own: to be written again."""
        before = self._record
        try:
            record = await self.port.read_lease(self.namespace, self.name)
        except NotFoundError:
            record = LeaseRecord()
        self._first = not record.version and self.last_epoch() == 0 and (before is None or self._first)
        if before is not None and self.leads and not record.holder:
            record = replace(before, version=record.version)
        if before is None or record.version != before.version:
            self._seen_s = self.now_s()  # not before: its holder may have renewed while our question was under way
        self._record = record
        return record

    def _is_free(self, record: LeaseRecord, asked_s: float) -> bool:
        """Whether it is ours to write."""
        if record.holder == self.identity:
            return True
        unchanged_s = asked_s - self._seen_s
        if not record.version:
            return self._first or unchanged_s >= LEFT_S
        given_up = not record.holder and record.duration_s <= GIVEN_UP_S
        return given_up or unchanged_s >= max(record.duration_s, 1)

    def _next_term(self, before: int) -> int:
        """A number above all that were: what is bound in it comes later. Begins anew where none is left."""
        term = max(before, self.last_epoch() or 0) + 1
        return term if term <= MOST_TERMS else before % MOST_TERMS + 1

    def _signed(self, record: LeaseRecord) -> LeaseRecord:
        return replace(record, holder=self.identity, duration_s=DURATION_S, renewed=lease_stamp_now())

    async def _begin(self, epoch: int) -> None:
        """Do what comes before the first binding, and keep the lease meanwhile. If it is lost, nothing was begun."""
        log.info("elected", epoch=epoch, identity=self.identity)
        beginning = asyncio.ensure_future(self.on_elected(epoch))
        try:
            while not (await asyncio.wait({beginning}, timeout=PERIOD_S))[0]:
                await self._keep()
                if not self._is_ours(epoch):
                    log.warning("the lease was lost before this replica had begun", epoch=epoch, holder=self.holder)
                    return
            beginning.result()
            self._ready_epoch = epoch
        finally:
            if self._ready_epoch != epoch:
                self._term = -1  # what was not begun is begun again in a term of its own
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)

    async def _keep(self) -> None:
        try:
            await self._hold()
        except ClusterError as exc:
            if self._said.is_news("keep", str(exc)):
                log.warning("the lease could not be renewed", why=str(exc))

    def _is_ours(self, epoch: int) -> bool:
        return self._record is not None and (self._record.holder, self._record.transitions) == (self.identity, epoch)

    async def _give_up(self) -> None:
        """Let the next one begin at once."""
        if self._record is not None and self._record.holder == self.identity:
            self._ready_epoch = -1
            given_up = replace(self._record, holder="", duration_s=GIVEN_UP_S)
            try:
                await self.port.write_lease(self.namespace, self.name, given_up)
            except ClusterError as exc:
                log.warning("the lease could not be given up", why=str(exc))
