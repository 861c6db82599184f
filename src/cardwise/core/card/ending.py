"""How a slice that has to give its memory back is ended: asked first, told to stop next, stopped at last.

The API server is asked to evict its pod, which leaves the slice its grace. Where nobody answers, its processes are
told to stop (SIGTERM), and stopped (SIGKILL) when their grace is over. Where the card is about to be full there is no
time to ask: a latency-sensitive slice that fails for want of memory costs more than an answer that is lost. Refuses to
choose who is ended (``reclaim``).

Source: SPEC E2, E3.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Act(enum.Enum):
    """What is due now."""

    WAIT = "wait"
    TERM = "terminate"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class EndPolicy:
    """answer_s: for the API server to answer; grace_s: for a process to stop by itself.

    brink_s: when the card would be full within this time, nobody waits any more. late_s: what the kubelet may take
    beyond the grace.
    """

    answer_s: float = 0.5
    grace_s: float = 5.0
    brink_s: float = 2.0
    late_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("answer_s", "grace_s", "brink_s", "late_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be 0 or more")

    @property
    def over_s(self) -> float:
        """From the first act on: a slice whose memory is not back by then is given up, and others have to go."""
        return self.answer_s + self.grace_s + 2 * self.late_s


@dataclass(slots=True)
class Going:
    """A slice that is being ended, since ``asked_s``.

    accepted: the API server evicts its pod. termed_s: since when its processes are told to stop, None: they are not.
    """

    asked_s: float
    accepted: bool = False
    termed_s: float | None = None


def next_act(going: Going, now_s: float, full_in_s: float, policy: EndPolicy) -> Act:
    """What is due for a slice that still holds memory. full_in_s: until the card is full, if memory goes on rising."""
    if full_in_s <= policy.brink_s:
        return Act.KILL
    if going.termed_s is not None:
        return Act.KILL if now_s - going.termed_s >= policy.grace_s else Act.WAIT
    if going.accepted:
        return Act.KILL if now_s - going.asked_s >= policy.answer_s + policy.grace_s + policy.late_s else Act.WAIT
    return Act.TERM if now_s - going.asked_s >= policy.answer_s else Act.WAIT


def is_given_up(going: Going, now_s: float, policy: EndPolicy) -> bool:
    """Whether its memory should long be back: it must not be counted on any more."""
    return now_s - going.asked_s > policy.over_s
