"""The search for the knee, on services that are a formula: no socket, no noise."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cardwise.loadtest.curve import Outcomes, Step
from cardwise.loadtest.knee import keeps_up, knee_of, next_load, verdict_of
from cardwise.loadtest.measure import histogram_of
from cardwise.loadtest.plan import Load, Search

TARGET_MS = 200.0


def step(load, *, p99_ms=10.0, good=100, issued=100, held_back=0, goodput=None, **more):
    """A step of these figures."""
    figures = {
        "rate_per_s": load.rate_per_s,
        "concurrency": load.concurrency,
        "batch_window_ms": load.batch_window_ms,
        "seconds": 10.0,
        "offered": issued + held_back,
        "issued": issued,
        "held_back": held_back,
        "warm_up_issued": 0,
        "outcomes": Outcomes(ok=issued),
        "rejected_with_retry_after": 0,
        "errors": {},
        "ok_per_s": 0.0,
        "goodput_per_s": good / 10 if goodput is None else goodput,
        "good": good,
        "latency_ms": None,
        "rejection_ms": None,
        "lag_ms": None,
        "stall_ms": 0.0,
        "stream": None,
        "queue_ms": None,
        "batch_sizes": {},
        "attempts": {},
        "blocks": [histogram_of([p99_ms / 1000] * good).stored()],
        "cut_short": False,
        "holds": True,
        "why": "",
    }
    return Step(**figures | more)


def searched(search, respond):
    """All steps of a search on a service that answers ``respond(load)``."""
    steps = []
    while (load := next_load(steps, search, 10.0)) is not None:
        made = respond(load)
        why = verdict_of(made, steps, TARGET_MS)
        steps.append(step(load, holds=not why, why=why, goodput=made.goodput_per_s, good=made.good))
        assert len(steps) < 40
    return steps, knee_of(steps, search.axis, ended="complete")


@pytest.mark.parametrize("capacity", [0.7, 9.9, 10.0, 137.0, 5000.0])
def test_the_knee_of_a_queue_is_found(capacity):
    """M/D/1-like: the P99 passes the target close to the capacity."""

    def respond(load):
        free = 1 - load.rate_per_s / capacity
        return step(load, p99_ms=1000.0 if free <= 0 else 10.0 / free)

    _, knee = searched(Search("rate", 10.0, 20_000.0), respond)
    assert knee.load == pytest.approx(0.95 * capacity, rel=0.1)
    assert knee.stopped_by == "p99"
    assert knee.broken_at > knee.load


def test_a_service_that_rejects_has_a_knee_though_its_p99_is_fine():
    def respond(load):
        return step(load, good=round(100 * min(1.0, 300 / load.rate_per_s)))

    _, knee = searched(Search("rate", 10.0, 20_000.0), respond)
    assert knee.load == pytest.approx(300, rel=0.1)
    assert knee.stopped_by == "goodput"


def test_the_knee_in_callers_is_the_fewest_that_give_nearly_all():
    """A device for eight: more callers only wait."""

    def respond(load):
        return step(load, p99_ms=20.0 * max(1, load.concurrency / 8), goodput=50.0 * min(load.concurrency, 8))

    _, knee = searched(Search("concurrency", 1, 1024), respond)
    assert knee.load == 8


def test_falling_goodput_stops_the_search_in_callers():
    def respond(load):
        n = load.concurrency
        return step(load, p99_ms=20.0, goodput=1000 * n / (1 + 0.1 * n + 0.02 * n * n))

    steps, knee = searched(Search("concurrency", 1, 1024), respond)
    assert knee.stopped_by == "goodput"
    assert max(each.load for each in steps) < 64


def test_what_holds_up_to_the_bound_is_called_no_knee():
    steps, knee = searched(Search("rate", 10.0, 100.0), step)
    assert knee.load == 100.0
    assert knee.stopped_by == "most"
    assert knee.broken_at is None
    assert [each.load for each in steps] == [10, 20, 40, 80, 100]


def test_a_service_that_holds_nothing_ends_the_search():
    steps, knee = searched(Search("rate", 10.0, 100.0), lambda load: step(load, p99_ms=900.0))
    assert knee.load is None
    assert knee.broken_at == 0.5
    assert len(steps) < 6


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (step(Load(rate_per_s=10)), ""),
        (step(Load(rate_per_s=10), p99_ms=201.0 * 1.01), "p99"),
        (step(Load(rate_per_s=10), good=94), "goodput"),
        (step(Load(rate_per_s=10), good=100, held_back=10), "goodput"),
        (step(Load(rate_per_s=10), good=0, outcomes=Outcomes(timeout=100)), "goodput"),
        (step(Load(rate_per_s=10), good=0, issued=0), "empty"),
        (step(Load(rate_per_s=10), good=100, goodput=7.9), "backlog"),
        (step(Load(rate_per_s=10), good=100, goodput=8.1), ""),
        (step(Load(concurrency=10), good=100, goodput=0.1), ""),
    ],
    ids=["holds", "slow", "short", "held back", "all timed out", "nothing due", "piles up", "keeps up", "callers wait"],
)
def test_why_a_step_does_not_hold(made, why):
    assert verdict_of(made, [], TARGET_MS) == why


def test_a_step_that_was_cut_short_is_no_knee():
    whole, cut = step(Load(rate_per_s=10)), step(Load(rate_per_s=20), cut_short=True)
    knee = knee_of([whole, cut], "rate", ended="interrupt")
    assert (knee.load, knee.stopped_by) == (10, "interrupt")
    assert knee_of([cut], "rate", ended="interrupt") is None
    assert not math.isnan(whole.p99_ms)


@given(st.integers(20, 2000), st.floats(0.0, 0.2), st.integers(0, 2**32 - 1))
def test_a_steady_service_keeps_up_whatever_chance_does(count, turn_share, seed):
    """Poisson arrivals, answers of up to a fifth of the step: what ends in it is what began, but for the two ends."""
    draw = np.random.default_rng(seed)
    in_flight = draw.poisson(count * turn_share, 2)
    ended = max(count + in_flight[0] - in_flight[1], 0)
    missing_sd = math.sqrt(2 * count * turn_share)
    assume(in_flight[1] - in_flight[0] <= 3 * missing_sd)
    assert keeps_up(step(Load(rate_per_s=count / 10), good=count, goodput=ended / 10))


def test_a_stream_whose_first_tokens_are_in_time_while_all_piles_up_has_its_knee_where_it_keeps_up():
    """First tokens come at once at any rate; no more than 40 answers end in a second."""

    def respond(load):
        due = round(10 * load.rate_per_s)
        return step(load, good=due, issued=due, goodput=min(load.rate_per_s, 40.0))

    _, knee = searched(Search("rate", 10.0, 20_000.0), respond)
    assert 40 <= knee.load <= 40 / 0.8 * 1.01
    assert knee.stopped_by == "backlog"
