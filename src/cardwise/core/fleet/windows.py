"""A schedule in a time zone: which of its windows holds at an instant, and when that changes next.

Two ways to say when. *Hours* are two times of the day and the days on which they begin, as a wall clock in the zone
shows them: when clocks go forward, a time that does not exist is never shown, and a window that begins in it begins
with the first minute that does; when they go back, an hour is shown twice and the window holds in both. *Cron* is an
expression for the beginning and one for the end: the window holds while the last beginning lies after the last end. A
beginning or an end that falls into the missing hour is taken right after it, one in the doubled hour happens in the
first of the two, as Debian's cron does it.

The first window that holds counts. Nothing is remembered: after a restart, or when the clock was set, the same answer
comes from the schedule alone. Refuses to look at a clock: ``now`` is an argument, and must carry a zone. Source: SPEC
D2, J1; the calendar of cron is cronsim's (docs/decisions/0009-hours-of-the-day.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import TypeAlias

from cronsim import CronSim, CronSimError

DAY_MIN = 1440
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""In the order of ``datetime.weekday()``."""
MOST_A_DAY = 24
"""A window that begins more often is a mistake, and asking for its next change would take long."""
_FIELDS = 5
_SLACK = timedelta(hours=3)
"""More than clocks are set by: two hours at most, at the station Troll."""
_MOST_STEPS = 64
"""Boundaries that change nothing, one after another, after which a schedule counts as one that stays as it is."""


@dataclass(frozen=True, slots=True)
class Hours:
    """Minutes of the day, the last one not included, as a wall clock shows them.

    days: weekdays on which it begins, 0 is Monday. An ``end_min`` that is not after ``begin_min`` lies on the next day;
    0 to 1440 is the whole day.
    """

    begin_min: int
    end_min: int
    days: frozenset[int] = frozenset(range(7))


