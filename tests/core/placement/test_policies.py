"""Each policy against numbers worked out by hand from its source."""

from __future__ import annotations

import numpy as np
import pytest

from cardwise.core.placement.choose import choose, tie_ranks
from cardwise.core.placement.links import Link
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policies import POLICIES, Balanced, Dense, DenseWeights, make_policy
from tests.builders import CARD_MIB, card, cluster, cpu_only, node, pod, share_of, slice_of, whole

NVLINK_PAIRS = [
    (Link.NVLINK, Link.NVLINK, Link.NUMA, Link.NUMA),
    (Link.NVLINK, Link.NVLINK, Link.NUMA, Link.NUMA),
    (Link.NUMA, Link.NUMA, Link.NVLINK, Link.NVLINK),
    (Link.NUMA, Link.NUMA, Link.NVLINK, Link.NVLINK),
]


def place(c, policy, request):
    placement = choose(policy, request, tie_ranks(c, 0))
    c.reserve(placement.granted, placement.node_idx, placement.places)
    return c.node_names[placement.node_idx], placement.places


# -------------------------------------------------------------------- best-fit, dot-product, whole-card


def test_best_fit_scores_what_is_left_of_cpu_and_gpu_in_whole_points():
    c = cluster(node(cards=2, cpu_milli=10000))
    # 0.5 · 5000/10000 + 0.5 · 1500/2000 of node and cards are left: score int(100 · (1 − 0.625)) = 37
    assert make_policy("best-fit", c, Mix.of([])).costs(pod(shape=share_of(500, cpu_milli=5000))).tolist() == [-37]


def test_best_fit_takes_the_fullest_card_that_fits():
    c = cluster(node(cards=3))
    c.reserve(pod("a", share_of(300)), 0, [1])
    c.reserve(pod("b", share_of(600)), 0, [2])
    policy = make_policy("best-fit", c, Mix.of([]))
    assert policy.places(pod("x", share_of(300)), 0) == (2,)
    assert policy.places(pod("x", share_of(500)), 0) == (1,)


def test_dot_product_counts_the_cards_in_use_apart_from_the_idle_ones_together():
    c = cluster(node(cards=2, cpu_milli=10000))
    c.reserve(pod("a", share_of(400)), 0, [1])
    # the used card: (0.5 · 10000/10000 + 600/2000 · 500/2000) / 2; the idle one has 1000 and a larger product
    expected = -np.floor(100 * (1 - (1.0 * 0.5 + 0.3 * 0.25) / 2))
    policy = make_policy("dot-product", c, Mix.of([]))
    assert policy.costs(pod("x", share_of(500, cpu_milli=5000))).tolist() == [expected]


def test_whole_card_gives_a_slice_all_of_its_card():
    c = cluster(node(cards=2))
    policy = make_policy("whole-card", c, Mix.of([]))
    place(c, policy, pod("a", share_of(100)))
    assert sorted(c.memory_free_mib[0].tolist()) == [0, CARD_MIB]


def test_whole_card_spreads_by_cpu_and_memory_like_kube_scheduler():
    c = cluster(node("busy", cpu_milli=10000), node("idle", cpu_milli=10000))
    c.reserve(pod("cpu", cpu_only(5000)), 0, [])
    assert place(c, make_policy("whole-card", c, Mix.of([])), pod("a", share_of(100)))[0] == "idle"


def test_first_fit_goes_by_name_however_nodes_are_listed():
    c = cluster(node("b"), node("a"), node("c"))
    assert place(c, make_policy("first-fit", c, Mix.of([])), pod())[0] == "a"


def test_random_draws_again_for_each_pod_and_the_same_for_the_same_pod():
    c = cluster(*(node(f"n{i}") for i in range(20)))
    policy = make_policy("random", c, Mix.of([]), 5)
    ranks = tie_ranks(c, 5)
    chosen = [choose(policy, pod(f"p{i}"), ranks).node_idx for i in range(10)]
    assert len(set(chosen)) > 1
    assert chosen == [choose(policy, pod(f"p{i}"), ranks).node_idx for i in range(10)]


