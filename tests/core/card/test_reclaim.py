"""Who gives memory back when a card is nearly full."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.card.reclaim import Holder, reclaim

HOLDERS = st.lists(
    st.builds(
        Holder,
        name=st.text("abcdef", min_size=1, max_size=6),
        best_effort=st.booleans(),
        used_mib=st.integers(0, 5000),
        granted_mib=st.integers(0, 5000),
        priority=st.integers(-2, 2),
        restart_s=st.sampled_from([0.0, 10.0, 60.0]),
        started_s=st.sampled_from([0.0, 1.0, 2.0]),
        going=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda holder: holder.name,
)


def best_effort(name, used=1000, **more):
    return Holder(name, best_effort=True, used_mib=used, granted_mib=more.pop("granted_mib", used), **more)


def names(found):
    return [victim.name for victim in found.victims]


def test_case_c39_the_latency_pod_is_untouched_and_the_card_comes_down_to_the_low_mark():
    latency = Holder("latency", best_effort=False, used_mib=40_000, granted_mib=40_000)
    older, newer = best_effort("older", 16_000, started_s=1), best_effort("newer", 17_728, started_s=2)
    found = reclaim([latency, older, newer], 73_728, 81_920, 0.85)
    assert names(found) == ["newer"]
    assert found.victims[0].expected_mib == 56_000 <= 0.85 * 81_920
    assert found.short_mib == 0


def test_the_order_is_priority_then_cost_of_a_restart_then_age_then_excess():
    holders = [
        best_effort("excess", granted_mib=0),
        best_effort("old", granted_mib=500),
        best_effort("new", started_s=9, granted_mib=500),
        best_effort("costly", restart_s=60),
        best_effort("urgent", priority=5),
    ]
    assert names(reclaim(holders, 100_000, 1000, 0.5)) == ["new", "excess", "old", "costly", "urgent"]


def test_no_more_go_than_it_takes():
    holders = [best_effort(str(i), started_s=i) for i in range(5)]
    assert names(reclaim(holders, 9500, 10_000, 0.85)) == ["4"]


def test_who_is_going_already_counts_as_gone_and_is_not_told_twice():
    holders = [best_effort("a", going=True), best_effort("b", started_s=1)]
    assert names(reclaim(holders, 9400, 10_000, 0.85)) == []


def test_who_uses_nothing_is_not_ended_for_nothing():
    assert names(reclaim([best_effort("idle", 0)], 9500, 10_000, 0.85)) == []


def test_what_best_effort_slices_cannot_give_is_told():
    latency = Holder("latency", best_effort=False, used_mib=9000, granted_mib=9000)
    found = reclaim([latency, best_effort("be", 400)], 9400, 10_000, 0.85)
    assert names(found) == ["be"]
    assert found.short_mib == 500


@given(HOLDERS, st.integers(0, 20_000), st.integers(1, 20_000))
def test_laws_of_reclaim(holders, other_mib, total_mib):
    used_mib = other_mib + sum(holder.used_mib for holder in holders)
    found = reclaim(holders, used_mib, total_mib, 0.85)
    by_name = {holder.name: holder for holder in holders}
    chosen = [by_name[name] for name in names(found)]
    assert all(holder.best_effort and not holder.going and holder.used_mib for holder in chosen)
    assert len(set(names(found))) == len(chosen)
    left = used_mib - sum(holder.used_mib for holder in holders if holder.going or holder in chosen)
    target = int(0.85 * total_mib)
    assert found.short_mib == max(left - target, 0)
    if found.short_mib:  # then nobody who could have helped was left
        assert all(h in chosen or h.going or not h.best_effort or not h.used_mib for h in holders)
    elif chosen:  # without the last one it would not have been enough
        assert left + chosen[-1].used_mib > target
    assert found == reclaim(reversed(holders), used_mib, total_mib, 0.85)
