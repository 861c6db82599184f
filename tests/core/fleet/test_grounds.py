"""How long a place is bad before services leave it."""

from __future__ import annotations

import pytest

from cardwise.core.fleet.grounds import Ground, Patience, Why, anew, hear, ripe

PATIENCE = Patience(fenced_s=5, lost_s=60, mps_s=60, most_s=200, forget_s=1000)
CARD = Ground("n0", "c0", Why.FENCED)
NODE = Ground("n0", "", Why.LOST)


def heard(*told):
    """Spells after hearing of (moment, grounds) one after the other."""
    spells = {}
    for now_s, bad in told:
        spells = hear(spells, bad, now_s, PATIENCE)
    return spells


def test_a_lost_node_is_left_after_its_patience_and_not_before():
    spells = heard((0, {NODE}))
    assert ripe(spells, 59, PATIENCE) == set()
    assert ripe(spells, 60, PATIENCE) == {NODE}


def test_a_node_that_comes_back_in_between_begins_anew_and_is_given_twice_the_time():
    spells = heard((0, {NODE}), (50, set()), (55, {NODE}))
    assert ripe(spells, 55 + 119, PATIENCE) == set()
    assert ripe(spells, 55 + 120, PATIENCE) == {NODE}


def test_the_patience_with_a_node_that_toggles_has_an_end():
    toggled = [(t, {NODE} if t % 20 else set()) for t in range(0, 200, 10)]
    spells = heard(*toggled)
    assert spells[NODE].bouts > 5
    assert ripe(spells, 190 + 200, PATIENCE) == {NODE}


def test_a_fenced_card_is_given_no_more_time_however_often_it_was_fenced():
    spells = heard((0, {CARD}), (10, set()), (20, {CARD}))
    assert ripe(spells, 25, PATIENCE) == {CARD}


def test_what_nobody_looked_at_for_a_while_begins_anew_and_counts_as_the_same_bout():
    spells = anew(heard((0, {NODE}), (10, set()), (20, {NODE})), 500)
    assert ripe(spells, 500 + 119, PATIENCE) == set()
    assert ripe(spells, 500 + 120, PATIENCE) == {NODE}
    over = heard((0, {NODE}), (10, set()))
    assert anew(over, 500) == over


def test_what_is_long_over_is_forgotten():
    spells = heard((0, {NODE}), (10, set()), (1010, set()))
    assert spells == {}


def test_what_is_good_again_is_left_by_nobody():
    assert ripe(heard((0, {NODE}), (100, set())), 500, PATIENCE) == set()


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_a_patience_that_cannot_be_is_refused_with_its_name(seconds):
    with pytest.raises(ValueError, match="lost_s is"):
        Patience(lost_s=seconds)
