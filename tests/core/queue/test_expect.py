"""How long a try is expected to take, and when that is not believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.queue.expect import Expectation

TIMES = st.lists(st.floats(0.0001, 100), min_size=1, max_size=50)


def after(*times_s):
    expected = Expectation()
    for time_s in times_s:
        expected.begin()
        expected.answered(time_s)
    return expected


def test_nothing_is_expected_before_the_first_answer():
    expected = Expectation()
    expected.begin()
    assert expected.time_s == 0


def test_the_first_answer_is_believed_while_another_is_awaited():
    expected = after(0.25)
    expected.begin()
    assert expected.time_s == 0.25


@given(TIMES)
def test_no_estimate_refuses_anyone_while_nothing_would_correct_it(times_s):
    assert after(*times_s).time_s == 0


@given(TIMES)
def test_the_estimate_lies_within_what_was_seen(times_s):
    expected = after(*times_s)
    expected.begin()
    assert min(times_s) * 0.999 <= expected.time_s <= max(times_s) * 1.001


def test_a_try_given_up_says_nothing_of_the_time():
    expected = after(0.25)
    expected.begin()
    expected.begin()
    expected.gave_up()
    assert expected.time_s == 0.25
    expected.gave_up()
    assert expected.time_s == 0


@pytest.mark.parametrize("end", [Expectation.gave_up, lambda expected: expected.answered(1.0)])
def test_a_try_that_had_not_begun_cannot_end(end):
    with pytest.raises(ValueError, match="had not begun"):
        end(Expectation())
