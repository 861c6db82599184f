"""A scripted nvidia-cuda-mps-control in a folder of its own, with a daemon that a test can kill."""

from __future__ import annotations

import contextlib
import marshal
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

CARD_A = "GPU-aaaaaaaa-1111-2222-3333-444444444444"
CARD_B = "GPU-bbbbbbbb-1111-2222-3333-444444444444"


class FakeMps:
    """The program, its script and its pipe directory. ``tell`` sets faults, at any time: see ``control.py``."""

    def __init__(self) -> None:
        # not pytest's folder: the sockets' paths must stay short
        self.root = Path(tempfile.mkdtemp(prefix="mps-"))
        self.script = self.root / "script"
        self.pipe_dir = self.root / "pipe"
        self.log_dir = self.root / "log"
        self.command = str(self.root / "nvidia-cuda-mps-control")
        self._told = {}
        self.tell(cards=[CARD_A, CARD_B])
        # isolated, without site, and imported so that it is compiled once: a start in some milliseconds
        lines = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import control"
        program = shlex.quote(f"{lines}; sys.exit(control.main(sys.argv[1:]))")
        run = f"FAKE_MPS_SCRIPT={self.script} exec {shlex.quote(sys.executable)} -I -S -c {program}"
        Path(self.command).write_text(f'#!/bin/sh\n{run} "$@"\n')
        Path(self.command).chmod(0o755)

    def tell(self, **faults) -> None:
        """Change the script: version, start_fails, late_pid_s, die_after, hangs, garbage, ignore, floors, fault, ..."""
        self._told.update(faults)
        half = self.script.with_suffix(".half")
        half.write_bytes(marshal.dumps(self._told))
        half.rename(self.script)

    @property
    def said(self) -> list[str]:
        """The commands that daemons have answered."""
        log = self.script.with_suffix(".log")
        return log.read_text().splitlines() if log.exists() else []

    @property
    def pid(self) -> int | None:
        """The daemon, if there was one."""
        path = self.pipe_dir / "nvidia-cuda-mps-control.pid"
        return int(path.read_text()) if path.exists() else None

    def kill(self) -> None:
        """Let the daemon die at once, and wait until it has. A process that is not ours is left alone."""
        pid = self.pid
        if pid is None or not self._is_ours(pid):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        end_s = time.monotonic() + 60
        while self._is_ours(pid):
            assert time.monotonic() < end_s, f"process {pid} does not end"
            time.sleep(0.002)

    def _is_ours(self, pid) -> bool:
        with contextlib.suppress(OSError):
            return f"FAKE_MPS_SCRIPT={self.script}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        shutil.rmtree(self.root, ignore_errors=True)
