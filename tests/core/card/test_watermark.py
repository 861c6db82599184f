"""How full a card is, and what may be lent of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.card.watermark import Level, MarkPolicy, Watermark

TOTAL = 10_000


def watched(samples, policy=None):
    """Readings of (seconds, MiB)."""
    mark = Watermark(policy or MarkPolicy())
    return [mark.observe(now_s, used, TOTAL) for now_s, used in samples]


def steady(used, seconds, every_s=1.0, start_s=0.0):
    return [(start_s + i * every_s, used) for i in range(int(seconds / every_s) + 1)]


def test_nothing_is_lent_before_the_card_was_calm_for_a_moment():
    readings = watched(steady(3000, 9))
    assert {(reading.level, reading.lent_share) for reading in readings} == {(Level.CALM, 0.0)}


@pytest.mark.parametrize(
    ("minutes", "share"), [(1, 0.10), (14, 0.10), (16, 0.15), (31, 0.20), (119, 0.45), (150, 0.50), (600, 0.50)]
)
def test_each_calm_quarter_of_an_hour_lends_a_little_more_up_to_half(minutes, share):
    assert watched(steady(3000, 60 * minutes))[-1].lent_share == pytest.approx(share)


def test_above_the_low_mark_nothing_more_is_lent_and_calm_begins_anew():
    calm, full, after = steady(3000, 3600), steady(8600, 5, start_s=3601), steady(3000, 30, start_s=3607)
    readings = watched([*calm, *full, *after])
    assert readings[3600].lent_share == pytest.approx(0.30)
    assert (readings[3601].level, readings[3601].lent_share) == (Level.WARY, 0.0)
    assert readings[-1].lent_share == pytest.approx(0.10)


def test_a_rise_that_would_reach_the_high_mark_within_a_minute_is_not_calm():
    ramp = [(float(i), 3000 + 200 * i) for i in range(11)]
    assert watched(ramp)[-1].level is Level.WARY
    assert watched([(float(i), 3000 + 20 * i) for i in range(11)])[-1].level is Level.CALM


def test_reclaim_goes_on_between_the_marks_until_the_low_one_is_reached():
    readings = watched([(0.0, 8900), (1.0, 9000), (2.0, 8800), (3.0, 8501), (4.0, 8500), (5.0, 8900)])
    assert [reading.level is Level.RECLAIM for reading in readings] == [False, True, True, True, False, False]


@pytest.mark.parametrize(
    ("samples", "full_in_s"),
    [
        pytest.param([(0.0, 5000), (1.0, 5000)], math.inf, id="steady"),
        pytest.param([(0.0, 5000)], math.inf, id="one sample"),
        pytest.param([(0.0, 5000), (1.0, 5900)], math.inf, id="a first rise"),
        pytest.param([(0.0, 5000), (1.0, 5900), (2.0, 6800)], 3100 / 900, id="rising"),
        pytest.param([*steady(5000, 9), (9.5, 7900)], math.inf, id="one large piece after long calm"),
        pytest.param([*steady(5000, 9), (9.5, 7900), (10.0, 8900)], 1000 / 2000, id="and more after it"),
        pytest.param([(i / 4, 5000 + 800 * (i // 2)) for i in range(7)], 2500 / 1600, id="in pieces"),
        pytest.param([(0.0, 9900)], 0.0, id="next to nothing left"),
    ],
)
def test_how_soon_the_card_is_full_is_told_by_a_rise_that_lasts(samples, full_in_s):
    assert watched(samples)[-1].full_in_s == pytest.approx(full_in_s)


def test_a_gap_in_the_samples_is_not_calm():
    readings = watched([*steady(3000, 1000), (1006.0, 3000), *steady(3000, 11, start_s=1007.0)])
    assert readings[1000].lent_share == pytest.approx(0.15)
    assert readings[1001].lent_share == 0.0
    assert readings[-1].lent_share == pytest.approx(0.10)


def test_a_sample_that_could_not_be_had_begins_calm_anew():
    mark = Watermark()
    for now_s, used in steady(3000, 1000):
        mark.observe(now_s, used, TOTAL)
    mark.missed()
    assert mark.observe(1001.0, 3000, TOTAL).lent_share == 0.0


@given(st.lists(st.tuples(st.floats(0.01, 2000), st.integers(0, 12_000)), min_size=1, max_size=80))
def test_what_is_lent_is_bounded_and_nothing_is_lent_of_a_full_card(steps):
    mark, now_s = Watermark(), 0.0
    for pause_s, used in steps:
        now_s += pause_s
        reading = mark.observe(now_s, used, TOTAL)
        assert 0 <= reading.lent_share <= 0.5
        if used > 0.85 * TOTAL:
            assert reading.lent_share == 0
        if used >= 0.9 * TOTAL:
            assert reading.level is Level.RECLAIM
        if used <= 0.85 * TOTAL:
            assert reading.level is not Level.RECLAIM


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"low_share": 0.95}, "low_share 0.95"),
        ({"high_share": 1.1}, "high_share 1.1"),
        ({"most_share": 0.6}, "most_share 0.6"),
        ({"calm_s": 0}, "calm_s is 0"),
        ({"gap_s": float("nan")}, "gap_s is nan"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(told, message):
    with pytest.raises(ValueError, match=message):
        MarkPolicy(**told)


def test_a_clock_that_goes_back_is_refused():
    mark = Watermark()
    mark.observe(5.0, 1, TOTAL)
    with pytest.raises(ValueError, match="went back"):
        mark.observe(4.0, 1, TOTAL)


@pytest.mark.parametrize(("used", "total"), [(-1, 10), (0, 0)])
def test_what_is_no_reading_is_refused(used, total):
    with pytest.raises(ValueError, match="no reading"):
        Watermark().observe(0.0, used, total)
