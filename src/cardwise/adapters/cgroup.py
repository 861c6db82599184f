"""From a process to its pod and container, and from a pod to its cgroup, by the names that the kubelet gives cgroups.

Both of the kubelet's cgroup drivers and both cgroup versions are read. Refuses to guess: a process of no pod is none.
Source: kubernetes pkg/kubelet/cm/pod_container_manager_linux.go, cgroup_manager_linux.go.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})")
_CONTAINER = re.compile(r"(?:^|[-/])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_QOS = ("", "burstable", "besteffort")


@dataclass(frozen=True, slots=True)
class Home:
    """Where a process lives. container_id: the runtime's, empty if it is the pod's own process."""

    pod_uid: str
    container_id: str


def home_of(pid: int, proc: Path = PROC) -> Home | None:
    """The pod and container of a process; None if it is of no pod, or gone."""
    try:
        text = (proc / str(pid) / "cgroup").read_text(errors="replace")  # anyone may call a cgroup anything
    except OSError:
        return None
    for line in text.splitlines():
        path = line.rpartition(":")[2]
        pod = _POD.search(path)
        if pod is not None:
            container = _CONTAINER.search(path[pod.end() :])
            return Home(pod.group(1).replace("_", "-"), container.group(1) if container else "")
    return None


def pod_cgroup(uid: str, root: Path = CGROUPS) -> str | None:
    """The path of a pod's cgroup below ``root``, as the kernel writes it; None if there is none yet."""
    for qos in _QOS:
        middle = f"kubepods-{qos}" if qos else "kubepods"
        outer = f"/{middle}.slice" if qos else ""
        systemd = f"/kubepods.slice{outer}/{middle}-pod{uid.replace('-', '_')}.slice"
        cgroupfs = f"/kubepods/{qos}/pod{uid}".replace("//", "/")
        for path in (systemd, cgroupfs):
            if (root / path.lstrip("/")).is_dir():
                return path
    return None


def is_version_2(root: Path = CGROUPS) -> bool:
    """True if the unified hierarchy is mounted, which limits on card memory need."""
    return (root / "cgroup.controllers").is_file()
