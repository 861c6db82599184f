"""Which settings of a service are in force at an hour of the week: larger batches by night, a short linger by day.

A pure function of the wall clock of the schedule's own timezone, without memory and timers: when clocks go forward, a
minute that does not exist is never asked for; when they go back, an hour holds twice. Whoever calls turns the instant
into that timezone's weekday and minute (``datetime.now(ZoneInfo(timezone))``), for the core has no clock.

Refuses profiles that overlap: which of two wins is not for the order of a file to say. In a gap the base is in force.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

DAY_MIN, WEEK_MIN = 1440, 7 * 1440
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""Weekdays in the order of ``datetime.weekday()``: Monday is 0."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Settings for some hours. None: as in the base.

    days: weekdays on which it begins, 0 is Monday. from_min, to_min: minutes of the day, the last one not included; a
    ``to_min`` that is not after ``from_min`` lies on the next day, and 0 to 1440 is the whole day.
    """

    name: str
    from_min: int
    to_min: int
    days: frozenset[int] = frozenset(range(7))
    max_batch: int | None = None
    gap_s: float | None = None
    cap_s: float | None = None
    max_wait_s: float | None = None
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """Profiles in one timezone (an IANA name), none of which overlap. Raises ValueError with what ``check`` finds."""

    timezone: str
    profiles: tuple[Profile, ...] = ()
    _spans: tuple[tuple[int, int, Profile], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if faults := check(self.timezone, self.profiles):
            raise ValueError("; ".join(faults))
        object.__setattr__(self, "_spans", tuple(_sorted_spans(self.profiles)))

    def in_force(self, weekday: int, minute: int) -> Profile | None:
        """The profile at that minute of the day, in this schedule's timezone; None: the base.

        weekday: 0 is Monday. minute: in [0, 1440).
        """
        if not (0 <= weekday < 7 and 0 <= minute < DAY_MIN):
            raise ValueError(f"weekday {weekday} must be in [0, 7), minute {minute} in [0, {DAY_MIN})")
        at = weekday * DAY_MIN + minute
        return next((profile for start, end, profile in self._spans if start <= at < end), None)


def check(timezone: str, profiles: Sequence[Profile]) -> list[str]:
    """All that is wrong with these profiles, in words; empty if nothing is. The zone's name is not looked up."""
    faults = [] if timezone else ["the schedule has no timezone: name one, as Europe/Berlin or UTC"]
    unfit = [fault for profile in profiles for fault in _check_one(profile)]
    return faults + (unfit or list(_overlaps(profiles)))


def _check_one(profile: Profile) -> Iterator[str]:
    if not 0 <= profile.from_min < DAY_MIN:
        yield f"profile {profile.name} begins at minute {profile.from_min}, which must be in [0, {DAY_MIN})"
    if not 0 <= profile.to_min <= DAY_MIN:
        yield f"profile {profile.name} ends at minute {profile.to_min}, which must be in [0, {DAY_MIN}]"
    if profile.from_min == profile.to_min:
        yield f"profile {profile.name} begins and ends at {_hour(profile.from_min)}: 00:00 to 24:00 is the whole day"
    if not profile.days or not profile.days <= set(range(7)):
        yield f"profile {profile.name} has days {sorted(profile.days)}, which must be one or more of 0 (Monday) to 6"
    for name in ("max_batch", "depth"):
        value = getattr(profile, name)
        if value is not None and value < 1:
            yield f"profile {profile.name} has {name} {value}, which must be at least 1"
    for name in ("gap_s", "cap_s", "max_wait_s"):
        value = getattr(profile, name)
        if value is not None and not value >= 0:
            yield f"profile {profile.name} has {name} {value}, which must be at least 0"


def _overlaps(profiles: Sequence[Profile]) -> Iterator[str]:
    told = set()
    spans = _sorted_spans(profiles)
    for (_, end, one), (start, _, other) in pairwise(spans):
        if start < end and (one.name, other.name) not in told:
            told.add((one.name, other.name))
            at = f"{DAYS[start // DAY_MIN]} {_hour(start % DAY_MIN)}"
            yield f"profiles {one.name} and {other.name} overlap on {at}: let one end where the other begins"


def _sorted_spans(profiles: Sequence[Profile]) -> list[tuple[int, int, Profile]]:
    """Minutes of the week, the end not included; what passes Sunday's end goes on on Monday."""
    spans = []
    for profile in profiles:
        lasts = (profile.to_min - profile.from_min) % DAY_MIN or DAY_MIN
        for day in profile.days:
            start = day * DAY_MIN + profile.from_min
            end = start + lasts
            spans.append((start, min(end, WEEK_MIN), profile))
            if end > WEEK_MIN:
                spans.append((0, end - WEEK_MIN, profile))
    return sorted(spans, key=lambda span: span[:2])


def _hour(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
