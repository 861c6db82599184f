"""The rules of who may go where, each with the reason and the numbers that it gives."""

from __future__ import annotations

import numpy as np
import pytest

from cardwise.core.placement.explain import closest, refusals
from cardwise.core.placement.filter import card_reason, fitting_nodes, node_reason, usable_cards
from cardwise.core.reasons import WORDINGS, Code
from cardwise.core.request import Isolation, WorkloadClass
from tests.builders import CARD_MIB, card, cluster, cpu_only, node, pod, share_of, slice_of, whole


def fits(c, request):
    return fitting_nodes(c, request, usable_cards(c, request)).tolist()


def test_memory_on_other_cards_of_the_node_does_not_add_up():
    c = cluster(node(cards=[card(memory_mib=5120)] * 4))
    assert fits(c, pod(shape=slice_of(memory_mib=8192, pct=10))) == [False]
    reason = card_reason(c, pod(shape=slice_of(memory_mib=8192)), 0, 2)
    assert (reason.code, reason.numbers) == (Code.CARD_MEMORY, {"free": 5120, "total": 5120, "asked": 8192})


def test_cards_of_mixed_size_are_judged_one_by_one():  # case C25
    c = cluster(node(cards=[card(memory_mib=24576), card(memory_mib=81920)]))
    assert usable_cards(c, pod(shape=slice_of(memory_mib=40960, pct=10))).tolist() == [[False, True]]


def test_the_drivers_reserve_is_not_handed_out():  # case C27
    c = cluster(node(cards=[card(memory_mib=14910)]))
    c.reserve(pod("a", slice_of(memory_mib=7680, pct=10)), 0, [0])
    assert fits(c, pod("b", slice_of(memory_mib=7680, pct=10))) == [False]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param({"A10"}, [True, False, False, False], id="A10 is not A100"),
        pytest.param({"H20"}, [False, False, True, False], id="H20 is not H200"),
        pytest.param({"A10", "H200"}, [True, False, False, True], id="several"),
        pytest.param(set(), [True] * 4, id="none means any"),
        pytest.param({"B300"}, [False] * 4, id="a model nobody has"),
    ],
)
def test_models_match_by_whole_words(asked, expected):  # case C24
    c = cluster(*(node(f"n{i}", [card(model=model)]) for i, model in enumerate(["A10", "A100", "H20", "H200"])))
    assert fits(c, pod(shape=slice_of(models=frozenset(asked)))) == expected


@pytest.mark.parametrize(
    ("mode", "shape", "expected"),
    [
        pytest.param(Isolation.MPS, slice_of(), True, id="a slice takes MPS"),
        pytest.param(Isolation.TIME_SLICING, slice_of(), True, id="a slice takes time-slicing"),
        pytest.param(Isolation.ANY, slice_of(isolation=frozenset({Isolation.MPS})), True, id="undecided takes any"),
        pytest.param(Isolation.WHOLE, slice_of(), False, id="no slice on a whole-only card"),
        pytest.param(Isolation.MIG, slice_of(), False, id="MIG must be asked for"),
        pytest.param(Isolation.MIG, slice_of(isolation=frozenset({Isolation.MIG})), True, id="MIG asked for"),
        pytest.param(
            Isolation.TIME_SLICING, slice_of(isolation=frozenset({Isolation.MPS})), False, id="soft limits refused"
        ),
        pytest.param(Isolation.WHOLE, whole(), True, id="whole on whole-only"),
        pytest.param(Isolation.MIG, whole(), False, id="no whole card under MIG"),
    ],
)
def test_a_pod_goes_only_to_modes_it_accepts(mode, shape, expected):  # case C29
    c = cluster(node(cards=[card(isolation=mode)]))
    assert fits(c, pod(shape=shape)) == [expected]


def test_a_fenced_card_takes_nothing_new_but_keeps_what_it_holds():
    c = cluster()
    c.reserve(pod("old"), 0, [0])
    c.report_card(0, 0, healthy=False)
    assert fits(c, pod("new")) == [False]
    assert "old" in c.slices


def test_an_exclusive_pod_shares_only_with_its_tenant():
    c = cluster()
    c.reserve(pod("a", tenant="red"), 0, [0])
    assert card_reason(c, pod("b", tenant="blue", exclusive=True), 0, 0).code is Code.CARD_TENANT
    assert card_reason(c, pod("b", tenant="red", exclusive=True), 0, 0) is None


def test_nobody_else_joins_an_exclusive_pod():
    c = cluster()
    c.reserve(pod("a", tenant="red", exclusive=True), 0, [0])
    assert card_reason(c, pod("b", tenant="blue"), 0, 0).code is Code.CARD_TENANT
    assert card_reason(c, pod("b", tenant="red"), 0, 0) is None


@pytest.mark.parametrize(
    ("held_mixes", "asked_mixes", "allowed"),
    [(False, False, False), (True, False, False), (False, True, False), (True, True, True)],
)
def test_training_and_inference_mix_only_if_both_sides_allow_it(held_mixes, asked_mixes, allowed):
    c = cluster()
    c.reserve(pod("train", workload=WorkloadClass.TRAINING, mixes=held_mixes), 0, [0])
    reason = card_reason(c, pod("serve", mixes=asked_mixes), 0, 0)
    assert (reason is None) is allowed
    assert (
        allowed
        or reason.long == "the card holds training slices and the pod is inference; both sides must allow to mix"
    )


def test_compute_is_told_in_the_percent_that_users_write():
    c = cluster()
    c.reserve(pod("a", slice_of(memory_mib=1, pct=90)), 0, [0])
    assert card_reason(c, pod("b", slice_of(memory_mib=1, pct=20)), 0, 0).long == (
        "10.0 % of the card's compute is free, the pod asks for 20.0 %"
    )


