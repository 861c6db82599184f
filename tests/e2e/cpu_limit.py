"""A process under a CPU limit that the kernel holds, and what the kernel counts of it.

As the kubelet sets it for a pod: a quota of CFS in a cgroup of its own (cgroup v2's ``cpu.max``, v1's
``cpu.cfs_quota_us``). Refuses to compute a figure: all are read from the kernel. Where this machine lets nobody make
such a cgroup, tests skip, and say so.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import pytest

PERIOD_US = 100_000
"""The kubelet's."""
V2, V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu")


class Held:
    """A process in the cgroup of this folder."""

    def __init__(self, pid, folder):
        self.pid, self.folder = pid, folder

    def limit(self, cores):
        """From now on."""
        quota_us = round(cores * PERIOD_US)
        if (self.folder / "cpu.max").exists():
            (self.folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us))

    def used_s(self):
        """CPU time of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime: proc_pid_stat(5)

    def waited_s(self):
        """How long that of its threads has waited for a CPU which waited most: some task of it did, all that time."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return max(int(path.read_text().split()[1]) for path in tasks) / 1e9

    def periods(self):
        """Those of its quota, and in how many of them it was held back."""
        told = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        return int(told["nr_periods"]), int(told["nr_throttled"])


@contextlib.contextmanager
def own_cgroup(pid, name):
    """A process in a cgroup of its own, so far without a limit."""
    folder = _made(name)
    try:
        (folder / "cgroup.procs").write_text(str(pid))
        yield Held(pid, folder)
    finally:
        for each in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (folder.parent / "cgroup.procs").write_text(each)
        folder.rmdir()


def _made(name):
    """A new cgroup whose CPU can be limited. Skips where there is none to be had."""
    root = V2 if (V2 / "cgroup.controllers").exists() else V1
    with contextlib.suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix=f"cardwise-{name}-", dir=root))
        if (folder / "cpu.max").exists() or (folder / "cpu.cfs_quota_us").exists():
            return folder
        folder.rmdir()
    pytest.skip(f"a CPU limit needs a cgroup with the CPU controller, and none can be made in {root}")
