"""``cardwise compare`` as a process, on files: both kinds, what it prints and writes, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from cardwise.compare.window import window_text
from cardwise.loadtest.curve import curve_text
from tests.compare.world import service, window
from tests.loadtest.test_compare import curve, measured


def compare(*args, cwd):
    command = [sys.executable, "-m", "cardwise", "compare", *map(str, args)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def windows(tmp_path):
    """Files before.json, same.json and worse.json; four cards before, two in the others."""
    for seed, (name, scale, cards) in enumerate((("before", 1.0, 4), ("same", 1.0, 2), ("worse", 1.5, 2))):
        made = window({"s": service(seed, scale=scale)}, cards={"A10": cards})
        (tmp_path / f"{name}.json").write_text(window_text(made))
    return tmp_path


@pytest.fixture
def curves(tmp_path):
    for name, scale in (("before", 1.0), ("worse", 1.3)):
        (tmp_path / f"{name}.json").write_text(curve_text(curve(measured(len(name), scale=scale))))
    return tmp_path


def test_a_regression_is_told_and_fails_if_asked_to(windows):
    done = compare("before.json", "worse.json", cwd=windows)
    assert done.returncode == 0, done.stderr
    assert "worse.json against before.json: regression: worse service quality." in done.stdout
    assert "4,000 redraws of parts of the time, seed 1" in " ".join(done.stdout.split())
    assert compare("before.json", "worse.json", "--fail-on-regression", cwd=windows).returncode == 1
    assert compare("before.json", "same.json", "--fail-on-regression", cwd=windows).returncode == 0


def test_json_and_html_tell_the_same(windows):
    done = compare("before.json", "worse.json", "--json", "--html", "a.html", "--seed", "7", cwd=windows)
    told = json.loads(done.stdout)
    assert told["overall"] == "regression"
    assert told["seed"] == 7
    p99 = next(each for each in told["changes"] if each["what"] == "P99 of s")
    assert p99["verdict"] == "worse"
    assert p99["blocks"] == [32, 32]
    page = (windows / "a.html").read_text()
    assert page.count("<svg ") == 3
    assert "<link" not in page
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    assert figures["comparison"] == told


def test_a_report_of_many_services_draws_what_weighs_most_and_axes_that_can_be_read(tmp_path):
    """Of a straight line the interval is endless: the others have to be seen beside it."""
    line = [float(2**i) for i in range(32)]
    for side in (0, 1):
        many = {f"s{i}": service(100 * side + i, scale=3.0 if side and i == 11 else 1.0) for i in range(12)}
        many["line"] = msgspec.structs.replace(service(side), latency_sum_s=line)
        (tmp_path / f"{side}.json").write_text(window_text(window(many)))
    done = compare("0.json", "1.json", "--html", "a.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "a.html").read_text()
    drawn = page.split('aria-label="Changes with their intervals. ')[1].split('"')[0]
    assert drawn.startswith(("P99 of s11", "mean of s11"))
    assert drawn.count(" → ") == 40
    assert "5 more services are not drawn" in page
    assert "more than +1,000" in drawn


def test_load_tests_go_through_the_same_door(curves):
    done = compare("before.json", "worse.json", "--fail-on-regression", "--html", "a.html", cwd=curves)
    assert done.returncode == 1
    assert "P99 at 100/s" in done.stdout
    assert "<svg " in (curves / "a.html").read_text()
    one, other = (
        compare("before.json", "worse.json", "--json", cwd=curves),
        subprocess.run(
            [sys.executable, "-m", "cardwise", "loadtest", "--compare", "before.json", "worse.json", "--json"],
            cwd=curves,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        ),
    )
    assert one.stdout == other.stdout


def test_what_cannot_be_told_fails_if_asked_to(windows):
    few = window({"s": service(1, per_part=10)})
    (windows / "few.json").write_text(window_text(few))
    assert compare("few.json", "few.json", cwd=windows).returncode == 0
    assert compare("few.json", "few.json", "--fail-on-unknown", cwd=windows).returncode == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "only one thing to compare; give two files, or --prometheus URL"),
        (["before.json"], "only one thing to compare"),
        (["a", "b", "c"], "3 files; give two files"),
        (["before.json", "gone.json"], "gone.json: no such file"),
        (["before.json", "text.json"], "text.json"),
        (["text.json", "before.json"], "text.json"),
        (["--before", "-2h..-1h"], "--before and --after are windows of --prometheus URL"),
        (["--prometheus", "http://x"], "--prometheus goes with --before or --after"),
        (["--prometheus", "http://x", "--before", "-2h..-1h"], "only one thing to compare"),
        (["--prometheus", "http://x", "--before", "-2h..-1h", "--after", "-90m..now"], "overlap"),
        (["--prometheus", "http://x", "--before", "2h", "--after", "-1h..now"], "'2h' is no window of time"),
        (["before.json", "--prometheus", "http://x", "--before", "-2h..-1h"], "more than two things"),
        (["before.json", "same.json", "--save-after", "x.json"], "--save-after keeps what Prometheus told of --after"),
        (["before.json", "same.json", "--html", "before.json"], "is read by this command"),
        (["before.json", "same.json", "--card-price", "A10"], "write MODEL=N"),
        (["before.json", "same.json", "--card-price", "A10=-1"], "write MODEL=N"),
        (["before.json", "same.json", "--card-price", "T4=1"], "no price of A10"),
        (["--prometheus", "ftp://x", "--before", "-2h..-1h", "--after", "-1h..now"], "no address of a Prometheus"),
    ],
)
def test_a_mistake_is_told_in_a_line(windows, args, message):
    (windows / "text.json").write_text("not JSON")
    done = compare(*args, cwd=windows)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_window_and_a_load_test_are_not_compared(windows):
    (windows / "curve.json").write_text(curve_text(curve(measured(1))))
    done = compare("curve.json", "before.json", cwd=windows)
    assert done.returncode == 2
    assert "curve.json is a load test and before.json is none: give two of one kind" in done.stderr
    done = compare("before.json", "curve.json", cwd=windows)
    assert done.returncode == 2
    assert "curve.json" in done.stderr


def test_a_prometheus_that_is_away_is_exit_code_1(tmp_path):
    args = ["--prometheus", "http://127.0.0.1:9", "--before", "-2h..-1h", "--after", "-1h..now"]
    done = compare(*args, cwd=tmp_path)
    assert done.returncode == 1
    assert "error: Prometheus at http://127.0.0.1:9" in done.stderr
