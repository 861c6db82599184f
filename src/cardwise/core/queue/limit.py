"""How many requests a replica serves at a time: climb to its knee, with a guard on latency.

Throughput rises with concurrency up to a knee and then falls, and where the knee is depends on the model, the card and
its neighbours. The limiter tries the limit and a neighbour in turn, and goes where more was answered per second; of
equals it takes the smaller. When requests stay too long for the service's target, it cuts at once.

Refuses to move while the limit is not what holds requests back: under light load every limit looks the same. Refuses to
learn a latency without load and to multiply it, as gradients do: that fits only curves whose knee lies there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Limits(Protocol):
    """What holds back requests to a replica."""

    @property
    def limit(self) -> int:
        """Most requests in flight."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests in flight."""
        ...

    def acquire(self) -> bool:
        """Take a place; False if there is none."""
        ...

    def release(self, now_s: float, latency_s: float, *, ok: bool = True) -> None:
        """Give the place back. latency_s: since it was taken; ok: False if the try failed."""
        ...


class FixedLimit:
    """A limit that an operator has set: 1 or 2 where the gateway batches.

    ahead: places beyond it for what is sent a moment before a place within it is free.
    """

    __slots__ = ("_most", "in_flight", "limit")

    def __init__(self, limit: int, *, ahead: int = 0) -> None:
        if limit < 1 or ahead < 0:
            raise ValueError(f"limit is {limit}, and must be at least 1; ahead is {ahead}, and must be at least 0")
        self.limit = limit
        self.in_flight = 0
        self._most = limit + ahead

    def acquire(self) -> bool:
        """Take a place; False if there is none."""
        if self.in_flight >= self._most:
            return False
        self.in_flight += 1
        return True

    def release(self, now_s: float, latency_s: float, *, ok: bool = True) -> None:  # noqa: ARG002 - as Limiter
        """Give the place back."""
        if self.in_flight < 1:
            raise ValueError("a place is given back that was not taken")
        self.in_flight -= 1


@dataclass(frozen=True, slots=True)
class ClimbPolicy:
    """Numbers of the climb. A window lasts ``window_s`` and ``window_n`` answers, whichever ends later.

    at_limit_share: part of a window's answers that must have found the limit reached, else it teaches nothing.
    step_share, stride_share: the neighbour's distance, and after two wins in a row; at least 1. The score of a limit L
    that answers X per second is X^rate_power / L^limit_power. guard_share: of the target that requests may stay in the
    replica on average; above it the limit falls to ``cut_share`` of itself. Trying costs, too: after losses on both
    sides the limit rests for up to ``most_rest`` windows between tries, unless its score changes by ``news_share``. A
    neighbour whose score is within ``close_share`` of the base's is looked at twice.

    Source: simulations on three curves (contended, serial, wide); window, step and guard were set on the first alone,
    powers, rest and second look on all three.
    """

    least: int = 1
    most: int = 200
    window_s: float = 0.4
    window_n: int = 24
    at_limit_share: float = 0.8
    step_share: float = 0.15
    stride_share: float = 0.30
    rate_power: float = 1.3
    limit_power: float = 0.2
    guard_share: float = 0.6
    cut_share: float = 0.6
    close_share: float = 0.15
    news_share: float = 0.25
    most_rest: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least {self.least} must be at least 1, and most {self.most} no less")
        if not (self.window_s > 0 and self.window_n >= 1):
            raise ValueError(f"window_s {self.window_s} must be above 0, and window_n {self.window_n} at least 1")


_DEFAULT = ClimbPolicy()


