"""Scripts of faults: which request meets one, and what is refused."""

from __future__ import annotations

import pytest

from cardwise.engine.faults import Counting, Fault, FaultKind, Script, When, read_script
from cardwise.errors import UserError


def struck(fault, requests):
    counting = Counting(Script([fault]))
    return [number for number in range(1, requests + 1) if counting.strike() is fault]


@pytest.mark.parametrize(
    ("how", "which"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"every": 3}, [3, 6]),
        ({"skip": 4}, [5, 6, 7]),
        ({"every": 2, "skip": 1, "times": 2}, [3, 5]),
    ],
    ids=["all", "every-third", "after-four", "two-of-them"],
)
def test_a_fault_strikes_the_requests_it_names(how, which):
    assert struck(Fault(FaultKind.RESET, **how), 7) == which


def test_of_two_faults_that_are_due_the_first_strikes_and_both_count():
    first, second = Fault(FaultKind.RESET, every=2), Fault(FaultKind.STATUS, every=3)
    counting = Counting(Script([first, second]))
    assert [counting.strike() for _ in range(6)] == [None, first, second, first, None, first]


def test_a_fault_strikes_before_the_work_unless_it_needs_an_answer():
    assert Fault(FaultKind.STATUS).moment is When.BEFORE
    assert Fault(FaultKind.WRONG_SHAPE).moment is When.AFTER


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a script of faults"),
        ("[1]", r"not a script of faults: is \[1\]; write a table"),
        ('{"fautls": []}', "fautls: is no key; write faults"),
        ('{"slow_factor": 2}', "slow_factor: is no key; write slow-factor"),
        ('{"faults": [{"kind": "explode"}]}', r"faults\[0\].kind: is 'explode'; write one of status, reset"),
        (
            '{"faults": [{"kind": "status", "status": 200}]}',
            r"faults\[0\].status: is 200; write a whole number from 400",
        ),
        ('{"faults": [{"kind": "reset", "every": 0}]}', r"faults\[0\].every: is 0; write a whole number at least 1"),
        ('{"faults": [{"kind": "cut", "when": "before"}]}', "spoils an answer"),
    ],
)
def test_a_script_that_cannot_be_meant_is_refused(text, message):
    with pytest.raises(UserError, match=message):
        read_script(text)
