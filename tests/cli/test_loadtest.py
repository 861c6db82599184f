"""``cardwise loadtest`` as a process: what it writes and prints, what it refuses, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from cardwise.loadtest.curve import curve_text, read_curve
from tests.loadtest.service import serving
from tests.loadtest.test_compare import curve, measured

SHORT = ("--seconds", "0.5", "--warm-up", "0.1")


def command(*args):
    return [sys.executable, "-m", "cardwise", "loadtest", *map(str, args)]


def loadtest(*args, cwd):
    return subprocess.run(command(*args), cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_a_sweep_is_told_and_saved(tmp_path):
    with serving(latency_s=0.005) as service:
        done = loadtest(service.url, "--sweep", "concurrency=1,4", *SHORT, "--facts", "cards=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 callers" in done.stdout
    assert "Most answers in time:" in done.stdout
    saved = read_curve(tmp_path / "loadtest.json")
    assert [step.concurrency for step in saved.steps] == [1, 4]
    assert saved.facts == {"cards": 2.0}
    assert saved.environment.url == service.url


def test_json_is_what_the_file_holds(tmp_path):
    with serving() as service:
        done = loadtest(service.url, "--rate", "50", *SHORT, "--json", "--out", "a.json", cwd=tmp_path)
    assert done.stdout == (tmp_path / "a.json").read_text()


def test_the_report_stands_alone(tmp_path):
    with serving(latency_s=0.005, latency_spread_s=0.002) as service:
        done = loadtest(service.url, "--sweep", "rate=50,100", *SHORT, "--html", "a.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "a.html").read_text()
    assert page.count("<svg ") == 4
    assert "<link" not in page
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    assert len(figures["curves"][0]["steps"]) == 2


def test_no_load_that_holds_is_exit_code_3(tmp_path):
    with serving(latency_s=0.05) as service:
        done = loadtest(service.url, "--rate", "20", "--target-p99", "10", *SHORT, cwd=tmp_path)
    assert done.returncode == 3
    assert "No step holds a P99 of 10 ms." in done.stdout


def test_ctrl_c_gives_the_results_so_far(tmp_path):
    with serving(latency_s=0.005) as service:
        running = subprocess.Popen(
            command(service.url, "--rate", "50", "--seconds", "60", "--warm-up", "0"),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while service.counts()["asked"] < 20:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        told, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "ended early, by an interrupt" in told
    assert read_curve(tmp_path / "loadtest.json").steps[0].outcomes.ok > 0


def saved(tmp_path, scale):
    """Two files: the second with a P99 that is ``scale`` times the first's."""
    (tmp_path / "a.json").write_text(curve_text(curve(measured(1))))
    (tmp_path / "b.json").write_text(curve_text(curve(measured(2, scale=scale))))
    return "--compare", "a.json", "b.json"


def test_a_regression_fails_if_asked_to(tmp_path):
    args = saved(tmp_path, 1.25)
    done = loadtest(*args, cwd=tmp_path)
    assert done.returncode == 0
    assert "b.json against a.json: regression: worse service quality." in done.stdout
    assert loadtest(*args, "--fail-on-regression", cwd=tmp_path).returncode == 1
    assert loadtest(*saved(tmp_path, 1.0), "--fail-on-regression", cwd=tmp_path).returncode == 0


def test_a_comparison_is_told_as_json_and_html_too(tmp_path):
    done = loadtest(*saved(tmp_path, 1.25), "--json", "--html", "c.html", cwd=tmp_path)
    told = msgspec.json.decode(done.stdout)
    names = [group["name"] for group in told["groups"]]
    assert names == ["resources", "service quality", "cost per request", "stability"]
    assert told["overall"] == "regression"
    assert "Four groups" in (tmp_path / "c.html").read_text()


def test_what_must_be_known_of_the_figures_is_in_the_file_too(tmp_path):
    with serving(latency_s=0.2) as service:
        loadtest(service.url, "--concurrency", "1", *SHORT, cwd=tmp_path)
    (note,) = read_curve(tmp_path / "loadtest.json").notes
    assert "a step 0.5 s: too short to tell rates" in note


