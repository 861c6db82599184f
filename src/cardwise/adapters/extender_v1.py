"""Messages between kube-scheduler and an extender: k8s.io/kube-scheduler/extender/v1, as it writes and reads them.

Go writes field names as they are there (``NodeNames``), and null for what is absent.
"""

from __future__ import annotations

import msgspec

from cardwise.adapters.kube_objects import Pod


class _Message(msgspec.Struct, rename="pascal", gc=False):
    pass


class ExtenderArgs(_Message):
    """A pod and the names of the nodes that passed kube-scheduler's own filters."""

    pod: Pod
    node_names: list[str] | None = None


class ExtenderFilterResult(_Message):
    """Nodes that will do, and why others will not; evicting pods would not help the unresolvable."""

    node_names: list[str] = []
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(_Message):
    """A node's score, 0 to 10."""

    host: str
    score: int


class ExtenderBindingArgs(_Message):
    """A pod and the node that was picked for it."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = ""


class ExtenderBindingResult(_Message):
    """Empty if the pod is bound."""

    error: str = ""


MOST_SCORE = 10
"""extender.MaxExtenderPriority."""
