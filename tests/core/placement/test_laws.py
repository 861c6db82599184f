"""Laws that hold for every policy on any cluster and any history of placements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.core.cluster import Cluster
from cardwise.core.placement.choose import choose, tie_ranks
from cardwise.core.placement.explain import explain_node, refusals
from cardwise.core.placement.filter import card_reason, fitting_nodes, identity_allows, node_reason, usable_cards
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policies import POLICIES, make_policy
from cardwise.core.placement.score import (
    score_compute_headroom,
    score_domain_spread,
    score_free_memory,
    score_model_cache,
)
from cardwise.core.request import Isolation, WorkloadClass
from tests.builders import card, cluster, cpu_only, node, pod, share_of, slice_of, whole

EVERY_POLICY = pytest.mark.parametrize("name", POLICIES)
MODELS = {"T4": 15109, "A10": 22731, "A100": 81251}
SHAPES = [
    share_of(810, cpu_milli=3152, host_memory_mib=5600),
    share_of(470, cpu_milli=8000, host_memory_mib=30517),
    share_of(320, cpu_milli=4000, host_memory_mib=22888),
    share_of(50),
    slice_of(),
    slice_of(memory_mib=30000, pct=5),
    slice_of(memory_mib=1024, pct=30, cards=2),
    slice_of(memory_mib=16000, pct=0, oversubscribe=True),
    slice_of(memory_mib=9000, pct=10, cards=2, oversubscribe=True),
    slice_of(models=frozenset({"A100"}), cpu_milli=2000),
    slice_of(isolation=frozenset({Isolation.MPS})),
    slice_of(memory_mib=6000, pct=10, isolation=frozenset({Isolation.MIG, Isolation.MPS})),
    whole(cpu_milli=11300, host_memory_mib=49152),
    whole(cards=2, cpu_milli=16200),
    whole(cards=4, models=frozenset({"A10", "T4"})),
    cpu_only(15400, host_memory_mib=51200),
]
MIX = Mix.of([shape for i, shape in enumerate(SHAPES) for _ in range(1 + i % 3)])


@st.composite
def nodes(draw):
    """A few nodes of mixed cards, some fenced, some cordoned, some without cards."""
    made = []
    for i in range(draw(st.integers(1, 5))):
        cards = [
            card(
                model=model,
                memory_mib=MODELS[model],
                healthy=draw(st.integers(0, 5)) > 0,
                isolation=isolation,
                lendable_mib=draw(st.sampled_from([0, 0, 1, 1500, 7000])),
                evicted=draw(st.sampled_from([frozenset(), frozenset({"s"})])),
            )
            for model, isolation in draw(
                st.lists(st.tuples(st.sampled_from(sorted(MODELS)), st.sampled_from(Isolation)), max_size=5)
            )
        ]
        made.append(
            node(
                f"n{i}",
                cards,
                cpu_milli=draw(st.sampled_from([4000, 32000, 96000])),
                memory_mib=draw(st.sampled_from([65536, 393216])),
                domain=draw(st.sampled_from(["", "a", "b"])),
                schedulable=draw(st.integers(0, 5)) > 0,
            )
        )
    return made


@st.composite
def pods(draw, most=12):
    return [
        pod(
            f"p{i}",
            draw(st.sampled_from(SHAPES)),
            service=draw(st.sampled_from(["", "s", "t"])),
            tenant=draw(st.sampled_from(["", "red"])),
            exclusive=draw(st.integers(0, 4)) == 0,
            workload=draw(st.sampled_from(WorkloadClass)),
            mixes=draw(st.booleans()),
        )
        for i in range(draw(st.integers(1, most)))
    ]


def place_all(c, policy, ranks, requests):
    chosen = []
    for request in requests:
        placement = choose(policy, request, ranks)
        chosen.append(None if placement is None else (c.node_names[placement.node_idx], placement.places))
        if placement is not None:
            c.reserve(placement.granted, placement.node_idx, placement.places)
    return chosen


@EVERY_POLICY
@given(nodes(), pods())
@settings(max_examples=25)
def test_a_choice_can_be_reserved_and_no_choice_means_that_every_node_has_a_reason(name, specs, requests):
    c = cluster(*specs)
    policy, ranks = make_policy(name, c, MIX), tie_ranks(c, 1)
    for request in requests:
        placement = choose(policy, request, ranks)
        if placement is None:
            granted = policy.granted(request)
            assert all(node_reason(c, granted, i) is not None for i in range(c.nodes_total))
            assert sum(refusals(c, granted).values()) == c.nodes_total
        else:
            c.reserve(placement.granted, placement.node_idx, placement.places)  # raises if it does not fit


@EVERY_POLICY
@given(nodes(), pods(), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_the_order_in_which_nodes_are_listed_changes_nothing(name, specs, requests, random):
    shuffled = list(specs)
    random.shuffle(shuffled)
    chosen = []
    for order in (specs, shuffled):
        c = cluster(*order)
        chosen.append(place_all(c, make_policy(name, c, MIX, 7), tie_ranks(c, 7), requests))
    assert chosen[0] == chosen[1]


@EVERY_POLICY
@given(nodes(), pods(), st.data())
@settings(max_examples=25)
def test_kept_costs_equal_costs_worked_out_afresh(name, specs, requests, data):
    c = cluster(*specs)
    policy, ranks = make_policy(name, c, MIX), tie_ranks(c, 1)
    for request in requests:
        placement = choose(policy, request, ranks)
        if placement is not None:
            c.reserve(placement.granted, placement.node_idx, placement.places)
        if c.slices and data.draw(st.booleans()):
            c.release(data.draw(st.sampled_from(sorted(c.slices))))
        if data.draw(st.integers(0, 3)) == 0 and c.cards_total:
            i, p = (int(x) for x in np.argwhere(c.card_exists)[0])
            c.report_card(i, p, healthy=data.draw(st.booleans()), compute_used_share=0.5)
    for shape in SHAPES:
        fresh = make_policy(name, c, MIX)
        np.testing.assert_allclose(policy.costs(pod("x", shape)), fresh.costs(pod("x", shape)), rtol=1e-9, atol=1e-9)


@EVERY_POLICY
@given(nodes(), pods())
@settings(max_examples=15)
def test_asking_twice_gives_the_same_answer(name, specs, requests):
    c = cluster(*specs)
    policy, ranks = make_policy(name, c, MIX, 3), tie_ranks(c, 3)
    place_all(c, policy, ranks, requests)
    assert choose(policy, pod("x"), ranks) == choose(policy, pod("x"), ranks)


@EVERY_POLICY
@given(nodes(), pods())
@settings(max_examples=15)
def test_explain_agrees_with_the_cost(name, specs, requests):
    c = cluster(*specs)
    policy = make_policy(name, c, MIX)
    place_all(c, policy, tie_ranks(c, 1), requests)
    for i in range(c.nodes_total):
        view = explain_node(policy, pod("x", requests[0].shape), i)
        assert (view.reason is None) == np.isfinite(view.cost)
        assert len(view.places) == (requests[0].shape.cards if view.reason is None else 0)


@given(nodes(), pods(), st.sampled_from(SHAPES), st.integers(1, 50000), st.integers(1, 1000))
@settings(max_examples=50)
def test_more_free_memory_or_compute_never_turns_yes_into_no(specs, requests, shape, more_mib, more_milli):
    c = cluster(*specs)
    place_all(c, make_policy("best-fit", c, MIX), tie_ranks(c, 1), requests)
    before = fitting_nodes(c, pod("x", shape), usable_cards(c, pod("x", shape)))
    c.memory_free_mib += more_mib
    c.compute_free_milli += more_milli
    after = fitting_nodes(c, pod("x", shape), usable_cards(c, pod("x", shape)))
    assert np.all(after >= before)


@given(nodes(), pods(), st.sampled_from(SHAPES))
@settings(max_examples=50)
def test_scores_lie_between_0_and_1(specs, requests, shape):
    c = cluster(*specs)
    place_all(c, make_policy("balanced", c, MIX), tie_ranks(c, 1), requests)
    everywhere, usable = slice(None), usable_cards(c, pod("x", shape))
    for score in (
        score_free_memory(c, shape, everywhere, usable),
        score_compute_headroom(c, shape, everywhere, usable),
        score_domain_spread(c, "s", everywhere),
        score_model_cache(c, "m", everywhere),
    ):
        assert score.min(initial=0) >= 0
        assert score.max(initial=0) <= 1


@EVERY_POLICY
def test_a_cluster_without_nodes_or_a_mix_without_pods_is_no_special_case(name):
    empty = Cluster.build([])
    assert choose(make_policy(name, empty, Mix.of([])), pod(), tie_ranks(empty, 1)) is None
    one = cluster()
    placement = choose(make_policy(name, one, Mix.of([])), pod(), tie_ranks(one, 1))
    assert placement.places == (0,)


@given(nodes(), pods())
@settings(max_examples=40)
def test_a_card_is_usable_exactly_if_it_has_no_reason(specs, requests):
    c = cluster(*specs)
    place_all(c, make_policy("best-fit", c, MIX), tie_ranks(c, 1), requests)
    for request in (each for each in requests if each.shape.cards):
        usable = usable_cards(c, request)
        allowed = identity_allows(c, request)
        usable = usable if allowed is None else usable & allowed
        for i, p in np.argwhere(c.card_exists):
            assert bool(usable[i, p]) is (card_reason(c, request, int(i), int(p)) is None)


@given(nodes(), pods())
@settings(max_examples=40)
def test_what_is_derived_from_a_card_follows_it(specs, requests):
    c = cluster(*specs)
    place_all(c, make_policy("best-fit", c, MIX), tie_ranks(c, 1), requests)
    for i, p in np.argwhere(c.card_exists):
        milli = c.memory_free_mib[i, p] * 1000 // c.memory_total_mib[i, p]
        shut = not c.card_healthy[i, p] or (c.isolation_of(i, p) is Isolation.MIG and c.card_slices[i, p])
        assert c.free_milli[i, p] == (0 if shut else min(milli, c.compute_free_milli[i, p]))
        spec = c.cards[i][p]
        kind = (spec.model, Isolation(int(c.card_isolation[i, p])), bool(c.card_healthy[i, p]), spec.binds)
        assert c.kind_of(int(c.card_kind[i, p])) == kind
