"""Distance between cards: the tightest set, exactly on small nodes and by gathering on large ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.placement.links import UNKNOWN, Link, link_score, link_scores, spread_of, tightest

TREE_16 = tuple(
    tuple(
        Link.NVLINK
        if i == j
        else Link.PCIE_SWITCH
        if i // 2 == j // 2
        else Link.NUMA
        if i // 8 == j // 8
        else Link.NODE
        for j in range(16)
    )
    for i in range(16)
)
"""Sixteen cards: pairs behind a switch, eight per NUMA node."""


def test_two_cards_behind_one_switch_are_taken_together():
    assert tightest(TREE_16, tuple(range(16)), 2) == (0, 1)


def test_the_set_stays_in_one_numa_node_if_it_fits():
    candidates = (0, 1, 2, 8, 9, 10, 11, 12)
    assert set(tightest(TREE_16, candidates, 5)) == {8, 9, 10, 11, 12}


def test_gathering_is_as_good_as_trying_all_on_a_tree():
    best = min(itertools.combinations(range(16), 4), key=lambda places: spread_of(TREE_16, places))
    assert spread_of(TREE_16, tightest(TREE_16, tuple(range(16)), 4)) == spread_of(TREE_16, best)


def test_without_links_the_preferred_cards_are_taken():
    assert tightest(UNKNOWN, (3, 1, 2), 2) == (3, 1)


@pytest.mark.parametrize(("places", "score"), [((0,), 1.0), ((0, 1), 0.75), ((0, 2), 0.5), ((0, 8), 0.25)])
def test_the_worst_pair_decides_the_score(places, score):
    assert link_score(TREE_16, places) == score


def test_a_node_with_too_few_cards_or_unknown_links_scores_0():
    usable = np.zeros((2, 16), np.bool_)
    usable[0, 0] = usable[1, :4] = True
    assert link_scores((TREE_16, UNKNOWN), [0, 1], usable, 2).tolist() == [0, 0]


@given(st.sets(st.integers(0, 15), min_size=1), st.data())
def test_the_tightest_set_is_among_the_candidates(candidates, data):
    count = data.draw(st.integers(1, len(candidates)))
    chosen = tightest(TREE_16, tuple(sorted(candidates)), count)
    assert len(set(chosen)) == count
    assert set(chosen) <= candidates