class Limiter:
    """Climb and guard, for one replica. target_s: the service's P99 target; None: no guard.

    acquire and release are O(1), without allocation.
    """

    __slots__ = (
        "_answers",
        "_at_limit",
        "_base",
        "_base_score",
        "_direction",
        "_done",
        "_first_look",
        "_guard_s",
        "_in_flight_sum",
        "_losses",
        "_policy",
        "_reached",
        "_released_s",
        "_rest",
        "_settling",
        "_since_s",
        "_stay_s",
        "_target_s",
        "_wins",
        "in_flight",
        "limit",
    )

    def __init__(self, target_s: float | None = None, *, start: int = 50, policy: ClimbPolicy = _DEFAULT) -> None:
        if target_s is not None and not 0 < target_s < math.inf:
            raise ValueError(f"target_s is {target_s}, and must be above 0")
        self._policy = policy
        self._target_s = target_s
        self._base = self.limit = min(max(start, policy.least), policy.most)
        self._base_score: float | None = None
        """None until the base has been measured since the last loss."""
        self._first_look: float | None = None
        """What the neighbour scored if that was too close to the base to tell."""
        self._direction = -1
        self._wins = self._losses = self._rest = 0
        self._guard_s = 0.0
        self.in_flight = 0
        self._reached = 0
        """In flight when last a place was taken: answers that come together all found so many."""
        self._settling = 1
        self._since_s = self._released_s = 0.0
        self._done = self._answers = self._at_limit = self._in_flight_sum = 0
        self._stay_s = 0.0

    def acquire(self) -> bool:
        """Take a place; False if there is none."""
        if self.in_flight >= self.limit:
            return False
        self.in_flight = self._reached = self.in_flight + 1
        return True

    def release(self, now_s: float, latency_s: float, *, ok: bool = True) -> None:
        """Give the place back, and at a window's end move the limit.

        latency_s: since the place was taken. ok: False for a failure, which is no answer: a replica that fails at once
        must not look fast. Raises ValueError if no place was taken.
        """
        in_flight = self.in_flight
        if in_flight < 1:
            raise ValueError("a place is given back that was not taken")
        self.in_flight = in_flight - 1
        if in_flight == 1:
            self._since_s += max(now_s - latency_s - self._released_s, 0.0)  # it was idle, which says nothing of it
        self._released_s = now_s
        if self._settling > 0:
            self._settling -= 1
            self._since_s = now_s
            return
        self._done += 1
        self._answers += ok
        self._at_limit += self._reached >= self.limit
        self._in_flight_sum += self._reached
        self._stay_s += latency_s
        if self._done >= self._policy.window_n and now_s - self._since_s >= self._policy.window_s:
            self._end(now_s, now_s - self._since_s)

    def _begin(self, now_s: float) -> None:
        self._since_s = now_s
        self._done = self._answers = self._at_limit = self._in_flight_sum = 0
        self._stay_s = 0.0

    def _end(self, now_s: float, lasted_s: float) -> None:
        """Judge a full window, then begin the next."""
        policy, done = self._policy, self._done
        in_flight = self._in_flight_sum / done
        # What was measured lags behind a cut, what follows from the counts (Little's law) does not.
        stay_s = min(self._stay_s / done, in_flight * lasted_s / done)
        if self._too_long(stay_s):
            self._cut(in_flight)
        elif self._at_limit < policy.at_limit_share * done:
            self._move(self._base)
            self._base_score = self._first_look = None
        else:
            rate = self._answers / lasted_s
            self._climb(rate**policy.rate_power / self.limit**policy.limit_power)
        self._begin(now_s)

    def _too_long(self, stay_s: float) -> bool:
        """Whether a smaller limit is called for.

        Where even the least is not enough, the model is slow alone, and it may climb while that does not make it much
        slower still.
        """
        if self._target_s is None:
            return False
        plain_s = self._policy.guard_share * self._target_s
        if stay_s <= plain_s:
            self._guard_s = plain_s
        elif self.limit <= self._policy.least:
            self._guard_s = 1.25 * stay_s
        return stay_s > self._guard_s

    def _cut(self, in_flight: float) -> None:
        """Requests stay too long: fall, and search further down."""
        policy = self._policy
        self._base = max(int(policy.cut_share * min(self.limit, in_flight)), policy.least)
        self._base_score = self._first_look = None
        self._direction = -1
        self._wins = self._losses = self._rest = 0
        self._move(self._base)

    def _climb(self, score: float) -> None:
        """Measure the base and its neighbour in turn, and compare them; a close call is looked at twice."""
        if self.limit == self._base or self._base_score is None:
            self._note_base(score)
            if self._rest > 0:
                self._rest -= 1
            else:
                self._move(self._neighbour())
        elif self._first_look is not None:
            self._compare((self._first_look + score) / 2, self._base_score)
        elif abs(score - self._base_score) < self._policy.close_share * self._base_score:
            self._first_look = score
        else:
            self._compare(score, self._base_score)

    def _note_base(self, score: float) -> None:
        """Average what the base scores; what differs too much to be chance is news, and ends a rest."""
        if self._base_score is None:
            self._base_score = score
        elif abs(score - self._base_score) > self._policy.news_share * self._base_score:
            self._base_score, self._rest = score, 0
        else:
            self._base_score = (self._base_score + score) / 2

    def _compare(self, score: float, base_score: float) -> None:
        """Go on after a win; turn after a loss, and rest after losses on both sides."""
        self._first_look = None
        if score > base_score:
            self._base, self._base_score = self.limit, score
            self._wins, self._losses = self._wins + 1, 0
            self._move(self._neighbour())
        else:
            self._base_score, self._direction = None, -self._direction
            self._wins, self._losses = 0, self._losses + 1
            self._rest = min(self._losses - 1, self._policy.most_rest)
            self._move(self._base)

    def _neighbour(self) -> int:
        policy = self._policy
        share = policy.stride_share if self._wins >= 2 else policy.step_share
        step = max(round(share * self._base), 1)
        for _ in range(2):
            found = min(max(self._base + self._direction * step, policy.least), policy.most)
            if found != self._base:
                return found
            self._direction, self._wins = -self._direction, 0
        return self._base

    def _move(self, limit: int) -> None:
        """Set the limit; what is in flight above it has to leave before a window counts."""
        self.limit = limit
        self._settling = max(self.in_flight - limit, 0)
