"""Signals to processes of a pod: to that pod's only, though numbers of processes are used again.

A process is held by a descriptor first, and looked at second: whatever gets its number meanwhile is not what is
signalled. Refuses a process of another pod, or of none.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cardwise.adapters.cgroup import PROC, home_of
from cardwise.errors import ClusterError


def signal_of_pod(pid: int, pod_uid: str, what: signal.Signals, proc: Path = PROC) -> bool:
    """Send a signal to a process, if it is there and of this pod; whether it was. Raises ClusterError if it may not be.

    pid: as the host counts; ``proc``: where the host's processes are seen.
    """
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except OSError as exc:
        raise ClusterError(f"process {pid} cannot be signalled: {exc}", retry=False) from exc
    try:
        home = home_of(pid, proc)
        if home is None or home.pod_uid != pod_uid:
            return False
        signal.pidfd_send_signal(held, what)
    except ProcessLookupError:
        return False
    except OSError as exc:
        raise ClusterError(
            f"process {pid} cannot be sent {what.name}: {exc}; the agent needs root and the host's processes (hostPID)",
            retry=False,
        ) from exc
    finally:
        os.close(held)
    return True
