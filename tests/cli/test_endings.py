"""How the command ends when someone ends it: at once, with a code that says so, and with no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE_S = 60
SOON_S = 60
"""The promise is a second; a machine busy with other tests gets more. Runs that are waited for take minutes."""


def until(condition, what, timeout_s=PATIENCE_S):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.01)
    pytest.fail(f"not within {timeout_s} s: {what}")


def workers_of(pid):
    """Process numbers of the workers, once they run Python."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except FileNotFoundError:
        return []


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def start(tmp_path):
    """Starts the command in a process group of its own; what is left of it is killed in the end."""
    started = []

    def _start(*args):
        process = subprocess.Popen(
            [sys.executable, "-m", "cardwise", *map(str, args)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield _start
    for process in started:
        if process.poll() is None or workers_of(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def busy(start, tmp_path):
    """The command with two workers that have minutes of work before them."""

    def _busy(command):
        done = subprocess.run(
            [sys.executable, "-m", "cardwise", "synth", "c", "--nodes", "50"], cwd=tmp_path, check=True
        )
        assert done.returncode == 0
        files = ["--nodes", "c/nodes.csv", "--pods", "c/pods.csv", "--workers", "2"]
        process = start(*command, *files)
        until(lambda: len(workers_of(process.pid)) == 2, "two workers")
        return process, workers_of(process.pid)

    return _busy


REPLAY = ["replay", "--regime", "churn", "--arrivals", "1000000", "--policy", "dense", "--policy", "best-fit"]
TUNE = ["tune", "--case", "churn:0.9", "--arrivals", "1000000", "--evaluations", "4"]


@pytest.mark.parametrize("command", [pytest.param(REPLAY, id="replay"), pytest.param(TUNE, id="tune")])
@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        pytest.param(signal.SIGINT, 130, "interrupted", id="Ctrl-C"),
        pytest.param(signal.SIGTERM, 143, "", id="SIGTERM"),
    ],
)
def test_workers_end_with_the_command(busy, command, number, code, told):
    process, workers = busy(command)
    if number is signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does: to the workers, too
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=SOON_S)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert told in errors
    until(lambda: all(map(is_gone, workers)), "workers gone", SOON_S)


def test_workers_end_soon_after_a_command_that_was_killed(busy):
    process, workers = busy(REPLAY)
    time.sleep(2)  # until they run, not only start
    process.kill()
    until(lambda: all(map(is_gone, workers)), "workers gone", SOON_S)


def test_ctrl_c_while_the_command_still_imports_has_no_traceback(start, tmp_path):
    """A module of ours in numpy's place, found before it in the folder that the command is started in, takes long."""
    (tmp_path / "numpy.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    process = start("replay", "--help")
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SOON_S)
    assert (process.returncode, errors.strip()) == (130, "interrupted")
