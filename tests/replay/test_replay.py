"""Arrivals and the replay loop on small clusters whose outcome can be worked out by hand."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.config import choose_policy
from cardwise.core.history import History, PodRecord
from cardwise.core.reasons import Code
from cardwise.errors import UserError
from cardwise.replay import workload
from cardwise.replay.batch import Job, run_jobs
from cardwise.replay.need import cards_needed
from cardwise.replay.run import replay
from cardwise.replay.synth import synthesize
from cardwise.replay.workload import Regime, make_workload
from tests.builders import cpu_only, node, pod, share_of, whole

BEST_FIT = choose_policy("best-fit")


def history(*pods, nodes=()):
    records = [each if isinstance(each, PodRecord) else PodRecord(each) for each in pods]
    return History("test", tuple(nodes) or (node(cards=2),), tuple(records))


def run(past, regime=Regime.FILL, load=1.3, seed=1, policy=BEST_FIT, **more):
    workload = make_workload(past, regime, load=load, seed=seed, **more)
    return replay(past, workload, policy.label, policy.make)


# -------------------------------------------------------------------- arrivals


@given(st.integers(0, 50), st.sampled_from([0.5, 1.0, 1.3]))
@settings(max_examples=20)
def test_fill_asks_for_the_load_and_not_a_pod_more(seed, load):
    past = synthesize(20, 3)
    workload = make_workload(past, Regime.FILL, load=load, seed=seed)
    asked = sum(arrival.demand_milli for arrival in workload.arrivals)
    largest = max(arrival.demand_milli for arrival in workload.arrivals)
    assert load * workload.capacity_milli - max(largest, 8000) < asked <= load * workload.capacity_milli


def test_a_pod_that_is_drawn_twice_arrives_under_two_names():
    names = [arrival.request.name for arrival in make_workload(history(pod()), Regime.FILL, load=1.3, seed=1).arrivals]
    assert len(names) == len(set(names)) > 2


def test_churn_asks_for_the_load_on_average():
    past = history(*(pod(f"p{i}", share_of(500)) for i in range(4)), nodes=[node(f"n{i}", cards=8) for i in range(10)])
    workload = make_workload(past, Regime.CHURN, load=0.5, seed=1, arrivals=20_000)
    at = 15_000.0
    present = sum(arrival.demand_milli for arrival in workload.arrivals if arrival.at <= at < arrival.leaves)
    assert present / workload.capacity_milli == pytest.approx(0.5, rel=0.15)


def test_churn_lasts_eight_lifetimes_unless_told_otherwise():
    past = history(*(pod(f"p{i}", whole()) for i in range(4)), nodes=[node(f"n{i}", cards=8) for i in range(100)])
    assert len(make_workload(past, Regime.CHURN, load=0.5, seed=1).arrivals) == 8 * 400


@pytest.mark.parametrize(
    ("past", "regime", "message"),
    [
        pytest.param(history(), Regime.FILL, "test: no pods to replay", id="no pods"),
        pytest.param(history(pod(shape=cpu_only())), Regime.FILL, "no pod asks for a card", id="no demand"),
        pytest.param(history(pod(), nodes=[node(cards=0)]), Regime.FILL, "no node has a card", id="no cards"),
        pytest.param(history(pod()), Regime.TRACE, "pod p0 has no creation time", id="no times"),
    ],
)
def test_a_history_that_a_regime_cannot_use_is_refused(past, regime, message):
    with pytest.raises(UserError, match=message):
        make_workload(past, regime, load=1.0, seed=1)


FEW = history(pod("gpu"), *(pod(f"cpu{i}", cpu_only()) for i in range(99)), nodes=[node(cards=64)])
"""One pod in a hundred asks for a card."""


@pytest.mark.parametrize(
    ("regime", "needed", "advice"),
    [
        pytest.param(Regime.CHURN, r"230,\d{3}", "pass --arrivals, at most that many", id="churn"),
        pytest.param(Regime.FILL, r"28,\d{3}", "give a lower --load", id="fill"),
    ],
)
def test_more_arrivals_than_a_machine_holds_are_refused_with_their_number(monkeypatch, regime, needed, advice):
    monkeypatch.setattr(workload, "ARRIVALS_MAX", 10_000)
    message = (
        f"test: {regime.value} at load 0.9 needs {needed} arrivals, as only 1 of 100 pods ask .* 10,000 .*{advice}"
    )
    with pytest.raises(UserError, match=message):
        make_workload(FEW, regime, load=0.9, seed=1)


def test_a_load_that_brings_no_gpu_pod_is_refused():
    with pytest.raises(UserError, match=r"test: at load 0.001 of 64 cards no pod .* with seed 1; give a higher load"):
        make_workload(FEW, Regime.FILL, load=1e-3, seed=1)


# -------------------------------------------------------------------- the loop


def test_the_same_seed_gives_the_same_run_but_for_its_timings():
    past = synthesize(15, 2)
    timings = {"decision_us_p50": 0, "decision_us_p99": 0, "wall_s": 0}
    first, second = (asdict(replace(run(past, Regime.CHURN, load=0.9, arrivals=600).run, **timings)) for _ in range(2))
    assert first == second


def test_what_leaves_makes_room_again():
    past = history(*(pod(f"p{i}", whole()) for i in range(3)), nodes=[node(f"n{i}", cards=1) for i in range(40)])
    done = run(past, Regime.CHURN, load=0.5, arrivals=4000)
    assert done.run.refused_share < 0.05


def test_under_trace_a_pod_waits_for_room_and_gets_it():
    past = history(
        PodRecord(pod("a", whole()), 0.0, 10.0),
        PodRecord(pod("b", whole()), 5.0, 20.0),
        nodes=[node(cards=1)],
    )
    assert run(past, Regime.TRACE).run.pods_placed == 2


def test_under_trace_a_pod_that_leaves_before_it_got_room_was_refused():
    past = history(
        PodRecord(pod("a", whole()), 0.0, 10.0),
        PodRecord(pod("b", whole()), 5.0, 8.0),
        nodes=[node(cards=1)],
    )
    done = run(past, Regime.TRACE)
    assert done.run.refused_share == 0.5
    assert done.refused_for == {Code.CARD_IN_USE: 1.0}


def test_allocation_under_trace_is_weighed_by_time():
    past = history(
        PodRecord(pod("a", whole()), 0.0, 30.0), PodRecord(pod("b", whole()), 0.0, 10.0), nodes=[node(cards=2)]
    )
    assert run(past, Regime.TRACE).run.allocated_share == pytest.approx((10 * 1.0 + 20 * 0.5) / 30)


def test_what_is_not_allocated_is_split_without_a_rest():
    past = synthesize(15, 2)
    for policy in ("whole-card", "best-fit", "dense"):
        done = run(past, policy=choose_policy(policy))
        parts = sum(asdict(done.leftover).values())
        placed = done.allocated_share[-1] * done.run.cards_total
        assert parts == pytest.approx(done.run.cards_total - placed, abs=0.01)


def test_processes_give_the_same_runs_as_one():
    past = synthesize(10, 2)
    jobs = [Job(choose_policy(name), Regime.FILL, 1.3, seed) for name in ("best-fit", "random") for seed in (1, 2)]
    alone, spread = run_jobs(past, jobs, workers=1), run_jobs(past, jobs, workers=2)
    assert [(r.run.policy, r.run.seed, r.run.allocated_share) for r in alone] == [
        (r.run.policy, r.run.seed, r.run.allocated_share) for r in spread
    ]


def test_progress_ends_at_all_of_it():
    told = []
    jobs = [Job(BEST_FIT, Regime.FILL, 1.3, seed) for seed in (1, 2)]
    run_jobs(synthesize(5, 1), jobs, workers=1, on_progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0
    assert [done for done, _ in told] == sorted(done for done, _ in told)


# -------------------------------------------------------------------- cards needed


def test_cards_needed_packs_what_whole_cards_hold_today():
    halves = [PodRecord(pod(f"p{i}", share_of(500)), node="n0", cards_held=frozenset({f"p{i}#0"})) for i in range(4)]
    need = cards_needed(history(*halves, nodes=[node(cards=4)]), [choose_policy("whole-card"), choose_policy("dense")])
    assert need.cards_held == 4
    assert [(each.policy, each.cards) for each in need.policies] == [("whole-card", 4), ("dense", 2)]
    assert need.sentence == (
        "4 of 4 cards are held today. The same pods placed anew need: whole-card 4 cards, dense 2 cards."
    )


def test_cards_in_use_are_not_guessed_where_a_dump_does_not_tell():
    unknown = PodRecord(pod("a", share_of(500)), node="n0")
    assert cards_needed(history(unknown), [BEST_FIT]).cards_held is None


def test_pods_without_a_place_are_told():
    need = cards_needed(history(pod("a", whole(cards=2)), pod("b", whole())), [BEST_FIT])
    assert need.sentence.startswith("The same pods placed anew need: best-fit 2 cards (1 pods find no place).")


def test_pods_that_all_hold_whole_cards_need_as_many_by_every_policy_and_are_told_what_to_say():
    held = [PodRecord(pod(f"p{i}", whole()), node="n0", cards_held=frozenset({f"p{i}#0"})) for i in range(3)]
    need = cards_needed(history(*held, nodes=[node(cards=4)]), [BEST_FIT, choose_policy("dense"), choose_policy("fgd")])
    assert need.sentence == (
        "3 of 4 cards are held today. The same pods placed anew need: 3 cards by every policy. "
        "They hold whole cards: say what they really need with --slice."
    )


# -------------------------------------------------------------------- the published number


@pytest.mark.trace
def test_fgd_reproduces_its_published_allocation_on_the_openb_trace(openb_dir):
    """95.39 % on the default variant, mean of ten seeds: the authors' analysis_allo_discrete.csv, 06-FGD at 130."""
    from cardwise.adapters.openb import read_openb  # noqa: PLC0415 - only with the trace

    past = read_openb(openb_dir / "openb_node_list_gpu_node.csv", openb_dir / "openb_pod_list_default.csv")
    jobs = [Job(choose_policy(name), Regime.FILL, 1.3, seed) for name in ("fgd", "dense") for seed in range(42, 47)]
    shares = [100 * done.run.allocated_share for done in run_jobs(past, jobs)]
    assert np.mean(shares[:5]) == pytest.approx(95.39, abs=0.5)
    assert all(ours > theirs for theirs, ours in zip(shares[:5], shares[5:], strict=True))
    assert np.mean(shares[5:]) > 96.32 - 0.2  # the saturation bound: python -m benchmarks.bound
