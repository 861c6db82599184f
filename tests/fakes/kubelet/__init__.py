"""A kubelet without a machine: the real gRPC API and the real device manager's behaviour, in one event loop.

Checked against the sources of Kubernetes 1.36.3 (pkg/kubelet); each module names its files. It runs no container:
starting one calls the plugin, resolves the CDI names as the runtime does, and says what the container would have got.
"""

from tests.fakes.kubelet.cdi import resolve
from tests.fakes.kubelet.checkpoint import CHECKPOINT
from tests.fakes.kubelet.cluster import ClusterKubelet
from tests.fakes.kubelet.devices import Call
from tests.fakes.kubelet.faults import ContainerError, Refused
from tests.fakes.kubelet.node import FakeKubelet
from tests.fakes.kubelet.started import Started

__all__ = ["CHECKPOINT", "Call", "ClusterKubelet", "ContainerError", "FakeKubelet", "Refused", "Started", "resolve"]
