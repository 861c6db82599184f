"""Cards for all containers of a pod: together or not at all, and what is assigned can be held."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from cardwise.core.allocation import Allocation, BoundPod, holds
from cardwise.core.claim import Claim, ContainerAsk, LatencyClass, Stage
from cardwise.core.ledger import Ledger
from cardwise.core.placement.assign import assign
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policies import POLICIES, make_policy
from cardwise.core.request import Isolation, WorkloadClass
from tests.builders import CARD_MIB, card, cluster, node, pod, share_of, slice_of, whole


def ask(container="app", shape=None, stage=Stage.APP):
    return ContainerAsk(container, stage, shape or slice_of())


def init(container="init", shape=None):
    return ask(container, shape, Stage.INIT)


def sidecar(container="side", shape=None):
    return ask(container, shape, Stage.SIDECAR)


def claim(*asks, uid="u0", **more):
    return Claim(uid, f"ns/{uid}", asks, **more)


def assigned(c, wanted):
    return assign(make_policy("balanced", c, Mix.of([])), wanted, 0)


def cards_of(allocation):
    """Card numbers by container."""
    return {name: [int(share.uuid.rpartition("card")[2]) for share in shares] for name, shares in allocation.containers}


# ---------------------------------------------------------------- one container


def test_a_slice_is_told_in_mib_and_percent_with_the_cards_mode():
    c = cluster(node(cards=[card(isolation=Isolation.MPS)]))
    (share,) = assigned(c, claim(ask(shape=slice_of(5000, 30)))).shares
    assert (share.uuid, share.memory_mib, share.compute_pct, share.whole, share.mode) == (
        "n0-card0",
        5000,
        30,
        False,
        Isolation.MPS,
    )


def test_a_whole_card_is_told_with_all_it_has():
    (share,) = assigned(cluster(), claim(ask(shape=whole()))).shares
    assert (share.memory_mib, share.compute_pct, share.whole) == (CARD_MIB, 100, True)


def test_memory_in_thousandths_is_told_in_the_cards_own_mib():
    (share,) = assigned(cluster(), claim(ask(shape=share_of(500)))).shares
    assert (share.memory_mib, share.compute_pct) == (CARD_MIB // 2, 50)


def test_a_pod_without_an_ask_gets_no_cards_and_is_no_refusal():
    assert assigned(cluster(), claim()) == Allocation("n0", ())


def test_a_slice_for_two_cards_gets_two():
    assert cards_of(assigned(cluster(node(cards=3)), claim(ask(shape=slice_of(cards=2)))))["app"] == [0, 1]


@pytest.mark.parametrize(
    "wanted",
    [claim(ask(shape=slice_of(30000))), claim(ask(shape=slice_of(cards=2))), claim(ask(), cpu_milli=65000)],
    ids=["memory", "cards", "cpu"],
)
def test_a_pod_that_does_not_fit_gets_nothing(wanted):
    assert assigned(cluster(), wanted) is None


def test_assigning_leaves_the_cluster_as_it_was():
    c = cluster(node(cards=2))
    assigned(c, claim(ask("a"), ask("b"), init()))
    assert (c.card_slices.sum(), c.cpu_free_milli[0], c.slices) == (0, 64000, {})


# ---------------------------------------------------------------- several containers


def test_a_whole_card_and_a_slice_get_two_cards_in_the_order_of_the_containers():
    got = cards_of(assigned(cluster(node(cards=2)), claim(ask("small", slice_of()), ask("all", whole()))))
    assert list(got) == ["small", "all"]
    assert got["small"] != got["all"]


def test_a_whole_card_and_a_slice_do_not_fit_on_one():
    assert assigned(cluster(), claim(ask("small"), ask("all", whole()))) is None


def test_the_largest_takes_first_what_only_it_can_use():
    c = cluster(node(cards=[card(memory_mib=8192), card(memory_mib=40960)]))
    got = cards_of(assigned(c, claim(ask("small", slice_of(8000)), ask("large", slice_of(40000)))))
    assert got == {"small": [0], "large": [1]}


def test_containers_share_a_card_if_there_is_but_one():
    got = assigned(cluster(), claim(ask("a", slice_of(12288, 50)), ask("b", slice_of(12288, 50))))
    assert cards_of(got) == {"a": [0], "b": [0]}


def test_each_container_is_held_to_its_own_models():
    c = cluster(node(cards=[card(model="T4"), card(model="A10")]))
    got = assigned(
        c, claim(ask("a", slice_of(models=frozenset({"A10"}))), ask("t", slice_of(models=frozenset({"T4"}))))
    )
    assert cards_of(got) == {"a": [1], "t": [0]}


# ---------------------------------------------------------------- init containers


def test_an_init_container_takes_the_card_of_its_app():
    assert cards_of(assigned(cluster(node(cards=3)), claim(init(), ask()))) == {"init": [0], "app": [0]}


def test_init_containers_take_the_same_card_one_after_the_other():
    c = cluster()
    wanted = claim(init("first", slice_of(20000, 80)), init("second", slice_of(24000, 90)), ask(shape=slice_of(4096)))
    assert cards_of(assigned(c, wanted)) == {"first": [0], "second": [0], "app": [0]}


def test_an_init_container_for_more_cards_adds_free_ones_to_its_apps():
    got = cards_of(assigned(cluster(node(cards=3)), claim(init(shape=slice_of(cards=3)), ask())))
    assert sorted(got["init"]) == [0, 1, 2]


def test_an_init_container_goes_to_another_card_if_its_apps_is_too_full():
    c = cluster(node(cards=2))
    c.reserve(pod("x", slice_of(16000, 10)), 0, [0])
    c.reserve(pod("y", slice_of(10000, 10)), 0, [1])
    got = cards_of(assigned(c, claim(init(shape=slice_of(14000)), ask(shape=slice_of(14000)))))
    assert got == {"init": [1], "app": [1]}


def test_an_init_container_for_a_whole_card_takes_its_apps_if_nobody_else_is_there():
    got = assigned(cluster(), claim(init(shape=whole()), ask()))
    assert cards_of(got) == {"init": [0], "app": [0]}


def test_an_init_container_for_a_whole_card_does_not_take_one_that_others_use():
    c = cluster()
    c.reserve(pod("x", slice_of(1000, 10)), 0, [0])
    assert assigned(c, claim(init(shape=whole()), ask())) is None


def test_an_init_container_beside_a_sidecar_needs_room_for_both():
    """Case C20."""
    wanted = [sidecar(shape=slice_of(4096, 10)), init(shape=slice_of(10240, 10)), ask(shape=slice_of(8192, 20))]
    c = cluster(node(cards=[card(memory_mib=14336)]))
    assert assigned(c, claim(*wanted))
    c = cluster(node(cards=[card(memory_mib=14335)]))
    assert assigned(c, claim(*wanted)) is None


def test_an_init_container_that_needs_more_compute_on_a_card_that_its_app_fills_can_be_held():
    wanted = claim(init(shape=slice_of(CARD_MIB, 60)), ask(shape=slice_of(CARD_MIB, 30)))
    books = books_of([node()])
    allocation = books.hold(wanted, "n0")
    assert not books.conflicts
    assert books.cluster.compute_free_milli[0, 0] == 400
    books.confirm("u0")
    books.put_pod(BoundPod(wanted, "n0", allocation, initialized=True))
    assert books.cluster.compute_free_milli[0, 0] == 700


# ---------------------------------------------------------------- laws

SHAPES = st.one_of(
    st.builds(slice_of, st.integers(1, 30000), st.integers(0, 100), st.integers(1, 3)),
    st.builds(share_of, st.integers(1, 100).map(lambda pct: 10 * pct), st.integers(1, 2)),
    st.builds(whole, st.integers(1, 2)),
)
ASKS = st.lists(st.tuples(st.sampled_from(Stage), SHAPES), max_size=4).map(
    lambda asks: tuple(ContainerAsk(f"c{i}", stage, shape) for i, (stage, shape) in enumerate(asks))
)
WHO = st.fixed_dictionaries(
    {
        "tenant": st.sampled_from(["t0", "t1"]),
        "exclusive": st.booleans(),
        "workload": st.sampled_from(WorkloadClass),
        "mixes": st.booleans(),
        "cpu_milli": st.integers(0, 3000),
    }
)
CARDS = st.lists(
    st.builds(
        card, memory_mib=st.sampled_from([8192, CARD_MIB]), isolation=st.sampled_from([Isolation.ANY, Isolation.MPS])
    ),
    min_size=1,
    max_size=4,
)


def books_of(nodes, name="balanced"):
    books = Ledger(lambda c, mix: dict.fromkeys(LatencyClass, make_policy(name, c, mix)))
    books.reset(nodes, [])
    return books


@given(CARDS, st.lists(st.tuples(ASKS, WHO), min_size=1, max_size=6), st.sampled_from(sorted(POLICIES)))
@settings(max_examples=150)
def test_whatever_is_assigned_can_be_reserved_by_a_ledger_that_reads_it_afresh(cards, wanted, name):
    spec = node(cards=cards, cpu_milli=8000)
    books, bound = books_of([spec], name), []
    for i, (asks, who) in enumerate(wanted):
        asked = claim(*asks, uid=f"u{i}", **who)
        allocation = books.hold(asked, "n0")
        if isinstance(allocation, Allocation):
            books.confirm(asked.uid)
            bound.append(BoundPod(asked, "n0", allocation))
            assert [container for container, _ in allocation.containers] == [each.container for each in asks]
            assert [len(shares) for _, shares in allocation.containers] == [each.shape.cards for each in asks]
    fresh = books_of([spec], name)
    fresh.reset([spec], bound)
    assert not books.conflicts
    assert not fresh.conflicts
    assert fresh.cluster.memory_free_mib.tolist() == books.cluster.memory_free_mib.tolist()
    assert fresh.cluster.compute_free_milli.tolist() == books.cluster.compute_free_milli.tolist()


@given(ASKS)
def test_a_pod_holds_no_less_before_it_is_initialized_than_after(asks):
    books = books_of([node(cards=4)])
    asked = claim(*asks)
    allocation = books.hold(asked, "n0")
    if isinstance(allocation, Allocation):
        before, after = (
            sum(hold.memory_mib for hold in holds(asked, allocation, initialized=done)) for done in (False, True)
        )
        assert before >= after