@pytest.mark.parametrize(
    ("status", "advice"),
    [(503, "that says nothing of the model: test again"), (404, "check the model, or give --tensor")],
)
def test_a_service_that_does_not_tell_of_the_model_is_passed_on_in_its_own_words(tmp_path, status, advice):
    with serving(status=status, headers=[["x-cardwise-reason", "no-replica"]]) as service:
        done = loadtest(service.url, "--oip", "other", "--concurrency", "1", *SHORT, cwd=tmp_path)
    assert done.returncode == 2
    assert f"it answers with {status} (x-cardwise-reason: no-replica): '{{}}'; {advice}" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give the URL to test"),
        (["ftp://x/"], "no http:// or https:// URL"),
        (["http://"], "no http:// or https:// URL"),
        (["http://x:99999/"], "is no URL"),
        (["http://x:0/"], "no http:// or https:// URL"),
        (["http://me:secret@x/"], "the URL holds a user or a password"),
        (["http://x/a b"], "must escape"),
        (["http://127.0.0.1:1/"], "cannot connect to 127.0.0.1:1"),
        (["http://127.0.0.1:1/", "--oip", "x"], "(127.0.0.1: Connection refused); check host and port, and that the"),
        (["http://nowhere.invalid/"], "no such host"),
        (["http://x/", "--sweep", "concurrency"], "is not AXIS=N,N,..."),
        (["http://x/", "--sweep", "speed=1,2"], "is not AXIS=N,N,..."),
        (["http://x/", "--sweep", "concurrency=1,2.5"], "whole numbers"),
        (["http://x/", "--sweep", "concurrency=0"], "is from 0.001"),
        (["http://x/", "--sweep", "rate=1,nan"], "is not AXIS=N,N,..."),
        (["http://x/", "--sweep", "rate=5,5"], "a value comes twice"),
        (["http://x/", "--sweep", "batch-window=1,2"], "give --rate or --concurrency too"),
        (["http://x/", "--sweep", "batch-window=1,2", "--rate", "5"], "name the header that sets it"),
        (["http://x/{window}", "--rate", "5"], "go with --sweep batch-window"),
        (["http://x/", "--sweep", "rate=1", "--rate", "5"], "leave out --rate"),
        (["http://x/", "--rate", "5", "--concurrency", "2"], "give one of them"),
        (["http://x/", "--rate", "5", "--find", "rate"], "--find chooses the loads"),
        (["http://x/", "--from", "50", "--most", "5"], "swap them"),
        (["http://x/", "--rate", "5", "--most", "5"], "go with --find"),
        (["http://x/", "--rate", "5", "--body", "none.json"], "none.json: no such file"),
        (["http://x/", "--rate", "5", "--body", "."], ".: is no file"),
        (["http://x/", "--oip", "m", "--openai", "m"], "two protocols"),
        (["http://x/", "--tensor", "x:FP32:1"], "--tensor goes with --oip"),
        (["http://x/", "--oip", "m", "--tensor", "x:FP31:1"], "is not NAME:DATATYPE:DIMS"),
        (["http://x/", "--header", "nonsense"], "is not NAME:VALUE"),
        (["http://x/", "--header", "Host: y"], "writes that one itself"),
        (["http://x/", "--facts", "speed=3"], "is not KEY=NUMBER"),
        (["http://x/", "--method", "BREW"], "--method BREW"),
        (["http://x/", "--out", "no/such/folder.json"], "cannot be written"),
        (["http://x/", "--fail-on-regression"], "goes with --compare"),
        (["http://x/", "--compare", "a.json", "b.json"], "leave out the URL"),
        (["--compare", "a.json", "b.json"], "a.json: no such file"),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, list) else "",
)
def test_what_is_wrong_is_one_sentence_and_exit_code_2(tmp_path, args, message):
    done = loadtest(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
