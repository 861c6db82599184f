"""Profiles by the hours of the week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.queue.schedule import Profile, Schedule, check

NIGHT = Profile("night", 22 * 60, 6 * 60, max_batch=64)
NOON = Profile("noon", 12 * 60, 14 * 60, frozenset(range(5)))
SCHEDULE = Schedule("Europe/Berlin", (NIGHT, NOON))


def at(schedule, instant):
    """What a caller does with an instant."""
    local = instant.astimezone(ZoneInfo(schedule.timezone))
    profile = schedule.in_force(local.weekday(), 60 * local.hour + local.minute)
    return profile and profile.name


@pytest.mark.parametrize(
    ("weekday", "hour", "minute", "name"),
    [
        pytest.param(0, 12, 0, "noon", id="the first minute is in it"),
        pytest.param(0, 13, 59, "noon", id="the last minute too"),
        pytest.param(0, 14, 0, None, id="the end is not"),
        pytest.param(5, 12, 30, None, id="another day"),
        pytest.param(0, 23, 0, "night", id="before midnight"),
        pytest.param(0, 5, 59, "night", id="after the week's first midnight"),
        pytest.param(6, 23, 59, "night", id="the week's last minute"),
    ],
)
def test_in_force(weekday, hour, minute, name):
    profile = SCHEDULE.in_force(weekday, 60 * hour + minute)
    assert (profile and profile.name) == name


def test_a_profile_past_midnight_belongs_to_the_day_on_which_it_begins():
    friday = Schedule("UTC", (Profile("party", 1320, 120, frozenset({4})),))
    assert friday.in_force(5, 60)
    assert not friday.in_force(4, 60)


def test_the_whole_day_is_from_0_to_1440():
    sunday = Schedule("UTC", (Profile("sunday", 0, 1440, frozenset({6})),))
    assert [bool(sunday.in_force(day, minute)) for day, minute in ((5, 1439), (6, 0), (6, 1439), (0, 0))] == [
        False,
        True,
        True,
        False,
    ]


def test_profiles_that_overlap_are_refused_by_name_and_hour():
    with pytest.raises(ValueError, match="profiles late and night overlap on mon 22:00: let one end where the other"):
        Schedule("UTC", (NIGHT, Profile("late", 21 * 60, 22 * 60 + 1, frozenset({0}))))


def test_an_overlap_across_the_weeks_end_is_seen():
    faults = check("UTC", (NIGHT, Profile("early", 5 * 60, 7 * 60, frozenset({0}))))
    assert faults == ["profiles night and early overlap on mon 05:00: let one end where the other begins"]


def test_profiles_that_touch_do_not_overlap():
    assert not check("UTC", (NIGHT, Profile("day", 6 * 60, 22 * 60)))


def test_all_faults_are_told_together():
    faults = check("", (Profile("a", -1, 60), Profile("b", 60, 60), Profile("c", 0, 1, frozenset(), depth=0)))
    assert faults == [
        "the schedule has no timezone: name one, as Europe/Berlin or UTC",
        "profile a begins at minute -1, which must be in [0, 1440)",
        "profile b begins and ends at 01:00: 00:00 to 24:00 is the whole day",
        "profile c has days [], which must be one or more of 0 (Monday) to 6",
        "profile c has depth 0, which must be at least 1",
    ]


def test_when_clocks_go_forward_a_profile_in_the_hour_that_is_not_there_is_skipped():
    lost = Schedule("Europe/Berlin", (Profile("lost", 120, 180),))
    spring = datetime(2027, 3, 28, 0, 0, tzinfo=UTC)
    names = [at(lost, spring + timedelta(minutes=i)) for i in range(180)]
    assert names == [None] * 180
    assert at(SCHEDULE, datetime(2027, 3, 28, 3, 59, tzinfo=UTC)) == "night"
    assert at(SCHEDULE, datetime(2027, 3, 28, 4, 0, tzinfo=UTC)) is None


def test_when_clocks_go_back_a_profile_in_the_hour_that_comes_twice_holds_twice():
    twice = Schedule("Europe/Berlin", (Profile("twice", 120, 180),))
    autumn = datetime(2027, 10, 31, 0, 0, tzinfo=UTC)
    names = [at(twice, autumn + timedelta(minutes=i)) for i in range(180)]
    assert names == ["twice"] * 120 + [None] * 60


PROFILES = st.lists(
    st.builds(
        Profile,
        st.sampled_from("pqr"),
        st.integers(0, 1439),
        st.integers(0, 1440),
        st.frozensets(st.integers(0, 6), min_size=1),
    ),
    max_size=3,
)


def holds(profile, weekday, minute):
    """The meaning of a profile, said another way."""
    if profile.from_min < profile.to_min:
        return weekday in profile.days and profile.from_min <= minute < profile.to_min
    return (weekday in profile.days and minute >= profile.from_min) or (
        (weekday - 1) % 7 in profile.days and minute < profile.to_min
    )


@given(PROFILES, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1439)), min_size=1, max_size=50))
def test_at_most_one_profile_holds_at_any_minute_and_it_is_the_one_in_force(profiles, minutes):
    if check("UTC", profiles):
        return
    schedule = Schedule("UTC", tuple(profiles))
    for weekday, minute in minutes:
        fitting = [profile for profile in profiles if holds(profile, weekday, minute)]
        assert fitting == [profile for profile in [schedule.in_force(weekday, minute)] if profile]
