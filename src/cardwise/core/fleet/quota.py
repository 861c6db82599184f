"""How much of each card type a team is guaranteed, and how much more it may borrow: what it asked for so far × 1.2.

A latency-sensitive team is guaranteed its peak and borrows nothing, so nobody ever has a reason to take a card from
it; what it leaves idle is lent. A best-effort team is guaranteed its usual level, and borrows up to its peak. A
critical team has its peak, too, and lends nothing: its part stays empty while it is idle. Where a card type is short,
critical teams come first, then the latency-sensitive, then the others; within one of these ranks everyone gets the
same part of what is wanted.

A review changes a number only if it is off by more than a band, so that noise does not move quotas to and fro.
Refuses to guess what nobody asked for: demand is what was asked, by pods that wait, too, or a quota would confirm
itself.

Source: SPEC C1, C2.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import FloatArray, IntArray
from cardwise.core.claim import LatencyClass

_ROUNDING = 1e-9
"""Of a float product that is meant to be whole: 1.2 × 10 is 12, not 13."""


class Amounts(NamedTuple):
    """Of one card type. slots: how many slices, counted once per card that they use."""

    slots: int = 0
    memory_mib: int = 0
    compute_pct: int = 0

    def plus(self, other: Amounts) -> Amounts:
        """Both."""
        return Amounts(*(one + two for one, two in zip(self, other, strict=True)))

    def minus(self, other: Amounts) -> Amounts:
        """What is left, 0 where it would be less."""
        return Amounts(*(max(0, one - two) for one, two in zip(self, other, strict=True)))


NOTHING = Amounts()
DIMENSIONS = Amounts._fields


@dataclass(frozen=True, slots=True)
class Demand:
    """What a team's pods asked for of one card type over time.

    asked: int64 [T, 3], in the order of :class:`Amounts`. lasts_s: float64 [T], how long each line held, above 0.
    """

    team: str
    card: str
    asked: IntArray
    lasts_s: FloatArray

    def __post_init__(self) -> None:
        """Refuse what is no history."""
        if self.asked.shape != (len(self.lasts_s), len(DIMENSIONS)):
            raise ValueError(f"asked has shape {self.asked.shape}, and lasts_s {self.lasts_s.shape}")
        if not (self.lasts_s > 0).all() or (self.asked < 0).any():
            raise ValueError(f"demand of {self.team} for {self.card}: times must be above 0, amounts at least 0")


@dataclass(frozen=True, slots=True)
class Team:
    """Who has a queue. critical: what it is guaranteed is lent to nobody. weight: its part of what is borrowed."""

    name: str
    latency: LatencyClass = LatencyClass.SENSITIVE
    critical: bool = False
    weight: float = 1.0

    @property
    def rank(self) -> Rank:
        """When it is served where a card type is short."""
        if self.critical:
            return Rank.CRITICAL
        return Rank.SENSITIVE if self.latency is LatencyClass.SENSITIVE else Rank.BEST_EFFORT


class Rank(enum.IntEnum):
    """The lower is served first."""

    CRITICAL = 0
    SENSITIVE = 1
    BEST_EFFORT = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one team and card type. lent: of what is guaranteed, so much others may borrow while it is idle."""

    guaranteed: Amounts = NOTHING
    borrowable: Amounts = NOTHING
    lent: Amounts = NOTHING


TeamLimits: TypeAlias = Mapping[str, Mapping[str, Limits]]
"""By team and card type."""


@dataclass(frozen=True, slots=True)
class QuotaRule:
    """headroom: times what was measured. usual_share: of the time, in which the usual level was not passed.

    band_share: a number in force stays while the new one is off by no more than this share of it.
    """

    headroom: float = 1.2
    usual_share: float = 0.95
    band_share: float = 0.1

    def __post_init__(self) -> None:
        """Refuse what no history can be held against."""
        if not 1 <= self.headroom < math.inf:
            raise ValueError(f"headroom is {self.headroom}, and must be at least 1")
        if not 0 < self.usual_share <= 1 or not 0 <= self.band_share < 1:
            raise ValueError(
                f"usual_share {self.usual_share} must be in (0, 1], band_share {self.band_share} in [0, 1)"
            )


class Shortfall(NamedTuple):
    """A card type cannot give what teams of one rank want. has: what there is for them."""

    card: str
    dimension: str
    rank: Rank
    wanted: int
    has: int
    teams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """What holds from now on. shared: of each card type, what is guaranteed to nobody and may be borrowed."""

    limits: TeamLimits
    shared: Mapping[str, Amounts]
    shortfalls: tuple[Shortfall, ...] = ()
    moved: int = 0
    """Guaranteed amounts that differ from those in force; a team that asked for none of a card type counts once."""


DEFAULT = QuotaRule()
_NONE: TeamLimits = {}


def plan(
    demands: Iterable[Demand],
    teams: Sequence[Team],
    capacity: Mapping[str, Amounts],
    rule: QuotaRule = DEFAULT,
    in_force: TeamLimits = _NONE,
) -> QuotaPlan:
    """Guaranteed and borrowable amounts of every team and card type. The order of teams and demands does not matter.

    Of each card type the guaranteed amounts and what is shared add up to the capacity exactly. Raises ValueError if a
    demand is of a team or a card that is not told, or comes twice.
    """
    by_name = {team.name: team for team in teams}
    levels = dict[tuple[str, str], _Level]()
    for demand in demands:
        if demand.team not in by_name or demand.card not in capacity or (demand.team, demand.card) in levels:
            raise ValueError(f"demand of {demand.team} for {demand.card}: unknown team or card, or told twice")
        levels[demand.team, demand.card] = _level(demand, by_name[demand.team], rule)
    made = _Plan(by_name, levels, rule, in_force)
    made.moved = len({(team, card) for team, cards in in_force.items() for card in cards} - levels.keys())
    for card in capacity:
        made.add(card, capacity[card])
    shared = {card: capacity[card].minus(_sum(each.guaranteed for each in made.of(card))) for card in capacity}
    return QuotaPlan(made.limits, shared, tuple(made.shortfalls), made.moved)


