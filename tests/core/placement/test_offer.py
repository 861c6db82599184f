"""Of some nodes, those that could take a pod, and why not the others: no node is offered that then refuses."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from cardwise.core.allocation import Allocation
from cardwise.core.placement.offer import offer, scores
from cardwise.core.reasons import Code
from tests.builders import card, node, slice_of, whole
from tests.core.placement.test_assign import ASKS, CARDS, WHO, ask, books_of, claim, init

INITIAL = [node("n0"), node("n1"), node("n2", cards=[card(memory_mib=81920)])]


def offered(books, wanted, rows=None, best=64):
    rows = range(books.cluster.nodes_total) if rows is None else rows
    return offer(books.policy(wanted), wanted, np.array(list(rows), np.intp), best)


def names(books, ranked):
    return [books.cluster.node_names[i] for i in ranked]


def test_nodes_come_cheapest_first_and_equals_in_the_order_of_the_question():
    books = books_of(INITIAL)
    assert names(books, offered(books, claim(ask()), [1, 0, 2]).ranked) == ["n2", "n1", "n0"]


def test_costs_stand_beside_the_nodes_in_ascending_order():
    books = books_of(INITIAL)
    found = offered(books, claim(ask()))
    assert len(found.costs) == len(found.ranked)
    assert found.costs == sorted(found.costs)


def test_only_the_nodes_of_the_question_are_answered():
    books = books_of(INITIAL)
    found = offered(books, claim(ask(shape=slice_of(30000))), [0, 2])
    assert (found.ranked, found.refused) == ([2], {0: Code.CARD_MEMORY})


def test_no_nodes_are_no_answer():
    books = books_of(INITIAL)
    found = offered(books, claim(ask()), [])
    assert (found.ranked, found.refused) == ([], {})


@pytest.mark.parametrize("wanted", [claim(ask()), claim(ask("a"), ask("b"))], ids=["one container", "two"])
def test_no_more_than_the_best_are_offered_and_the_others_are_not_refused(wanted):
    books = books_of(INITIAL)
    found = offered(books, wanted, best=1)
    assert (len(found.ranked), found.refused) == (1, {})


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (claim(ask(shape=slice_of(30000))), Code.CARD_MEMORY),
        (claim(ask(shape=slice_of(cards=2))), Code.NODE_CARDS),
        (claim(ask(), cpu_milli=65000), Code.NODE_CPU),
        (claim(ask("a"), ask("b", slice_of(models=frozenset({"H200"})))), Code.CARD_MODEL),
        (claim(ask("a", slice_of(20000)), ask("b", slice_of(20000))), Code.NODE_TOGETHER),
        (claim(init(shape=whole()), ask(shape=slice_of(30000))), Code.CARD_MEMORY),
    ],
    ids=["memory", "cards", "cpu", "second container", "together", "init and app"],
)
def test_a_node_is_refused_with_the_first_rule_against_it(wanted, code):
    books = books_of([node()])
    assert offered(books, wanted).refused == {0: code}


def test_a_pod_without_an_ask_is_offered_every_node_with_room():
    books = books_of([node("n0"), node("n1", cpu_milli=100)])
    found = offered(books, claim(cpu_milli=500))
    assert (found.ranked, found.refused) == ([0], {1: Code.NODE_CPU})


@pytest.mark.parametrize(
    ("costs", "said"),
    [([], []), ([-0.5], [10]), ([1.0, 1.0 + 1e-12, 2.0], [10, 10, 9]), (list(range(12)), [*range(10, 0, -1), 0, 0])],
    ids=["none", "one", "equals", "more than scores"],
)
def test_costs_become_scores_that_fall_by_one_with_each_dearer_cost(costs, said):
    assert scores(costs, 10) == said


@given(
    st.lists(CARDS, min_size=1, max_size=4),
    st.lists(st.tuples(ASKS, WHO, st.integers(0, 3)), max_size=5),
    ASKS,
    WHO,
    st.integers(1, 5),
)
@settings(max_examples=150)
def test_a_node_that_is_offered_takes_the_pod_and_every_other_says_why_not(cards, present, asks, who, best):
    specs = [node(f"n{i}", cards=each, cpu_milli=6000) for i, each in enumerate(cards)]
    books = books_of(specs)
    for i, (held, whose, where) in enumerate(present):
        books.hold(claim(*held, uid=f"p{i}", **whose), f"n{where}")
    wanted = claim(*asks, **who)
    found = offered(books, wanted, best=best)
    assert not found.refused.keys() & set(found.ranked)
    if len(found.ranked) < best:
        assert found.refused.keys() | set(found.ranked) == set(range(len(specs)))
    for name in names(books, found.ranked):
        assert isinstance(books.hold(wanted, name), Allocation)
        assert not books.conflicts
        books.release("u0")
