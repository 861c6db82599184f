"""What a container would have been given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Started:
    """Mounts, device nodes and hooks are objects in the words of CDI: ``hostPath``, ``containerPath``, ``path``, …

    env: as the process sees it: the plugin's, then the pod's, then CDI's, the later over the earlier.
    device_ids: by resource, what the kubelet granted. attempt: 0, and one more at every restart.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mapping[str, Any]] = ()
    device_nodes: Sequence[Mapping[str, Any]] = ()
    cdi_names: Sequence[str] = ()
    hooks: Sequence[Mapping[str, Any]] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    device_ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    attempt: int = 0
