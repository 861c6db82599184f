"""A schedule says the same at an instant whoever asks: over midnight, over weeks, and when clocks are set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.fleet.windows import DAY_MIN, Cron, Hours, Window, check, holds_at, next_change

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = [ZoneInfo(name) for name in ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata")]
WORKDAYS = frozenset(range(5))


def utc(*parts):
    return datetime(*parts, tzinfo=UTC)


def window(begin, end, days=None, zone=BERLIN, name="w"):
    return Window(name, zone, Hours(begin, end, frozenset(range(7)) if days is None else frozenset(days)))


def cron(start, end, zone=BERLIN):
    return Window("c", zone, Cron(start, end))


def changes(windows, begin, count):
    """The next changes as (UTC, index)."""
    found, at = [], begin
    for _ in range(count):
        at = next_change(windows, at)
        found.append((at, holds_at(windows, at)))
    return found


# ---------------------------------------------------------------- what holds


@pytest.mark.parametrize(
    ("local", "holds"),
    [((7, 59), None), ((8, 0), 0), ((19, 59), 0), ((20, 0), None)],
    ids=["before", "begin", "last minute", "end"],
)
def test_the_beginning_is_in_and_the_end_is_not(local, holds):
    assert holds_at([window(480, 1200)], datetime(2026, 6, 1, *local, tzinfo=BERLIN)) == holds


def test_over_midnight_the_days_are_those_on_which_it_begins():
    night = [window(22 * 60, 6 * 60, days=[4])]
    assert holds_at(night, datetime(2026, 6, 6, 5, 59, tzinfo=BERLIN)) == 0  # Saturday morning, begun on Friday
    assert holds_at(night, datetime(2026, 6, 5, 5, 59, tzinfo=BERLIN)) is None  # Friday morning, begun on Thursday


def test_the_first_that_holds_counts():
    both = [window(540, 600, name="peak"), window(480, 1200, name="day")]
    at = [datetime(2026, 6, 1, hour, 30, tzinfo=BERLIN) for hour in (8, 9, 10)]
    assert [holds_at(both, each) for each in at] == [1, 0, 1]


def test_a_whole_day_holds_all_day_and_never_ends():
    assert next_change([window(0, DAY_MIN)], utc(2026, 6, 1)) is None


def test_a_time_without_a_zone_is_no_instant():
    with pytest.raises(ValueError, match="no zone"):
        holds_at([window(0, 60)], datetime(2026, 6, 1))  # noqa: DTZ001 - that is the case


def test_the_same_instant_in_another_zone_is_the_same():
    windows = [window(480, 1200, days=WORKDAYS)]
    at = utc(2026, 6, 1, 6, 30)
    assert {holds_at(windows, at.astimezone(zone)) for zone in ZONES} == {0}


# ---------------------------------------------------------------- when clocks are set


def test_a_beginning_in_the_missing_hour_begins_with_the_first_minute_that_there_is():
    """Berlin, 2026-03-29: 02:00 is 03:00."""
    windows = [window(150, 240)]  # 02:30 to 04:00
    assert changes(windows, utc(2026, 3, 29), 3) == [
        (utc(2026, 3, 29, 1, 0), 0),
        (utc(2026, 3, 29, 2, 0), None),
        (utc(2026, 3, 30, 0, 30), 0),
    ]


def test_a_window_within_the_missing_hour_does_not_hold_that_day():
    windows = [window(130, 170)]  # 02:10 to 02:50
    assert changes(windows, utc(2026, 3, 28, 12), 1) == [(utc(2026, 3, 30, 0, 10), 0)]


def test_a_window_of_hours_holds_in_both_of_the_doubled_hours():
    """Berlin, 2026-10-25: 03:00 is 02:00 again."""
    windows = [window(150, 240)]
    assert changes(windows, utc(2026, 10, 25), 4) == [
        (utc(2026, 10, 25, 0, 30), 0),
        (utc(2026, 10, 25, 1, 0), None),
        (utc(2026, 10, 25, 1, 30), 0),
        (utc(2026, 10, 25, 3, 0), None),
    ]


def test_cron_begins_once_in_a_doubled_hour_and_right_after_a_missing_one():
    windows = [cron("30 2 * * *", "0 4 * * *")]
    assert changes(windows, utc(2026, 10, 25), 2) == [(utc(2026, 10, 25, 0, 30), 0), (utc(2026, 10, 25, 3, 0), None)]
    assert changes(windows, utc(2026, 3, 29), 2) == [(utc(2026, 3, 29, 1, 0), 0), (utc(2026, 3, 29, 2, 0), None)]


@pytest.mark.parametrize("minute", [0, 20, 40])
def test_cron_holds_through_the_second_of_the_doubled_hours(minute):
    assert holds_at([cron("30 2 * * *", "0 4 * * *")], utc(2026, 10, 25, 1, minute)) == 0


def test_a_zone_whose_clocks_are_set_by_half_an_hour_is_right_too():
    """Lord Howe Island, 2026-04-05: 02:00 is 01:30 again."""
    windows = [window(105, 180, zone=ZoneInfo("Australia/Lord_Howe"))]  # 01:45 to 03:00
    assert changes(windows, utc(2026, 4, 4, 14), 4) == [
        (utc(2026, 4, 4, 14, 45), 0),
        (utc(2026, 4, 4, 15, 0), None),
        (utc(2026, 4, 4, 15, 15), 0),
        (utc(2026, 4, 4, 16, 30), None),
    ]


# ---------------------------------------------------------------- cron


def test_cron_windows_hold_between_their_last_beginning_and_the_next_end():
    windows = [cron("0 8 * * 1-5", "0 20 * * 1-5")]
    at = [datetime(2026, 6, day, hour, tzinfo=BERLIN) for day, hour in ((1, 7), (1, 8), (1, 20), (5, 19), (6, 12))]
    assert [holds_at(windows, each) for each in at] == [None, 0, None, 0, None]


def test_the_last_days_of_a_month_can_be_told():
    windows = [cron("0 0 L * *", "0 6 1 * *")]
    assert holds_at(windows, datetime(2026, 2, 28, 0, 0, tzinfo=BERLIN)) == 0
    assert holds_at(windows, datetime(2026, 3, 1, 6, 0, tzinfo=BERLIN)) is None


def test_the_very_minute_of_a_beginning_holds_and_of_an_end_does_not():
    windows = [cron("0 8 * * *", "0 20 * * *")]
    assert holds_at(windows, datetime(2026, 6, 1, 8, 0, 0, 1, tzinfo=BERLIN)) == 0
    assert holds_at(windows, datetime(2026, 6, 1, 20, 0, tzinfo=BERLIN)) is None


class Asked(tzinfo):
    """UTC that counts how often it is asked."""

    times = 0

    def utcoffset(self, _at):
        self.times += 1
        return timedelta()

    def dst(self, _at):
        return timedelta()


def test_windows_that_change_nothing_are_not_all_looked_at_for_each_boundary_of_one():
    """A user's policy of 32 windows, rare ones behind one that always holds, must not hold up everybody's."""
    zone = Asked()
    rare = [Window(str(i), zone, Cron(f"{i} 0 * 2 MON#5", f"{i} 1 * 2 MON#5")) for i in range(31)]
    assert next_change([window(0, DAY_MIN, zone=zone), *rare], utc(2026, 6, 1)) is None
    assert zone.times < 40_000


@pytest.mark.parametrize(
    ("when", "said"),
    [
        (Cron("0 8 * *", "0 20 * * *"), "5 fields"),
        (Cron("0 0 8 * * *", "0 20 * * *"), "5 fields"),
        (Cron("0 25 * * *", "0 20 * * *"), "hour"),
        (Cron("0 8 30 2 *", "0 20 * * *"), "day-of-month"),
        (Cron("0 8 * * *", "0  8 * * *"), "never hold"),
        (Cron("* * * * *", "0-59 0-23 * * *"), "happens 1440 times a day, 24 at most"),
        (Hours(60, 60), "same time"),
        (Hours(60, 1441), "within a day"),
        (Hours(60, 120, frozenset()), "days"),
    ],
    ids=str,
)
def test_what_can_never_hold_is_told(when, said):
    assert said in " ".join(check(when))


# ---------------------------------------------------------------- laws

minutes = st.integers(0, DAY_MIN - 1)
hours = st.builds(Hours, minutes, minutes, st.frozensets(st.integers(0, 6), min_size=1)).filter(lambda w: not check(w))
crons = st.builds(
    lambda m1, h1, m2, h2, dow: Cron(f"{m1} {h1} * * {dow}", f"{m2} {h2} * * *"),
    *(st.integers(0, 59), st.integers(0, 23), st.integers(0, 59), st.integers(0, 23), st.sampled_from("*135")),
).filter(lambda w: not check(w))
schedules = st.lists(st.builds(Window, st.just("w"), st.sampled_from(ZONES), hours | crons), min_size=1, max_size=3)
around = st.sampled_from([utc(2026, 3, 28), utc(2026, 10, 24), utc(2026, 4, 4), utc(2026, 7, 1), utc(2026, 11, 1)])


@given(schedules, around, st.integers(0, 3 * DAY_MIN))
def test_nothing_changes_before_the_next_change(windows, day, minute):
    now = day + timedelta(minutes=minute)
    held, change = holds_at(windows, now), next_change(windows, now)
    until = now + timedelta(days=1) if change is None else min(change, now + timedelta(days=1))
    assert change is None or change > now
    at = now
    while at < until:
        assert holds_at(windows, at) == held, at
        at += timedelta(minutes=7)
    if change is not None:
        assert holds_at(windows, change) != held
        assert holds_at(windows, change - timedelta(seconds=1)) == held


@given(schedules, around, st.integers(0, DAY_MIN))
def test_after_a_restart_the_same_holds_as_for_who_followed_every_change(windows, day, minute):
    now, at = day + timedelta(days=2, minutes=minute), day
    followed = holds_at(windows, at)
    while (change := next_change(windows, at)) is not None and change <= now:
        followed, at = holds_at(windows, change), change
    assert followed == holds_at(windows, now)
