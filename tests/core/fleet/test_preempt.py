"""Who goes for whom."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.fleet.guard import Brake, BrakePolicy, Eviction
from cardwise.core.fleet.preempt import ENOUGH, Exempt, Nobody, Plan, Running, Waiting, World, preempt, search, smallest
from cardwise.core.reasons import Code

FREE = BrakePolicy(most_per_node=100, most=1000)


def pod(name, memory=10, priority=0, **more):
    given_ = {"owner": f"ns/{name}", "sensitive": False, "preemptible": True, **more}
    return Running(uid=name, name=name, priority=priority, memory_mib=memory, **given_)


def card(total, pods, asked):
    """One node with one card, on which nothing counts but memory."""

    def fits(_node, gone):
        return total - sum(each.memory_mib for each in pods if each.uid not in gone) >= asked

    return {"n": pods}, fits


def ask(pods, asked, total=100, waiting=None, **world):
    nodes, fits = card(total, pods, asked)
    return preempt(waiting or Waiting("w", "ns/w", 10), nodes, fits, World(1000.0, policy=FREE, **world))


def names(found):
    return [victim.name for victim in found.victims]


def test_case_c40_one_low_pod_goes_for_a_high_one():
    assert names(ask([pod("low", 40)], 30, total=40)) == ["low"]


def test_if_everyone_who_may_go_would_not_be_enough_nobody_goes():
    found = ask([pod("low", 20), pod("protected", 60, preemptible=False)], 50)
    assert isinstance(found, Nobody)
    assert found.exempt == {Exempt.PROTECTED: 1}
    assert found.tried == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sensitive": True}, Exempt.SENSITIVE),
        ({"priority": 10}, Exempt.PRIORITY),
        ({"preemptible": False}, Exempt.PROTECTED),
        ({"starting": True}, Exempt.STARTING),
        ({"going": True}, Exempt.GOING),
        ({"budgets": frozenset({"ns/pdb"})}, Exempt.BUDGET),
        ({"queue": "another"}, Exempt.QUEUE),
    ],
)
def test_such_a_pod_is_nobodys_victim(more, why):
    found = ask([pod("a", 100, **more)], 50)
    assert isinstance(found, Nobody)
    assert found.exempt == {why: 1}


def test_if_it_fits_as_it_is_nobody_goes():
    assert ask([pod("low", 40)], 30) == Nobody(room="n")


def test_one_large_pod_goes_rather_than_many_small_ones():
    assert names(ask([pod("a"), pod("b"), pod("c"), pod("large", 70)], 30)) == ["large"]


def test_the_lower_priority_goes_first():
    assert names(ask([pod("a", 50, priority=5), pod("b", 50, priority=1)], 50)) == ["b"]


def test_no_more_go_than_a_budget_allows():
    both = [pod("a", 50, budgets=frozenset({"p"})), pod("b", 50, budgets=frozenset({"p"}))]
    assert isinstance(ask(both, 100, allowed={"p": 1}), Nobody)
    assert names(ask(both, 100, allowed={"p": 2})) == ["a", "b"]


def test_a_node_whose_window_is_used_up_gives_up_nobody():
    past = [Eviction(900.0, "n", "ns/x", "ns/y"), Eviction(950.0, "n", "ns/z", "ns/y")]
    nodes, fits = card(100, [pod("a", 100)], 50)
    found = preempt(Waiting("w", "ns/w", 10), nodes, fits, World(1000.0, past))
    assert isinstance(found, Nobody)
    assert found.braked == {Brake.NODE: 1}
    assert names(preempt(Waiting("w", "ns/w", 10), nodes, fits, World(1251.0, past))) == ["a"]


def test_two_workloads_do_not_evict_each_other_in_turns():
    past = [Eviction(0.0, "n", "ns/w", "ns/a")]
    nodes, fits = card(100, [pod("a", 100)], 50)
    world = World(1000.0, past)
    assert preempt(Waiting("w", "ns/w", 10), nodes, fits, world).braked == {Brake.TURN: 1}
    assert names(preempt(Waiting("v", "ns/v", 10), nodes, fits, world)) == ["a"]


def test_who_was_evicted_is_left_alone_for_a_growing_while():
    nodes, fits = card(100, [pod("a", 100)], 50)
    waiting = Waiting("w", "ns/w", 10)
    once = [Eviction(0.0, "elsewhere", "ns/a", "ns/x")]
    assert preempt(waiting, nodes, fits, World(59.0, once)).braked == {Brake.AGAIN: 1}
    assert isinstance(preempt(waiting, nodes, fits, World(61.0, once)), Plan)
    twice = [*once, Eviction(100.0, "elsewhere", "ns/a", "ns/x")]
    assert isinstance(preempt(waiting, nodes, fits, World(219.0, twice)), Nobody)
    assert isinstance(preempt(waiting, nodes, fits, World(221.0, twice)), Plan)


def test_of_a_large_workload_up_to_half_of_the_pods_rest_at_a_time():
    pods = [pod(f"a-{i}", 10, owner="ns/a") for i in range(8)]
    nodes, fits = card(80, pods, 10)
    once = [Eviction(990.0 + i, f"elsewhere-{i}", "ns/a", "ns/x") for i in range(4)]
    waiting = Waiting("w", "ns/w", 10)
    assert isinstance(preempt(waiting, nodes, fits, World(1000.0, once[:3])), Plan)
    assert preempt(waiting, nodes, fits, World(1000.0, once)).braked == {Brake.AGAIN: 8}
    assert isinstance(preempt(waiting, nodes, fits, World(1051.0, once)), Plan)


def test_who_was_evicted_waits_before_it_asks_for_others():
    past = [Eviction(990.0, "n", "ns/w", "ns/x")]
    nodes, fits = card(100, [pod("a", 100)], 50)
    assert preempt(Waiting("w", "ns/w", 10), nodes, fits, World(1000.0, past)) == Nobody(rests_until_s=1050.0)


PODS = st.lists(
    st.builds(
        pod,
        st.text("abcdef", min_size=1, max_size=5),
        st.integers(1, 60),
        st.integers(0, 12),
        sensitive=st.booleans(),
        preemptible=st.sampled_from([True, True, False]),
        starting=st.sampled_from([False, False, True]),
    ),
    max_size=7,
    unique_by=lambda each: each.uid,
)


@given(st.dictionaries(st.sampled_from("nmo"), PODS, max_size=3), st.integers(1, 100), st.randoms())
def test_laws_of_preemption(nodes, asked, random):
    def fits(node, gone):
        return 100 - sum(each.memory_mib for each in nodes[node] if each.uid not in gone) >= asked

    waiting, world = Waiting("w", "ns/w", 10), World(0.0, policy=FREE)
    found = preempt(waiting, nodes, fits, world)
    shuffled = {node: random.sample(nodes[node], len(nodes[node])) for node in random.sample(list(nodes), len(nodes))}
    assert preempt(waiting, shuffled, fits, world) == found
    free = {
        node: [p for p in pods if not p.sensitive and p.priority < 10 and p.preemptible and not p.starting]
        for node, pods in nodes.items()
    }
    room = any(fits(node, set()) for node in nodes)
    helps = any(free[node] and fits(node, {p.uid for p in free[node]}) for node in nodes)
    if isinstance(found, Nobody):
        assert room or not helps
        return
    assert not room
    gone = {victim.uid for victim in found.victims}
    assert gone <= {p.uid for p in free[found.node]}
    assert fits(found.node, gone)
    for victim in gone:
        assert not fits(found.node, gone - {victim})


def all_plans(nodes, fits, waiting):
    """What each node would give up, without looking at them in any clever order."""
    for node, pods in nodes.items():
        open_to = [
            each
            for each in pods
            if not each.sensitive and each.preemptible and not each.starting and each.priority < waiting.priority
        ]
        victims = smallest(open_to, lambda gone, node=node: fits(node, gone)) if open_to else None
        if victims:
            priorities = tuple(sorted((each.priority for each in victims), reverse=True))
            yield (priorities, sum(each.memory_mib for each in victims), node), victims


@given(st.dictionaries(st.sampled_from("nmopq"), PODS, max_size=5), st.integers(1, 100))
def test_leaving_out_nodes_that_cannot_hurt_less_changes_nothing(nodes, asked):
    def fits(node, gone):
        return 100 - sum(each.memory_mib for each in nodes[node] if each.uid not in gone) >= asked

    waiting = Waiting("w", "ns/w", 10)
    found = preempt(waiting, nodes, fits, World(0.0, policy=FREE))
    plans = sorted(all_plans(nodes, fits, waiting), key=lambda each: each[0])
    if any(fits(node, ()) for node in nodes) or not plans:
        assert isinstance(found, Nobody)
    else:
        assert (found.node, found.victims) == (plans[0][0][2], plans[0][1])


def test_a_set_that_is_larger_than_is_of_use_is_not_looked_for_to_the_end():
    pods, asked = [pod(f"p{i}") for i in range(10)], []

    def fits(gone):
        asked.append(len(gone))
        return len(gone) == 10

    assert len(smallest(pods, fits, most=2)) == 3
    assert asked == [10, 9, 9, 9]


def test_a_search_pauses_after_each_node_and_ends_with_enough_to_choose_from():
    nodes = {f"n{i:03}": [pod(f"a{i}", 60), pod(f"b{i}", 60)] for i in range(ENOUGH + 50)}
    asked = []

    @contextmanager
    def opened(node):
        asked.append(node)
        yield lambda gone: len(gone) == 2

    steps = search(Waiting("w", "ns/w", 10), nodes, opened, World(1000.0, policy=FREE), lambda: None, {})
    pauses = sum(1 for _ in steps)
    assert (pauses, asked) == (ENOUGH, sorted(nodes)[:ENOUGH])


@pytest.mark.parametrize(
    ("nobody", "code", "words"),
    [
        (Nobody(rests_until_s=1050.5), Code.PREEMPT_RESTS, "for another 51 s"),
        (Nobody(room="n"), Code.PREEMPT_ROOM, "n takes the pod as it is"),
        (Nobody(braked={Brake.NODE: 2, Brake.AGAIN: 1}), Code.PREEMPT_BRAKED, "for now: 2 node, 1 again"),
        (Nobody(tried=3, exempt={Exempt.STARTING: 1}), Code.PREEMPT_NO_HELP, "on 3 nodes"),
        (Nobody(exempt={Exempt.SENSITIVE: 4}), Code.PREEMPT_NOBODY, "4 latency-sensitive"),
        (Nobody(), Code.PREEMPT_NOBODY, "no pod with cards"),
    ],
)
def test_why_nobody_goes_is_one_reason_with_its_numbers(nobody, code, words):
    reason = nobody.reason(1000.0)
    assert reason.code is code
    assert words in reason.long


@pytest.mark.parametrize(
    ("told", "message"), [({"most": -1}, "most -1"), ({"pause_s": float("inf")}, "pause_s is inf")]
)
def test_brakes_that_cannot_work_are_refused(told, message):
    with pytest.raises(ValueError, match=message):
        BrakePolicy(**told)


@pytest.mark.parametrize("ahead_s", [1.0, 60.0, 250.0])
def test_a_clock_that_was_set_back_makes_no_eviction_undone(ahead_s):
    past = [Eviction(1000.0 + ahead_s, "n", f"ns/{name}", "ns/y") for name in "xz"]
    nodes, fits = card(100, [pod("a", 100)], 50)
    found = preempt(Waiting("w", "ns/w", 10), nodes, fits, World(1000.0, past))
    assert isinstance(found, Nobody)
    assert found.braked == {Brake.NODE: 1}
    turned = World(1000.0, [Eviction(1000.0 + ahead_s, "elsewhere", "ns/w", "ns/a")], policy=BrakePolicy(pause_s=0))
    assert isinstance(preempt(Waiting("w", "ns/w", 10), nodes, fits, turned), Nobody)


def test_an_eviction_dated_years_ahead_brakes_nobody_for_years():
    past = [Eviction(1e9, "n", f"ns/{name}", "ns/y") for name in "axwz"]
    nodes, fits = card(100, [pod("a", 100)], 50)
    assert names(preempt(Waiting("w", "ns/w", 10), nodes, fits, World(1000.0, past))) == ["a"]


def test_a_node_of_which_nobody_knows_what_it_gave_up_gives_up_nobody():
    nodes, fits = card(100, [pod("a", 100)], 50)
    found = preempt(Waiting("w", "ns/w", 10), nodes, fits, World(1000.0, closed={"n"}))
    assert isinstance(found, Nobody)
    assert found.braked == {Brake.NODE: 1}
