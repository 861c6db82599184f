"""The state and its laws: exact inverses, nothing oversold, snapshots and marks that leave no trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.core.arrays import ALL
from cardwise.core.cluster import MANY_TENANTS, NO_TENANT, OversoldError
from cardwise.core.placement.filter import memory_asked_mib, memory_is_left
from cardwise.core.request import Shape, WorkloadClass
from tests.builders import CARD_MIB, card, cluster, cpu_only, node, pod, share_of, slice_of, whole

CHANGING = [
    "cpu_free_milli",
    "host_memory_free_mib",
    "memory_free_mib",
    "memory_lent_mib",
    "memory_lent_free_mib",
    "compute_free_milli",
    "card_slices",
    "class_slices",
    "card_tenant",
    "exclusive_slices",
]


def state(c):
    arrays = {name: getattr(c, name).tolist() for name in CHANGING}
    books = (set(c.slices), {k: set(v) for k, v in c.on_card.items()}, {k: set(v) for k, v in c.service_slices.items()})
    return arrays, books, c.exclusive_total, list(c.class_total)


def test_a_24_gib_card_holds_five_slices_of_4096_mib_and_20_percent():
    c = cluster()
    for i in range(5):
        c.reserve(pod(f"p{i}"), 0, [0])
    assert c.memory_free_mib[0, 0] == CARD_MIB - 5 * 4096
    assert c.compute_free_milli[0, 0] == 0


def test_the_sixth_slice_is_refused_and_changes_nothing():
    c = cluster()
    for i in range(5):
        c.reserve(pod(f"p{i}"), 0, [0])
    before = state(c)
    with pytest.raises(
        OversoldError, match=r"card n0-card0 on n0 has 4096 MiB and 0 milli left beside 5 slices, p5 asks"
    ):
        c.reserve(pod("p5"), 0, [0])
    assert state(c) == before


def test_a_whole_card_takes_all_its_memory_whatever_its_size():
    c = cluster(node(cards=[card(memory_mib=15109), card(memory_mib=81251)]))
    assert c.reserve(pod(shape=whole(cards=2)), 0, [1, 0]).memory_mib == (15109, 81251)
    assert c.memory_free_mib.sum() == 0


def test_a_whole_card_refuses_a_card_that_holds_a_slice_even_of_no_compute():
    c = cluster()
    c.reserve(pod("small", slice_of(memory_mib=1, pct=0)), 0, [0])
    with pytest.raises(OversoldError, match="as a whole card"):
        c.reserve(pod("big", whole()), 0, [0])


def test_shares_that_sum_to_a_card_fit_it_though_its_memory_does_not_divide():
    c = cluster(node(cards=[card(memory_mib=15109)]))
    for name, milli in (("a", 470), ("b", 320), ("c", 210)):
        c.reserve(pod(name, share_of(milli)), 0, [0])
    assert c.compute_free_milli[0, 0] == 0
    assert c.memory_free_mib[0, 0] >= 0


def test_n_cards_with_m_mib_each_take_m_on_every_card():
    c = cluster(node(cards=3))
    held = c.reserve(pod(shape=slice_of(memory_mib=1024, pct=10, cards=2)), 0, [0, 2])
    assert held.memory_mib == (1024, 1024)
    assert c.memory_free_mib[0].tolist() == [CARD_MIB - 1024, CARD_MIB, CARD_MIB - 1024]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        pytest.param([0, 0], "2 distinct cards", id="the same card twice"),
        pytest.param([0], "2 distinct cards", id="too few"),
        pytest.param([0, 5], r"n0 has 2 cards, got places \(0, 5\)", id="a card that does not exist"),
        pytest.param([-1, 0], r"n0 has 2 cards, got places \(-1, 0\)", id="a place below 0"),
    ],
)
def test_wrong_places_are_refused(places, message):
    c = cluster(node(cards=2), node("n1", cards=6))
    with pytest.raises(ValueError, match=message):
        c.reserve(pod(shape=whole(cards=2)), 0, places)


def test_a_pod_cannot_hold_two_slices():
    c = cluster(node(cards=2))
    c.reserve(pod(), 0, [0])
    with pytest.raises(ValueError, match="p0 already holds a slice"):
        c.reserve(pod(), 0, [1])


def test_a_release_of_an_unknown_pod_is_an_error():
    with pytest.raises(KeyError):
        cluster().release("ghost")


def test_host_cpu_and_memory_are_never_oversold():
    c = cluster(node(cpu_milli=1000, memory_mib=10))
    with pytest.raises(OversoldError, match="1000 milli CPU and 10 MiB left, p0 asks for 1001 and 0"):
        c.reserve(pod(shape=cpu_only(1001)), 0, [])


def test_a_card_knows_whether_one_tenant_or_several_are_on_it():
    c = cluster()
    c.reserve(pod("a", tenant="red"), 0, [0])
    assert c.card_tenant[0, 0] == c.tenant_id("red")
    c.reserve(pod("b", tenant="blue"), 0, [0])
    assert c.card_tenant[0, 0] == MANY_TENANTS
    c.release("a")
    assert c.card_tenant[0, 0] == c.tenant_id("blue")
    c.release("b")
    assert c.card_tenant[0, 0] == NO_TENANT


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        pytest.param([node(), node()], "two nodes are named n0", id="node twice"),
        pytest.param([node(cards=[card("U"), card("U")])], "card U is listed twice", id="card twice"),
        pytest.param([node(cards=[card(memory_mib=0)])], "has 0 MiB", id="card without memory"),
        pytest.param([node(cpu_milli=-1)], "negative CPU -1", id="negative CPU"),
        pytest.param([node(cards=[card(links=(0,)), card()])], "names 1 links", id="links of another node"),
    ],
)
def test_wrong_inventory_is_refused(nodes, message):
    with pytest.raises(ValueError, match=message):
        cluster(*nodes)


# -------------------------------------------------------------------- laws

SHAPES = st.one_of(
    st.builds(slice_of, memory_mib=st.integers(1, CARD_MIB), pct=st.integers(0, 100), cards=st.integers(1, 3)),
    st.builds(share_of, st.integers(1, 1000), cards=st.integers(1, 3)),
    st.builds(whole, cards=st.integers(1, 3)),
    st.builds(cpu_only, st.integers(0, 40000)),
)
MIXED = [card(model="T4", memory_mib=15109), card(), card(model="A100", memory_mib=81251)]


@st.composite
def operations(draw):
    """A few dozen reservations and releases on two nodes of mixed cards, some impossible."""
    steps = []
    for i in range(draw(st.integers(1, 30))):
        shape = draw(SHAPES)
        places = draw(st.permutations(range(3)))[: shape.cards]
        who = pod(
            f"p{i}",
            shape,
            tenant=draw(st.sampled_from(["", "red", "blue"])),
            service=draw(st.sampled_from(["", "s"])),
            exclusive=draw(st.booleans()),
            workload=draw(st.sampled_from(WorkloadClass)),
            mixes=draw(st.booleans()),
        )
        steps.append((draw(st.integers(0, 1)), who, list(places), draw(st.integers(0, 3)) == 0))
    return steps


def play(c, steps):
    for node_idx, who, places, release_one in steps:
        try:
            c.reserve(who, node_idx, places)
        except OversoldError:
            continue
        if release_one:
            c.release(min(c.slices))


def two_nodes():
    return cluster(node("n0", MIXED), node("n1", MIXED))


@given(operations())
def test_no_card_or_node_is_oversold_in_any_dimension(steps):
    c = two_nodes()
    play(c, steps)
    for name in ("cpu_free_milli", "host_memory_free_mib", "memory_free_mib", "compute_free_milli"):
        assert getattr(c, name).min() >= 0


@given(operations())
def test_what_is_free_is_the_total_less_what_slices_hold(steps):
    c = two_nodes()
    play(c, steps)
    memory, compute, count = c.memory_total_mib.copy(), 1000 * c.card_exists.astype(int), np.zeros((2, 3), int)
    for held in c.slices.values():
        for place, mib in zip(held.places, held.memory_mib, strict=True):
            memory[held.node_idx, place] -= mib
            compute[held.node_idx, place] -= held.compute_milli
            count[held.node_idx, place] += 1
    assert memory.tolist() == c.memory_free_mib.tolist()
    assert compute.tolist() == c.compute_free_milli.tolist()
    assert count.tolist() == c.card_slices.tolist()


@given(operations())
def test_releasing_everything_leaves_an_empty_cluster(steps):
    c = two_nodes()
    play(c, steps)
    for name in list(c.slices):
        c.release(name)
    assert state(c) == state(two_nodes())


@given(operations(), operations())
def test_undo_restores_exactly_what_was_before_the_mark(first, then):
    c = two_nodes()
    play(c, first)
    before = state(c)
    mark = c.mark()
    play(c, [(n, pod(f"x-{w.name}", w.shape, tenant=w.tenant), p, r) for n, w, p, r in then])
    c.undo(mark)
    assert state(c) == before


@given(operations(), operations())
def test_marks_nest_and_kept_changes_of_an_inner_mark_go_with_the_outer(first, then):
    c = two_nodes()
    before = state(c)
    outer = c.mark()
    play(c, first)
    inner = c.mark()
    play(c, [(n, pod(f"x-{w.name}", w.shape), p, r) for n, w, p, r in then])
    c.keep(inner)
    c.undo(outer)
    assert state(c) == before


@given(operations(), operations())
@settings(max_examples=30)
def test_a_snapshot_is_deaf_to_what_happens_to_the_original(first, then):
    c = two_nodes()
    play(c, first)
    twin = c.snapshot()
    seen = state(twin)
    play(c, [(n, pod(f"x-{w.name}", w.shape), p, r) for n, w, p, r in then])
    assert state(twin) == seen


@given(operations())
@settings(max_examples=30)
def test_the_original_is_deaf_to_what_happens_to_a_snapshot(steps):
    c = two_nodes()
    before = state(c)
    play(c.snapshot(), steps)
    assert state(c) == before


def test_every_change_gives_the_node_and_only_it_a_new_stamp():
    c = cluster(node("n0"), node("n1"))
    c.reserve(pod(), 1, [0])
    assert c.node_stamp.tolist() == [0, 1]
    c.report_card(0, 0, healthy=False)
    assert c.node_stamp.tolist() == [2, 1]


def test_a_slice_never_lands_on_a_card_held_whole_however_small_its_share():
    c = cluster(node(cards=[card(memory_mib=500)]))  # 1 thousandth of 500 MiB rounds to none
    c.reserve(pod("whole", whole()), 0, [0])
    tiny = pod("tiny", Shape(cards=1, memory_milli=1))
    assert not memory_is_left(c, tiny, ALL).any()
    with pytest.raises(OversoldError):
        c.reserve(tiny, 0, [0])


def test_the_smallest_slice_takes_one_mib_in_state_and_filter_alike():
    c = cluster(node(cards=[card(memory_mib=500)]))
    shape = Shape(cards=1, memory_milli=1)
    assert (c.memory_asked_mib(shape, 0, 0), memory_asked_mib(c, shape)[0, 0]) == (1, 1)


@pytest.mark.parametrize("node_idx", [-1, 2])
def test_a_node_that_is_not_there_is_refused(node_idx):
    c = cluster(node("n0"), node("n1"))
    with pytest.raises(ValueError, match=f"the cluster has 2 nodes, got node_idx {node_idx}"):
        c.reserve(pod(), node_idx, [0])
