"""Tuning: honest splits, honest verdicts."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from cardwise.config import choose_policy
from cardwise.core.history import History, PodRecord
from cardwise.core.placement.policies import BalancedWeights
from cardwise.errors import UserError
from cardwise.replay.synth import synthesize
from cardwise.replay.tune import Case, TunePlan, interval, split, tune
from cardwise.replay.workload import Regime
from tests.builders import node, pod, share_of

FILL = (Case(Regime.FILL, 1.3),)


def past(count, timed=True):
    records = [PodRecord(pod(f"p{i:03d}", share_of(500)), float(i) if timed else None) for i in range(count)]
    return History("test", (node(cards=2),), tuple(records))


def test_the_latest_pods_are_held_out():
    search, held_out = split(past(100), 0.3, seed=0)
    assert [len(search.pods), len(held_out.pods)] == [70, 30]
    assert max(each.created_s for each in search.pods) < min(each.created_s for each in held_out.pods)


def test_without_times_pods_are_held_out_at_random_and_the_same_for_a_seed():
    first, second = (split(past(100, timed=False), 0.3, seed=4) for _ in range(2))
    assert first == second
    assert not set(first[0].pods) & set(first[1].pods)


def test_a_history_too_short_to_judge_on_is_refused():
    with pytest.raises(UserError, match=r"test: 30 pods split into 21 and 9; tuning needs 20 on each side"):
        split(past(30), 0.3, seed=0)


def test_a_policy_without_weights_cannot_be_tuned():
    with pytest.raises(UserError, match="policy fgd has no weights to tune; write one of dense, balanced"):
        tune(past(100), TunePlan(choose_policy("fgd"), FILL, evaluations=2))


def test_weights_that_are_all_0_cannot_be_tuned():
    zeros = {each.name: 0.0 for each in fields(BalancedWeights)}
    start = replace(choose_policy("balanced"), weights=zeros)
    with pytest.raises(UserError, match=r"policy balanced: all weights are 0, .* write one above 0"):
        tune(past(100), TunePlan(start, FILL, evaluations=2))


def test_an_interval_of_equal_differences_has_no_width():
    assert interval(np.array([-0.5, -0.5, -0.5])) == (-0.5, -0.5, -0.5)


def test_one_difference_proves_nothing():
    assert interval(np.array([-0.5])) == (-0.5, -math.inf, math.inf)


def test_the_interval_is_students():  # t(0.975, 3) = 3.182; standard error of 1, 2, 3, 4 is 0.6455
    assert interval(np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx((2.5, 2.5 - 2.054, 2.5 + 2.054), abs=0.001)


def test_a_search_that_finds_nothing_better_claims_nothing():
    plan = TunePlan(choose_policy("balanced"), FILL, evaluations=2, search_seeds=1, verdict_seeds=3)
    tuned = tune(past(100), plan, workers=1)  # one shape that fills every card: no weights can matter
    assert tuned.improved is False
    assert tuned.difference == 0


def test_weights_that_help_on_the_search_part_are_judged_on_the_other():
    plan = TunePlan(choose_policy("balanced"), FILL, evaluations=12, search_seeds=1, verdict_seeds=3)
    tuned = tune(synthesize(15, 5), plan, workers=1)
    assert tuned.improved == (tuned.high < 0 and all(case.low <= 0 for case in tuned.cases))
    assert tuned.cases[0].difference == pytest.approx(tuned.cases[0].after - tuned.cases[0].before)
    assert set(tuned.weights) == {"memory", "compute", "cache", "spread", "links"}
