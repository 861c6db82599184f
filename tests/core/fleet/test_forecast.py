"""A forecast is one only where it was right on the last day; else it says why there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.fleet.forecast import Forecast, NoForecast, Refusal, filled, forecast, season_of

DAY = np.array([10.0, 5, 5, 5, 5, 10, 20, 40, 60, 80, 90, 90, 80, 80, 80, 80, 70, 60, 50, 40, 30, 20, 20, 10])


def as_before(past, season, steps):
    """The same hours of the last season."""
    return np.resize(past[-season:], steps)


def always(number):
    """A model that expects the same of every hour."""
    return lambda _past, _season, steps: np.full(steps, number)


def days(count):
    return np.tile(DAY, count)


def test_a_history_that_repeats_is_foreseen_exactly():
    found = forecast(days(7), 24, as_before)
    assert isinstance(found, Forecast)
    assert found.expected.tolist() == DAY.tolist()
    assert (found.error_share, found.margin, found.season_steps) == (0.0, 0.0, 24)


def test_the_highest_of_the_hours_that_the_horizon_touches_counts():
    found = Forecast(DAY, 3.0, 0.1, 24)
    assert found.highest(8.5, 9.5) == 80 + 3  # 08:30 to 09:30: the ninth and the tenth hour
    assert found.highest(0.0, 1.0) == 10 + 3


def test_beyond_what_is_foreseen_nothing_is_known():
    assert Forecast(DAY, 0.0, 0.1, 24).highest(23.5, 24.5) is None


def test_what_it_missed_on_the_last_day_is_added():
    history = days(7)
    history[-24:] += 5.0
    found = forecast(history, 24, as_before)
    assert isinstance(found, Forecast)
    assert found.margin == 5.0


def test_a_model_that_was_wrong_on_the_last_day_is_not_asked_about_the_next():
    history = days(7)
    history[-24:] *= 3
    found = forecast(history, 24, as_before)
    assert isinstance(found, Refusal)
    assert found.why is NoForecast.INEXACT
    assert "67%" in found.text


@pytest.mark.parametrize(("hours", "season"), [(95, None), (96, 24), (503, 24), (504, 168)])
def test_a_season_is_one_that_the_history_shows_often_enough(hours, season):
    assert season_of(hours) == season


def test_too_short_a_history_says_how_long_it_is():
    found = forecast(days(3), 24, as_before)
    assert (found.why, found.text) == (NoForecast.SHORT, "72 hours of history; 96 show a day's shape")


def test_what_was_before_the_service_is_no_gap():
    history = np.concatenate([np.full(300, math.nan), days(5)])
    assert isinstance(forecast(history, 24, as_before), Forecast)


def test_nothing_at_all_is_too_short():
    assert forecast(np.full(500, math.nan), 24, as_before).why is NoForecast.SHORT


def test_single_missing_hours_are_as_a_season_before():
    history = days(5)
    history[50] = math.nan
    assert filled(history, 24).tolist() == days(5).tolist()


@pytest.mark.parametrize("missing", [slice(50, 63), slice(10, 90, 3)], ids=["long", "many"])
def test_a_history_with_too_many_gaps_is_refused(missing):
    history = days(5)
    history[missing] = math.nan
    assert forecast(history, 24, as_before).why is NoForecast.GAPS


@pytest.mark.parametrize(
    "model",
    [lambda *_: np.full(24, math.nan), lambda *_: np.ones(3), lambda *_: np.zeros(0)],
    ids=["no numbers", "too few", "none"],
)
def test_a_model_that_gives_no_numbers_is_a_refusal(model):
    assert forecast(days(7), 24, model).why is NoForecast.FAILED


def test_a_model_that_fails_is_a_refusal_with_its_words():
    def broken(*_):
        raise ValueError("no fit: singular")

    found = forecast(days(7), 24, broken)
    assert (found.why, found.text) == (NoForecast.FAILED, "no fit: singular")


@given(st.lists(st.floats(0, 1e6) | st.just(math.nan), min_size=1, max_size=400), st.integers(1, 48))
def test_whatever_the_history_an_answer_is_finite_or_a_refusal(history, steps):
    found = forecast(np.array(history), steps, as_before)
    if isinstance(found, Forecast):
        assert np.isfinite(found.expected).all()
        assert (found.expected >= 0).all()
        assert found.margin >= 0
    else:
        assert found.text


def test_a_last_day_without_any_load_is_no_proof_of_a_model_that_expected_some():
    history = np.concatenate([days(9), np.zeros(24)])
    found = forecast(history, 24, always(50.0))
    assert isinstance(found, Refusal)
    assert found.why is NoForecast.INEXACT


def test_a_last_day_without_any_load_proves_a_model_that_expected_none_but_for_rounding():
    history = np.concatenate([days(9), np.zeros(24)])
    assert isinstance(forecast(history, 24, always(1e-9)), Forecast)


def test_numbers_too_large_to_add_up_prove_nothing():
    history = np.where(np.arange(240) % 7 > 3, 1.7e308, 0.9e308)
    found = forecast(history, 24, always(1.2e308))
    assert isinstance(found, Refusal)
