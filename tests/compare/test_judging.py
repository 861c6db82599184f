"""Two windows: a worse P99 is a regression whatever it saves, chance is none, and silence is unknown."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.compare.figures import DRIFT, Figure, judge, over, p99_of
from cardwise.compare.judging import compare
from cardwise.core.comparison.verdict import Overall, Part, Verdict
from cardwise.core.comparison.words import overall_sentence, text_of
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


@pytest.mark.parametrize(
    ("lost", "what"),
    [
        ({"refused": 0.009}, "refused by s"),
        ({"left": 0.02}, "callers of s that left"),
        ({"wrong": 0.5}, "other 4xx of s"),
    ],
    ids=["refusals within the last hundredth", "callers that left", "requests that were good before"],
)
def test_a_p99_that_is_better_for_what_was_lost_is_no_improvement(lost, what):
    before = window({"s": service(1, left=0.0)})
    found = told(before, window({"s": service(2, scale=0.5, **{"left": 0.0, **lost})}))
    assert change(found, "P99 of s").verdict is Verdict.BETTER
    assert change(found, what).verdict is Verdict.WORSE
    assert found.overall is Overall.REGRESSION


def test_failures_that_may_be_chance_are_not_called_good():
    """All in one part of 32: three in a hundred answers, and none to be sure of."""
    burst = service(2, scale=0.5)
    burst = msgspec.structs.replace(burst, failed=[500.0] + [0.0] * (PARTS - 1))
    found = told(by_seed(1), window({"s": burst}))
    assert change(found, "P99 of s").verdict is Verdict.BETTER
    assert change(found, "failed by s").verdict is Verdict.UNKNOWN
    assert found.overall is Overall.UNKNOWN
    assert "failed by s: too little data to tell" in overall_sentence(found)


def test_of_many_refused_as_before_a_little_more_is_no_difference():
    found = told(by_seed(1, refused=0.3, per_part=20000), by_seed(2, refused=0.305, per_part=20000))
    assert change(found, "refused by s").low > 0
    assert change(found, "refused by s").verdict is Verdict.SAME


def test_p99s_beyond_the_last_bucket_are_unknown_and_not_equal():
    """Both 60 s to PromQL, whatever they are."""
    beyond = [[0.0] * 15 + [600.0]] * PARTS
    slow, slower = (msgspec.structs.replace(service(i), latency_counts=beyond) for i in (1, 2))
    found = told(window({"s": slow}), window({"s": slower}))
    assert change(found, "P99 of s").verdict is Verdict.UNKNOWN
    assert "both beyond the last bucket, 60 s" in overall_sentence(found)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"per_part": 1800, "failed": 0.9}, Verdict.WORSE),
        ({}, {"per_part": 300, "failed": 0.9}, Verdict.WORSE),
        ({}, {"per_part": 1800, "failed": 0.2}, Verdict.UNKNOWN),
        ({"failed": 0.01}, {"per_part": 60, "failed": 0.1}, Verdict.UNKNOWN),
        ({"per_part": 1800, "failed": 0.9}, {}, Verdict.BETTER),
    ],
    ids=["callers that try again", "callers that went", "more load than it can take", "one broken caller", "mended"],
)
def test_failures_do_not_hide_behind_the_load_that_they_change(before, after, expected):
    found = told(by_seed(1, **before), by_seed(2, **after))
    assert change(found, "failed by s").verdict is expected
    assert change(found, "P99 of s").verdict is Verdict.UNKNOWN
    assert found.is_regression is (expected is Verdict.WORSE)


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


def test_cards_of_a_service_that_is_gone_are_no_saving():
    before = window({"s": service(1), "gone": service(2)}, cards={"A10": 4}, busy=0.2)
    found = told(before, window({"s": service(3)}, cards={"A10": 2}, busy=0.2))
    assert verdict(found, Part.RESOURCES) is Verdict.UNKNOWN
    assert verdict(found, Part.COST) is Verdict.UNKNOWN
    assert change(found, "cards").note == "not comparable: other services ran (gone); choose by --service"
    assert found.overall is Overall.SAME


@pytest.mark.parametrize(("per_part", "expected"), [(14, Verdict.SAME), (300, Verdict.UNKNOWN)])
def test_cards_are_judged_though_the_load_of_a_small_service_differs(per_part, expected):
    sides = [
        window({"s": service(i), "t": service(i + 9, per_part=per_part * (1 + i))}, cards={"A10": 2}) for i in (0, 1)
    ]
    assert verdict(told(*sides), Part.RESOURCES) is expected


def test_a_service_that_nobody_asked_is_not_in_the_way():
    idle = service(1, per_part=0)
    found = told(window({"s": service(1), "idle": idle}), window({"s": service(2), "idle": idle}))
    assert found.overall is Overall.SAME
    assert "no request in either window, and not compared: idle" in found.notes


def test_what_is_unknown_is_named_in_the_sentence():
    found = told(by_two(1, 3, 200, 20), by_two(2, 4, 200, 20))
    assert overall_sentence(found).startswith("after against before: unknown: P99 of few: 6")
    assert "too few for a P99, 1,000 are needed" in overall_sentence(found)


def by_two(seed, seed_of_few, per_part, of_few, **more):
    return window({"s": service(seed, per_part=per_part), "few": service(seed_of_few, per_part=of_few, **more)})


def test_a_service_that_is_hardly_asked_does_not_keep_the_others_from_a_verdict():
    found = told(by_two(1, 3, 600, 20), by_two(2, 4, 600, 20))
    assert change(found, "P99 of few").verdict is Verdict.UNKNOWN
    assert found.overall is Overall.SAME
    assert overall_sentence(found) == (
        "after against before: no difference (not known, of services with 3.3 % of all requests: P99 of few)."
    )


def test_a_regression_of_the_smallest_service_is_one():
    found = told(by_two(1, 3, 6000, 150), by_two(2, 4, 6000, 150, scale=2.0))
    assert change(found, "P99 of few").verdict is Verdict.WORSE
    assert found.is_regression
    failing = told(by_two(1, 3, 600, 20), by_two(2, 4, 600, 20, failed=0.3))
    assert failing.is_regression
    assert failing.left_out


@pytest.mark.parametrize("of_few", [0, 10], ids=["none", "half"])
def test_a_small_service_that_is_asked_less_than_before_is_not_left_out(of_few):
    found = told(by_two(1, 3, 600, 20), by_two(2, 4, 600, of_few))
    assert found.overall is Overall.UNKNOWN
    assert not found.left_out


def test_many_services_of_which_little_is_known_are_not_left_out():
    few = [{f"few{j}": service(i + 10 * j, per_part=20) for j in range(3)} for i in (3, 4)]
    sides = [window({"s": service(i)} | each) for i, each in enumerate(few)]
    assert told(*sides).overall is Overall.UNKNOWN


def test_windows_in_the_wrong_order_and_windows_that_overlap_are_told():
    early, late = by_seed(1), moved(by_seed(2), hours=2)
    assert told(early, late).notes == []
    assert told(late, early).notes == ["before is later than after: exchange them, unless a change was taken back"]
    assert told(early, by_seed(2)).notes == ["the windows overlap: what lies in both makes them alike"]


def moved(it, hours):
    by = timedelta(hours=hours)
    return msgspec.structs.replace(it, begin=it.begin + by, end=it.end + by)


def test_of_hundreds_of_figures_what_is_not_equal_is_told_first():
    many = [{f"s{i}": service(i + seed) for i in range(15)} for seed in (0, 100)]
    many[1]["s7"] = service(500, scale=3.0)
    found = told(*map(window, many))
    quality = next(each for each in found.groups if each.name == Part.QUALITY.value)
    assert "of s7: " in quality.told[0]
    assert quality.told[0].endswith(": worse")
    assert len(quality.told) <= 41
    assert quality.told[-1].startswith("and more figures, which --json tells: ")
    assert len(found.changes) == 61


def test_of_many_services_with_other_loads_the_first_are_named():
    many = [{f"s{i}": service(i, per_part=per_part) for i in range(9)} for per_part in (60, 120)]
    found = told(*map(window, many))
    assert found.not_comparable.count("not comparable") == 3
    assert found.not_comparable.endswith(" and 6 more services")


def test_a_drift_without_end_has_no_interval_and_stops_nothing():
    """Of a straight line no part is independent; among a thousand services the bound is beyond all numbers."""
    line = np.column_stack([2.0 ** np.arange(PARTS), np.ones(PARTS)])
    figure = Figure(part=Part.QUALITY, what="mean of s", unit="s", before=line, after=line, statistic=over)
    found = judge(figure, level=0.99999, seed=1)
    assert found.verdict is Verdict.UNKNOWN
    assert text_of(found).endswith(f"(+0.0 %, -100.0 to more than +1,000): unknown; {DRIFT}")


def test_names_of_services_cannot_write_to_the_terminal():
    wild = {"\x1b[2J": service(1)}
    told_of = change(told(window(wild), window(wild)), "P99 of \\x1b[2J")
    assert text_of(told_of).isprintable()


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
