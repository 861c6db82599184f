"""Replicas follow the highest need up at once, and down only after a calm; silence takes nothing away."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.fleet.scale import Limits, Past, Readings, Why, decide

LIMITS = Limits(2, 10, per_replica=10.0, target_p99_ms=300.0)
QUIET = Past(-math.inf)
"""Watched for ever, and nothing wanted."""


def measured(demand, **more):
    return Readings(True, demand, **more)


def decided(current, readings, limits=LIMITS, past=QUIET, now_s=1000.0):
    return decide(now_s, current, limits, readings, past)


# ---------------------------------------------------------------- up


def test_load_asks_for_what_it_needs_with_room_to_spare():
    """40 per second at 8 of 10 each: 5 replicas."""
    found = decided(2, measured(40.0))
    assert (found.replicas, found.why, found.needed) == (5, Why.HOT, 5)


def test_the_window_holds_even_when_nothing_is_asked():
    assert decided(2, measured(0.0), replace(LIMITS, min_replicas=4)).replicas == 4


def test_the_forecast_brings_replicas_before_the_load():
    found = decided(2, measured(10.0, forecast=30.0))
    assert (found.replicas, found.why) == (4, Why.FORECAST)


def test_a_p99_over_its_target_asks_for_one_more_whatever_the_load():
    found = decided(4, measured(8.0, p99_ms=301.0))
    assert (found.replicas, found.why) == (5, Why.HOT)


def test_a_p99_over_its_target_waits_for_the_replicas_that_start():
    found = decided(4, measured(8.0, p99_ms=301.0, ready=3))
    assert (found.replicas, found.needed) == (4, 4)
    assert decided(4, measured(8.0, p99_ms=301.0, ready=4)).replicas == 5


def test_up_goes_in_steps_of_four_or_of_as_many_as_there_are():
    limits = replace(LIMITS, max_replicas=100)
    assert decided(2, measured(400.0), limits).replicas == 6
    assert decided(20, measured(400.0), limits).replicas == 40
    assert decided(2, measured(400.0), limits).wanted == 50


def test_the_maximum_bounds_growth_and_is_told():
    found = decided(9, measured(400.0))
    assert (found.replicas, found.limited) == (10, True)
    assert "at most 10" in found.text


def test_at_the_maximum_it_is_said_that_more_is_needed():
    found = decided(10, measured(400.0))
    assert (found.replicas, found.why, found.limited) == (10, Why.FULL, True)


# ---------------------------------------------------------------- down


def test_fewer_come_after_a_calm_and_by_a_bounded_step():
    found = decided(8, measured(16.0))
    assert (found.replicas, found.wanted, found.why) == (6, 2, Why.QUIET)


@pytest.mark.parametrize(
    "past",
    [
        Past(900.0),
        Past(-math.inf, ((900.0, 8),)),
        Past(-math.inf, changed_s=900.0),
        Past(-math.inf, looked_s=600.0),
    ],
    ids=["just started", "wanted as many a moment ago", "lowered a moment ago", "nobody looked for a while"],
)
def test_nothing_is_taken_away_within_the_cool_down(past):
    found = decided(8, measured(16.0), past=past)
    assert (found.replicas, found.why) == (8, Why.COOLING)


def test_the_most_that_was_wanted_during_the_calm_is_the_floor():
    assert decided(8, measured(16.0), replace(LIMITS, step_down=10), Past(-math.inf, ((900.0, 5),))).replicas == 5


def test_a_maximum_that_falls_does_not_take_what_is_hot():
    found = decided(8, measured(48.0), replace(LIMITS, max_replicas=3))
    assert (found.replicas, found.needed, found.limited) == (6, 6, True)


def test_while_the_p99_is_over_its_target_nothing_is_taken_away():
    assert decided(8, measured(16.0, p99_ms=400.0), replace(LIMITS, max_replicas=8)).replicas == 8


# ---------------------------------------------------------------- silence


def test_silence_keeps_what_there_is():
    found = decided(7, measured(None))
    assert (found.replicas, found.why) == (7, Why.NO_SIGNAL)


def test_in_silence_a_window_may_raise():
    assert decided(2, measured(None), replace(LIMITS, min_replicas=4)).replicas == 4


def test_a_part_of_the_signal_may_raise_and_not_lower():
    assert decided(2, measured(40.0, partial=True)).replicas == 5
    found = decided(8, measured(16.0, partial=True))
    assert (found.replicas, found.why) == (8, Why.NO_SIGNAL)


def test_without_metrics_the_schedule_is_the_number():
    limits = Limits(3, 3)
    assert decided(1, Readings(), limits).replicas == 3
    assert decided(5, Readings(), limits).replicas == 3


def test_what_somebody_switched_off_stays_off():
    found = decided(0, measured(400.0))
    assert (found.replicas, found.why) == (0, Why.OFF)


@pytest.mark.parametrize(
    "wrong", [{"min_replicas": 0}, {"min_replicas": 11}, {"per_replica": 0.0}, {"fill_share": 1.1}, {"step_down": 0}]
)
def test_limits_that_contradict_themselves_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        replace(LIMITS, **wrong)


# ---------------------------------------------------------------- laws

floats = st.floats(0, 1e4)
limits_drawn = st.builds(
    lambda low, more, per, target, fill, up, down: Limits(low, low + more, per, target, fill, up, down),
    *(st.integers(1, 20), st.integers(0, 50), st.none() | st.floats(0.1, 100), st.none() | st.floats(1, 1000)),
    *(st.floats(0.1, 1), st.integers(1, 10), st.integers(1, 10)),
)
readings_drawn = st.builds(
    Readings, st.booleans(), st.none() | floats, st.none() | floats, st.none() | floats, st.booleans()
)
pasts = st.builds(
    Past,
    st.just(-math.inf) | st.floats(0, 1000),
    st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 60))).map(tuple),
    st.just(-math.inf) | st.floats(0, 1000),
)
currents = st.integers(1, 100)


@given(currents, limits_drawn, readings_drawn, pasts)
def test_no_decision_passes_its_step(current, limits, readings, past):
    replicas = decide(1000.0, current, limits, readings, past).replicas
    assert -limits.step_down <= replicas - current <= max(limits.step_up, current)


@given(currents, limits_drawn, readings_drawn, pasts)
def test_no_decision_grows_past_its_maximum_or_takes_what_is_needed(current, limits, readings, past):
    found = decide(1000.0, current, limits, readings, past)
    assert found.replicas <= max(current, limits.max_replicas)
    assert found.replicas >= min(current, max(found.needed, limits.min_replicas))


@given(currents, limits_drawn, readings_drawn, pasts)
def test_without_a_signal_nothing_is_ever_taken_away(current, limits, readings, past):
    silent = replace(readings, asked=True, demand=None)
    partial = replace(readings, asked=True, demand=readings.demand or 0.0, partial=True)
    for each in (silent, partial):
        assert decide(1000.0, current, limits, each, past).replicas >= current


@given(currents, limits_drawn, floats, floats, pasts)
def test_more_load_never_means_fewer_replicas(current, limits, one, other, past):
    low, high = sorted((one, other))
    found = [decide(1000.0, current, limits, measured(each), past).replicas for each in (low, high)]
    assert found[0] <= found[1]


@given(limits_drawn, st.lists(floats, min_size=1, max_size=40))
def test_a_number_that_was_lowered_is_not_lowered_again_within_the_cool_down(limits, demands):
    current, past, lowered_s = 20, Past(-math.inf), -math.inf
    for turn, demand in enumerate(demands):
        now_s = turn * 60.0
        found = decide(now_s, current, limits, measured(demand), past)
        past = past.with_want(now_s, found.wanted, limits.cool_down_s)
        if found.replicas < current:
            assert now_s - lowered_s >= limits.cool_down_s
            lowered_s = now_s
            past = replace(past, changed_s=now_s)
        current = found.replicas
