"""Handing over: a card is shared as demanded and allocated, or the container does not start; pods count by UID."""

from __future__ import annotations

import pytest

from cardwise.core.allocation import Allocation, Hold, Share
from cardwise.core.card.handover import Demands, Holder, Mismatch, Offered, Refusal, Start, hand_over, most
from cardwise.core.request import Isolation

MPS, SLICED, WHOLE, ANY = Isolation.MPS, Isolation.TIME_SLICING, Isolation.WHOLE, Isolation.ANY


def handed(share, card, demands=None, others=None, **more):
    start = Start("app", ["slot-000"], Allocation("n", (("app", (share,)),)), demands=demands or Demands(), **more)
    mine = [Hold(share.uuid, share.memory_mib, share.compute_pct, share.whole)]
    return hand_over(start, "n", {card.uuid: card}, mine, others or {})


def shared(mode=ANY, *, whole=False):
    return Share("U", 4096, 20, whole, mode)


def card(mode=MPS, *, binds=False):
    return Offered("U", 24576, mode, binds=binds)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(
    ("share", "demands"),
    [
        pytest.param(shared(SLICED), Demands(), id="allocated"),
        pytest.param(shared(), Demands(frozenset({SLICED})), id="demanded"),
        pytest.param(shared(SLICED), Demands(frozenset({SLICED, MPS})), id="allocated, and both would do"),
        pytest.param(shared(), Demands(binding=True), id="hard"),
        pytest.param(shared(whole=True), Demands(frozenset({WHOLE})), id="whole, demanded"),
    ],
)
def test_a_card_that_is_shared_otherwise_refuses_also_a_container_that_ran_before(share, demands, again):
    refusal = handed(share, card(MPS), demands, again=again)
    assert isinstance(refusal, Refusal)
    assert refusal.code is Mismatch.OTHER_MODE


@pytest.mark.parametrize(
    ("share", "demands", "offered"),
    [
        pytest.param(shared(), Demands(), card(), id="nothing said"),
        pytest.param(shared(MPS), Demands(frozenset({MPS})), card(), id="as allocated and demanded"),
        pytest.param(shared(), Demands(binding=True), card(binds=True), id="hard"),
        pytest.param(shared(SLICED, whole=True), Demands(), card(), id="whole"),
        pytest.param(shared(whole=True), Demands(binding=True), card(), id="whole needs no limit"),
    ],
)
def test_a_card_that_is_shared_as_asked_is_handed_over(share, demands, offered):
    assert not isinstance(handed(share, offered, demands), Refusal)


def test_a_container_that_runs_is_entered_however_its_card_is_shared_by_now():
    assert not isinstance(handed(shared(SLICED), card(MPS), Demands(binding=True), again=True, runs=True), Refusal)


def test_two_pods_of_one_name_both_count():
    others = {Holder(uid, "ns/db-0"): [Hold("U", 11000, 10)] for uid in ("u1", "u2")}
    refusal = handed(shared(), card(), others=others)
    assert refusal.text == "card U: 4096 MiB are asked, 2576 of 24576 MiB are free; held by ns/db-0, ns/db-0"


def test_the_most_of_several_tellings_is_told_per_card():
    told = most(
        [Hold("A", 1000, 10), Hold("A", 2000, 20), Hold("B", 1, 1)], [Hold("A", 2500, 50), Hold("C", 5, 5, whole=True)]
    )
    assert told == (Hold("A", 3000, 50), Hold("B", 1, 1), Hold("C", 5, 5, whole=True))
    assert most([], []) == ()


# ---------------------------------------------------------------- lent memory


def lent(memory_mib, lent_mib, uuid="U"):
    return Hold(uuid, memory_mib, 0, lent_mib=lent_mib)


def started(mine, *others):
    share = Share("U", mine.memory_mib, 0, lent_mib=mine.lent_mib)
    start = Start("app", ["slot-000"], Allocation("n", (("app", (share,)),)))
    beside = {Holder(str(i), f"ns/{i}"): [each] for i, each in enumerate(others)}
    return hand_over(start, "n", {"U": card()}, [mine], beside)


def test_lent_memory_needs_no_room_on_the_card_and_is_in_the_grant():
    (grant,) = started(lent(4000, 4000), lent(24576, 0))
    assert (grant.memory_mib, grant.lent_mib) == (4000, 4000)


@pytest.mark.parametrize(
    ("mine", "other", "told"),
    [
        pytest.param(lent(4001, 4000), lent(24576, 0), "1 MiB are asked, 0 of 24576 MiB are free", id="its own part"),
        pytest.param(lent(8000, 0), lent(24576, 4000), "8000 MiB are asked, 4000 of", id="of who is lent nothing"),
        pytest.param(
            lent(8000, 8000),
            lent(5000, 5000),
            "8000 MiB beyond the card are asked beside 5000 that others were lent, and at most 12288 ever may be",
            id="more than may ever be lent",
        ),
    ],
)
def test_what_is_not_lent_never_sums_above_the_card(mine, other, told):
    refusal = started(mine, other)
    assert refusal.code is Mismatch.OVERSOLD
    assert told in refusal.text


def test_of_several_tellings_the_most_of_the_card_counts():
    assert most([lent(4000, 3000)], [lent(3000, 0)]) == (lent(4000, 1000),)
    assert most([lent(4000, 3000)], [lent(4000, 3000)]) == (lent(4000, 3000),)
