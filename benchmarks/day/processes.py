"""Programs under test, started in a session of their own, awaited until they answer, and ended by their ids, always.

As ``benchmarks/serving/procs.py``, which ends whatever else this process has started too: here the processes that send
requests live on from one gateway to the next.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.serving.procs import ROOT, await_answer, end

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
            await_answer(name, process, ready, WITHIN_S, log)
            yield process.pid
        finally:
            end(process)
