"""Programs under test, started in a session of their own, awaited until they answer, and ended by their ids, always.

As ``benchmarks/serving/procs.py``, which ends whatever else this process has started too: here the processes that send
requests live on from one gateway to the next.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.serving.procs import ROOT, StartError

STOP_S = 8.0
WITHIN_S = 60.0
"""Of a machine that others use, too."""


@contextlib.contextmanager
def started(name: str, command: Sequence[str], ready: Callable[[], bool]) -> Iterator[int]:
    """Run it until the ``with`` ends; its process id. ready: whether it serves by now. Raises StartError."""
    with tempfile.TemporaryDirectory(prefix="cw-day-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT, start_new_session=True
            )
        try:
            _await(name, process, ready, log)
            yield process.pid
        finally:
            _stop(process)


def _await(name: str, process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path) -> None:
    until_s = time.monotonic() + WITHIN_S
    while not ready():
        if process.poll() is not None:
            raise StartError(f"{name} ended with {process.returncode}: {_tail(log)}")
        if time.monotonic() > until_s:
            raise StartError(f"{name}: no answer within {WITHIN_S:g} s: {_tail(log)}")
        time.sleep(0.05)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-500:] or "it wrote nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