# -------------------------------------------------------------------- fgd


def test_fgd_weighs_what_each_typical_pod_could_no_longer_use():
    # Half of the mix asks for 500 thousandths, half for a whole card. After 500 on one of two cards, the 500 left there
    # is of no use to the second half: 250 more on average; int(100 · sigmoid(−0.25)) = 43.
    half, full = share_of(500, cpu_milli=1000), whole(cpu_milli=1000)
    c = cluster(node(cards=2, cpu_milli=64000))
    assert make_policy("fgd", c, Mix.of([half, full])).costs(pod(shape=half)).tolist() == [-43]


def test_fgd_counts_all_free_gpu_as_lost_to_a_pod_whose_cpu_does_not_fit():
    # Taking the node's last CPU strands the other card: nothing lost before, 1000 after. int(100 · sigmoid(−1)) = 26.
    shape = whole(cpu_milli=1000)
    c = cluster(node(cards=2, cpu_milli=1000))
    assert make_policy("fgd", c, Mix.of([shape])).costs(pod(shape=shape)).tolist() == [-26]


def test_fgd_knows_a_card_model_that_the_typical_pod_may_not_use():
    # To a mix that only runs on A100s the T4 is lost anyway: using it makes the lost amount smaller. Δ = +1: int(73.1).
    shape, mix = whole(), Mix.of([whole(models=frozenset({"A100"}))])
    c = cluster(node("t4", [card(model="T4")]), node("a100", [card(model="A100")]))
    assert make_policy("fgd", c, mix).costs(pod(shape=shape)).tolist() == [-73, -50]


# -------------------------------------------------------------------- balanced (SPEC B2, B4, B5)


def test_balanced_adds_up_the_four_scores_with_the_weights_of_the_spec():
    c = cluster()
    expected = 0.4 * (CARD_MIB - 4096) / CARD_MIB + 0.3 * 0.8 + 0.2 * 0 + 0.1 * 1
    assert Balanced(c).costs(pod())[0] == pytest.approx(-expected)


def test_balanced_goes_by_measured_load_not_by_requests_alone():
    c = cluster(node("hot"), node("cool"))
    c.report_card(0, 0, compute_used_share=0.9)
    c.report_card(1, 0, compute_used_share=0.1)
    assert place(c, Balanced(c), pod())[0] == "cool"


def test_balanced_counts_what_was_reserved_since_the_measurement():
    c = cluster(node("a"), node("b"))
    for i in (0, 1):
        c.report_card(i, 0, compute_used_share=0.1)
    c.reserve(pod("new", slice_of(memory_mib=1, pct=50)), 0, [0])
    factors = Balanced(c).factors(pod("x"), 0)
    assert factors["compute-headroom"] == pytest.approx(1 - 0.1 - 0.5 - 0.2)


def test_balanced_prefers_the_node_that_has_the_weights():
    c = cluster(node("cold"), node("warm", cached_models=frozenset({"llama"})))
    assert place(c, Balanced(c), pod(model_key="llama"))[0] == "warm"


@pytest.mark.parametrize("name", POLICIES)
def test_a_second_replica_never_joins_the_only_node_of_its_service_if_another_fits(name):
    c = cluster(node("big", [card(memory_mib=81920)] * 8), node("small", [card(memory_mib=8192)]))
    policy = make_policy(name, c, Mix.of([slice_of()]))
    nodes = {place(c, policy, pod(f"p{i}", service="s"))[0] for i in range(2)}
    assert nodes == {"big", "small"}


def test_replicas_spread_over_cards_before_they_double_up():
    c = cluster(node(cards=3))
    policy = Balanced(c)
    places = [place(c, policy, pod(f"p{i}", slice_of(memory_mib=10, pct=1), service="s"))[1] for i in range(3)]
    assert sorted(places) == [(0,), (1,), (2,)]


