"""The backlog of one service: who waits, who is told at once to come again, who is next.

A queue without a bound serves nothing in time. Order: the more urgent first; among equals each tenant in turn; of one
tenant the oldest. Only alike requests leave together. A full backlog still takes the request of a tenant that holds
less, in the place of the newest request of the one that holds most, so that nobody's burst shuts others out.

Refuses to save a late head by a smaller batch, which costs all others their time: the late one is dropped. Refuses to
look at a clock, and to answer anyone: what is shed or dropped is a value that says why and when to come again.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

ItemT = TypeVar("ItemT")

URGENT, NORMAL, BULK = 0, 1, 2
"""Priorities. A more urgent request is always before a less urgent one, so who may say URGENT is for the operator."""
PRIORITIES = 3


class Reason(enum.Enum):
    """Why a request was not served; stable, for metrics and headers carry it."""

    FULL = "full"
    """No place, and nobody who holds one has less right to it."""
    SHARE = "share"
    """No place, and its tenant holds as much as any other, or as much as one tenant may."""
    LATE = "late"
    """It would wait past its deadline; said on arrival."""
    SIZE = "size"
    """Larger than the whole backlog: never fits."""
    EXPIRED = "expired"
    """It waited until its deadline could no longer be met."""
    DISPLACED = "displaced"
    """It gave its place to a more urgent request, or to a tenant that holds less."""


@dataclass(slots=True, eq=False)
class Admitted(Generic[ItemT]):
    """A request that waits, and the ticket to cancel it. size: how many places it takes (rows of its batch).

    dropped: what lost its place to it, usually nothing. waiting: False once taken, dropped or cancelled.
    """

    item: ItemT
    priority: int
    tenant: str
    key: Hashable
    size: int
    since_s: float
    deadline_s: float
    seq: int
    dropped: tuple[Dropped[ItemT], ...] = ()
    waiting: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Dropped(Generic[ItemT]):
    """A request that had been let in and will not be served."""

    entry: Admitted[ItemT]
    reason: Reason
    retry_after_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Shed(Generic[ItemT]):
    """A request that was not let in. retry_after_s: None if coming again is no use.

    dropped: what was found to be too late on the way.
    """

    reason: Reason
    retry_after_s: float | None
    dropped: tuple[Dropped[ItemT], ...] = ()


class Taken(NamedTuple, Generic[ItemT]):
    """What a replica gets, in order, and what was found to be too late on the way."""

    entries: list[Admitted[ItemT]]
    dropped: list[Dropped[ItemT]]

    @property
    def items(self) -> list[ItemT]:
        """The requests as they were offered."""
        return [entry.item for entry in self.entries]


class Group(NamedTuple):
    """The alike requests that are next: what the batch policy decides about. queued: places they take."""

    key: Hashable
    queued: int
    oldest_since_s: float
    last_arrival_s: float


# ---------------------------------------------------------------- the rules of depth


def depth_for(target_p99_s: float, rate: float, max_batch: int) -> int:
    """How many may wait: a tenth of the target P99 at the measured rate (1/s), within 1 to 3 full batches.

    Below one batch throughput falls, above three the wait is worth more than the answer. Source: SPEC D1.
    """
    _positive(target_p99_s=target_p99_s, rate=rate, max_batch=max_batch)
    return int(min(max(0.1 * target_p99_s * rate, max_batch), 3 * max_batch))


def check(depth: int, max_batch: int, batch_time_s: float, target_p99_s: float) -> str | None:
    """Why these settings cannot meet their target, or None.

    batch_time_s: of a full batch. The last of a full backlog waits for depth / max_batch batches, and for its own.
    Source: SPEC D1.
    """
    _positive(depth=depth, max_batch=max_batch, batch_time_s=batch_time_s, target_p99_s=target_p99_s)
    worst_s = (depth / max_batch + 1) * batch_time_s
    if worst_s <= target_p99_s:
        return None
    most = int((target_p99_s / batch_time_s - 1) * max_batch)
    advice = (
        f"set the depth to {most} or less"
        if most >= max_batch
        else f"take a max batch whose time is at most {1000 * target_p99_s / 2:g} ms, or a target of at least "
        f"{2000 * batch_time_s:g} ms"
    )
    return (
        f"depth {depth} with max batch {max_batch} takes up to {1000 * worst_s:g} ms, "
        f"the target P99 is {1000 * target_p99_s:g} ms: {advice}"
    )


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}, and must be above 0")


# ---------------------------------------------------------------- how fast it drains


class _Drain:
    """Places freed per second while something was waiting: what the replicas can do, not what was asked of them."""

    __slots__ = ("_busy_s", "_since_s", "_size")
    MEMORY_S = 2.0
    """Busy time after which a measurement counts 1/e: some 100 batches of a middling model."""

    def __init__(self) -> None:
        self._size = 0.0
        self._busy_s = 0.0
        self._since_s: float | None = None
        """Since when, without a break, something has been waiting that no replica took."""

    def took(self, now_s: float, size: int, *, more: bool) -> None:
        """``size`` places were freed at once; ``more``: some still wait."""
        since_s = self._since_s
        if since_s is not None:
            lasted_s = max(now_s - since_s, 0.0)
            fade = math.exp(-lasted_s / self.MEMORY_S)
            self._size = self._size * fade + size
            self._busy_s = self._busy_s * fade + lasted_s
        self._since_s = now_s if more else None

    def emptied(self) -> None:
        """Those who waited are gone by themselves, which says nothing of the replicas."""
        self._since_s = None

    def rate(self, now_s: float) -> float | None:
        """Places per second, less the longer nothing is taken; None before anything is known."""
        busy_s = self._busy_s + (0.0 if self._since_s is None else max(now_s - self._since_s, 0.0))
        return self._size / busy_s if self._size > 0 and busy_s > 0 else None


# ---------------------------------------------------------------- one priority


class _Flow(Generic[ItemT]):
    """What one tenant has waiting of one kind. debt: turns to sit out for a request that took several places."""

    __slots__ = ("debt", "entries")

    def __init__(self) -> None:
        self.entries: OrderedDict[int, Admitted[ItemT]] = OrderedDict()
        self.debt = 0


class _Lane(Generic[ItemT]):
    """All requests of one priority: by arrival, and by kind and tenant. held: places per tenant."""

    __slots__ = ("held", "order", "rings", "size")

    def __init__(self) -> None:
        self.order: OrderedDict[int, Admitted[ItemT]] = OrderedDict()
        self.rings: dict[Hashable, OrderedDict[str, _Flow[ItemT]]] = {}
        self.held: dict[str, int] = {}
        self.size = 0

    def add(self, entry: Admitted[ItemT]) -> None:
        tenant = entry.tenant
        ring = self.rings.get(entry.key)
        if ring is None:
            ring = self.rings[entry.key] = OrderedDict()
        flow = ring.get(tenant)
        if flow is None:
            flow = ring[tenant] = _Flow()
        flow.entries[entry.seq] = self.order[entry.seq] = entry
        self.held[tenant] = self.held.get(tenant, 0) + entry.size
        self.size += entry.size

    def remove(self, entry: Admitted[ItemT]) -> None:
        tenant, ring = entry.tenant, self.rings[entry.key]
        entries = ring[tenant].entries
        del self.order[entry.seq], entries[entry.seq]
        if not entries:
            del ring[tenant]
            if not ring:
                del self.rings[entry.key]
        held = self.held[tenant] - entry.size
        if held:
            self.held[tenant] = held
        else:
            del self.held[tenant]
        self.size -= entry.size

    def next(self, key: Hashable) -> Admitted[ItemT] | None:
        """Whose turn it is among the tenants that wait with this kind."""
        ring = self.rings.get(key)
        if ring is None:
            return None
        tenant, flow = next(iter(ring.items()))
        if len(ring) > 1:
            while flow.debt > 0:
                flow.debt -= 1
                ring.move_to_end(tenant)
                tenant, flow = next(iter(ring.items()))
        return next(iter(flow.entries.values()))

    def serve(self, entry: Admitted[ItemT]) -> None:
        """Remove what is served; its tenant's next turn comes after all others'."""
        ring = self.rings[entry.key]
        ring[entry.tenant].debt = entry.size - 1
        ring.move_to_end(entry.tenant)
        self.remove(entry)

    def most(self) -> str:
        """The tenant that holds most places, of equals any one, the same each time."""
        return max(self.held, key=self.held.__getitem__)

    def newest_of(self, tenant: str) -> Admitted[ItemT]:
        return next(entry for entry in reversed(self.order.values()) if entry.tenant == tenant)

    def ahead_of(self, tenant: str) -> int:
        """Places that are served before a new request of this tenant: at most one more of each other than its own."""
        own = self.held.get(tenant, 0)
        others = len(self.held) - (1 if own else 0)
        return min(self.size, own + others * (own + 1))


# ---------------------------------------------------------------- the backlog

_UNKNOWN_RETRY_S, _LEAST_RETRY_S, _MOST_RETRY_S = 1.0, 0.05, 60.0
"""When to come again: before any rate is known; and the bounds of what is computed, for a rate can be far off."""


class Backlog(Generic[ItemT]):
    """Up to ``depth`` places. offer, take and cancel are O(1) while it is not full, with deadlines O(log n).

    When full, an offer also looks at each tenant that waits. tenant_share: how much of the depth one tenant may hold
    even while others hold nothing, in (0, 1].
    """

    __slots__ = ("_arrived", "_deadlines", "_depth", "_drain", "_lanes", "_seq", "_sizes", "_tenant_share", "queued")

    def __init__(self, depth: int, *, tenant_share: float = 1.0) -> None:
        if not 0 < tenant_share <= 1:
            raise ValueError(f"tenant_share is {tenant_share}, and must be above 0 and at most 1")
        self._lanes: tuple[_Lane[ItemT], ...] = tuple(_Lane() for _ in range(PRIORITIES))
        self._deadlines: list[tuple[float, int, Admitted[ItemT]]] = []
        self._sizes: dict[Hashable, int] = {}
        self._arrived: dict[Hashable, float] = {}
        self._drain = _Drain()
        self._tenant_share = tenant_share
        self._seq = 0
        self.queued = 0
        """Places taken."""
        self.resize(depth)

    @property
    def depth(self) -> int:
        """Places in all."""
        return self._depth

    def __len__(self) -> int:
        return sum(len(lane.order) for lane in self._lanes)

    def resize(self, depth: int) -> None:
        """Change the depth. Who waits already stays, even above a smaller depth: the hour is not their fault."""
        if depth < 1:
            raise ValueError(f"depth is {depth}, and must be at least 1")
        self._depth = depth

    # ------------------------------------------------------------ in

    def offer(
        self,
        item: ItemT,
        now_s: float,
        *,
        priority: int = NORMAL,
        tenant: str = "",
        key: Hashable = None,
        size: int = 1,
        deadline_s: float | None = None,
        service_s: float = 0.0,
    ) -> Admitted[ItemT] | Shed[ItemT]:
        """Let a request in, or say at once why not and when to come again.

        key: requests of different keys are never served together. deadline_s: when its answer must be there, on the
        clock of ``now_s``; service_s: how long its batch is expected to take once taken.
        """
        lane = self._lanes[priority]
        if size > self._depth:
            return Shed(Reason.SIZE, None)
        if deadline_s is None:
            deadline_s = math.inf
        elif now_s + self._wait_s(now_s, priority, tenant) + service_s > deadline_s:
            return Shed(Reason.LATE, self.retry_after_s(now_s))
        dropped: tuple[Dropped[ItemT], ...] = ()
        if self._tenant_share < 1 and self._held(tenant) + size > max(1.0, self._tenant_share * self._depth):
            return Shed(Reason.SHARE, self.retry_after_s(now_s))
        if self.queued + size > self._depth:
            found = self._make_room(now_s, priority, tenant, size, service_s)
            if isinstance(found, Shed):
                return found
            dropped = found
        self._seq += 1
        entry = Admitted(item, priority, tenant, key, size, now_s, deadline_s, self._seq, dropped)
        lane.add(entry)
        self.queued += size
        self._sizes[key] = self._sizes.get(key, 0) + size
        self._arrived[key] = now_s
        if deadline_s < math.inf:
            self._note_deadline(entry)
        return entry

    def _held(self, tenant: str) -> int:
        return sum(lane.held.get(tenant, 0) for lane in self._lanes)

    def _wait_s(self, now_s: float, priority: int, tenant: str) -> float:
        if not self.queued:
            return 0.0
        rate = self._drain.rate(now_s)
        if rate is None:
            return 0.0
        ahead = sum(lane.size for lane in self._lanes[:priority]) + self._lanes[priority].ahead_of(tenant)
        return ahead / rate

    def _make_room(
        self, now_s: float, priority: int, tenant: str, size: int, service_s: float
    ) -> tuple[Dropped[ItemT], ...] | Shed[ItemT]:
        """Free places: of the late; else of the newest of who holds most among the least urgent."""
        dropped = tuple(self.expire(now_s, service_s))
        if self.queued + size <= self._depth:
            return dropped
        found = self._displace(priority, tenant, size)
        if isinstance(found, Reason):
            return Shed(found, self.retry_after_s(now_s), dropped)
        return (*dropped, self._drop(found, Reason.DISPLACED, now_s))

    def _displace(self, priority: int, tenant: str, size: int) -> Admitted[ItemT] | Reason:
        """Whose place a new request gets. Source: longest queue drop (Suter et al., INFOCOM 1998).

        It takes one other's place or none, never that of a more urgent one, and among equals never so that its tenant
        would hold more than the other does then.
        """
        last = max(level for level, lane in enumerate(self._lanes) if lane.order)
        if last < priority:
            return Reason.FULL
        lane = self._lanes[last]
        most = lane.most()
        victim = lane.newest_of(most)
        if self.queued - victim.size + size > self._depth:
            return Reason.FULL
        if last > priority:
            return victim
        own, theirs = lane.held.get(tenant, 0), lane.held[most]
        if most != tenant and own + size <= theirs - victim.size:
            return victim
        return Reason.SHARE if len(lane.held) > 1 and own + size > self._depth / len(lane.held) else Reason.FULL

    def has_rivals(self, priority: int, tenant: str) -> bool:
        """Whether anyone waits who might have less right to a place: less urgent, or as urgent and another tenant's."""
        if any(lane.held for lane in self._lanes[priority + 1 :]):
            return True
        held = self._lanes[priority].held
        return len(held) > (tenant in held)

    # ------------------------------------------------------------ out

    def head(self) -> Group | None:
        """The kind that is served next: that of the oldest among the most urgent."""
        for lane in self._lanes:
            if lane.order:
                entry = next(iter(lane.order.values()))
                return Group(entry.key, self._sizes[entry.key], entry.since_s, self._arrived[entry.key])
        return None

    def take(self, now_s: float, n: int, *, service_s: float = 0.0) -> Taken[ItemT]:
        """Alike requests for up to ``n`` places, by priority and turn; a request larger than ``n`` goes alone.

        service_s: how long the batch about to run will take; who would be answered past its deadline is dropped. The
        one whose turn it is and that does not fit in any more ends the batch, so that large ones get their turn.
        """
        if n < 1:
            raise ValueError(f"n is {n}, and must be at least 1")
        entries: list[Admitted[ItemT]] = []
        dropped: list[Dropped[ItemT]] = []
        size = 0
        while not entries and (head := self.head()):
            size = self._fill(head.key, n, now_s, service_s, entries, dropped)
        if entries:
            self._drain.took(now_s, size, more=self.queued > 0)
        return Taken(entries, dropped)

    def _fill(
        self,
        key: Hashable,
        n: int,
        now_s: float,
        service_s: float,
        entries: list[Admitted[ItemT]],
        dropped: list[Dropped[ItemT]],
    ) -> int:
        done_s, size = now_s + service_s, 0
        for lane in self._lanes:
            while size < n and (entry := lane.next(key)) is not None:
                if done_s > entry.deadline_s:
                    dropped.append(self._drop(entry, Reason.EXPIRED, now_s))
                    continue
                if entries and size + entry.size > n:
                    return size
                lane.serve(entry)
                self._leave(entry)
                entries.append(entry)
                size += entry.size
            if not entries and lane.order:  # all of this kind were late; others as urgent are before less urgent ones
                break
        return size

    def cancel(self, entry: Admitted[ItemT]) -> bool:
        """Free the place of a client that hung up, at once; False if it was taken or dropped already."""
        if not entry.waiting:
            return False
        self._remove(entry)
        return True

    def expire(self, now_s: float, service_s: float = 0.0) -> list[Dropped[ItemT]]:
        """Drop all that would be answered past their deadline if they were taken now, the most urgent deadline first.

        For while no replica takes anything; ``take`` and ``offer`` see to it themselves.
        """
        dropped = []
        while self.next_deadline_s < now_s + service_s:
            entry = heapq.heappop(self._deadlines)[2]
            dropped.append(self._drop(entry, Reason.EXPIRED, now_s))
        return dropped

    @property
    def next_deadline_s(self) -> float:
        """The earliest deadline of those who wait; inf if there is none."""
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].waiting:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else math.inf

    def _note_deadline(self, entry: Admitted[ItemT]) -> None:
        """Deadlines of those who left stay until their turn, or until they are the greater part."""
        deadlines = self._deadlines
        if len(deadlines) > 2 * self.queued + 64:
            deadlines[:] = [noted for noted in deadlines if noted[2].waiting]
            heapq.heapify(deadlines)
        heapq.heappush(deadlines, (entry.deadline_s, entry.seq, entry))

    def _drop(self, entry: Admitted[ItemT], reason: Reason, now_s: float) -> Dropped[ItemT]:
        retry_after_s = self.retry_after_s(now_s)
        self._remove(entry)
        return Dropped(entry, reason, retry_after_s)

    def _remove(self, entry: Admitted[ItemT]) -> None:
        self._lanes[entry.priority].remove(entry)
        self._leave(entry)
        if not self.queued:
            self._drain.emptied()

    def _leave(self, entry: Admitted[ItemT]) -> None:
        entry.waiting = False
        self.queued -= entry.size
        left = self._sizes[entry.key] - entry.size
        if left:
            self._sizes[entry.key] = left
        else:
            del self._sizes[entry.key], self._arrived[entry.key]

    # ------------------------------------------------------------ how long

    def retry_after_s(self, now_s: float) -> float:
        """When all who wait now will have been taken, at the measured rate; within 50 ms to 60 s."""
        rate = self._drain.rate(now_s)
        if rate is None:
            return _UNKNOWN_RETRY_S
        return min(max(self.queued / rate, _LEAST_RETRY_S), _MOST_RETRY_S)
