"""Programs under test: started in a session of their own, awaited until they answer, ended by their ids, always.

Orphans come to us (PR_SET_CHILD_SUBREAPER), so that what a peer leaves behind is found and ended as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports

from benchmarks.serving.machine import descendants, on_cores

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]
STOP_S = 8.0
_PR_SET_CHILD_SUBREAPER = 36
_RUNNING: set[int] = set()


class StartError(Exception):
    """A program did not come up; the message says what it wrote last."""


@dataclass(frozen=True, slots=True)
class Server:
    """A program that answers. admin_url: where its health and metrics are, if that is elsewhere."""

    name: str
    pid: int
    url: str
    admin_url: str = ""


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent has ended. Linux; elsewhere they are left."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def free_port() -> int:
    """A port that nobody listens at; this process's own for as long as it lives."""
    return free_ports(1)[0]


@contextlib.contextmanager
def started(
    name: str,
    command: Sequence[str],
    *,
    port: int,
    ready: str,
    within_s: float = 20.0,
    cores: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[Server]:
    """Run it until the ``with`` ends. ready: a path that is answered with 2xx once it serves. Raises StartError."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cw-", ignore_cleanup_errors=True)))
            folder.chmod(0o755)  # nginx's worker is another user
        log = folder / f"{name}.log"
        server_url = f"http://{HOST}:{port}"
        with log.open("wb") as out, on_cores(cores):
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=folder,
                env={**os.environ, **(env or {})},
                start_new_session=True,  # Ctrl-C is for us, who end it in order
            )
        _RUNNING.add(process.pid)
        stack.callback(_stop, process)
        await_answer(name, process, lambda: answers(server_url + ready), within_s, log)
        yield Server(name, process.pid, server_url)


def answers(url: str, timeout_s: float = 1.0, body: bytes | None = None) -> bool:
    """Whether it answers with 2xx."""
    asked = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})  # noqa: S310 - ours
    try:
        with urllib.request.urlopen(asked, timeout=timeout_s) as answer:  # noqa: S310
            answer.read()
            return True
    except (OSError, ValueError):  # URLError, HTTPError, and time-outs are OSErrors
        return False


def await_answer(
    name: str, process: subprocess.Popen[bytes], ready: Callable[[], bool], within_s: float, log: Path
) -> None:
    """Wait until it serves. log: what it writes. Raises StartError."""
    until_s = time.monotonic() + within_s
    while not ready():
        if process.poll() is not None:
            raise StartError(f"{name} ended with {process.returncode}: {_tail(log)}")
        if time.monotonic() > until_s:
            raise StartError(f"{name}: no answer within {within_s:g} s: {_tail(log)}")
        time.sleep(0.05)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-500:] or "it wrote nothing"


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL where that does not help; without what it has started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the program; SIGKILL to what is left of all that it has started."""
    end(process)
    _RUNNING.remove(process.pid)
    left = _left_over()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in left:
        with contextlib.suppress(ChildProcessError):  # its parent, which is none of us, has taken leave of it
            os.waitpid(pid, 0)


def _left_over() -> set[int]:
    """Descendants of ours that belong to no program that still runs."""
    kept = {each for pid in _RUNNING for each in (pid, *descendants(pid))}
    return set(descendants(os.getpid())) - kept
