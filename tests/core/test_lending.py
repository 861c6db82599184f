"""Memory lent beyond a card: kept apart in the books, so that what is not lent never sums above the card (SPEC E1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.allocation import Allocation, Share
from cardwise.core.claim import LatencyClass
from cardwise.core.cluster import OversoldError
from cardwise.core.ledger import Ledger
from cardwise.core.placement.explain import explain_node, summary
from cardwise.core.placement.filter import card_reason, memory_is_left, usable_cards
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policies import POLICIES, make_policy
from cardwise.core.placement.score import score_free_memory
from cardwise.core.reasons import Code
from tests.builders import CARD_MIB, card, cluster, node, pod, slice_of, whole
from tests.core.test_ledger import ask, balanced, bind, claim, ledger

LENT_MIB = CARD_MIB // 10
FULL = slice_of(CARD_MIB, 0)


def lending(lendable_mib=LENT_MIB, **more):
    return node(cards=[card(lendable_mib=lendable_mib, **more)])


def opted_in(memory_mib=4096, pct=0, **more):
    return slice_of(memory_mib, pct, oversubscribe=True, **more)


def best_effort(uid="be", memory_mib=2000, **more):
    return claim(uid, ask(shape=opted_in(memory_mib)), latency=LatencyClass.BEST_EFFORT, **more)


# ---------------------------------------------------------------- the state


def test_an_opted_in_slice_takes_lent_memory_first_and_the_card_after():
    c = cluster(lending())
    held = c.reserve(pod(shape=opted_in(4096)), 0, [0])
    assert (held.memory_mib, held.lent_mib) == ((4096,), (LENT_MIB,))
    assert c.memory_free_mib[0, 0] == CARD_MIB - (4096 - LENT_MIB)
    assert c.memory_lent_free_mib[0, 0] == 0


def test_a_slice_that_did_not_opt_in_sees_what_it_always_saw():
    c = cluster(lending())
    assert c.reserve(pod(shape=slice_of(4096)), 0, [0]).lent_mib == ()
    assert (c.memory_free_mib[0, 0], c.memory_lent_free_mib[0, 0]) == (CARD_MIB - 4096, LENT_MIB)


def test_on_a_card_that_is_given_away_only_lent_memory_is_left():
    c = cluster(lending())
    c.reserve(pod("ls", FULL), 0, [0])
    assert card_reason(c, pod("more", slice_of(1)), 0, 0).code is Code.CARD_MEMORY
    assert usable_cards(c, pod("be", opted_in(LENT_MIB)))[0, 0]
    assert not usable_cards(c, pod("be", opted_in(LENT_MIB + 1)))[0, 0]


def test_the_reason_says_what_might_be_lent():
    c = cluster(lending())
    c.reserve(pod("ls", FULL), 0, [0])
    reason = card_reason(c, pod("be", opted_in(4096)), 0, 0)
    assert reason.numbers == {"free": 0, "total": CARD_MIB, "asked": 4096, "lent": LENT_MIB}
    assert reason.long == (
        "0 of 24576 MiB are free on the card, the pod asks for 4096 on one card; 2457 MiB more may be lent"
    )


def test_explain_shows_what_is_lent_and_what_may_be():
    c = cluster(lending())
    c.reserve(pod("be", opted_in(2000)), 0, [0])
    view = explain_node(make_policy("balanced", c, Mix.of([])), pod("next", opted_in()), 0)
    assert (view.cards[0].memory_lent_mib, view.cards[0].memory_lent_free_mib) == (2000, LENT_MIB - 2000)


def test_a_lower_ratio_lends_nothing_more_and_throws_nobody_out():
    c = cluster(lending(8000))
    c.reserve(pod("a", opted_in(6000)), 0, [0])
    c.report_card(0, 0, lendable_mib=2000)
    assert (c.memory_lent_mib[0, 0], c.memory_lent_free_mib[0, 0]) == (6000, 0)
    assert c.reserve(pod("b", opted_in(1000)), 0, [0]).lent_mib == ()
    c.release("a")
    assert c.memory_lent_free_mib[0, 0] == 2000


def test_release_and_undo_give_lent_memory_back_though_the_ratio_moved_meanwhile():
    c = cluster(lending(8000))
    mark = c.mark()
    c.reserve(pod("a", opted_in(6000)), 0, [0])
    c.report_card(0, 0, lendable_mib=1000)
    c.undo(mark)
    assert (c.memory_free_mib[0, 0], c.memory_lent_mib[0, 0], c.memory_lent_free_mib[0, 0]) == (CARD_MIB, 0, 1000)


def test_a_snapshot_lends_on_its_own():
    c = cluster(lending(8000))
    twin = c.snapshot()
    twin.reserve(pod("a", opted_in(6000)), 0, [0])
    twin.report_card(0, 0, evicted=frozenset({"s"}))
    assert (c.memory_lent_free_mib[0, 0], c.evicted) == (8000, {})


def test_what_was_lent_before_is_taken_over_whether_or_not_it_may_be_lent_still():
    c = cluster(lending(0))
    c.reserve(pod("ls", FULL), 0, [0])
    assert c.reserve(pod("a", slice_of(5000, 0)), 0, [0], running=True, lent_mib=5000).lent_mib == (5000,)


@pytest.mark.parametrize("lent_mib", [-1, 4097])
def test_more_than_a_slice_takes_cannot_be_lent(lent_mib):
    with pytest.raises(ValueError, match=rf"{lent_mib} MiB cannot be lent of the \(4096,\) MiB"):
        cluster(lending()).reserve(pod(), 0, [0], lent_mib=lent_mib)


def test_the_physical_part_of_a_slice_is_never_oversold():
    c = cluster(lending(8000))
    c.reserve(pod("ls", FULL), 0, [0])
    with pytest.raises(OversoldError, match="has 0 MiB"):
        c.reserve(pod("be", opted_in(8001)), 0, [0])


def test_a_whole_card_is_lent_nothing():
    with pytest.raises(ValueError, match="no memory to lend"):
        whole(oversubscribe=True)


def test_a_card_with_much_to_lend_scores_as_free_as_what_stays_free_of_it():
    c = cluster(node(cards=[card(), card(lendable_mib=4096)]))
    scores = score_free_memory(c, opted_in(4096), slice(None), np.ones((1, 2), np.bool_))
    assert scores[0].tolist() == [pytest.approx(1 - 4096 / CARD_MIB), 1.0]


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - {"whole-card"}))
def test_every_policy_of_slices_places_a_slice_that_only_lent_memory_can_take(name):
    c = cluster(lending())
    policy = make_policy(name, c, Mix.of([opted_in(), slice_of()]))
    c.reserve(pod("ls", FULL), 0, [0])
    wanted = pod("be", opted_in(LENT_MIB))
    assert np.isfinite(policy.costs(wanted)[0])
    assert policy.places(wanted, 0) == (0,)


def test_whole_cards_take_an_opted_in_slice_as_any_other():
    c = cluster(lending())
    policy = make_policy("whole-card", c, Mix.of([opted_in()]))
    granted = policy.granted(pod(shape=opted_in()))
    assert c.reserve(granted, 0, policy.places(granted, 0)).lent_mib == ()


MIXED = st.lists(
    st.tuples(st.booleans(), st.integers(1, CARD_MIB), st.integers(0, CARD_MIB // 2), st.booleans()), max_size=15
)


@given(MIXED)
def test_what_is_not_lent_never_sums_above_the_card_whatever_the_ratio_does(steps):
    c = cluster(lending(0))
    for i, (opted, memory_mib, lendable_mib, goes) in enumerate(steps):
        c.report_card(0, 0, lendable_mib=lendable_mib)
        request = pod(f"p{i}", replace(slice_of(memory_mib, 0), oversubscribe=opted))
        if memory_is_left(c, request, slice(None))[0, 0]:
            c.reserve(request, 0, [0])
        if goes and c.slices:
            c.release(next(iter(c.slices)))
        own = [h.memory_mib[0] for h in c.slices.values() if not h.request.shape.oversubscribe]
        physical = [mib for h in c.slices.values() for _, mib, _ in h.parts]
        lent = [mib for h in c.slices.values() for _, _, mib in h.parts]
        assert sum(own) <= sum(physical) == CARD_MIB - c.memory_free_mib[0, 0] <= CARD_MIB
        assert sum(lent) == c.memory_lent_mib[0, 0]
        assert c.memory_lent_free_mib[0, 0] == max(lendable_mib - sum(lent), 0)


# ---------------------------------------------------------------- who gave memory back


def test_a_service_whose_pod_gave_a_cards_memory_back_is_kept_from_that_card_with_the_reason():
    c = cluster(node(cards=[card(evicted=frozenset({"ns/s"})), card()]))
    again, other = pod("a", service="ns/s"), pod("b", service="ns/t")
    assert card_reason(c, again, 0, 0).code is Code.CARD_EVICTED
    assert "a pod of ns/s had to give this card's memory back" in card_reason(c, again, 0, 0).long
    policy = make_policy("balanced", c, Mix.of([]))
    assert policy.places(again, 0) == (1,)
    assert card_reason(c, other, 0, 0) is None


def test_it_may_come_back_when_the_node_no_longer_says_so():
    c = cluster(node(cards=[card(evicted=frozenset({"s"}))]))
    assert summary(c, pod(service="s")) == "0/1 nodes fit: 1 had to give memory back there"
    c.report_card(0, 0, evicted=frozenset())
    assert (summary(c, pod(service="s")), c.evicted) == ("1/1 nodes fit", {})


# ---------------------------------------------------------------- the ledger


def test_an_allocation_says_what_was_lent_and_the_books_rebuilt_from_it_are_the_same():
    """Case C9."""
    books = ledger(lending())
    bound = bind(books, best_effort(memory_mib=4096))
    assert [share.lent_mib for share in bound.allocation.shares] == [LENT_MIB]
    fresh = Ledger(balanced)
    fresh.reset([lending(0)], [bound])
    assert fresh.cluster.memory_lent_mib.tolist() == books.cluster.memory_lent_mib.tolist() == [[LENT_MIB]]
    assert fresh.cluster.memory_free_mib.tolist() == books.cluster.memory_free_mib.tolist()


def test_a_ratio_that_falls_is_no_conflict():
    books = ledger(lending())
    bind(books, best_effort())
    books.put_node(lending(0))
    assert (books.conflicts, books.cluster.node_fenced.tolist()) == ({}, [False])
    assert books.cluster.memory_lent_mib[0, 0] == 2000


def test_more_to_lend_frees_the_node_for_pods_that_wait_without_building_anew():
    books = ledger(lending(0))
    books.take_freed()
    books.put_node(lending())
    assert (books.outdated, books.take_freed()) == (False, {"n0"})
    assert isinstance(books.hold(best_effort(), "n0"), Allocation)


def test_latency_sensitive_pods_get_all_of_the_card_beside_what_is_lent():
    books = ledger(lending())
    bind(books, best_effort(memory_mib=LENT_MIB))
    assert isinstance(books.hold(claim("ls", ask(shape=FULL)), "n0"), Allocation)


def test_a_guess_that_was_lent_memory_leaves_no_trace():
    books = ledger(lending())
    guess = books.suppose(best_effort(), "n0")
    with books.supposing([guess]):
        assert books.cluster.memory_lent_mib[0, 0] == 2000
    assert books.cluster.memory_lent_mib[0, 0] == 0


def test_an_allocation_from_before_lending_holds_the_card():
    books = ledger(lending())
    bound = bind(books, claim())
    old = replace(bound, allocation=Allocation("n0", (("app", (Share("n0-card0", 4096, 20),)),)))
    books.put_pod(old)
    assert books.cluster.memory_free_mib[0, 0] == CARD_MIB - 4096
