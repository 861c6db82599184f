"""``cardwise engine`` as a process, on uvloop where there is one."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx2
import pytest

from cardwise.cli.engine import engine_command
from cardwise.engine.settings import Settings
from tests.engine.asked import INFER, batch, completion

COMMAND = [sys.executable, "-c", "from cardwise.cli.main import main; main()", "engine"]


@contextmanager
def engine(*options):
    """The process, and its address."""
    process = subprocess.Popen([*COMMAND, "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process, process.stdout.readline().decode().strip().removeprefix("listening on ")
    finally:
        process.kill()
        process.communicate()


def test_it_tells_its_address_serves_and_finishes_what_it_does_before_it_stops():
    with engine("--t0-ms", "3000") as (process, url):  # so long that a busy machine sees it at work
        answers = []
        asking = threading.Thread(target=lambda: answers.append(httpx2.post(url + INFER, json=batch([1]), timeout=60)))
        asking.start()
        wait_for(url, 'num_requests_running{model_name="emulated"} 1')
        process.send_signal(signal.SIGTERM)
        asking.join()
        assert answers[0].status_code == 200
        assert process.wait(60) == 0


def wait_for(url, text):
    until(lambda: text in httpx2.get(f"{url}/metrics", timeout=60).text)


def until(holds):
    end_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_no_answer_comes_before_its_time():
    with engine("--t0-ms", "4", "--t1-ms", "0.35") as (_, url), httpx2.Client(base_url=url) as client:
        for _ in range(30):
            start_s = time.monotonic()
            client.post(INFER, json=batch([1]))
            assert time.monotonic() - start_s >= 0.00435


def test_a_fault_that_kills_it_ends_it_as_a_killed_process(tmp_path):
    (tmp_path / "script.json").write_text(json.dumps({"faults": [{"kind": "exit", "skip": 1, "when": "during"}]}))
    with engine("--faults", "--script", str(tmp_path / "script.json")) as (process, url):
        assert httpx2.post(url + INFER, json=batch([1])).status_code == 200
        with pytest.raises(httpx2.TransportError):
            httpx2.post(url + INFER, json=batch([2]))
        assert process.wait(60) == 137


def test_it_streams():
    with engine() as (_, url), httpx2.stream("POST", f"{url}/v1/completions", json=completion(stream=True)) as answer:
        assert list(answer.iter_lines())[-2] == "data: [DONE]"


def test_half_open_connections_do_not_keep_it_from_stopping():
    with engine("--faults") as (process, url):
        httpx2.post(f"{url}/faults", json={"faults": [{"kind": "half-open"}]})
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(f"{url}/predict", json=[1], timeout=0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0", "--faults"], "host: '0.0.0.0' is reached from other machines"),  # noqa: S104 - refused
        (["--port", "99999"], "port: 99999 is not from 0 to 65535"),
        (["--script", "nowhere.json"], "nowhere.json: no such file; give a script of faults in JSON"),
        (["--script", "nowhere.json"], "(docs/howto/emulated-engine.md)"),
        (["--script", "wrong.json"], "wrong.json: faults[0].evry: is no key; write every"),
        (["--script", "cut.json"], "cut.json: is no JSON: Input data was truncated; give a script of faults in JSON"),
    ],
)
def test_a_wrong_option_ends_it_with_one_line(tmp_path, options, message):
    (tmp_path / "wrong.json").write_text('{"faults": [{"kind": "reset", "evry": 7}]}')
    (tmp_path / "cut.json").write_text('{"faults": [')
    done = subprocess.run([*COMMAND, *options], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_told():
    with engine() as (_, url):
        port = url.rsplit(":", 1)[1]
        done = subprocess.run([*COMMAND, "--port", port], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files")  # noqa: PTH112
def test_clients_that_come_and_go_leave_nothing_open():
    with engine("--t0-ms", "1") as (process, url):

        def files():
            return len(os.listdir(f"/proc/{process.pid}/fd"))  # noqa: PTH208

        httpx2.post(url + INFER, json=batch([1]))
        before = files()
        for _ in range(50):
            with pytest.raises(httpx2.ReadTimeout):
                httpx2.post(f"{url}/v1/completions", json=completion(500), timeout=0.005)
        until(lambda: files() <= before)
        wait_for(url, 'num_requests_running{model_name="emulated"} 0')


def test_the_options_have_the_defaults_of_the_settings():
    told = engine_command.make_context("engine", []).params
    settings = dataclasses.asdict(Settings())
    assert {name: told[name] for name in told.keys() & settings.keys() - {"port"}} == {
        name: settings[name] for name in settings.keys() - {"port", "test_doors"}
    }
