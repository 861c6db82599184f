"""Which replica gets the next request: of two drawn at random the less loaded one.

The least loaded of all would get every request between two looks at it; the better of two does almost as well and
spreads. The gateway's own counts come first, for they are exact and immediate; what replicas report is a penalty on
top, and only while it is fresh. Refuses a replica that is not ready, drains or is at its limit.

Source: Mitzenmacher, The power of two choices in randomized load balancing (2001).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Replica(Protocol):
    """What is asked of a replica. limit: most requests in flight; penalty: added to its load, see ``penalty_of``."""

    @property
    def ready(self) -> bool:
        """It has answered a warm-up request, and probes find it well."""
        ...

    @property
    def draining(self) -> bool:
        """It finishes what it has and takes nothing new."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests sent and not answered."""
        ...

    @property
    def limit(self) -> int:
        """Most requests in flight."""
        ...

    @property
    def penalty(self) -> float:
        """Added to its load; 0 if nothing is known."""
        ...


ReplicaT = TypeVar("ReplicaT", bound=Replica)


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a replica last said of itself. waiting: requests in its own queue; cache_share: KV cache used, in [0, 1]."""

    at_s: float
    waiting: int = 0
    cache_share: float = 0.0


def penalty_of(gauges: Gauges | None, now_s: float, *, scrape_s: float, limit: int) -> float:
    """What its gauges add to a replica's load: its own queue, and a KV cache above 80 %, up to 1 from 90 % on.

    0 once the gauges are older than two scrapes: then they tell of another time.
    """
    if gauges is None or now_s - gauges.at_s > 2 * scrape_s:
        return 0.0
    cache = min(max((gauges.cache_share - 0.8) / 0.1, 0.0), 1.0)
    return gauges.waiting / max(limit, 1) + cache


def has_room(replica: Replica) -> bool:
    """Whether it may get a request."""
    return replica.in_flight < replica.limit and replica.ready and not replica.draining


def load_of(replica: Replica) -> float:
    """How loaded it would be with one more."""
    return (replica.in_flight + 1) / replica.limit + replica.penalty


def choose(replicas: Sequence[ReplicaT], draw: Callable[[], float]) -> ReplicaT | None:
    """The replica for the next request, or None if none has room.

    draw: uniform in [0, 1), as ``random.Random(seed).random``. O(1) while both that are drawn have room.
    """
    pair = _draw_two(replicas, draw)
    if not all(map(has_room, pair)):
        pair = _draw_two([replica for replica in replicas if has_room(replica)], draw)
    return min(pair, key=load_of, default=None)


def _draw_two(replicas: Sequence[ReplicaT], draw: Callable[[], float]) -> tuple[ReplicaT, ...]:
    """Two different ones, in random order, each pair equally likely; all if there are fewer."""
    n = len(replicas)
    if n < 2:
        return tuple(replicas)
    first = int(draw() * n)
    second = int(draw() * (n - 1))
    return replicas[first], replicas[second + (second >= first)]
