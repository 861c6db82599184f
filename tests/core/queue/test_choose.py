"""Which replica is next."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.queue.choose import Gauges, choose, has_room, load_of, penalty_of
from tests.core.queue.a_replica import seeded


@dataclass(eq=False)
class Replica:
    in_flight: int = 0
    limit: int = 4
    ready: bool = True
    draining: bool = False
    penalty: float = 0.0


def chosen(replicas, times=3000):
    rng = seeded(7)
    return Counter(replicas.index(choose(replicas, rng.random)) for _ in range(times))


@pytest.mark.parametrize(
    "replica",
    [
        pytest.param(Replica(ready=False), id="not warmed up"),
        pytest.param(Replica(draining=True), id="draining"),
        pytest.param(Replica(in_flight=4), id="at its limit"),
    ],
)
def test_a_replica_without_room_is_not_chosen(replica):
    assert choose([replica], seeded(1).random) is None
    assert choose([replica, well := Replica()], seeded(1).random) is well


def test_nothing_comes_of_no_replicas():
    assert choose([], seeded(1).random) is None


def test_of_two_the_less_loaded_is_chosen_by_its_own_limit():
    small, large = Replica(2, limit=4), Replica(10, limit=40)
    assert choose([small, large], seeded(1).random) is large


def test_the_most_loaded_of_many_is_never_chosen_and_the_others_are_spread():
    replicas = [Replica(3, 10) for _ in range(5)]
    replicas[2].in_flight = 8
    counts = [chosen(replicas)[i] for i in range(5)]
    assert counts[2] == 0
    assert min(counts[:2] + counts[3:]) > 600


def test_those_with_room_are_found_among_many_without():
    replicas = [Replica(4) for _ in range(100)]
    replicas[17].in_flight = replicas[83].in_flight = 0
    counts = chosen(replicas)
    assert set(counts) == {17, 83}
    assert min(counts.values()) > 1000


def test_a_penalty_makes_a_replica_the_second_choice():
    busy_inside, well = Replica(0, penalty=1.0), Replica(2)
    assert choose([busy_inside, well], seeded(1).random) is well


@pytest.mark.parametrize(
    ("gauges", "penalty"),
    [
        pytest.param(None, 0.0, id="nothing known"),
        pytest.param(Gauges(at_s=89.0, waiting=9, cache_share=1.0), 0.0, id="older than two scrapes"),
        pytest.param(Gauges(at_s=91.0, waiting=2), 0.5, id="its own queue, by the limit"),
        pytest.param(Gauges(at_s=91.0, cache_share=0.8), 0.0, id="cache to spare"),
        pytest.param(Gauges(at_s=91.0, cache_share=0.85), 0.5, id="cache nearly full"),
        pytest.param(Gauges(at_s=91.0, cache_share=0.97), 1.0, id="cache full"),
    ],
)
def test_penalty(gauges, penalty):
    assert penalty_of(gauges, 100.0, scrape_s=5.0, limit=4) == pytest.approx(penalty)


REPLICAS = st.lists(
    st.builds(Replica, st.integers(0, 5), st.integers(1, 5), st.booleans(), st.booleans(), st.floats(0, 2)), max_size=8
)


@given(REPLICAS, st.integers(0, 100))
def test_who_has_room_is_chosen_if_any_has_and_never_the_worst_of_several(replicas, seed):
    replica = choose(replicas, seeded(seed).random)
    room = [one for one in replicas if has_room(one)]
    assert (replica is None) == (not room)
    if replica is not None:
        assert has_room(replica)
        assert len(room) == 1 or any(one is not replica and load_of(one) >= load_of(replica) for one in room)
    again = choose(replicas, seeded(seed).random)
    assert again is replica
