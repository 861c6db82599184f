"""How full a card is over time, and what may be lent of it.

Memory that nobody uses may be lent to best-effort slices as long as it can be had back in time. So what counts is not
how much is free but how calm the curve is: below the low mark, and not on its way to the high one. Calm earns a little
more after each quiet interval; anything else loses all of that at once. Refuses to choose victims (``reclaim``), and to
take a gap in the samples for calm.

Source: SPEC E1, E2.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

FIRST_LENT_SHARE, MOST_LENT_SHARE = 0.10, 0.5
"""Of a card's memory, beyond it: 110 % in all at first; 150 %, whatever a policy says. Source: SPEC E1."""


NEAR_S = 0.5
FULL_WITHIN_SHARE = 0.01
"""Of a card's memory: with no more left than this it is full, for memory is had in pieces."""


class Level(enum.Enum):
    """What a card's memory calls for."""

    CALM = "calm"
    """It may be lent."""
    WARY = "wary"
    """Above the low mark, or rising fast, or not seen for a while: nothing more is lent."""
    RECLAIM = "reclaim"
    """The high mark was passed, and the low one not yet reached again: lent memory is taken back."""


@dataclass(frozen=True, slots=True)
class MarkPolicy:
    """Marks are shares of the card's memory; shares lent are of it, too, and beyond it.

    first_share: lent of a card that is calm. step_share: what each ``calm_s`` of calm adds, up to ``most_share``.
    ahead_s: a rise that would reach the high mark within this time is not calm; it is looked at over ``look_s``.
    gap_s: samples further apart than this are a gap.
    """

    high_share: float = 0.90
    low_share: float = 0.85
    first_share: float = FIRST_LENT_SHARE
    step_share: float = 0.05
    most_share: float = MOST_LENT_SHARE
    calm_s: float = 900.0
    ahead_s: float = 60.0
    look_s: float = 10.0
    gap_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.low_share < self.high_share <= 1:
            raise ValueError(f"low_share {self.low_share} must be above 0 and below high_share {self.high_share} ≤ 1")
        if not 0 <= self.first_share <= self.most_share <= MOST_LENT_SHARE:
            raise ValueError(
                f"first_share {self.first_share} must be at most most_share {self.most_share}, and that at most "
                f"{MOST_LENT_SHARE}"
            )
        for name in ("calm_s", "ahead_s", "look_s", "gap_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be above 0")


class Reading(NamedTuple):
    """What a sample says. lent_share: of the card's memory, that may be lent beyond it; rise_mib_per_s: of late.

    full_in_s: until the card is full if it goes on rising as in the last second; inf if it does not rise.
    """

    level: Level
    lent_share: float
    rise_mib_per_s: float
    full_in_s: float = math.inf


_DEFAULT = MarkPolicy()


class Watermark:
    """One card. Nothing is lent before it has been calm for ``look_s``."""

    __slots__ = ("_calm_since_s", "_policy", "_reclaiming", "_samples")

    def __init__(self, policy: MarkPolicy = _DEFAULT) -> None:
        self._policy = policy
        self._samples: deque[tuple[float, int]] = deque()
        self._calm_since_s: float | None = None
        self._reclaiming = False

    def observe(self, now_s: float, used_mib: int, total_mib: int) -> Reading:
        """Take a sample: MiB used of MiB in all, by everybody on the card; ``now_s`` on a clock that never goes back.

        Raises ValueError for a card without memory, and for a clock that went back.
        """
        if total_mib < 1 or used_mib < 0:
            raise ValueError(f"{used_mib} MiB of {total_mib} MiB is no reading of a card")
        if self._samples and now_s < self._samples[-1][0]:
            raise ValueError(f"the clock went back from {self._samples[-1][0]} to {now_s}")
        policy = self._policy
        if self._samples and now_s - self._samples[-1][0] > policy.gap_s:
            self._samples.clear()
            self._calm_since_s = None
        self._samples.append((now_s, used_mib))
        while now_s - self._samples[0][0] > policy.look_s:
            self._samples.popleft()
        used_share, rise = used_mib / total_mib, self._rise()
        full_in_s = self._full_in_s(total_mib)
        self._reclaiming = used_share >= policy.high_share or (self._reclaiming and used_share > policy.low_share)
        if self._reclaiming:
            self._calm_since_s = None
            return Reading(Level.RECLAIM, 0.0, rise, full_in_s)
        if used_share > policy.low_share or used_mib + rise * policy.ahead_s >= policy.high_share * total_mib:
            self._calm_since_s = None
            return Reading(Level.WARY, 0.0, rise, full_in_s)
        if self._calm_since_s is None:
            self._calm_since_s = now_s
        return Reading(Level.CALM, self._lent_share(now_s - self._calm_since_s), rise, full_in_s)

    def missed(self) -> None:
        """A sample could not be had: what happens meanwhile is unknown, so calm begins anew."""
        self._samples.clear()
        self._calm_since_s = None

    def _rise(self) -> float:
        """MiB per second over the samples that are looked at; 0 while there are too few, or memory falls."""
        (first_s, first_mib), (last_s, last_mib) = self._samples[0], self._samples[-1]
        return max((last_mib - first_mib) / (last_s - first_s), 0.0) if last_s > first_s else 0.0

    def _full_in_s(self, total_mib: int) -> float:
        """Seconds; 0 for a card that has next to nothing left: what its slices ask for next fails.

        A rise counts once it lasts: at the smaller of the last two rises, each over ``NEAR_S``. One large piece that is
        taken at once, as engines take their caches, is none.
        """
        last = self._samples[-1]
        left_mib = (1 - FULL_WITHIN_SHARE) * total_mib - last[1]
        if left_mib <= 0:
            return 0.0
        middle = self._before(last[0] - NEAR_S)
        first = None if middle is None else self._before(middle[0] - NEAR_S)
        if middle is None or first is None:
            return math.inf
        rise = min((last[1] - middle[1]) / (last[0] - middle[0]), (middle[1] - first[1]) / (middle[0] - first[0]))
        return left_mib / rise if rise > 0 else math.inf

    def _before(self, until_s: float) -> tuple[float, int] | None:
        """The last sample until then."""
        return next((sample for sample in reversed(self._samples) if sample[0] <= until_s), None)

    def _lent_share(self, calm_s: float) -> float:
        policy = self._policy
        if calm_s < policy.look_s:
            return 0.0
        steps = int(calm_s // policy.calm_s)
        return min(policy.first_share + steps * policy.step_share, policy.most_share)