class _Level(NamedTuple):
    wanted: Amounts
    most: Amounts


def _level(demand: Demand, team: Team, rule: QuotaRule) -> _Level:
    """What it shall be guaranteed, and what it shall have at most, borrowed amounts included."""
    most = _times(demand.asked.max(axis=0, initial=0), rule.headroom)
    if team.rank is not Rank.BEST_EFFORT:
        return _Level(most, most)
    return _Level(_times(usual(demand, rule.usual_share), rule.headroom), most)


def usual(demand: Demand, share: float) -> IntArray:
    """The level that each dimension did not pass in this share of the time, int64 [3]; 0 without a history."""
    levels = np.zeros(len(DIMENSIONS), np.int64)
    if not len(demand.lasts_s):
        return levels
    for i, column in enumerate(demand.asked.T):
        order = np.argsort(column, kind="stable")
        passed = np.cumsum(demand.lasts_s[order])
        at = int(np.searchsorted(passed, share * passed[-1] - _ROUNDING * passed[-1]))
        levels[i] = column[order][min(at, len(order) - 1)]
    return levels


def _times(amounts: NDArray[Any], headroom: float) -> Amounts:
    return Amounts(*(math.ceil(headroom * int(each) - _ROUNDING * headroom * int(each)) for each in amounts))


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    total = NOTHING
    for each in amounts:
        total = total.plus(each)
    return total


@dataclass(slots=True)
class _Plan:
    teams: Mapping[str, Team]
    levels: Mapping[tuple[str, str], _Level]
    rule: QuotaRule
    in_force: TeamLimits
    limits: dict[str, dict[str, Limits]] = field(default_factory=dict)
    shortfalls: list[Shortfall] = field(default_factory=list)
    moved: int = 0

    def __post_init__(self) -> None:
        self.limits = {name: {} for name in sorted(self.teams)}

    def of(self, card: str) -> list[Limits]:
        return [limits[card] for limits in self.limits.values() if card in limits]

    def add(self, card: str, capacity: Amounts) -> None:
        names = sorted(name for name in self.teams if (name, card) in self.levels)
        columns = [self._column(card, names, i, capacity[i]) for i in range(len(DIMENSIONS))]
        for row, name in enumerate(names):
            guaranteed = Amounts(*(column[row] for column in columns))
            self.limits[name][card] = self._limits(name, card, guaranteed, capacity)

    def _column(self, card: str, names: Sequence[str], i: int, capacity: int) -> list[int]:
        """One dimension of what is guaranteed. What is in force stays within the band, if it fits with all others."""
        fitted = self._fit(card, names, i, capacity)
        before = [self._before(name, card).guaranteed[i] if self._known(name, card) else None for name in names]
        kept = [self._settled(old, new) for old, new in zip(before, fitted, strict=True)]
        chosen = kept if sum(kept) <= capacity else fitted
        self.moved += sum(old != new for old, new in zip(before, chosen, strict=True))
        return chosen

    def _fit(self, card: str, names: Sequence[str], i: int, capacity: int) -> list[int]:
        """What is wanted, rank by rank; the rank that is short gets the same part of it each."""
        left, given = capacity, dict[str, int]()
        for rank in Rank:
            wanted = {name: self.levels[name, card].wanted[i] for name in names if self.teams[name].rank is rank}
            total = sum(wanted.values())
            if total > left:
                self.shortfalls.append(Shortfall(card, DIMENSIONS[i], rank, total, left, tuple(wanted)))
                wanted = {name: amount * left // total for name, amount in wanted.items()}
            given |= wanted
            left -= sum(wanted.values())
        return [given[name] for name in names]

    def _settled(self, old: int | None, new: int) -> int:
        return old if old is not None and abs(new - old) <= self.rule.band_share * old else new

    def _limits(self, name: str, card: str, guaranteed: Amounts, capacity: Amounts) -> Limits:
        team, most = self.teams[name], self.levels[name, card].most
        lent = NOTHING if team.critical else guaranteed
        if team.rank is not Rank.BEST_EFFORT:
            return Limits(guaranteed, NOTHING, lent)
        more = most.minus(guaranteed)
        if self._known(name, card):
            old = self._before(name, card).borrowable
            more = Amounts(*(self._settled(one, two) for one, two in zip(old, more, strict=True)))
        rest = capacity.minus(guaranteed)
        return Limits(guaranteed, Amounts(*map(min, more, rest)), lent)

    def _known(self, name: str, card: str) -> bool:
        return card in self.in_force.get(name, {})

    def _before(self, name: str, card: str) -> Limits:
        return self.in_force[name][card]


def too_much(limits: TeamLimits, capacity: Mapping[str, Amounts]) -> list[Shortfall]:
    """Where more is guaranteed than there is, whoever wrote it: card types, with what they have."""
    found = []
    for card, has in capacity.items():
        holders = tuple(sorted(team for team, cards in limits.items() if card in cards))
        total = _sum(limits[team][card].guaranteed for team in holders)
        found += [
            Shortfall(card, name, Rank.CRITICAL, total[i], has[i], holders)
            for i, name in enumerate(DIMENSIONS)
            if total[i] > has[i]
        ]
    return found


def left_over(limits: TeamLimits, card: str, capacity: Amounts) -> Amounts:
    """What is guaranteed to nobody of a card type."""
    return capacity.minus(_sum(cards[card].guaranteed for cards in limits.values() if card in cards))
