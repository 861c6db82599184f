"""A process that must outlive its container: moved to a cgroup of its own.

When the first process of a container ends that shares the host's PID namespace, the runtime kills all that is left in
the container's cgroup. An MPS daemon that went with an agent's upgrade would take every client on the node along; and
its servers, with a context per card, would count against the agent's memory. A process in another cgroup is spared, and
what it starts comes after it. Refuses to insist: where it cannot be done the process stays, which is told.
Source: containerd, pull request 3149 (the shim kills all processes of the cgroup); kernel, cgroup-v2.rst.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from cardwise.adapters.cgroup import CGROUPS, is_version_2

log = structlog.get_logger()

NAME = "cardwise-mps"


def let_outlive(pid: int, name: str = NAME, root: Path = CGROUPS) -> bool:
    """Move a process to the cgroup ``name`` below ``root``, which is made; whether that was done. Needs cgroup v2."""
    if not is_version_2(root):
        log.warning("a process ends with the agent's container: that needs cgroup v2", pid=pid)
        return False
    folder = root / name
    try:
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_text(f"{pid}\n")
    except OSError as exc:
        log.warning("a process ends with the agent's container", pid=pid, why=f"{folder}: {exc.strerror}")
        return False
    return True
