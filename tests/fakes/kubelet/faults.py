"""How the kubelet says no, and how it words a plugin's error.

Sources: cm/admission/errors.go, kuberuntime/kuberuntime_container.go; grpc-go status.Error.
"""

from __future__ import annotations

import grpc

CREATE_CONTAINER_CONFIG = "CreateContainerConfigError"
CREATE_CONTAINER = "CreateContainerError"
# gRPC's own words differ between its libraries; these are the ones the kubelet's events show.
GO_WORDS = {grpc.StatusCode.DEADLINE_EXCEEDED: "context deadline exceeded"}


class DeviceError(Exception):
    """The device manager could not do it; the message is what the kubelet would say."""


class Refused(Exception):  # noqa: N818 - it is what the kubelet did
    """The pod was not admitted: it is failed for good, with this reason."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason, self.message = reason, message
        super().__init__(f"{reason}: {message}")

    @classmethod
    def because(cls, error: DeviceError) -> Refused:
        return cls("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")


class ContainerError(Exception):
    """The container was not created; the kubelet tries again. ``reason`` is that of the waiting state."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason, self.message = reason, message
        super().__init__(f"{reason}: {message}")


def go_text(error: grpc.aio.AioRpcError) -> str:
    """The error as grpc-go prints it: DEADLINE_EXCEEDED is DeadlineExceeded there."""
    code = error.code()
    name = "".join(word.capitalize() for word in code.name.split("_")).replace("Cancelled", "Canceled")
    return f"rpc error: code = {name} desc = {GO_WORDS.get(code, error.details())}"
