"""How a slice that has to go is ended."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.card.ending import Act, EndPolicy, Going, is_given_up, next_act

POLICY = EndPolicy(answer_s=0.5, grace_s=5.0, brink_s=2.0, late_s=2.0)
CALM = math.inf


@pytest.mark.parametrize(
    ("going", "now_s", "full_in_s", "act"),
    [
        pytest.param(Going(0.0), 0.4, CALM, Act.WAIT, id="the API server has not answered yet"),
        pytest.param(Going(0.0), 0.5, CALM, Act.TERM, id="it does not answer in time"),
        pytest.param(Going(0.0, accepted=True), 5.0, CALM, Act.WAIT, id="the kubelet gives the pod its grace"),
        pytest.param(Going(0.0, accepted=True), 7.5, CALM, Act.KILL, id="the kubelet does not end it"),
        pytest.param(Going(0.0, termed_s=0.5), 5.4, CALM, Act.WAIT, id="told to stop, within its grace"),
        pytest.param(Going(0.0, termed_s=0.5), 5.5, CALM, Act.KILL, id="it did not stop"),
        pytest.param(Going(0.0), 0.0, 1.9, Act.KILL, id="no time to ask"),
        pytest.param(Going(0.0, accepted=True), 1.0, 1.9, Act.KILL, id="no time to wait for the kubelet"),
    ],
)
def test_asked_then_told_then_stopped(going, now_s, full_in_s, act):
    assert next_act(going, now_s, full_in_s, POLICY) is act


@given(st.booleans(), st.none() | st.floats(0, 20), st.floats(0, 60))
def test_whatever_answers_a_slice_is_stopped_before_it_is_given_up(accepted, termed_s, full_in_s):
    going = Going(0.0, accepted, None if termed_s is None else min(termed_s, POLICY.answer_s))
    for tenth in range(300):
        act = next_act(going, tenth / 10, full_in_s, POLICY)
        if act is Act.KILL:
            assert not is_given_up(going, tenth / 10, POLICY)
            return
        if act is Act.TERM:
            going.termed_s = tenth / 10
    pytest.fail("it was never stopped")


@pytest.mark.parametrize("name", ["answer_s", "grace_s", "brink_s", "late_s"])
def test_a_policy_that_cannot_be_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} is -1"):
        EndPolicy(**{name: -1})
