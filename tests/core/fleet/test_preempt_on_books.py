"""Who goes for whom, asked of real books: against every set of victims that there is, on small clusters."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.core.allocation import Allocation
from cardwise.core.fleet.guard import BrakePolicy
from cardwise.core.fleet.preempt import Nobody, Running, Waiting, World, preempt
from tests.builders import node, slice_of, whole
from tests.core.test_ledger import ask, claim, ledger, state

FREE = BrakePolicy(most_per_node=100, most=1000)
SHAPES = st.one_of(
    st.builds(slice_of, st.sampled_from([4000, 9000, 20000]), st.sampled_from([10, 40, 90]), st.integers(1, 2)),
    st.just(whole()),
)
PODS = st.lists(
    st.tuples(SHAPES, st.sampled_from(["n0", "n1"]), st.integers(0, 12), st.sampled_from([True, True, True, False])),
    max_size=6,
)


def wanted(uid, shape, priority=0):
    return claim(uid, ask(shape=shape), priority=priority)


def filled(pods):
    """Books with those of the pods that fit, and what runs on each node."""
    books, nodes = ledger(node("n0", cards=2), node("n1", cards=1)), {"n0": [], "n1": []}
    for i, (shape, name, priority, preemptible) in enumerate(pods):
        allocation = books.hold(wanted(f"p{i}", shape, priority), name)
        if isinstance(allocation, Allocation):
            books.confirm(f"p{i}")
            memory_mib = sum(share.memory_mib for share in allocation.shares)
            nodes[name].append(Running(f"p{i}", f"ns/p{i}", f"ns/p{i}", priority, memory_mib, False, preemptible))
    return books, nodes


def subsets(pods):
    return chain.from_iterable(combinations(pods, size) for size in range(1, len(pods) + 1))


def uids_of(pods):
    return [each.uid for each in pods]


@settings(max_examples=150)
@given(PODS, SHAPES)
def test_somebody_goes_if_any_allowed_set_would_help_and_then_none_too_many(pods, shape):
    books, nodes = filled(pods)
    asked, before = wanted("w", shape, 10), state(books)

    def fits(name, gone):
        return books.suppose_without(asked, name, gone) is not None

    found = preempt(Waiting("w", "ns/w", 10), nodes, fits, World(0.0, policy=FREE))
    allowed = {name: [each for each in runs if each.preemptible and each.priority < 10] for name, runs in nodes.items()}
    room = any(fits(name, ()) for name in nodes)
    helps = any(
        fits(name, [each.uid for each in some]) for name, open_to in allowed.items() for some in subsets(open_to)
    )
    assert state(books) == before
    assert isinstance(found, Nobody) == (room or not helps)
    if isinstance(found, Nobody):
        return
    uids = [victim.uid for victim in found.victims]
    assert set(uids) <= {each.uid for each in allowed[found.node]}
    assert not any(
        fits(found.node, [each.uid for each in some]) for some in subsets(found.victims) if len(some) < len(uids)
    )
    for uid in uids:
        books.drop_pod(uid)
    assert isinstance(books.hold(asked, found.node), Allocation)


@settings(max_examples=50)
@given(PODS, SHAPES)
def test_what_is_kept_for_it_is_enough_whatever_else_comes_once_all_have_gone(pods, shape):
    books, nodes = filled(pods)
    asked = wanted("w", shape, 10)
    found = preempt(
        Waiting("w", "ns/w", 10),
        nodes,
        lambda name, gone: books.suppose_without(asked, name, gone) is not None,
        World(0.0, policy=FREE),
    )
    if isinstance(found, Nobody):
        return
    books.nominate(books.suppose_without(asked, found.node, [each.uid for each in found.victims]), 1.0)
    for i, victim in enumerate(found.victims):
        books.drop_pod(victim.uid)
        for j, other in enumerate((slice_of(20000, 40), slice_of(4000, 10), slice_of(1, 0))):
            books.hold(wanted(f"other{i}{j}", other, 99), found.node)
    assert isinstance(books.hold(asked, found.node), Allocation)


@settings(max_examples=100)
@given(PODS, SHAPES, st.lists(st.sets(st.sampled_from([f"p{i}" for i in range(6)])), max_size=6))
def test_asked_repeatedly_with_others_gone_the_books_answer_as_if_asked_anew(pods, shape, questions):
    books, _ = filled(pods)
    asked, before = wanted("w", shape, 10), state(books)
    for name in ("n0", "n1", "elsewhere"):
        with books.trying(asked, name) as fits:
            answers = [fits(gone) for gone in questions]
        assert answers == [books.suppose_without(asked, name, gone) is not None for gone in questions]
    assert state(books) == before
