"""When a batch leaves for an idle replica, and how large: at once, or a moment later for the callers of the last one.

Callers that wait for their answers come back together. If an idle replica takes the first of them, the rest miss it,
and two half batches follow each other for ever. So it lingers while fewer wait than came last time, until none has come
for ``gap_s``, or ``cap_s`` has passed. Under independent arrivals the wait costs little: nobody comes, and it leaves.

Refuses a fixed window, which makes light load wait and gains nothing under a heavy one (the queue fills while the
device works), and to shrink a batch for a late head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Send(NamedTuple):
    """Send so many now."""

    n: int


class Wait(NamedTuple):
    """Ask again at ``until_s``, or when something arrives or a replica falls idle; inf: only then."""

    until_s: float


_NOTHING_TO_DO = Wait(math.inf)


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When to send. max_batch: most places in a batch. gap_s, cap_s: how long an idle replica lingers.

    max_wait_s: nobody waits longer than this for others. With gap_s = 0 a batch leaves as soon as a replica is idle.
    """

    max_batch: int
    gap_s: float = 0.0
    cap_s: float = 0.0
    max_wait_s: float = math.inf

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ValueError(f"max_batch is {self.max_batch}, and must be at least 1")
        for name in ("gap_s", "cap_s", "max_wait_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be at least 0")

    @classmethod
    def scaled(cls, max_batch: int, t1_s: float, tmax_s: float, *, max_wait_s: float = math.inf) -> BatchPolicy:
        """The default for a model whose batch of one takes ``t1_s`` and whose full batch takes ``tmax_s``.

        0.5 ms and 2 ms at t(b) = 4 + 0.35 b ms, max 32, where 1 ms and 4 ms were slightly worse; taken to scale.
        """
        return cls(max_batch, 0.115 * t1_s, 0.13 * tmax_s, max_wait_s)

    def decide(
        self,
        now_s: float,
        queued: int,
        oldest_since_s: float,
        last_arrival_s: float,
        cohort: int,
        idle_since_s: float | None,
    ) -> Send | Wait:
        """What to do with the alike requests that are next.

        queued: places they take. cohort: how many are expected, see :func:`cohort_of`. idle_since_s: since when a
        replica has been free to take a batch; None if none is.
        """
        if idle_since_s is None or queued < 1:
            return _NOTHING_TO_DO
        if queued >= self.max_batch:
            return Send(self.max_batch)
        if queued >= cohort:
            return Send(queued)
        until_s = min(
            max(last_arrival_s, idle_since_s) + self.gap_s,
            max(oldest_since_s, idle_since_s) + self.cap_s,
            oldest_since_s + self.max_wait_s,
        )
        return Send(queued) if now_s >= until_s else Wait(until_s)


def cohort_of(answered: int, queued: int) -> int:
    """How many callers there are, as far as an answered batch shows: those in it, and those that came meanwhile."""
    return answered + queued


def check_wait(max_wait_s: float, target_p99_s: float) -> str | None:
    """Why so long a wait for others does not fit the target, or None. Source: SPEC D2, at most 15 %."""
    if max_wait_s <= 0.15 * target_p99_s:
        return None
    return (
        f"a max wait of {1000 * max_wait_s:g} ms is more than 15 % of the target P99 of {1000 * target_p99_s:g} ms: "
        f"set it to {150 * target_p99_s:g} ms or less"
    )
