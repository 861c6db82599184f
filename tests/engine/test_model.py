"""The cost model, by numbers worked out by hand."""

from __future__ import annotations

import statistics
from random import Random

import pytest

from cardwise.engine.model import (
    CONTENDED_COST,
    CONTENTION,
    SERIAL_COST,
    Contention,
    Cost,
    DeviceKind,
    Jitter,
    TokenCost,
)


def dice_of(seed):
    return Random(seed)  # noqa: S311 - noise, not secrets


@pytest.mark.parametrize(("rows", "time_ms"), [(1, 4.35), (8, 6.8), (32, 15.2)])
def test_a_batch_takes_a_fixed_time_and_one_per_row(rows, time_ms):
    assert SERIAL_COST.batch_time_s(rows) * 1e3 == pytest.approx(time_ms)


def test_the_capacity_of_a_serial_card_grows_ninefold_from_batches_of_1_to_32():
    assert SERIAL_COST.capacity(1) == pytest.approx(229.9, abs=0.1)
    assert SERIAL_COST.capacity(32) == pytest.approx(2105.3, abs=0.1)


def test_the_usual_contended_card_has_its_knee_at_5_with_118_requests_a_second():
    rate = {n: CONTENTION.speedup(n) / CONTENDED_COST.batch_time_s(1) for n in range(1, 51)}
    assert CONTENTION.knee() == pytest.approx(5.0)
    assert max(rate, key=lambda n: rate[n]) == 5
    assert rate[5] == pytest.approx(117.9, abs=0.1)
    assert rate[50] == pytest.approx(50 / 94.1 / 0.020)


def test_more_cost_of_pairs_moves_the_knee_down():
    assert Contention(CONTENTION.sigma, CONTENTION.kappa * 2.78).knee() == pytest.approx(3.0, abs=0.01)


def test_without_contention_n_at_a_time_do_n_times_as_much():
    free = Contention(0.0, 0.0)
    assert free.speedup(40) == 40
    assert free.knee() == float("inf")


def test_a_step_of_tokens_costs_by_how_many_sequences_run():
    serial = TokenCost(DeviceKind.SERIAL, Cost(0.010, 0.001), CONTENTION, 0.0001)
    shared = TokenCost(DeviceKind.CONTENDED, Cost(0.020, 0.0), CONTENTION, 0.0)
    assert serial.step_s(8, 100) == pytest.approx(0.028)
    assert shared.step_s(5, 0) == pytest.approx(0.020 * 2.12)


def test_jitter_keeps_the_mean_and_has_the_spread_that_was_asked_for():
    dice = dice_of(1)
    times = [Jitter(cv=0.2).applied(0.010, dice) for _ in range(20_000)]
    assert statistics.mean(times) == pytest.approx(0.010, rel=0.01)
    assert statistics.stdev(times) / statistics.mean(times) == pytest.approx(0.2, rel=0.05)


def test_a_share_of_batches_stalls():
    dice = dice_of(2)
    times = [Jitter(stall_share=0.1, stall_s=1.0).applied(0.0, dice) for _ in range(10_000)]
    assert statistics.mean(times) == pytest.approx(0.1, rel=0.1)


def test_the_same_seed_gives_the_same_noise():
    noise = Jitter(0.3, 0.1, 0.5)
    one, other = dice_of(7), dice_of(7)
    assert [noise.applied(1.0, one) for _ in range(50)] == [noise.applied(1.0, other) for _ in range(50)]
