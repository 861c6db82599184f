"""A forecast is made beside this process, by the real library; whatever happens there is an answer here."""

from __future__ import annotations

import numpy as np
import pytest

from cardwise.adapters import seasonal
from cardwise.adapters.seasonal import forecast_aside, stl
from cardwise.core.fleet.forecast import Forecast, NoForecast, Refusal

pytest.importorskip("statsmodels", reason="the extra forecast is not installed")

HOURS = np.arange(24 * 28)


def weekly(noise=2.0):
    """Days that look alike, and quiet weekends."""
    day = 50 + 40 * np.sin(2 * np.pi * (HOURS % 24 - 6) / 24)
    quiet = np.where((HOURS // 24) % 7 >= 5, 0.3, 1.0)
    return day * quiet + np.random.default_rng(0).normal(0, noise, len(HOURS))


def test_a_week_is_foreseen_by_the_weeks_before():
    past, coming = weekly()[:-24], weekly()[-24:]
    expected = stl(past, 168, 24)
    assert np.abs(expected - coming).sum() / coming.sum() < 0.2


def test_a_single_wild_hour_does_not_move_the_forecast():
    calm, wild = weekly(0.0), weekly(0.0)
    wild[300] = 900.0
    assert np.abs(stl(wild, 168, 24) - stl(calm, 168, 24)).max() < 5.0


async def test_beside_this_process_the_same_comes_out():
    found = await forecast_aside(weekly(), 24)
    assert isinstance(found, Forecast)
    assert found.season_steps == 168
    assert found.expected.tolist() == np.maximum(stl(weekly(), 168, 24), 0).tolist()
    assert 0 < found.error_share < 0.2


async def test_why_there_is_none_comes_back_too():
    history = weekly()
    history[100:140] = np.nan
    found = await forecast_aside(history, 24)
    assert isinstance(found, Refusal)
    assert found.why is NoForecast.GAPS


async def test_without_the_library_it_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "statsmodels").mkdir()
    (tmp_path / "statsmodels" / "__init__.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert await forecast_aside(weekly(), 24) == Refusal(NoForecast.FAILED, seasonal.INSTALL)


async def test_a_process_that_takes_too_long_is_ended():
    found = await forecast_aside(weekly(), 24, timeout_s=0.01)
    assert found == Refusal(NoForecast.FAILED, "no forecast within 0.01 s")


async def test_a_process_that_breaks_is_a_refusal_with_its_last_words(tmp_path, monkeypatch):
    (tmp_path / "statsmodels").mkdir()
    (tmp_path / "statsmodels" / "__init__.py").write_text("raise RuntimeError('broken wheel')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = await forecast_aside(weekly(), 24)
    assert (found.why, "broken wheel" in found.text) == (NoForecast.FAILED, True)
