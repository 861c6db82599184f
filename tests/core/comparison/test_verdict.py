"""Verdicts: what is material, what is known, and what nothing makes up for."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.comparison.bootstrap import Interval, Scale
from cardwise.core.comparison.verdict import (
    Overall,
    Verdict,
    any_worse,
    as_share,
    compared_counts,
    joint_level,
    judged,
    material_share,
    overall_of,
    together,
)


def log(*shares):
    return [math.log1p(each) for each in shares]


@pytest.mark.parametrize(
    ("change", "low", "high", "verdict"),
    [
        (0.2, 0.1, 0.3, Verdict.WORSE),
        (-0.2, -0.3, -0.1, Verdict.BETTER),
        (0.04, 0.02, 0.06, Verdict.SAME),
        (0.1, -0.05, 0.24, Verdict.SAME),
        (0.1, -0.05, 0.3, Verdict.UNKNOWN),
        (0.1, -0.3, 0.8, Verdict.UNKNOWN),
        (2.0, 0.1, 8.0, Verdict.WORSE),
    ],
    ids=[
        "surely more",
        "surely less",
        "surely little",
        "perhaps none",
        "perhaps much",
        "anything",
        "surely more, who knows how much",
    ],
)
def test_a_change_is_judged_by_its_interval_and_its_size(change, low, high, verdict):
    at, below, above = log(change, low, high)
    assert judged(at, Interval(below, above), Scale.RATIO) is verdict


def test_what_alone_is_surely_little_is_no_difference_among_many():
    at, below, above = log(0.0, -0.4, 0.5)
    near = Interval(*log(-0.1, 0.1))
    assert judged(at, Interval(below, above), Scale.RATIO) is Verdict.UNKNOWN
    assert judged(at, Interval(below, above), Scale.RATIO, alone=near) is Verdict.SAME


SHARES = st.floats(-0.9, 9).filter(lambda share: abs(abs(math.log1p(share)) - math.log1p(0.05)) > 1e-9)


@given(st.lists(SHARES, min_size=3, max_size=3), st.booleans())
def test_exchanged_sides_mirror_the_verdict(shares, less_is_better):
    low, at, high = sorted(log(*shares))
    told = judged(at, Interval(low, high), Scale.RATIO, less_is_better=less_is_better)
    mirrored = judged(-at, Interval(-high, -low), Scale.RATIO, less_is_better=less_is_better)
    assert mirrored is told.mirrored


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.booleans())
def test_exchanged_counts_mirror_the_verdict(before, after, less_is_better):
    told = compared_counts(before, after, less_is_better=less_is_better)
    assert compared_counts(after, before, less_is_better=less_is_better) is told.mirrored


def test_a_change_is_told_as_people_say_it():
    assert as_share(math.log(1.2), Scale.RATIO) == pytest.approx(0.2)
    assert as_share(0.03, Scale.DIFFERENCE) == 0.03
    assert as_share(5000.0, Scale.RATIO) == math.inf


@pytest.mark.parametrize(
    ("before", "after", "material"),
    [(0.0, 0.002, 0.001), (0.3, 0.302, 0.0151), (0.302, 0.3, 0.0151)],
    ids=["from none", "of many refused", "exchanged"],
)
def test_a_share_differs_materially_by_what_matters_to_it(before, after, material):
    """A tenth of a point, or 5 % of the larger."""
    assert material_share(before, after) == pytest.approx(material)


def test_several_intervals_hold_together():
    assert joint_level(1) == pytest.approx(0.95)
    assert joint_level(10) == pytest.approx(0.995)


def test_nothing_makes_up_for_worse_quality_or_stability():
    for verdicts in itertools.product(Verdict, repeat=4):
        is_worse = Verdict.WORSE in {verdicts[1], verdicts[3]}
        assert (overall_of(*verdicts) is Overall.REGRESSION) == is_worse


def test_unknown_quality_or_stability_is_never_called_good():
    for resources, cost, other in itertools.product(Verdict, repeat=3):
        for quality, stability in ((Verdict.UNKNOWN, other), (other, Verdict.UNKNOWN)):
            assert overall_of(resources, quality, cost, stability) in {Overall.UNKNOWN, Overall.REGRESSION}


@pytest.mark.parametrize(
    ("verdicts", "joined", "worst"),
    [
        ([], Verdict.UNKNOWN, Verdict.UNKNOWN),
        ([Verdict.UNKNOWN, Verdict.SAME], Verdict.SAME, Verdict.SAME),
        ([Verdict.BETTER, Verdict.SAME], Verdict.BETTER, Verdict.BETTER),
        ([Verdict.BETTER, Verdict.WORSE], Verdict.MIXED, Verdict.WORSE),
        ([Verdict.MIXED, Verdict.BETTER], Verdict.MIXED, Verdict.WORSE),
    ],
)
def test_several_verdicts_come_to_one(verdicts, joined, worst):
    assert together(verdicts) is joined
    assert any_worse(verdicts) is worst
