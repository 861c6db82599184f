"""What teams are guaranteed and may borrow: hand-worked numbers, and laws that hold for any history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.claim import LatencyClass
from cardwise.core.fleet.quota import (
    DEFAULT,
    NOTHING,
    Amounts,
    Demand,
    Limits,
    Rank,
    Team,
    left_over,
    plan,
    too_much,
    usual,
)

CARD = "A10"
FOUR_CARDS = Amounts(64, 4 * 24576, 400)


def demand(team, *lines, card=CARD, lasts_s=None):
    """Lines of slots, MiB and percent, an hour each if not told."""
    asked = np.array([tuple(line) for line in lines], np.int64).reshape(len(lines), 3)
    return Demand(team, card, asked, np.array(lasts_s or [3600.0] * len(lines), np.float64))


def best_effort(name):
    return Team(name, LatencyClass.BEST_EFFORT)


def planned(demands, teams, capacity=FOUR_CARDS, rule=DEFAULT, in_force=None):
    return plan(demands, teams, {CARD: capacity}, rule, in_force or {})


# ---------------------------------------------------------------- hand-worked


def test_a_latency_sensitive_team_is_guaranteed_its_peak_and_a_fifth_more_and_borrows_nothing():
    made = planned([demand("search", (2, 8192, 40), (5, 20480, 100))], [Team("search")])
    assert made.limits["search"][CARD] == Limits(Amounts(6, 24576, 120), NOTHING, Amounts(6, 24576, 120))
    assert made.shared[CARD] == Amounts(58, 98304 - 24576, 280)


def test_a_best_effort_team_is_guaranteed_its_usual_level_and_borrows_up_to_its_peak():
    lines = demand("batch", (1, 1000, 10), (10, 10000, 100), lasts_s=[95.0, 5.0])
    assert planned([lines], [best_effort("batch")]).limits["batch"][CARD] == Limits(
        Amounts(2, 1200, 12), Amounts(10, 10800, 108), Amounts(2, 1200, 12)
    )


def test_a_critical_team_lends_nothing():
    made = planned([demand("pay", (1, 1000, 10))], [Team("pay", critical=True)])
    assert made.limits["pay"][CARD] == Limits(Amounts(2, 1200, 12))


def test_where_a_card_type_is_short_critical_teams_come_first_and_the_rest_gets_equal_parts():
    demands = [demand("pay", (1, 50000, 10)), demand("a", (1, 60000, 10)), demand("b", (1, 30000, 10))]
    made = planned(demands, [Team("pay", critical=True), Team("a"), Team("b")])
    got = {team: cards[CARD].guaranteed.memory_mib for team, cards in made.limits.items()}
    assert got == {"pay": 60000, "a": 72000 * 38304 // 108000, "b": 36000 * 38304 // 108000}
    (short,) = made.shortfalls
    assert short == (CARD, "memory_mib", Rank.SENSITIVE, 108000, 38304, ("a", "b"))


def test_a_best_effort_team_borrows_no_more_than_there_is_besides():
    made = planned([demand("batch", (1, 1000, 1), (1, 10**6, 1))], [best_effort("batch")])
    limits = made.limits["batch"][CARD]
    assert limits.guaranteed.memory_mib + limits.borrowable.memory_mib == FOUR_CARDS.memory_mib


@pytest.mark.parametrize(
    ("peak_mib", "stays"), [(10000, True), (10999, True), (9001, True), (11200, False), (8900, False)]
)
def test_a_review_leaves_a_number_alone_while_it_is_off_by_a_tenth_at_most(peak_mib, stays):
    before = planned([demand("a", (1, 10000, 10))], [Team("a")])
    after = planned([demand("a", (1, peak_mib, 10))], [Team("a")], in_force=before.limits)
    assert (after.limits == before.limits) is stays
    assert after.moved == (not stays)


def test_numbers_in_force_go_where_they_do_not_fit_any_more():
    before = planned([demand("a", (1, 40000, 10)), demand("b", (1, 40000, 10))], [Team("a"), Team("b")])
    smaller = Amounts(64, 90000, 400)
    demands = [demand("a", (1, 38000, 10)), demand("b", (1, 38000, 10))]
    after = planned(demands, [Team("a"), Team("b")], smaller, in_force=before.limits)
    assert [after.limits[team][CARD].guaranteed.memory_mib for team in "ab"] == [45000, 45000]


def test_a_team_that_asked_for_none_of_a_card_type_has_no_limits_for_it_and_that_counts_as_a_change():
    before = planned([demand("a", (1, 1000, 10))], [Team("a")])
    after = planned([], [Team("a")], in_force=before.limits)
    assert after.limits == {"a": {}}
    assert after.moved == 1


def test_the_usual_level_is_weighed_by_time():
    lines = demand("a", (1, 10, 0), (2, 20, 0), (3, 30, 0), lasts_s=[50.0, 45.0, 5.0])
    assert list(usual(lines, 0.95)) == [2, 20, 0]
    assert list(usual(lines, 0.951)) == [3, 30, 0]
    assert list(usual(lines, 0.5)) == [1, 10, 0]


def test_a_demand_of_nobody_known_is_refused():
    with pytest.raises(ValueError, match="unknown team or card"):
        planned([demand("nobody", (1, 1, 1))], [Team("a")])


def test_more_than_there_is_names_the_cards_and_who_holds_them():
    limits = {"a": {CARD: Limits(Amounts(1, 98304, 1))}, "b": {CARD: Limits(Amounts(1, 1, 1))}}
    (found,) = too_much(limits, {CARD: FOUR_CARDS})
    assert (found.dimension, found.wanted, found.has, found.teams) == ("memory_mib", 98305, 98304, ("a", "b"))


# ---------------------------------------------------------------- laws

AMOUNT = st.integers(0, 2000)
LINES = st.lists(st.tuples(AMOUNT, AMOUNT, AMOUNT), min_size=1, max_size=5)
NAMES = "abcd"


@st.composite
def situations(draw):
    teams = [
        Team(name, draw(st.sampled_from(LatencyClass)), draw(st.booleans()))
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
    ]
    demands = [
        demand(team.name, *draw(LINES), card=card) for team in teams for card in (CARD, "L4") if draw(st.booleans())
    ]
    capacity = {card: Amounts(draw(AMOUNT), draw(AMOUNT), draw(AMOUNT)) for card in (CARD, "L4")}
    return demands, teams, capacity


@given(situations())
def test_what_is_guaranteed_and_what_is_shared_add_up_to_what_there_is(situation):
    demands, teams, capacity = situation
    made = plan(demands, teams, capacity)
    assert too_much(made.limits, capacity) == []
    for card, has in capacity.items():
        assert left_over(made.limits, card, has) == made.shared[card]
        total = [sum(limits[card].guaranteed[i] for limits in made.limits.values() if card in limits) for i in range(3)]
        assert [one + two for one, two in zip(total, made.shared[card], strict=True)] == list(has)


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_teams_and_demands_does_not_matter(situation, random):
    demands, teams, capacity = situation
    made = plan(demands, teams, capacity)
    random.shuffle(demands)
    random.shuffle(teams)
    assert plan(demands, teams, capacity) == made


@given(situations(), situations())
def test_a_second_review_of_the_same_history_changes_nothing(before, situation):
    demands, teams, capacity = situation
    in_force = plan(*before).limits
    first = plan(demands, teams, capacity, in_force=in_force)
    second = plan(demands, teams, capacity, in_force=first.limits)
    assert second.limits == first.limits
    assert second.moved == 0


@given(situations())
def test_nobody_of_a_higher_rank_is_short_while_a_lower_one_has_anything(situation):
    demands, teams, capacity = situation
    made = plan(demands, teams, capacity)
    ranks = {team.name: team.rank for team in teams}
    for short in made.shortfalls:
        i = Amounts._fields.index(short.dimension)
        lower = [name for name, rank in ranks.items() if rank > short.rank and short.card in made.limits[name]]
        # what rounding down leaves of the short rank may go to lower ones: less than a unit per team
        assert sum(made.limits[name][short.card].guaranteed[i] for name in lower) < len(short.teams)


@given(situations())
def test_only_best_effort_borrows_and_critical_teams_lend_nothing(situation):
    demands, teams, capacity = situation
    made = plan(demands, teams, capacity)
    for team in teams:
        for limits in made.limits[team.name].values():
            assert team.rank is Rank.BEST_EFFORT or limits.borrowable == NOTHING
            assert limits.lent == (NOTHING if team.critical else limits.guaranteed)
