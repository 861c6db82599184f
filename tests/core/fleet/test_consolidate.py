"""Who moves for whom, asked of real books: nobody is missed, the pod that waits fits then, and nobody moves in vain."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.core.allocation import Allocation
from cardwise.core.fleet.consolidate import Books, Fixed, Moves, Nobody, Places, Question, Replica, fixed, lacks, search
from cardwise.core.fleet.preempt import Running, Waiting, decided, smallest
from tests.builders import CARD_MIB, card, node, share_of, slice_of, whole
from tests.core.test_ledger import ask, claim, ledger, state

WAITS = Waiting("w", "ns/w", 0)
ANYONE = Question(WAITS, sensitive=True)


def replica(uid="p0", memory_mib=4096, *, priority=0, sensitive=True, service="", beside=True, **more):
    told = {key: more.pop(key) for key in ("starting", "going", "budgets", "queue") if key in more}
    running = Running(uid, f"ns/{uid}", f"ns/{uid}", priority, memory_mib, sensitive, preemptible=False, **told)
    return Replica(running, service or f"ns/{uid}", beside, **more)


def wanted(uid, shape, **more):
    return claim(uid, ask(shape=shape), **more)


def holding(books, *pods):
    """Books that these are bound in, by node. pods: uid, shape, node."""
    nodes = {name: [] for name in books.nodes}
    for uid, shape, name in pods:
        allocation = books.hold(wanted(uid, shape), name)
        if isinstance(allocation, Allocation):
            books.confirm(uid)
            nodes[name].append(replica(uid, sum(share.memory_mib for share in allocation.shares)))
    return nodes


def asked(books, shape, nodes, question=ANYONE, is_open=lambda _uid, _node: True):
    what = wanted("w", shape)
    return decided(search(question, nodes.items(), partial(books.trying, what), Books(books, is_open, what).settle))


def test_two_pieces_on_two_cards_become_one():
    books = ledger(node("n0"), node("n1"))
    nodes = holding(books, ("a", slice_of(16000, 60), "n0"), ("b", slice_of(8000, 30), "n1"))
    found = asked(books, slice_of(20000, 80), nodes)
    assert (found.node, [each.pod.uid for each in found.movers], found.to) == ("n1", ["b"], ("n0",))


def test_nobody_moves_where_the_pieces_do_not_suffice():
    books = ledger(node("n0"), node("n1"))
    nodes = holding(books, ("a", slice_of(16000, 60), "n0"), ("b", slice_of(12000, 30), "n1"))
    found = asked(books, slice_of(20000, 80), nodes)
    assert found.fixed == {Fixed.PLACE: 2}
    assert found.reason.long.startswith("on 2 nodes it would not fit even")
    assert "2 without another place" in found.reason.long


def test_a_successor_is_not_counted_on_what_is_kept_for_the_pod_that_waits():
    """The only free piece is on the card that is to become free."""
    books = ledger(node("n0"))
    nodes = holding(books, ("a", slice_of(8000, 30), "n0"))
    assert isinstance(asked(books, slice_of(20000, 60), nodes), Nobody)


def test_a_replica_may_move_to_another_card_of_the_same_node():
    books = ledger(node("n0", cards=2))
    nodes = holding(books, ("a", slice_of(10000, 30), "n0"), ("b", slice_of(10000, 30), "n0"))
    cards = {share.uuid for each in nodes["n0"] for share in books.allocation_of(each.pod.uid).shares}
    assert len(cards) == 2, "they are spread, as their policy has it"
    found = asked(books, whole(), nodes)
    assert (len(found.movers), found.to) == (1, ("n0",))


def test_a_service_on_two_nodes_is_not_moved_onto_one():
    books = ledger(node("n0"), node("n1"))
    holding(books, ("a", slice_of(16000, 60), "n0"), ("b", slice_of(8000, 30), "n1"))
    beside = {"n0": [], "n1": [replica("b", 8000, service="ns/s", beside_it=frozenset({"n0"}))]}
    assert asked(books, slice_of(20000, 80), beside).fixed == {Fixed.PLACE: 1}
    alone = {"n0": [], "n1": [replica("b", 8000, service="ns/s")]}
    assert isinstance(asked(books, slice_of(20000, 80), alone), Moves)


def test_of_one_service_one_moves_at_a_time():
    books = ledger(node("n0"), node("n1"), node("n2"))
    pods = [("a", slice_of(8000, 30), "n0"), ("b", slice_of(8000, 30), "n0")]
    nodes = holding(books, *pods, ("c", slice_of(12000, 50), "n1"), ("d", slice_of(12000, 50), "n2"))
    same = {"n0": [replica(uid, 8000, service="ns/s") for uid in "ab"]}
    assert isinstance(asked(books, whole(), same), Nobody)
    assert len(asked(books, whole(), {"n0": nodes["n0"]}).movers) == 2


@pytest.mark.parametrize(
    ("why", "told", "question"),
    [
        (Fixed.CONTROLLER, {"beside": False}, ANYONE),
        (Fixed.PROTECTED, {"protected": True}, ANYONE),
        (Fixed.TRAINING, {"training": True}, ANYONE),
        (Fixed.VOLUME, {"has_volume": True}, ANYONE),
        (Fixed.GOING, {"going": True}, ANYONE),
        (Fixed.STARTING, {"starting": True}, ANYONE),
        (Fixed.PRIORITY, {"priority": 1}, ANYONE),
        (Fixed.QUEUE, {"queue": "team-a"}, ANYONE),
        (Fixed.RESTS, {"rests": True}, ANYONE),
        (Fixed.BUDGET, {"budgets": frozenset({"ns/b"})}, ANYONE),
        (Fixed.CLASS, {}, Question(WAITS, sensitive=False)),
        (None, {"budgets": frozenset({"ns/b"})}, Question(WAITS, sensitive=True, allowed={"ns/b": 1})),
        (None, {"sensitive": False}, Question(WAITS, sensitive=False)),
        (None, {}, ANYONE),
    ],
    ids=str,
)
def test_who_may_move(why, told, question):
    assert fixed(replica(**told), question) is why


def test_one_move_is_better_than_two_and_more_than_allowed_are_none():
    books = ledger(node("n0"), node("n1"), node("n2"), node("n3"))
    small = [(f"s{i}", slice_of(4000, 15), "n0") for i in range(2)]
    nodes = holding(books, *small, ("b", slice_of(8000, 30), "n1"), ("c", slice_of(14000, 60), "n2"))
    holding(books, ("d", slice_of(14000, 60), "n3"))
    found = asked(books, whole(), {name: nodes[name] for name in ("n0", "n1")})
    assert [each.pod.uid for each in found.movers] == ["b"]
    one = Question(WAITS, sensitive=True, most=1)
    assert isinstance(asked(books, whole(), {"n0": nodes["n0"]}, one), Nobody)


def test_what_a_node_lacks_is_the_least_that_must_move_off_it():
    shapes = [slice_of(20000, 50), slice_of(100, 90), share_of(900), whole(), slice_of(20000, 10, cards=2)]
    books = ledger(node("n0"), node("n1", cards=2), node("n2", cards=[card(healthy=False)]))
    holding(books, ("a", slice_of(CARD_MIB // 2, 25), "n0"))
    told = [np.round(lacks(books.cluster, shape), 3).tolist() for shape in shapes]
    assert told[0] == [0.314, 0.0, np.inf]
    assert told[1] == [0.15, 0.0, np.inf]
    assert told[2] == [0.4, 0.0, np.inf]
    assert told[3] == [0.5, 0.0, np.inf]
    assert told[4] == [np.inf, 0.0, np.inf]


SHAPES = st.one_of(
    st.builds(slice_of, st.sampled_from([4000, 9000, 14000, 20000]), st.sampled_from([10, 40, 90]), st.integers(1, 2)),
    st.just(whole()),
)
PODS = st.lists(st.tuples(SHAPES, st.sampled_from(["n0", "n1", "n2"])), max_size=9)


def filled(pods):
    books = ledger(node("n0", cards=2), node("n1"), node("n2", cards=[card(memory_mib=40000)]))
    return books, holding(books, *((f"p{i}", *pod) for i, pod in enumerate(pods)))


@settings(max_examples=200)
@given(PODS, SHAPES, st.integers(1, 3))
def test_successors_start_beside_those_that_move_and_then_the_pod_fits(pods, shape, most):
    books, nodes = filled(pods)
    before, what = state(books), wanted("w", shape)
    if any(books.suppose(what, name) for name in nodes):
        return
    found = asked(books, shape, nodes, Question(WAITS, sensitive=True, most=most))
    assert state(books) == before, "nothing is changed by asking"
    if isinstance(found, Nobody):
        return
    assert 1 <= len(found.movers) <= most
    uids = [each.pod.uid for each in found.movers]
    books.nominate(books.suppose_without(what, found.node, uids), 100.0)
    for uid, to in zip(uids, found.to, strict=True):
        moved = books.hold(wanted(f"{uid}+", books.pods[uid].claim.asks[0].shape), to)
        assert isinstance(moved, Allocation), "each successor has a place before anybody has gone"
    for uid in uids:
        books.drop_pod(uid)
    assert isinstance(books.hold(what, found.node), Allocation)
    assert books.conflicts == {}


@settings(max_examples=150)
@given(PODS, SHAPES)
def test_if_one_move_would_do_somebody_moves(pods, shape):
    books, nodes = filled(pods)
    what = wanted("w", shape)
    if any(books.suppose(what, name) for name in nodes):
        return
    on_books = Books(books, lambda _uid, _node: True, what)
    helps = [
        (name, each.pod.uid)
        for name, replicas in nodes.items()
        for each in replicas
        if books.suppose_without(what, name, [each.pod.uid]) and isinstance(on_books.settle(name, [each]), Places)
    ]
    found = asked(books, shape, nodes)
    assert isinstance(found, Moves) or not helps


@settings(max_examples=100)
@given(PODS, SHAPES)
def test_nobody_moves_that_could_stay(pods, shape):
    books, nodes = filled(pods)
    what = wanted("w", shape)
    found = asked(books, shape, nodes)
    if isinstance(found, Nobody) or any(books.suppose(what, name) for name in nodes):
        return
    uids = [each.pod.uid for each in found.movers]
    for fewer in chain.from_iterable(combinations(uids, size) for size in range(len(uids))):
        assert books.suppose_without(what, found.node, fewer) is None


def test_who_may_move_and_may_be_evicted_is_gone_once():
    """Best-effort work of a Deployment is both."""
    books = ledger(node("n0"), node("n1"))
    pods = [("a", slice_of(16000, 60), "n0"), ("b", slice_of(8000, 30), "n1"), ("c", slice_of(6000, 10), "n1")]
    nodes = holding(books, *pods)
    work = replace(nodes["n1"][1].pod, priority=-10, sensitive=False, preemptible=True)
    nodes["n1"][1] = replace(nodes["n1"][1], pod=work)
    on_books = Books(books, lambda _uid, _node: True, wanted("w", slice_of(20000, 80)), {"n1": [work]}, 1)
    found = decided(search(ANYONE, nodes.items(), on_books.opened, on_books.settle))
    assert ([each.pod.uid for each in found.movers], found.to, found.evicts) == (["b"], ("n0",), True)


def with_work(pods, jobs):
    """Books with services and with best-effort work that may be evicted, and what of each runs where.

    Half of the work may move, too.
    """
    books, nodes = filled(pods)
    yielding = {name: [] for name in nodes}
    for i, (shape, name) in enumerate(jobs):
        allocation = books.hold(wanted(f"be{i}", shape), name)
        if isinstance(allocation, Allocation):
            books.confirm(f"be{i}")
            memory_mib = sum(share.memory_mib for share in allocation.shares)
            work = Running(f"be{i}", f"ns/be{i}", f"ns/be{i}", -10, memory_mib, False, preemptible=True)
            yielding[name].append(work)
            if i % 2:
                nodes[name].append(Replica(work, work.owner, beside=True))
    return books, nodes, yielding


@settings(max_examples=200)
@given(PODS, PODS, SHAPES, st.integers(1, 2))
def test_with_few_enough_evicted_for_each_every_successor_has_a_place_and_the_pod_fits(pods, work, shape, most):
    books, nodes, yielding = with_work(pods, work)
    before, what = state(books), wanted("w", shape)
    on_books = Books(books, lambda _uid, _node: True, what, yielding, most)
    found = decided(search(ANYONE, nodes.items(), on_books.opened, on_books.settle))
    assert state(books) == before
    if isinstance(found, Nobody):
        return
    uids = [each.pod.uid for each in found.movers]
    books.nominate(on_books.kept(found.node, uids), 100.0)
    evicted = 0
    for uid, to in zip(uids, found.to, strict=True):
        successor = wanted(f"{uid}+", books.pods[uid].claim.asks[0].shape)
        there = [each for each in yielding[to] if to != found.node and each.uid in books.pods]
        victims = smallest(there, lambda gone, s=successor, t=to: books.suppose_without(s, t, gone) is not None)
        assert victims is not None
        assert len(victims) <= most
        for each in victims:
            books.drop_pod(each.uid)
        evicted += len(victims)
        assert isinstance(books.hold(successor, to), Allocation)
    for uid in uids:
        books.drop_pod(uid)
    there = [each for each in yielding[found.node] if each.uid in books.pods]
    victims = smallest(there, lambda gone: books.suppose_without(what, found.node, gone) is not None)
    assert len(victims) <= most
    for each in victims:
        books.drop_pod(each.uid)
    assert isinstance(books.hold(what, found.node), Allocation)
    assert found.evicts or not evicted + len(victims)
