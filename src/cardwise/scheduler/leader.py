"""One replica binds. A Lease says which, and its counter numbers the leaders.

Time is read on this machine's own steady clock only: a lease is taken over when its record has not changed for its
whole duration *as seen from here*, whatever its timestamps say (case C15). The leader stops binding well before others
may take over, so that a write under way has ended by then.
Source: client-go's leaderelection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import structlog

from cardwise.adapters.kube.port import ClusterPort, LeaseRecord
from cardwise.errors import ClusterError, ConflictError, NotFoundError

log = structlog.get_logger()

DURATION_S, RENEW_WITHIN_S, PERIOD_S = 15, 9.0, 2.0
"""A lease lasts 15 s; its holder binds for 9 s after the last renewal, and a write takes 4 s at most."""


@dataclass(slots=True)
class Leader:
    """This replica's standing. on_elected: called with the new epoch before the first binding; it may take its time."""

    port: ClusterPort
    namespace: str
    name: str
    identity: str
    now_s: Callable[[], float]
    on_elected: Callable[[int], Awaitable[None]]
    _record: LeaseRecord | None = None
    _seen_s: float = field(default=float("-inf"))
    _renewed_s: float = field(default=float("-inf"))
    _ready_epoch: int = -1

    @property
    def leads(self) -> bool:
        """True while this replica may bind."""
        ours = self._record is not None and self._record.holder == self.identity
        fresh = self.now_s() - self._renewed_s < RENEW_WITHIN_S
        return ours and fresh and self._record is not None and self._ready_epoch == self._record.transitions

    @property
    def holder(self) -> str:
        """Who led when the lease was last seen."""
        return self._record.holder if self._record else ""

    async def run(self) -> None:
        """Take the lease whenever it is free, and keep it, until cancelled; then give it up."""
        try:
            while True:
                try:
                    await self._step()
                except ClusterError as exc:
                    log.warning("the lease could not be renewed", why=str(exc))
                await asyncio.sleep(PERIOD_S)
        finally:
            await self._give_up()

    async def _step(self) -> None:
        asked_s = self.now_s()
        try:
            record = await self.port.read_lease(self.namespace, self.name)
        except NotFoundError:
            record = LeaseRecord()
        if self._record is None or record.version != self._record.version:
            self._seen_s = self.now_s()  # not before: its holder may have renewed while our question was under way
        self._record = record
        mine = record.holder == self.identity
        stale = asked_s - self._seen_s >= max(record.duration_s, 1)
        if not (mine or stale or not record.holder):
            return
        # a restarted process of the same name is a new leader too: it knows nothing of the holds of the old one
        new_term = not mine or self._ready_epoch < 0
        wanted = replace(
            record,
            holder=self.identity,
            duration_s=DURATION_S,
            transitions=record.transitions + new_term,
            renewed=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        )
        try:
            self._record = await self.port.write_lease(self.namespace, self.name, wanted)
        except ConflictError:
            return
        self._renewed_s = self._seen_s = asked_s
        if new_term or self._ready_epoch != self._record.transitions:
            await self._begin(self._record.transitions)

    async def _begin(self, epoch: int) -> None:
        log.info("elected", epoch=epoch, identity=self.identity)
        await self.on_elected(epoch)
        self._ready_epoch = epoch

    async def _give_up(self) -> None:
        """Let the next one begin at once."""
        if self._record is not None and self._record.holder == self.identity:
            self._ready_epoch = -1
            try:
                await self.port.write_lease(self.namespace, self.name, replace(self._record, holder=""))
            except ClusterError as exc:
                log.warning("the lease could not be given up", why=str(exc))