def test_a_whole_card_wants_an_untouched_one():
    c = cluster(node(cards=2))
    c.reserve(pod("a"), 0, [0])
    assert card_reason(c, pod("b", whole()), 0, 0).long == "the card holds 1 slices, the pod asks for a whole card"
    assert node_reason(c, pod("b", whole(cards=2)), 0).long == "1 of the node's 2 cards would do, the pod asks for 2"


@pytest.mark.parametrize(
    ("situation", "code"),
    [
        pytest.param({"schedulable": False}, Code.NODE_CORDONED, id="cordoned"),
        pytest.param({"cpu_milli": 999}, Code.NODE_CPU, id="too little CPU"),
        pytest.param({"memory_mib": 9}, Code.NODE_MEMORY, id="too little host memory"),
    ],
)
def test_a_node_refuses_for_its_own_reasons_first(situation, code):
    c = cluster(node(cards=[card(healthy=False)], **situation))
    assert node_reason(c, pod(shape=slice_of(cpu_milli=1000, host_memory_mib=10)), 0).code is code


def test_a_node_of_which_nobody_reports_cards_says_so_and_not_that_they_are_too_few():
    c = cluster(node("gpu-1", cards=0), node("gpu-2", cards=0, cpu_milli=999), node("gpu-3", cards=1))
    wants = pod(shape=slice_of(cards=2, cpu_milli=1000))
    assert refusals(c, wants) == {Code.NODE_UNKNOWN: 2, Code.NODE_CARDS: 1}
    assert [node_reason(c, wants, i).code for i in range(3)] == [Code.NODE_UNKNOWN, Code.NODE_UNKNOWN, Code.NODE_CARDS]
    assert node_reason(c, wants, 0).long == "no agent reports cards of gpu-1"


def test_a_counted_reason_is_told_of_the_card_with_the_most_memory_that_its_rule_refuses():
    c = cluster(node("a", cards=[card(memory_mib=8192), card(memory_mib=16384)]), node("b", cards=2))
    asks = pod(shape=slice_of(20480))
    node_idx, place, reason = closest(c, asks, Code.CARD_MEMORY, np.array([True, True]))
    assert (c.node_names[node_idx], place, reason.numbers["free"]) == ("a", 1, 16384)
    assert closest(c, asks, Code.CARD_MEMORY, np.array([False, True])) is None
    assert closest(c, asks, Code.CARD_COMPUTE, np.array([True, True])) is None
    other = pod(shape=slice_of(models=frozenset({"T4"})))
    assert closest(c, other, Code.CARD_MODEL, np.array([True, False]))[:2] == (0, 1)
    assert closest(c, other, Code.NODE_TOGETHER, np.array([True, True])) is None


def test_a_node_that_is_cordoned_says_so_whether_or_not_cards_are_reported():
    assert node_reason(cluster(node(cards=0, schedulable=False)), pod(), 0).code is Code.NODE_CORDONED


def test_a_pod_without_cards_goes_to_nodes_without_cards():
    assert fits(cluster(node(cards=0)), pod(shape=cpu_only())) == [True]


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_words_and_advice(code):
    wording = WORDINGS[code]
    assert wording.short
    assert wording.long
    assert wording.advice


def test_codes_are_stable():  # tools match on them: renaming one is a breaking change
    assert sorted(code.value for code in Code) == [
        "card-compute",
        "card-evicted",
        "card-in-use",
        "card-instance",
        "card-isolation",
        "card-limits",
        "card-memory",
        "card-model",
        "card-tenant",
        "card-unhealthy",
        "card-workload",
        "move-changed",
        "move-fruitless",
        "move-nobody",
        "node-cards",
        "node-cordoned",
        "node-cpu",
        "node-fenced",
        "node-memory",
        "node-together",
        "node-unknown",
        "pod-bound",
        "preempt-braked",
        "preempt-budget",
        "preempt-changed",
        "preempt-fruitless",
        "preempt-no-help",
        "preempt-nobody",
        "preempt-rests",
        "preempt-room",
    ]


@pytest.mark.parametrize(
    ("card_binds", "shape", "fits"),
    [
        pytest.param(True, slice_of(binding=True), True, id="hard on a card that binds"),
        pytest.param(False, slice_of(binding=True), False, id="hard on a card that only asks"),
        pytest.param(False, slice_of(), True, id="soft anywhere"),
        pytest.param(False, whole(binding=True), True, id="a whole card needs no limit"),
    ],
)
def test_a_pod_that_demands_hard_limits_goes_where_they_bind(card_binds, shape, fits):
    """Case C29."""
    c = cluster(node(cards=[card(binds=card_binds)]))
    assert usable_cards(c, pod("a", shape))[0, 0] == fits
    reason = card_reason(c, pod("a", shape), 0, 0)
    assert (reason is None) == fits
    assert fits or reason.code is Code.CARD_LIMITS


def test_memory_asked_in_thousandths_rounds_down_like_hami():
    c = cluster(node(cards=[card(memory_mib=15109)]))
    c.reserve(pod("a", share_of(470)), 0, [0])
    assert c.memory_free_mib[0, 0] == 15109 - 7101
    assert np.all(usable_cards(c, pod("b", share_of(530))))


def test_a_24_gib_card_says_why_it_takes_no_sixth_slice():
    c = cluster()
    for i in range(5):
        c.reserve(pod(f"p{i}"), 0, [0])
    assert c.memory_free_mib[0, 0] == CARD_MIB - 5 * 4096
    assert card_reason(c, pod("p5"), 0, 0).short == "too little card compute"
