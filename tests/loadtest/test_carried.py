"""What a curve proves that a service carries: a figure, whether it may be more, and what makes it doubtful."""

import msgspec
import pytest

from cardwise.loadtest.carried import carried
from cardwise.loadtest.curve import Knee, Outcomes
from cardwise.loadtest.measure import Quantiles
from cardwise.loadtest.plan import Load
from tests.loadtest.test_compare import curve, measured
from tests.loadtest.test_knee import step

FOUND = Knee(axis="rate", load=100.0, goodput_per_s=100.0, p99_ms=50.0, broken_at=105.0, stopped_by="p99")


def slow(typical_s):
    """Quantiles of answers half of which take so long."""
    return Quantiles(4000, *[1000 * typical_s] * 6)


def failed(rate):
    return step(Load(rate_per_s=rate), holds=False, why="p99")


def test_a_knee_that_was_found_is_what_is_carried():
    found = carried(curve(measured(1), failed(105.0), knee=FOUND))
    assert (found.rate_per_s, found.at_least, found.notes) == (100.0, False, ())


@pytest.mark.parametrize("stopped", ["most", "time", "interrupt"])
def test_a_search_that_ended_before_the_knee_gives_a_lower_bound(stopped):
    knee = msgspec.structs.replace(FOUND, broken_at=None, stopped_by=stopped)
    found = carried(curve(measured(1), knee=knee))
    assert found.at_least
    assert "the load test found no knee: 100/s held, and no more was tried" in found.notes[0]


def test_a_single_step_that_holds_is_a_lower_bound():
    found = carried(curve(measured(1)))
    assert found.at_least
    assert "cardwise loadtest --find rate tells" in found.notes[0]


def test_of_a_sweep_the_next_step_that_failed_is_told():
    found = carried(curve(measured(1), failed(400.0), failed(200.0)))
    assert "the next that was tried, 200/s, did not hold" in found.notes[0]


def test_a_step_with_room_for_few_answers_is_told():
    short = measured(1, latency_ms=slow(9.0))
    (note,) = carried(curve(short, failed(105.0), knee=FOUND)).notes
    assert "too short to tell rates and the knee at 100/s; give --seconds 90" in note


def test_a_knee_whose_answers_did_not_end_while_it_was_counted_proves_nothing():
    """Of 337 requests in two seconds two answers ended, though all ended well in the end."""
    piled = step(
        Load(rate_per_s=167.0),
        seconds=2.0,
        good=337,
        issued=337,
        goodput=1.0,
        latency_ms=slow(9.6),
        outcomes=Outcomes(ok=337),
    )
    knee = msgspec.structs.replace(FOUND, load=167.0, goodput_per_s=1.0)
    with pytest.raises(ValueError, match=r"at 167/s only 2 of 337 good answers ended in the counted 2 s.*--seconds 96"):
        carried(curve(piled, knee=knee, seconds=2.0))


def test_no_step_that_holds_carries_nothing():
    with pytest.raises(ValueError, match="no step of this test held its target"):
        carried(curve(failed(10.0)))
