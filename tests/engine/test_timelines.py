"""Who is done when: known numbers, and the law that looking more often changes nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.engine.model import CONTENTION, Contention
from cardwise.engine.timelines import Job, SerialTimeline, SharedTimeline


def ends_of(timeline, jobs, looks=()):
    """When each of (arrival, work) ended; the timeline is looked at when one ends, and at ``looks``."""
    arrivals = {}
    for came_s, work_s in jobs:
        arrivals.setdefault(came_s, []).append(Job(work_s))
    every = [job for came_s in sorted(arrivals) for job in arrivals[came_s]]
    pending = sorted({*arrivals, *looks})
    ended = {}
    while pending or timeline.next_end_s() is not None:
        end_s = timeline.next_end_s()
        now_s = min(each for each in (end_s, pending[0] if pending else None) if each is not None)
        ended.update(dict.fromkeys(timeline.advance(now_s).ended, now_s))
        if pending and now_s == pending[0]:
            pending.pop(0)
            for job in arrivals.get(now_s, ()):
                timeline.add(job, now_s)
            ended.update(dict.fromkeys(timeline.advance(now_s).ended, now_s))
    return [ended[job] for job in every]


def test_a_serial_card_does_one_after_the_other():
    assert ends_of(SerialTimeline(), [(0.0, 4.0), (1.0, 2.0), (10.0, 1.0)]) == [4.0, 6.0, 11.0]


def test_a_late_look_costs_a_serial_card_nothing():
    timeline = SerialTimeline()
    first, second = Job(4.0), Job(2.0)
    timeline.add(first, 0.0)
    timeline.add(second, 0.0)
    timeline.advance(0.0)
    assert timeline.advance(5.0).ended == (first,)
    assert timeline.next_end_s() == 6.0


def test_five_at_a_time_take_as_long_as_the_scalability_law_says():
    assert ends_of(SharedTimeline(CONTENTION), [(0.0, 1.0)] * 5) == pytest.approx([2.12] * 5)


def test_one_who_comes_later_slows_the_others_from_then_on():
    halves = Contention(1.0, 0.0)  # two at a time: each at half speed
    assert ends_of(SharedTimeline(halves), [(0.0, 2.0), (1.0, 2.0)]) == pytest.approx([3.0, 4.0])


def test_a_shared_card_with_places_lets_the_rest_wait():
    assert ends_of(SharedTimeline(Contention(0.0, 0.0), 2), [(0.0, 3.0), (0.0, 1.0), (0.0, 1.0)]) == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("make", [SerialTimeline, lambda: SharedTimeline(CONTENTION, 1)], ids=["serial", "shared"])
def test_who_waits_can_leave_and_who_runs_cannot(make):
    timeline = make()
    runs, waits = Job(1.0), Job(1.0)
    timeline.advance(0.0)
    timeline.add(runs, 0.0)
    timeline.add(waits, 0.0)
    timeline.advance(0.0)
    assert not timeline.drop(runs)
    assert timeline.drop(waits)
    assert timeline.advance(9.0).ended == (runs,)


TIMES = st.integers(0, 40).map(lambda each: each / 4)
JOBS = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=12)


@given(JOBS, st.lists(TIMES, max_size=12), st.sampled_from(["serial", "shared", "places"]))
def test_looking_more_often_changes_no_end(jobs, looks, kind):
    make = {
        "serial": SerialTimeline,
        "shared": lambda: SharedTimeline(CONTENTION),
        "places": lambda: SharedTimeline(CONTENTION, 2),
    }[kind]
    assert ends_of(make(), jobs) == pytest.approx(ends_of(make(), jobs, looks))


@given(JOBS)
def test_a_serial_card_is_never_idle_while_work_waits(jobs):
    jobs = sorted(jobs)
    free_s, expected = 0.0, []
    for came_s, work_s in jobs:
        free_s = max(free_s, came_s) + work_s
        expected.append(free_s)
    assert ends_of(SerialTimeline(), jobs) == pytest.approx(expected)


@given(JOBS)
def test_a_shared_card_does_all_the_work_it_was_given(jobs):
    ends = ends_of(SharedTimeline(Contention(1.0, 0.0)), sorted(jobs))  # its throughput does not depend on n
    busy_until = list(itertools.accumulate(sorted(jobs), lambda free_s, job: max(free_s, job[0]) + job[1], initial=0.0))
    assert max(ends) == pytest.approx(busy_until[-1])
