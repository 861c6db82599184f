"""When a full batch may leave before the one under way is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.queue.ahead import AHEAD_MOST_S, Ahead
from cardwise.core.queue.limit import FixedLimit

TIMES = st.lists(st.floats(0.001, 10), min_size=5, max_size=30)


def after(times_s, rows=32):
    ahead, now_s = Ahead(), 100.0
    for time_s in times_s:
        ahead.begin(now_s)
        now_s += time_s
        ahead.end(now_s, rows, 32, ok=True)
    return ahead, now_s


def test_the_next_leaves_a_moment_before_the_usual_time_is_over():
    ahead, now_s = after([0.016] * 10)
    ahead.begin(now_s)
    assert ahead.due_s(32, 32) == pytest.approx(now_s + 0.016 * 0.85)


def test_of_long_batches_the_moment_is_no_longer_than_it_must_be():
    ahead, now_s = after([1.0] * 10)
    ahead.begin(now_s)
    assert ahead.due_s(32, 32) == pytest.approx(now_s + 1.0 - AHEAD_MOST_S)


@pytest.mark.parametrize(
    ("seen", "queued", "under_way"),
    [(4, 32, 1), (10, 31, 1), (10, 32, 0), (10, 32, 2)],
    ids=["too few seen", "not a full batch", "nothing under way", "one ahead already"],
)
def test_nothing_leaves_ahead(seen, queued, under_way):
    ahead, now_s = after([0.016] * seen)
    for _ in range(under_way):
        ahead.begin(now_s)
    assert ahead.due_s(queued, 32) is None


@pytest.mark.parametrize(("rows", "ok"), [(23, True), (32, False)], ids=["far from full", "failed"])
def test_such_batches_teach_no_time(rows, ok):
    ahead, now_s = Ahead(), 0.0
    for _ in range(10):
        ahead.begin(now_s)
        now_s += 0.016
        ahead.end(now_s, rows, 32, ok=ok)
    ahead.begin(now_s)
    assert ahead.due_s(32, 32) is None


def test_a_batch_sent_ahead_counts_from_the_end_of_the_one_before():
    ahead, now_s = after([0.016] * 10)
    ahead.begin(now_s)
    for _ in range(50):  # each is sent 2 ms before the one before it ends
        ahead.begin(now_s + 0.014)
        now_s += 0.016
        ahead.end(now_s, 32, 32, ok=True)
    assert ahead.due_s(32, 32) == pytest.approx(now_s + 0.016 * 0.85)


@given(TIMES)
def test_it_is_never_before_most_of_the_shortest_time_has_passed(times_s):
    ahead, now_s = after(times_s)
    ahead.begin(now_s)
    due_s = ahead.due_s(32, 32)
    assert due_s is not None
    assert due_s >= now_s + 0.849 * min(times_s)


def test_the_place_ahead_is_beyond_the_limit_that_all_others_see():
    limit = FixedLimit(1, ahead=1)
    assert [limit.acquire() for _ in range(3)] == [True, True, False]
    assert limit.limit == 1


def test_fewer_than_no_places_ahead_are_refused():
    with pytest.raises(ValueError, match="ahead is -1"):
        FixedLimit(1, ahead=-1)
