"""Intervals: known ones, mirrored ones, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from cardwise.core.comparison.bootstrap import Scale, alikeness, events_p_value, interval


def quotient(sums):
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[:, 0] / sums[:, 1]


def parts(values):
    """Each part has its value as its quotient."""
    return np.column_stack([values, np.ones(len(values))])


def found(before, after, *, scale=Scale.RATIO, level=0.95, seed=1):
    return interval(before, after, quotient, scale=scale, level=level, seed=seed)


def test_what_does_not_vary_is_known_exactly():
    told = found(parts(np.full(20, 2.0)), parts(np.full(20, 3.0)))
    assert told.low == pytest.approx(math.log(1.5))
    assert told.high == pytest.approx(math.log(1.5))


def test_of_independent_parts_it_is_students_interval():
    """Two means of 32 normals each: ± t(31) · √(s₁²/32 + s₂²/32), to the noise of the draws and of the correlation."""
    rng = np.random.default_rng(3)
    one, other = rng.normal(10, 1, (2, 32))
    told = found(parts(one), parts(other), scale=Scale.DIFFERENCE)
    half = stats.t.ppf(0.975, 31) * math.sqrt((one.var(ddof=1) + other.var(ddof=1)) / 32)
    assert (told.high + told.low) / 2 == pytest.approx(other.mean() - one.mean(), abs=0.05)
    worth = alikeness(parts(one), parts(other), quotient, Scale.DIFFERENCE)
    assert (told.high - told.low) / 2 == pytest.approx(half * math.sqrt(worth), rel=0.1)


@pytest.mark.parametrize("level", [0.998, 0.99999])
def test_an_interval_goes_on_where_no_draw_lies(level):
    """A thousand services have five thousand figures: of 4,000 draws none lies at one in a hundred thousand."""
    rng = np.random.default_rng(3)
    one, other = rng.normal(10, 1, (2, 32))
    told = found(parts(one), parts(other), scale=Scale.DIFFERENCE, level=level)
    worth = alikeness(parts(one), parts(other), quotient, Scale.DIFFERENCE)
    half = stats.t.ppf((1 + level) / 2, 31 / worth) * math.sqrt((one.var(ddof=1) + other.var(ddof=1)) / 32 * worth)
    assert (told.high - told.low) / 2 == pytest.approx(half, rel=0.12)


def test_less_than_two_parts_have_no_interval():
    with pytest.raises(ValueError, match="1 and 20 parts"):
        found(parts(np.ones(1)), parts(np.ones(20)))


def test_nothing_excludes_nothing():
    told = found(parts(np.zeros(20)), parts(np.zeros(20)))
    assert (told.low, told.high) == (-math.inf, math.inf)


PARTS = arrays(np.float64, st.integers(8, 24), elements=st.floats(0.01, 100))


@settings(max_examples=40, deadline=None)
@given(PARTS, PARTS, st.sampled_from(Scale), st.floats(0.8, 0.999), st.integers(0, 99))
def test_before_and_after_exchanged_mirror_the_interval(one, other, scale, level, seed):
    told = found(parts(one), parts(other), scale=scale, level=level, seed=seed)
    mirrored = found(parts(other), parts(one), scale=scale, level=level, seed=seed)
    assert mirrored.low == pytest.approx(-told.high, abs=1e-9)
    assert mirrored.high == pytest.approx(-told.low, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(PARTS, st.sampled_from(Scale))
def test_a_measurement_against_itself_never_differs(values, scale):
    told = found(parts(values), parts(values), scale=scale)
    assert told.low <= 0 <= told.high


def series(rng, length, correlation):
    made = [rng.normal()]
    while len(made) < length:
        made.append(correlation * made[-1] + math.sqrt(1 - correlation**2) * rng.normal())
    return parts(10 + np.array(made))


@pytest.mark.parametrize(
    ("length", "correlation"), [(8, 0.0), (8, 0.5), (20, 0.0), (20, 0.5), (32, 0.0), (32, 0.5), (32, 0.9)]
)
def test_what_did_not_change_is_called_different_no_oftener_than_told(length, correlation):
    """Of 120 pairs 95 % intervals may exclude zero six times; binomial, one in a thousand has more than 15."""
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(120):
        told = found(series(rng, length, correlation), series(rng, length, correlation), scale=Scale.DIFFERENCE)
        wrong += told.low > 0 or told.high < 0
    assert wrong <= 15


def test_a_straight_line_is_worth_hardly_a_part():
    line = parts(np.linspace(1, 2, 32))
    assert alikeness(line, line, quotient, Scale.RATIO) > 8


def test_parts_that_alternate_are_worth_no_more_than_themselves():
    saw = parts(np.tile([1.0, 2.0], 16))
    assert alikeness(saw, saw, quotient, Scale.RATIO) == 1.0


@pytest.mark.parametrize(
    ("before", "after", "before_s", "after_s", "probability"),
    [
        (0, 6, 60, 60, 2 / 2**6),
        (0, 0, 60, 60, 1.0),
        (3, 3, 60, 60, 1.0),
        (2, 0, 60, 180, 1 / 4**2),
    ],
    ids=["six after none", "nothing", "equal", "three times as long"],
)
def test_uneven_counts_are_as_probable_as_tosses_of_a_coin(before, after, before_s, after_s, probability):
    """Six tosses of one side: (1/2)⁶, twice for either side. Two events in the first quarter of the time: (1/4)²."""
    assert events_p_value(before, after, before_s, after_s) == pytest.approx(probability)
