"""What keeps evictions from becoming an avalanche: budgets, pauses, and no turns.

Each eviction makes a pod wait, and a pod that waits may ask for evictions. Without a brake the cluster spends its time
starting models. So a node gives up only so many pods in a window, and the cluster too; a workload that was evicted is
left alone for a growing while; and it does not evict the one for whom it had to go. Refuses to look at a clock and to
keep anything of its own: what it knows is a list of evictions, which whoever applies them keeps where it survives.

Source: SPEC E3.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Eviction:
    """One that was done, or is about to be. owner, by: workloads ("namespace/name"), not pods, for pods change."""

    at_s: float
    node: str
    owner: str
    by: str


class Brake(enum.Enum):
    """Why a pod may not be evicted now."""

    NODE = "node"
    """Its node has given up as many as it may in this window."""
    CLUSTER = "cluster"
    """The cluster has."""
    AGAIN = "again"
    """Its workload was evicted not long ago."""
    TURN = "turn"
    """Who would evict it was evicted for it not long ago."""


@dataclass(frozen=True, slots=True)
class BrakePolicy:
    """Numbers of the brakes. most_per_node, most: evictions in ``window_s``.

    pause_s: how long a workload is left alone after the first eviction, doubled with each further one within
    ``memory_s``, up to ``most_pause_s``. turn_s: how long who was evicted does not evict who evicted it.
    """

    most_per_node: int = 2
    most: int = 10
    window_s: float = 300.0
    pause_s: float = 60.0
    most_pause_s: float = 1800.0
    memory_s: float = 3600.0
    turn_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.most_per_node < 0 or self.most < 0:
            raise ValueError(f"most_per_node {self.most_per_node} and most {self.most} must be at least 0")
        for name in ("window_s", "pause_s", "most_pause_s", "memory_s", "turn_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be at least 0")

    @property
    def oldest_s(self) -> float:
        """Evictions further back than this have no bearing on anything."""
        return max(self.window_s, self.memory_s, self.turn_s) + self.most_pause_s


DEFAULT = BrakePolicy()


def age_s(at_s: float, now_s: float) -> float:
    """How long ago something was, or is ahead: a clock that was set back a little undoes nothing that was done.

    And what a clock that was far ahead has dated holds nothing up until that day.
    """
    return abs(now_s - at_s)


def seen_from(at_s: float, now_s: float) -> float:
    """The same as a moment that is not ahead."""
    return now_s - age_s(at_s, now_s) if at_s > now_s else at_s


def brake(
    past: Iterable[Eviction],
    now_s: float,
    node: str,
    owner: str,
    by: str,
    policy: BrakePolicy = DEFAULT,
    running: int = 1,
) -> Brake | None:
    """Why a pod of ``owner`` on ``node`` may not be evicted for ``by`` now, or None. past: in any order.

    running: how many pods of ``owner`` run. Up to half of them may be resting from an eviction: one large workload
    would else be left alone as a whole for the sake of one of its pods, and who is more urgent would wait behind it.
    """
    listed = list(past)
    recent = [each for each in listed if age_s(each.at_s, now_s) < policy.window_s]
    if sum(each.node == node for each in recent) >= policy.most_per_node:
        return Brake.NODE
    if len(recent) >= policy.most:
        return Brake.CLUSTER
    if any(each.owner == by and each.by == owner and age_s(each.at_s, now_s) < policy.turn_s for each in listed):
        return Brake.TURN
    at_a_time = max(running // 2, 1)
    times = _times(listed, now_s, owner, policy)
    pause_s = _pause_s(len(times), at_a_time, policy)
    return Brake.AGAIN if sum(now_s < at_s + pause_s for at_s in times) >= at_a_time else None


def rests_until_s(past: Iterable[Eviction], now_s: float, owner: str, policy: BrakePolicy = DEFAULT) -> float:
    """Until when a workload that was evicted asks for nobody's eviction; -inf if it was not evicted of late."""
    times = _times(past, now_s, owner, policy)
    return max(times) + _pause_s(len(times), 1, policy) if times else -math.inf


def _times(past: Iterable[Eviction], now_s: float, owner: str, policy: BrakePolicy) -> list[float]:
    """When a workload was evicted, as far as that still counts."""
    times = [seen_from(each.at_s, now_s) for each in past if each.owner == owner]
    return [at_s for at_s in times if at_s > now_s - policy.memory_s]


def _pause_s(evictions: int, at_a_time: int, policy: BrakePolicy) -> float:
    """How long a pod of it rests: doubled each time as many were evicted as may rest at a time."""
    doublings = min(max(evictions - 1, 0) // at_a_time, 30)
    return min(policy.pause_s * 2.0**doublings, policy.most_pause_s)
