"""Where weights are loaded before replicas come (SPEC F1)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.claim import Claim, ContainerAsk, LatencyClass, Stage
from cardwise.core.fleet.prefetch import Because, Disk, Load, PrefetchPolicy, Wish, prefetch
from cardwise.core.fleet.room import Room
from cardwise.core.ledger import Ledger
from cardwise.core.placement.policies import make_policy
from tests.builders import node, slice_of

WISH = Wish("ns/llama", "llama", 2, 10_000)
EMPTY = Disk(frozenset())
CACHED = Disk(frozenset({"llama"}))


def ranked(*names):
    """Placement that would take the nodes in this order."""
    return lambda wish, shut: [name for name in names if name not in shut][: wish.nodes]


def begun(plan):
    return [(load.key, load.node) for load in plan.loads]


def test_the_weights_are_loaded_where_the_next_replicas_would_go():
    plan = prefetch([WISH], dict.fromkeys("abc", EMPTY), ranked("b", "c", "a"))
    assert begun(plan) == [("ns/llama", "b"), ("ns/llama", "c")]
    assert plan.standing == {"ns/llama": Because.LOADING}


def test_a_node_that_has_them_is_not_loaded_again():
    plan = prefetch([WISH], {"a": CACHED, "b": EMPTY}, ranked("a", "b"))
    assert begun(plan) == [("ns/llama", "b")]
    assert prefetch([WISH], {"a": CACHED, "b": CACHED}, ranked("a", "b")).standing == {"ns/llama": Because.DONE}


def test_a_node_without_the_disk_is_passed_over():
    nodes = {"a": Disk(frozenset(), free_mib=12_000), "b": Disk(frozenset(), pressed=True), "c": EMPTY}
    assert begun(prefetch([WISH], nodes, ranked("a", "b", "c"))) == [("ns/llama", "c")]


def test_a_node_on_which_it_failed_of_late_is_passed_over():
    plan = prefetch([WISH], dict.fromkeys("abc", EMPTY), ranked("a", "b", "c"), rests={("ns/llama", "a")})
    assert begun(plan) == [("ns/llama", "b"), ("ns/llama", "c")]


def test_no_more_loads_run_at_a_time_than_may():
    running = [Load("ns/other", "x")]
    plan = prefetch([WISH], dict.fromkeys("ab", EMPTY), ranked("a", "b"), running)
    assert begun(plan) == [("ns/llama", "a")]
    plan = prefetch([WISH], dict.fromkeys("ab", EMPTY), ranked("a", "b"), [*running, Load("ns/other", "y")])
    assert (begun(plan), plan.standing) == ([], {"ns/llama": Because.TURN})


def test_what_is_being_loaded_is_not_begun_again():
    plan = prefetch([WISH], dict.fromkeys("ab", EMPTY), ranked("a", "b"), [Load("ns/llama", "a")])
    assert begun(plan) == [("ns/llama", "b")]


def test_no_more_nodes_are_loaded_than_wished_also_when_placement_has_changed_its_mind():
    plan = prefetch([WISH], dict.fromkeys("abcd", EMPTY), ranked("c", "d"), [Load("ns/llama", "a")])
    assert begun(plan) == [("ns/llama", "c")]
    plan = prefetch([WISH], dict.fromkeys("abcd", EMPTY), ranked("c", "d"), [Load("ns/llama", n) for n in "ab"])
    assert begun(plan) == []


def test_that_no_node_will_do_is_said():
    assert prefetch([WISH], {"a": EMPTY}, ranked()).standing == {"ns/llama": Because.NO_NODE}


def test_a_load_is_given_time_by_its_size():
    policy = PrefetchPolicy(mib_s=50, patience=3, least_s=600)
    assert policy.deadline_s(16_384) == 984  # 3 * 16384 / 50 = 983.04
    assert policy.deadline_s(100) == 600


@pytest.mark.parametrize("name", ["mib_s", "patience", "least_s", "disk_share"])
def test_numbers_that_cannot_work_are_refused_by_name(name):
    with pytest.raises(ValueError, match=name):
        PrefetchPolicy(**{name: 0})


DISKS = st.builds(
    Disk, st.sets(st.sampled_from(["m1", "m2"])).map(frozenset), st.none() | st.integers(0, 30_000), st.booleans()
)
WISHES = st.builds(
    Wish, st.sampled_from(["ns/a", "ns/b"]), st.sampled_from(["m1", "m2"]), st.integers(1, 4), st.integers(0, 20_000)
)


@given(
    st.lists(WISHES, max_size=2, unique_by=lambda wish: wish.key),
    st.dictionaries(st.sampled_from("abcd"), DISKS, min_size=1),
    st.lists(st.builds(Load, st.sampled_from(["ns/a", "ns/b"]), st.sampled_from("abcd")), max_size=3, unique=True),
    st.integers(1, 3),
)
def test_nothing_is_loaded_twice_nor_beyond_the_budget_nor_on_a_full_disk(wishes, nodes, running, at_once):
    policy = PrefetchPolicy(at_once=at_once)
    plan = prefetch(wishes, nodes, ranked(*sorted(nodes)), running, policy=policy)
    by_key = {wish.key: wish for wish in wishes}
    assert len(plan.loads) <= max(at_once - len(running), 0)
    assert not {(load.key, load.node) for load in plan.loads} & {(load.key, load.node) for load in running}
    assert plan.standing.keys() == by_key.keys()
    for load in plan.loads:
        wish, disk = by_key[load.key], nodes[load.node]
        assert wish.model not in disk.cached
        assert not disk.pressed
        assert disk.free_mib is None or wish.size_mib <= disk.free_mib


def test_a_node_that_was_loaded_wins_the_next_replica():
    """The whole point: what is loaded is what placement then prefers."""
    claim = Claim("p", "ns/p", (ContainerAsk("app", Stage.APP, slice_of()),), service="ns/web", model_key="llama")
    nodes = [node(name) for name in ("n0", "n1", "n2")]
    ledger = Ledger(lambda cluster, mix: dict.fromkeys(LatencyClass, make_policy("balanced", cluster, mix)))
    ledger.reset(nodes, [])

    def first(told):
        return Room(ledger, lambda _uid, _node: True).place(told, "p")

    before = first(claim)
    loaded = next(each for each in nodes if each.name != before)
    ledger.put_node(replace(loaded, cached_models=frozenset({"llama"})))
    assert first(claim) == loaded.name
    assert first(replace(claim, model_key="")) == before
