"""Retries: what is safe, how long to wait, and that no storm can come of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.queue.retry import Failure, RetryBudget, backoff_s, may_retry, wait_s
from tests.core.queue.a_replica import seeded


def after(failure, **more):
    """A POST of which the replica got all, by default."""
    return may_retry(failure, **({"method": "POST", "sent_bytes": 100} | more))


@pytest.mark.parametrize(
    ("failure", "more", "safe"),
    [
        pytest.param(Failure.REFUSED, {"sent_bytes": 0}, True, id="no connection was made"),
        pytest.param(Failure.LOST, {"sent_bytes": 0}, True, id="an idle connection broke before it was used"),
        pytest.param(Failure.LOST, {}, False, id="it may have been done"),
        pytest.param(Failure.LOST, {"method": "GET"}, True, id="reading changes nothing"),
        pytest.param(Failure.LOST, {"method": "PUT"}, False, id="writing does"),
        pytest.param(Failure.LOST, {"idempotent": True}, True, id="inference that is marked idempotent"),
        pytest.param(Failure.LOST, {"idempotency_key": "7f3"}, True, id="the client said so"),
        pytest.param(Failure.TIMEOUT, {}, False, id="it may be worked on"),
        pytest.param(Failure.TIMEOUT, {"idempotent": True}, True, id="worked on twice does no harm"),
        pytest.param(Failure.STATUS, {"status": 429}, True, id="told before any work"),
        pytest.param(Failure.STATUS, {"status": 503}, False, id="work may have been begun"),
        pytest.param(Failure.STATUS, {"status": 503, "idempotent": True}, True, id="not ready, another may be"),
        pytest.param(Failure.STATUS, {"status": 500, "idempotent": True}, False, id="the next has the same bug"),
        pytest.param(Failure.STATUS, {"status": 400, "idempotent": True}, False, id="the client's own fault"),
        pytest.param(Failure.LOST, {"idempotent": True, "streamed": True}, False, id="a byte was passed on"),
        pytest.param(Failure.REFUSED, {"attempts": 2}, False, id="once is enough"),
    ],
)
def test_what_may_be_tried_again(failure, more, safe):
    assert after(failure, **more) is safe


@given(
    st.sampled_from(Failure),
    st.sampled_from(["GET", "POST"]),
    st.booleans(),
    st.none() | st.just("k"),
    st.integers(100, 599),
    st.integers(0, 9),
)
def test_nothing_is_tried_again_after_the_first_streamed_byte(failure, method, idempotent, key, status, sent_bytes):
    assert not may_retry(
        failure,
        method=method,
        idempotent=idempotent,
        idempotency_key=key,
        status=status,
        sent_bytes=sent_bytes,
        streamed=True,
    )


@pytest.mark.parametrize(("attempt", "most_s"), [(1, 0.025), (2, 0.05), (3, 0.1), (7, 1.0), (10_000, 1.0)])
def test_backoff_doubles_up_to_a_cap_with_full_jitter(attempt, most_s):
    waits = [backoff_s(attempt, seeded(seed).random) for seed in range(200)]
    assert 0.9 * most_s < max(waits) <= most_s
    assert min(waits) < 0.1 * most_s


def test_retry_after_is_honoured_with_jitter_on_top():
    assert 2.0 < wait_s(1, seeded(1).random, retry_after_s=2.0) <= 2.025


def test_a_try_that_would_come_too_late_is_not_made():
    assert wait_s(1, seeded(1).random, retry_after_s=2.0, left_s=1.5) is None


def test_a_service_that_fails_wholly_gets_a_fifth_more_load():
    budget, retries = RetryBudget(least_per_s=0), 0
    for i in range(100_000):
        budget.note_request(i / 1000)
        retries += budget.spend(i / 1000)
    assert retries == pytest.approx(20_000, rel=0.02)


def test_a_service_of_few_requests_may_still_retry_them_all():
    budget = RetryBudget()
    for i in range(100):
        budget.note_request(i / 5)
        assert budget.spend(i / 5)


def test_the_budget_comes_back_as_time_passes():
    budget = RetryBudget(share=0, least_per_s=1)
    assert [budget.spend(0.0) for _ in range(11)] == [True] * 10 + [False]
    assert budget.left(9.9) == 0
    assert budget.left(10.1) == 10


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 12), st.integers(0, 12)), max_size=30),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_retries_never_exceed_the_budget(steps, share, least_per_s):
    """Whenever one is granted: of the last ten seconds, begun ones counted whole, and counted here anew."""
    budget = RetryBudget(share=share, least_per_s=least_per_s)
    now_s, requests, retries = 0.0, [], []
    for passed_s, asked, wanted in steps:
        now_s += passed_s
        requests += [int(now_s)] * asked
        for _ in range(asked):
            budget.note_request(now_s)
        for _ in range(wanted):
            if budget.spend(now_s):
                retries.append(int(now_s))
                in_window = [sum(at_s > int(now_s) - 10 for at_s in many) for many in (requests, retries)]
                assert in_window[1] <= share * in_window[0] + 10 * least_per_s
    assert len(retries) <= share * len(requests) + least_per_s * (now_s + 11)