@dataclass(frozen=True, slots=True)
class Cron:
    """Two cron expressions of five fields: when it begins, and when it ends."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Window:
    """When something holds, in a time zone that is always told."""

    name: str
    zone: tzinfo
    when: Hours | Cron


Windows: TypeAlias = Sequence[Window]


def holds_at(windows: Windows, now: datetime) -> int | None:
    """Index of the first window that holds at this instant; None outside all of them.

    Raises ValueError for a time without a zone, which is no instant.
    """
    if now.tzinfo is None:
        raise ValueError(f"{now} names no instant: it has no zone")
    return next((i for i, window in enumerate(windows) if _holds(window, now)), None)


def next_change(windows: Windows, now: datetime) -> datetime | None:
    """The first instant after ``now`` at which another window holds, in UTC; None if none ever does.

    Of windows that take each other over without a change in between only so many are looked at: then None, too.
    """
    held, at = holds_at(windows, now), now.astimezone(UTC)
    holds, after = [_holds(each, at) for each in windows], [_next_boundary(each, at) for each in windows]
    for _ in range(_MOST_STEPS):
        told = [each for each in after if each is not None]
        if not told:
            return None
        at = min(told)
        for i, each in enumerate(after):
            if each is not None and each <= at:  # between its boundaries a window stays as it is
                holds[i], after[i] = _holds(windows[i], at), _next_boundary(windows[i], at)
        if next((i for i, each in enumerate(holds) if each), None) != held:
            return at
    return None


def check(when: Hours | Cron) -> list[str]:
    """All that is wrong with it, in words; empty if nothing is."""
    return list(_hours_faults(when) if isinstance(when, Hours) else _cron_faults(when))


def _hours_faults(when: Hours) -> Iterator[str]:
    if not (0 <= when.begin_min < DAY_MIN and 0 <= when.end_min <= DAY_MIN):
        yield f"minutes {when.begin_min} to {when.end_min} must lie within a day of {DAY_MIN}"
    if when.begin_min == when.end_min:
        yield "begins and ends at the same time: 00:00 to 24:00 is the whole day"
    if not when.days or not when.days <= set(range(7)):
        yield f"days {sorted(when.days)} must be one or more of 0 (Monday) to 6"


def _cron_faults(when: Cron) -> Iterator[str]:
    for name, text in (("start", when.start), ("end", when.end)):
        if len(text.split()) != _FIELDS:
            yield f"{name} {text!r} must have {_FIELDS} fields: minute, hour, day of month, month, day of week"
            continue
        if fault := _cron_fault(text):
            yield f"{name} {text!r} {fault}"
    if when.start.split() == when.end.split():
        yield f"start and end are the same, {when.start!r}: it would never hold"


@lru_cache(maxsize=4096)
def _cron_fault(text: str) -> str:
    """What is wrong with an expression of five fields. Kept: a rare one takes milliseconds, and is read every turn."""
    try:
        times = CronSim(text, datetime(2024, 1, 1, tzinfo=UTC))
        found = next(times, None)
    except CronSimError as exc:
        return f"is no cron expression: {exc}; '0 8 * * 1-5' is 08:00 from Monday to Friday"
    if found is None:
        return "never happens"
    often = len(times.minutes) * len(times.hours)
    return f"happens {often} times a day, {MOST_A_DAY} at most" if often > MOST_A_DAY else ""


# ---------------------------------------------------------------- what holds


def _holds(window: Window, now: datetime) -> bool:
    local = now.astimezone(window.zone)
    if isinstance(window.when, Hours):
        return _holds_hours(window.when, local.hour * 60 + local.minute, local.weekday())
    began, ended = _last(window.when.start, local), _last(window.when.end, local)
    return began is not None and (ended is None or began > ended)


def _holds_hours(when: Hours, minute: int, weekday: int) -> bool:
    if when.begin_min < when.end_min:
        return when.begin_min <= minute < when.end_min and weekday in when.days
    if minute >= when.begin_min:
        return weekday in when.days
    return minute < when.end_min and (weekday - 1) % 7 in when.days


def _last(expression: str, local: datetime) -> datetime | None:
    """When it last happened, in UTC, ``local`` included.

    From a little later, backwards: in a doubled hour cronsim cannot tell which of the two ``local`` is in.
    """
    now = local.astimezone(UTC)
    times = CronSim(expression, _moved(local, _SLACK), reverse=True)
    return next((found for each in times if (found := each.astimezone(UTC)) <= now), None)


# ---------------------------------------------------------------- when it changes


def _next_boundary(window: Window, after: datetime) -> datetime | None:
    """The first instant after this at which the window may begin or end, in UTC."""
    local = after.astimezone(window.zone)
    if isinstance(window.when, Hours):
        return min((each for each in _boundaries(window.when, local) if each > after), default=None)
    return _next(window.when.end if _holds(window, after) else window.when.start, local)


def _next(expression: str, local: datetime) -> datetime | None:
    now = local.astimezone(UTC)
    times = CronSim(expression, _moved(local, -_SLACK))
    return next((found for each in times if (found := each.astimezone(UTC)) > now), None)


def _boundaries(when: Hours, local: datetime) -> Iterator[datetime]:
    """Instants of the next days at which it may begin or end.

    Its times, both of them in a doubled hour; midnights, for its days; and whenever the clocks are set.
    """
    for days in range(-1, 9):
        date = local.date() + timedelta(days=days)
        for minute in (when.begin_min, when.end_min % DAY_MIN, 0):
            shown = time(minute // 60, minute % 60, tzinfo=local.tzinfo)
            for fold in (0, 1):
                yield datetime.combine(date, shown.replace(fold=fold)).astimezone(UTC)
        noon = datetime.combine(date, time(12, tzinfo=local.tzinfo))
        if (found := _clocks_set(noon.astimezone(UTC), local.tzinfo)) is not None:
            yield found


def _clocks_set(begin: datetime, zone: tzinfo | None) -> datetime | None:
    """The minute within 24 hours from here with which another offset holds, or None."""
    early, late = 0, DAY_MIN
    before = begin.astimezone(zone).utcoffset()
    if (begin + timedelta(minutes=late)).astimezone(zone).utcoffset() == before:
        return None
    while late - early > 1:
        middle = (early + late) // 2
        if (begin + timedelta(minutes=middle)).astimezone(zone).utcoffset() == before:
            early = middle
        else:
            late = middle
    return begin + timedelta(minutes=late)


def _moved(local: datetime, by: timedelta) -> datetime:
    """So much later in time, not on the clock."""
    return (local.astimezone(UTC) + by).astimezone(local.tzinfo)