def test_a_pod_of_two_cards_gets_the_pair_with_nvlink():
    c = cluster(node(cards=[card(links=links) for links in NVLINK_PAIRS]))
    c.reserve(pod("a", whole()), 0, [0])
    assert Balanced(c).places(pod("x", whole(cards=2)), 0) == (2, 3)


def test_a_node_whose_cards_are_near_beats_one_whose_cards_are_far():
    far = [(Link.NODE, Link.NODE)] * 2
    near = [(Link.NVLINK, Link.NVLINK)] * 2
    c = cluster(node("far", [card(links=links) for links in far]), node("near", [card(links=links) for links in near]))
    for policy in (Balanced(c), Dense(c, Mix.of([whole(cards=2)]))):
        assert c.node_names[choose(policy, pod("x", whole(cards=2)), tie_ranks(c, 0)).node_idx] == "near"


def test_a_single_card_never_asks_for_links():
    near = cluster(node("a", [card(links=(0, 0)), card(links=(0, 0))]))
    plain = cluster(node("a", cards=2))
    assert Balanced(near).costs(pod()).tolist() == Balanced(plain).costs(pod()).tolist()


# -------------------------------------------------------------------- dense


def test_dense_cuts_where_the_rest_is_still_of_use():
    # 300 of a card with 700 left leaves 400, which the mix asks for; of one with 400 left, 100, which nobody does.
    mix = Mix.of([share_of(300), share_of(400), share_of(700)])
    c = cluster(node("leaves-400"), node("leaves-100"))
    c.reserve(pod("a", share_of(300)), 0, [0])
    c.reserve(pod("b", share_of(600)), 1, [0])
    assert place(c, Dense(c, mix), pod("x", share_of(300)))[0] == "leaves-400"


def test_dense_leaves_cpu_where_free_cards_need_it():
    shape = whole(cpu_milli=8000)
    c = cluster(node("card-free", cpu_milli=16000), node("card-taken", cpu_milli=16000))
    c.reserve(pod("a", whole()), 1, [0])
    assert place(c, Dense(c, Mix.of([shape])), pod("x", cpu_only(12000)))[0] == "card-taken"


def test_dense_keeps_a_whole_node_for_the_shape_that_needs_one():
    mix = Mix.of([*[whole()] * 4, whole(cards=4)])
    c = cluster(node("empty", cards=4), node("begun", cards=4))
    c.reserve(pod("a", whole()), 1, [0])
    assert place(c, Dense(c, mix), pod("x", whole()))[0] == "begun"


@pytest.mark.parametrize("model", ["A100", "A100-SXM4-80GB"])
def test_dense_leaves_a_scarce_model_to_those_who_need_it(model):
    mix = Mix.of([whole(), whole(), whole(models=frozenset({"A100"}))])
    c = cluster(node("a100", [card(model=model)]), *(node(f"t4-{i}", [card(model="T4")]) for i in range(4)))
    assert place(c, Dense(c, mix), pod("x", whole()))[0] != "a100"


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_dense_refuses_weights_that_are_no_costs(value):
    with pytest.raises(ValueError, match=r"weight sliver is .*, must be a number of 0 or more"):
        DenseWeights(sliver=value)


def test_dense_accounts_cards_of_each_size_by_their_own_memory():
    # 8192 MiB are half of a 16 GiB card and a tenth of an 80 GiB card.
    c = cluster(node("small", [card(memory_mib=16384)]), node("large", [card(memory_mib=81920)]))
    policy = Dense(c, Mix.of([slice_of(memory_mib=8192, pct=10)]))
    for i in range(2):
        c.reserve(pod(f"p{i}", slice_of(memory_mib=8192, pct=10)), 0, [0])
    assert np.isinf(policy.costs(pod("x", slice_of(memory_mib=8192, pct=10)))[0])
    assert np.isfinite(policy.costs(pod("x", slice_of(memory_mib=8192, pct=10)))[1])
