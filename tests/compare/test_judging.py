"""Two windows: a worse P99 is a regression whatever it saves, chance is none, and silence is unknown."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.compare.figures import p99_of
from cardwise.compare.judging import compare
from cardwise.core.comparison.verdict import Overall, Part, Verdict
from cardwise.core.comparison.words import overall_sentence
from cardwise.errors import UserError
from tests.compare.world import PARTS, service, window

NAMES = ("before", "after")


def told(before, after, **more):
    return compare(before, after, NAMES, **more)


def verdict(comparison, part):
    return next(each.verdict for each in comparison.groups if each.name == part.value)


def change(comparison, what):
    return next(each for each in comparison.changes if each.what == what)


def by_seed(seed, **more):
    return window({"s": service(seed, **more)})


# -------------------------------------------------------------------- quality


def test_a_worse_p99_is_a_regression_though_utilization_rose_and_cards_were_saved():
    before = window({"s": service(1)}, cards={"A10": 4}, busy=0.2, memory_mib=40000)
    after = window({"s": service(2, scale=1.5)}, cards={"A10": 2}, busy=0.4, memory_mib=20000)
    found = told(before, after)
    assert verdict(found, Part.RESOURCES) is Verdict.BETTER
    assert verdict(found, Part.COST) is Verdict.BETTER
    assert change(found, "utilization").verdict is Verdict.BETTER
    assert change(found, "P99 of s").verdict is Verdict.WORSE
    assert found.overall is Overall.REGRESSION
    assert overall_sentence(found) == "after against before: regression: worse service quality."


def test_half_the_cards_at_the_same_p99_are_an_improvement():
    before = window({"s": service(1)}, cards={"A10": 4}, busy=0.2, memory_mib=40000)
    after = window({"s": service(2)}, cards={"A10": 2}, busy=0.4, memory_mib=20000)
    found = told(before, after)
    assert found.overall is Overall.IMPROVEMENT
    assert change(found, "work").verdict is Verdict.SAME
    assert change(found, "per million good answers").change == pytest.approx(-0.5, abs=0.03)


def test_busier_cards_of_the_same_number_are_no_gain_at_equal_load():
    before = window({"s": service(1)}, cards={"A10": 4}, busy=0.2)
    found = told(before, window({"s": service(2)}, cards={"A10": 4}, busy=0.4))
    assert verdict(found, Part.RESOURCES) is Verdict.MIXED


def test_a_rise_by_a_fifth_is_seen_with_its_interval():
    found = change(told(by_seed(1), by_seed(2, scale=1.2)), "P99 of s")
    assert found.verdict is Verdict.WORSE
    assert 0 < found.low < found.change < found.high
    assert found.answers == pytest.approx((19200, 19200), rel=0.03)
    assert found.blocks == (PARTS, PARTS)


def test_what_did_not_change_is_a_regression_no_oftener_than_told():
    """Regressions may be one in forty of what did not change; of 40 pairs more than four are one in three hundred."""
    found = [told(by_seed(2 * i + 1000, drift=0.1), by_seed(2 * i + 1001, drift=0.1)).overall for i in range(40)]
    assert sum(each is Overall.REGRESSION for each in found) <= 4
    assert sum(each is Overall.SAME for each in found) >= 30


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.7, 1.0, 1.3]), st.sampled_from([0.0, 0.05]), st.integers(1, 3))
def test_exchanged_windows_mirror_every_verdict(seed, scale, refused, cards):
    before = window({"s": service(seed)}, cards={"A10": 2}, busy=0.3, alerts=["CardwiseX"])
    after = window(
        {"s": service(seed + 1, scale=scale, refused=refused)}, cards={"A10": cards}, busy=0.3, alerts=["CardwiseY"]
    )
    there, back = told(before, after), told(after, before)
    mirrored = [each.verdict for each in back.changes]
    assert mirrored == [each.verdict.mirrored for each in there.changes]


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 0.3), st.floats(0, 0.95), st.sampled_from([8, 16, PARTS]))
def test_a_window_against_itself_is_never_better_or_worse(seed, drift, alike, parts):
    same = window(
        {"s": service(seed, drift=drift, alike=alike, parts=parts)},
        cards={"A10": 4},
        busy=0.2,
        memory_mib=40000,
        events={"restarts": [1.0] * parts},
        alerts=["CardwiseX"],
        parts=parts,
    )
    found = told(same, same)
    assert {each.verdict for each in found.changes} <= {Verdict.SAME, Verdict.UNKNOWN}
    assert found.overall in {Overall.SAME, Overall.UNKNOWN}


def test_a_drift_that_neighbours_share_is_unknown_and_not_worse():
    found = told(by_seed(20, drift=0.4, alike=0.97), by_seed(21, drift=0.4, alike=0.97))
    assert change(found, "P99 of s").verdict in {Verdict.UNKNOWN, Verdict.SAME}


def test_another_load_says_nothing_of_the_service():
    found = told(by_seed(1), by_seed(2, scale=1.5, per_part=900))
    assert found.overall is Overall.UNKNOWN
    assert found.not_comparable == "s: not comparable: 10.1 requests/s before, 15.0 after"
    assert found.not_comparable in overall_sentence(found)
    assert change(found, "P99 of s").low is None


def test_few_answers_are_no_p99():
    found = told(by_seed(1, per_part=20), by_seed(2, per_part=20))
    assert "too few for a P99, 1,000 are needed" in change(found, "P99 of s").note
    assert found.overall is Overall.UNKNOWN


def test_of_several_services_the_worst_counts():
    before = window({"a": service(1), "b": service(2)})
    after = window({"a": service(3, scale=0.6), "b": service(4, scale=1.5)})
    found = told(before, after)
    assert change(found, "P99 of a").verdict is Verdict.BETTER
    assert found.is_regression


def test_refusals_are_worse_quality_and_failures_worse_stability():
    found = told(by_seed(1), by_seed(2, refused=0.05, failed=0.03))
    assert change(found, "refused by s").verdict is Verdict.WORSE
    assert change(found, "failed by s").verdict is Verdict.WORSE
    assert change(found, "refused by s").change == pytest.approx(0.05, abs=0.01)


def test_the_interval_of_more_figures_is_wider():
    alone = change(told(by_seed(1), by_seed(2)), "P99 of s")
    many = [window({name: service(i + j) for i, name in enumerate("stuvw")}) for j in (1, 2)]
    among = change(told(*many), "P99 of s")
    assert among.high - among.low > alone.high - alone.low


# -------------------------------------------------------------------- what is not known


def test_parts_in_which_prometheus_was_away_are_left_out():
    gaps = msgspec.structs.replace(
        service(2),
        latency_counts=[None] * 8 + service(2).latency_counts[8:],
        answers=[None] * 8 + service(2).answers[8:],
    )
    found = told(by_seed(1), window({"s": gaps}))
    assert change(found, "P99 of s").blocks == (PARTS, PARTS - 8)
    assert change(found, "P99 of s").verdict is Verdict.SAME


def test_what_is_known_of_few_parts_is_unknown():
    few = service(2, per_part=6000)
    gaps = msgspec.structs.replace(few, latency_counts=[None] * 28 + few.latency_counts[28:])
    found = told(by_seed(1, per_part=6000), window({"s": gaps}))
    assert change(found, "P99 of s").note == "known in 4 parts only: 8 are needed"
    assert found.overall is Overall.UNKNOWN


def test_without_agents_resources_and_cost_are_unknown():
    found = told(by_seed(1), by_seed(2))
    assert verdict(found, Part.RESOURCES) is Verdict.UNKNOWN
    assert verdict(found, Part.COST) is Verdict.UNKNOWN


def test_cards_of_other_models_are_not_added_up_without_prices():
    before, after = (window({"s": service(i)}, cards={m: 2}) for i, m in ((1, "A10"), (2, "H100")))
    assert verdict(told(before, after), Part.COST) is Verdict.UNKNOWN
    priced = told(before, after, prices={"A10": 1.0, "H100": 5.0})
    assert change(priced, "per million good answers").change == pytest.approx(4.0, rel=0.05)
    with pytest.raises(UserError, match="no price of H100; give --card-price 'H100=N' as well"):
        told(before, after, prices={"A10": 1.0})


def test_services_of_one_window_only_are_named():
    before = window({"s": service(1), "old": service(2)})
    assert "only before, and not compared: old" in told(before, by_seed(3)).notes
    with pytest.raises(UserError, match="no service in common"):
        told(window({"a": service(1)}), window({"b": service(1)}))


def test_what_prometheus_warned_of_is_told():
    found = told(by_seed(1), window({"s": service(2)}, warnings=["store away"]))
    assert "after: Prometheus warned: store away" in found.notes


# -------------------------------------------------------------------- events


def spread(count):
    """So many events, each in a part of its own."""
    return {"restarts": [1.0] * count + [0.0] * (PARTS - count)}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (spread(0), spread(0), Verdict.SAME),
        (spread(0), spread(1), Verdict.UNKNOWN),
        (spread(1), spread(20), Verdict.WORSE),
        (spread(20), spread(1), Verdict.BETTER),
        (spread(0), {"restarts": [20.0] + [0.0] * (PARTS - 1)}, Verdict.UNKNOWN),
        ({}, spread(20), Verdict.UNKNOWN),
    ],
    ids=["none", "one", "many", "few", "many at once", "not known"],
)
def test_restarts_are_judged_as_what_happens_now_and_then(before, after, expected):
    found = told(window({"s": service(1)}, events=before), window({"s": service(2)}, events=after))
    assert change(found, "restarts").verdict is expected
    assert found.is_regression is (expected is Verdict.WORSE)


@pytest.mark.parametrize(
    ("before", "after", "expected", "note"),
    [
        (None, None, Verdict.UNKNOWN, "none in either window, or no rules are loaded"),
        ([], [], Verdict.SAME, ""),
        (["CardwiseX"], ["CardwiseX"], Verdict.SAME, ""),
        (None, ["CardwiseX"], Verdict.WORSE, "only after: CardwiseX"),
        (["CardwiseX"], [], Verdict.BETTER, "only before: CardwiseX"),
        (["CardwiseX"], ["CardwiseY"], Verdict.MIXED, "only after: CardwiseY; only before: CardwiseX"),
    ],
)
def test_an_alert_that_fired_only_after_is_worse(before, after, expected, note):
    found = told(window({"s": service(1)}, alerts=before), window({"s": service(2)}, alerts=after))
    assert change(found, "alerts").verdict is expected
    assert change(found, "alerts").note == note
    assert found.is_regression is (expected in {Verdict.WORSE, Verdict.MIXED})


# -------------------------------------------------------------------- the P99


@pytest.mark.parametrize(
    ("counts", "p99"),
    [
        ([100, 0, 0], 0.99),
        ([98, 2, 0], 1.5),
        ([0, 100, 0], 1.99),
        ([0, 0, 5], 2.0),
        ([0, 0, 0], np.nan),
    ],
    ids=["first bucket", "half into the second", "second", "beyond the last", "nothing"],
)
def test_the_p99_is_as_promql_has_it(counts, p99):
    """Bounds 1 s and 2 s; the 99th of 100 lies that share into its bucket."""
    assert p99_of([1.0, 2.0])(np.array([counts], float))[0] == pytest.approx(p99, nan_ok=True)
