"""Services whose peaks do not coincide are found, with how sure that is; those that peak together are not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cardwise.core.fleet.complement import Profiles, groups, pairs

HOURS = np.arange(24 * 14)


def bell(at_hour, noise=0.5, seed=0, high=10.0):
    """A peak at one hour of every day."""
    away = (HOURS - at_hour + 12) % 24 - 12
    return high * np.exp(-(away**2) / 8) + np.random.default_rng(seed).uniform(0, noise, len(HOURS))


def profiles(**series):
    return Profiles(tuple(series), np.array(list(series.values())), 24)


def test_a_day_service_and_a_night_service_save_nearly_half():
    (found,) = pairs(profiles(day=bell(12), night=bell(0, seed=1)))
    assert found.names == ("day", "night")
    assert found.saving_share > 0.4
    assert found.low_share > 0.4
    assert found.correlation < 0


def test_services_that_peak_together_save_nothing():
    (found,) = pairs(profiles(one=bell(12), other=bell(12, seed=1)))
    assert found.high_share < 0.05
    assert found.correlation > 0.9


def test_two_constant_services_by_hand():
    """Peak of the sum 5, sum of the peaks 5."""
    (found,) = pairs(profiles(a=np.full(len(HOURS), 2.0), b=np.full(len(HOURS), 3.0)))
    assert (found.peak_of_sum, found.sum_of_peaks, found.saving_share) == (5.0, 5.0, 0.0)
    assert math.isnan(found.correlation)


def test_taking_turns_exactly_saves_exactly_half():
    odd = np.where(HOURS % 24 < 12, 8.0, 0.0)
    (found,) = pairs(profiles(a=odd, b=8.0 - odd))
    assert (found.peak_of_sum, found.sum_of_peaks, found.saving_share) == (8.0, 16.0, 0.5)
    assert (found.low_share, found.high_share) == (0.5, 0.5)


def test_a_saving_that_rests_on_one_day_has_a_wide_interval():
    """On the last of 14 days only they are apart."""
    one, other = bell(12), bell(12, seed=1)
    other[-24:] = bell(0, seed=1)[-24:] * 3
    (found,) = pairs(profiles(a=one, b=other))
    assert found.low_share < 0.05 < found.high_share


def test_the_surest_saving_comes_first():
    found = pairs(profiles(day=bell(12), noon=bell(13, seed=2), night=bell(0, seed=1)))
    assert {found[0].names, found[1].names} == {("day", "night"), ("noon", "night")}
    assert found[2].names == ("day", "noon")


def test_a_service_is_in_one_group_at_most():
    told = profiles(a=bell(4), b=bell(12, seed=1), c=bell(20, seed=2), d=bell(12, seed=3))
    (found,) = groups(told, 0.1, 3)
    assert len(found.names) == 3
    assert {"a", "c"} < set(found.names)
    assert found.saving_share > 0.5


def test_groups_that_do_not_save_enough_for_sure_are_not_made():
    assert groups(profiles(a=bell(12), b=bell(12, seed=1)), 0.1, 4) == []


def test_days_in_which_one_was_not_measured_count_for_neither():
    one, other = bell(12), bell(0, seed=1)
    other[24 * 5 + 3] = math.nan
    one[24 * 9] = math.nan
    (found,) = pairs(profiles(a=one, b=other))
    assert found.days == 12


def test_services_that_were_hardly_measured_together_are_not_judged():
    one, other = bell(12), bell(0, seed=1)
    other[: 24 * 12] = math.nan
    assert pairs(profiles(a=one, b=other)) == []


def test_the_same_seed_gives_the_same_interval():
    told = profiles(a=bell(12), b=bell(0, seed=1))
    assert pairs(told, seed=7) == pairs(told, seed=7)


def test_names_and_values_must_match():
    with pytest.raises(ValueError, match="2 names"):
        Profiles(("a", "b"), np.zeros((1, 24)), 24)


@given(arrays(np.float64, (3, 24 * 4), elements=st.floats(0, 100)))
def test_the_saving_lies_within_its_interval_and_between_nothing_and_two_thirds(values):
    told = Profiles(("a", "b", "c"), values, 24)
    for each in [*pairs(told), *groups(told, 0.0, 3)]:
        assert each.low_share <= each.saving_share <= each.high_share
        assert each.sum_of_peaks > 0
        assert each.saving_share <= 1
