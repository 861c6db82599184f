"""Replicas: what was measured, derated by the share of a card, with headroom, and never one alone (SPEC I2, B5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.capacity.replicas import Measured, replicas_for

HUNDRED = Measured(rate_per_s=100.0, cores_pct=50)


def test_by_hand():
    """900/s × 1.25 over 100/s: 11.25, so 12. At 20 % of a card a replica carries 100 · 20/50 = 40/s: 28.1, so 29."""
    assert replicas_for(900, HUNDRED).count == 12
    assert replicas_for(900, HUNDRED, cores_pct=20).count == 29


def test_a_larger_share_than_measured_carries_no_more():
    assert replicas_for(900, HUNDRED, cores_pct=100).count == replicas_for(900, HUNDRED, cores_pct=50).count


def test_two_replicas_get_no_more_compute_than_they_need():
    """60/s × 1.25 over two: 37.5/s each, so 50 · 37.5/100 = 18.75 %, in steps of five 20 %."""
    found = replicas_for(60, HUNDRED)
    assert (found.count, found.cores_pct) == (2, 20)


def test_without_a_curve_it_is_unknown_and_the_least_is_written():
    found = replicas_for(900, None)
    assert (found.count, found.known, found.cores_pct) == (2, False, None)
    assert "unknown for 900 requests/s without a load test's curve" in found.why


def test_without_a_rate_the_least_is_written():
    found = replicas_for(None, HUNDRED)
    assert (found.count, found.cores_pct, found.known) == (2, 50, False)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"rate_per_s": 0, "measured": HUNDRED}, "rate is 0"),
        ({"rate_per_s": float("nan"), "measured": HUNDRED}, "rate is nan"),
        ({"rate_per_s": 1, "measured": Measured(0, 50)}, "is no measurement"),
        ({"rate_per_s": 1, "measured": Measured(10, 0)}, "is no measurement"),
        ({"rate_per_s": 1, "measured": HUNDRED, "cores_pct": 101}, "share of compute is 101 %"),
        ({"rate_per_s": 1, "measured": HUNDRED, "headroom": 0.5}, "headroom is 0.5"),
        ({"rate_per_s": 1, "measured": HUNDRED, "least": 0}, "replicas are at least 0"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_what_cannot_be_is_refused(args, message):
    with pytest.raises(ValueError, match=message):
        replicas_for(**args)


RATES = st.floats(0.01, 1e5)
CURVES = st.builds(Measured, rate_per_s=st.floats(0.1, 1e4), cores_pct=st.integers(1, 100))


@given(RATES, CURVES, st.integers(1, 100), st.floats(1, 3))
def test_they_carry_the_rate_with_headroom(rate, measured, cores, headroom):
    found = replicas_for(rate, measured, cores_pct=cores, headroom=headroom)
    assert found.count >= 2
    assert found.count * found.rate_per_s >= rate * headroom * (1 - 1e-9)


@given(RATES, RATES, CURVES)
def test_more_to_carry_never_takes_fewer(one, other, measured):
    less, more = sorted((one, other))
    assert replicas_for(less, measured).count <= replicas_for(more, measured).count


@given(RATES, CURVES)
def test_the_share_that_is_found_suffices(rate, measured):
    found = replicas_for(rate, measured)
    assert 1 <= found.cores_pct <= max(5, measured.cores_pct)
    assert found.count * found.rate_per_s >= rate * (1 - 1e-9)
