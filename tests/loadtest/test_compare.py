"""Comparison of two curves: a worse P99 is a regression, noise is none, and nothing makes up for it."""

import msgspec
import numpy as np
import pytest

from cardwise.core.comparison.verdict import Part
from cardwise.core.comparison.words import overall_sentence
from cardwise.errors import InputError, UserError
from cardwise.loadtest.compare import Overall, Verdict, compare
from cardwise.loadtest.curve import Curve, Environment, Knee, Outcomes, Settings, curve_text, read_curve
from cardwise.loadtest.measure import Quantiles, histogram_of
from cardwise.loadtest.plan import Load
from cardwise.loadtest.report import notes_of
from tests.loadtest.test_knee import step

NAMES = ("before", "after")


def blocks(seed, *, scale=1.0, count=4000):
    """Latencies of a service under load: log-normal, some seconds slower than others."""
    rng = np.random.default_rng(seed)
    values = 0.02 * scale * rng.lognormal(0, 0.4, count) * np.repeat(rng.lognormal(0, 0.05, 20), count // 20)
    return [histogram_of(part).stored() for part in np.split(values, 20)]


def measured(seed, rate=100.0, *, scale=1.0, count=4000, **more):
    made = step(Load(rate_per_s=rate), good=count, issued=count, goodput=rate, seconds=count / rate)
    return msgspec.structs.replace(made, blocks=blocks(seed, scale=scale, count=count), **more)


def curve(*steps, knee=None, facts=None, **more):
    environment = {
        "url": "http://x:80/",
        "kind": "plain",
        "started": "2026-11-30T10:00:00+00:00",
        "cardwise": "0.1.0",
        "python": "3.11.7",
        "event_loop": "uvloop",
        "host_cores": 2,
    }
    settings = {
        "arrivals": "poisson",
        "seconds": 10.0,
        "warm_up_s": 2.0,
        "timeout_s": 10.0,
        "most_unfinished": 2000,
        "target_p99_ms": 200.0,
        "judged": "latency",
        "seed": 1,
    }
    return Curve(
        environment=Environment(**{key: more.get(key, value) for key, value in environment.items()}),
        settings=Settings(**{key: more.get(key, value) for key, value in settings.items()}),
        generator_stall_ms=1.0,
        ended="complete",
        facts=facts or {},
        steps=list(steps),
        knee=knee,
    )


def verdict(comparison, name):
    return next(each.verdict for each in comparison.groups if each.name == name)


def p99(comparison):
    return next(each for each in comparison.changes if each.what.startswith("P99"))


def test_a_fifth_more_p99_is_a_regression():
    told = compare(curve(measured(1)), curve(measured(2, scale=1.2)), NAMES)
    assert told.is_regression
    assert verdict(told, "service quality") is Verdict.WORSE
    assert p99(told).low > 0
    assert p99(told).change == pytest.approx(0.2, abs=0.1)


def test_a_fifth_less_p99_is_an_improvement():
    told = compare(curve(measured(1)), curve(measured(2, scale=0.8)), NAMES)
    assert told.overall is Overall.IMPROVEMENT


def test_noise_is_no_regression():
    """Forty pairs of runs of one service, each at three loads: at most one in twenty may be called different."""
    wrong = 0
    for seed in range(0, 240, 6):
        rates = (50.0, 100.0, 200.0)
        one = curve(*(measured(seed + i, rate) for i, rate in enumerate(rates)))
        other = curve(*(measured(seed + 3 + i, rate) for i, rate in enumerate(rates)))
        wrong += compare(one, other, NAMES).is_regression
    assert wrong <= 2


def test_fewer_cards_do_not_make_up_for_a_worse_p99():
    before = curve(measured(1), facts={"cards": 2, "cost-per-hour": 6.0})
    after = curve(measured(2, scale=1.3), facts={"cards": 1, "cost-per-hour": 3.0})
    told = compare(before, after, NAMES)
    assert verdict(told, "resources") is Verdict.BETTER
    assert verdict(told, "cost per request") is Verdict.BETTER
    assert told.overall is Overall.REGRESSION


def test_fewer_cards_at_equal_quality_are_an_improvement():
    told = compare(curve(measured(1), facts={"cards": 2}), curve(measured(2), facts={"cards": 1}), NAMES)
    assert told.overall is Overall.IMPROVEMENT
    assert verdict(told, "cost per request") is Verdict.BETTER


def test_more_cost_for_a_better_p99_is_a_trade_off():
    before = curve(measured(1), facts={"cost-per-hour": 3.0})
    told = compare(before, curve(measured(2, scale=0.7), facts={"cost-per-hour": 6.0}), NAMES)
    assert told.overall is Overall.TRADE_OFF
    told = compare(before, curve(measured(2), facts={"cost-per-hour": 6.0}), NAMES)
    assert told.overall is Overall.COSTLIER


@pytest.mark.parametrize("key", ["restarts", "failed-scheduling", "alerts"])
def test_more_events_are_less_stable_and_a_regression(key):
    told = compare(curve(measured(1), facts={key: 0}), curve(measured(2), facts={key: 1}), NAMES)
    assert verdict(told, "stability") is Verdict.WORSE
    assert told.is_regression


def test_errors_at_a_load_that_held_are_a_regression():
    failing = measured(2, outcomes=Outcomes(ok=3900, error=100), good=3900)
    told = compare(curve(measured(1)), curve(failing), NAMES)
    assert verdict(told, "stability") is Verdict.WORSE


def test_one_error_in_a_hundred_requests_may_be_chance():
    """One toss of a coin; the file is not blamed for it, nor called as good as before."""
    failing = measured(2, count=100, outcomes=Outcomes(ok=99, error=1), good=99)
    told = compare(curve(measured(1, count=100)), curve(failing), NAMES)
    failed = next(each for each in told.changes if each.what == "errors and timeouts")
    assert (failed.verdict, failed.note) == (Verdict.UNKNOWN, "too few requests to tell from chance")
    assert not told.is_regression


@pytest.mark.parametrize(
    ("lost", "what"),
    [({"rejected": 36}, "refused"), ({"timeout": 36}, "errors and timeouts")],
    ids=["refused", "cut off"],
)
def test_a_p99_that_is_better_for_the_hundredth_that_was_lost_is_a_regression(lost, what):
    """Of 4,000 requests 36 are 0.9 %: the slowest, which the P99 is of no more."""
    losing = measured(2, scale=0.7, outcomes=Outcomes(ok=3964, **lost), good=3964)
    told = compare(curve(measured(1)), curve(losing), NAMES)
    assert p99(told).verdict is Verdict.BETTER
    assert next(each for each in told.changes if each.what == what).verdict is Verdict.WORSE
    assert told.is_regression


def test_tests_in_the_wrong_order_are_told():
    told = compare(curve(measured(1), started="2026-12-01T10:00:00+00:00"), curve(measured(2)), NAMES)
    assert "before was measured later than after: exchange them, unless a change was taken back" in told.notes


def test_rejections_at_a_load_that_held_are_a_regression():
    rejecting = measured(2, outcomes=Outcomes(ok=3000, rejected=1000), good=3000)
    told = compare(curve(measured(1)), curve(rejecting), NAMES)
    assert verdict(told, "service quality") is Verdict.WORSE
    quality = next(each for each in told.groups if each.name == "service quality")
    assert "in time at 100/s, of what was due: 100.00 → 75.00 % (-25.0 points): worse" in quality.told


def test_a_knee_that_fell_is_a_regression():
    def knee(load):
        return Knee(axis="rate", load=load, goodput_per_s=load, p99_ms=90.0, broken_at=2 * load, stopped_by="p99")

    told = compare(curve(measured(1), knee=knee(400.0)), curve(measured(2), knee=knee(300.0)), NAMES)
    assert told.is_regression
    assert not compare(curve(measured(1), knee=knee(400.0)), curve(measured(2), knee=knee(370.0)), NAMES).is_regression


def test_a_load_that_was_too_much_before_is_not_judged():
    told = compare(curve(measured(1, holds=False)), curve(measured(2, scale=3.0)), NAMES)
    assert p99(told).verdict is Verdict.UNKNOWN
    assert told.overall is Overall.UNKNOWN


def test_too_few_answers_are_no_p99():
    told = compare(curve(measured(1, count=80)), curve(measured(2, count=80, scale=1.5)), NAMES)
    assert "too few for a P99" in p99(told).note


def test_a_late_generator_is_not_the_services_fault():
    late = Quantiles(4000, 5.0, 5.0, 9.0, 30.0, 40.0, 50.0)
    told = compare(curve(measured(1)), curve(measured(2, scale=1.5, lag_ms=late)), NAMES)
    assert p99(told).verdict is Verdict.UNKNOWN
    assert "the generator itself was late after" in p99(told).note


def test_only_equal_loads_are_compared():
    with pytest.raises(UserError, match="no load in common"):
        compare(curve(measured(1, 100.0)), curve(measured(2, 200.0)), NAMES)


def test_different_kinds_are_not_compared():
    with pytest.raises(UserError, match="different kinds"):
        compare(curve(measured(1)), curve(measured(2), kind="oip"), NAMES)


@pytest.mark.parametrize(
    ("asked", "because"),
    [
        ({"target_p99_ms": 50.0}, "target P99 ms differs (200 before, 50 after); test both with the same --target-p99"),
        ({"arrivals": "constant"}, "arrivals differs (poisson before, constant after); test both with the same --arr"),
    ],
    ids=["target", "arrivals"],
)
def test_another_target_is_no_regression_of_the_service(asked, because):
    """Under a lower target the same answers are fewer in time, and the knee is lower: the service has not changed."""
    knees = [
        Knee(axis="rate", load=load, goodput_per_s=load, p99_ms=90.0, broken_at=2 * load, stopped_by="p99")
        for load in (400.0, 200.0)
    ]
    before, after = (curve(measured(i, good=4000 - 2000 * i), knee=knees[i], facts={"cards": 1}) for i in (0, 1))
    changed = msgspec.structs.replace(after.settings, **asked)
    told = compare(before, msgspec.structs.replace(after, settings=changed), NAMES)
    assert told.overall is Overall.UNKNOWN
    assert because in told.not_comparable
    assert told.not_comparable in overall_sentence(told)
    assert {each.verdict for each in told.changes if each.part is Part.QUALITY} == {Verdict.UNKNOWN}
    assert verdict(told, "cost per request") is Verdict.UNKNOWN
    assert compare(before, after, NAMES).is_regression


def test_under_another_target_a_restart_is_still_a_regression():
    before = curve(measured(1), facts={"restarts": 0})
    told = compare(before, curve(measured(2), facts={"restarts": 1}, target_p99_ms=100.0), NAMES)
    assert told.overall is Overall.REGRESSION
    assert overall_sentence(told) == "after against before: regression: worse stability."


def test_knees_on_different_axes_are_not_compared():
    def knee(axis, load):
        return Knee(axis=axis, load=load, goodput_per_s=load, p99_ms=90.0, broken_at=2 * load, stopped_by="p99")

    told = compare(curve(measured(1), knee=knee("rate", 400.0)), curve(measured(2), knee=knee("callers", 8.0)), NAMES)
    assert not told.is_regression


def test_timeouts_under_a_shorter_timeout_are_not_blamed_on_the_service():
    failing = measured(2, outcomes=Outcomes(ok=3900, timeout=100), good=3900)
    told = compare(curve(measured(1)), curve(failing, timeout_s=0.1), NAMES)
    assert verdict(told, "stability") is Verdict.UNKNOWN
    assert compare(curve(measured(1)), curve(failing), NAMES).is_regression


def test_another_url_is_told():
    told = compare(curve(measured(1)), curve(measured(2), url="http://y:80/"), NAMES)
    assert "the URL differs: http://x:80/ before, http://y:80/ after" in told.notes


@pytest.mark.parametrize(("seconds", "is_told"), [(1.0, True), (60.0, False)])
def test_a_step_too_short_for_several_answers_is_told(seconds, is_told):
    """Half of the answers take two seconds: in a second none that begins ends."""
    slow = measured(1, latency_ms=Quantiles(4000, 2000.0, 2000.0, 2500.0, 3000.0, 3500.0, 4000.0))
    notes = notes_of(curve(slow, seconds=seconds, judged="first token"))
    advice = "too short to tell rates and the knee at 100/s; give --seconds 20 or fewer --max-tokens"
    assert any(advice in note for note in notes) is is_told


def test_different_settings_are_told():
    told = compare(curve(measured(1)), curve(measured(2), timeout_s=5.0, host_cores=64), NAMES)
    assert "timeout s differs: 10.0 before, 5.0 after" in told.notes
    assert any("host cores" in note for note in told.notes)


def test_a_curve_comes_back_from_its_file(tmp_path):
    made = curve(measured(1), facts={"cards": 2})
    (tmp_path / "a.json").write_text(curve_text(made))
    assert read_curve(tmp_path / "a.json") == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: it.update(schema="cardwise.dev/loadtest/v9"), "schema is"),
        (lambda it: it["steps"][0].update(issued=7), "do not add up"),
        (lambda it: it["steps"][0]["blocks"][0].update(counts=[10**30], buckets=[1]), "too large"),
        (lambda it: it["steps"][0].pop("outcomes"), "missing required field"),
        (lambda it: it["steps"][0]["blocks"][0].update(buckets=[99999]), "as many buckets"),
        (lambda it: it["steps"][0]["outcomes"].update(ok=1, timeout=3999), "more than the ok answers"),
    ],
    ids=["version", "counts", "too large", "field", "histogram", "too many"],
)
def test_a_file_that_is_wrong_is_refused(tmp_path, change, message):
    told = msgspec.json.decode(curve_text(curve(measured(1))))
    change(told)
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(told))
    with pytest.raises(InputError, match=message):
        read_curve(tmp_path / "a.json")
