"""Whose devices are these? The kubelet's pod resources API, by gRPC on a unix socket.

It knows namespace, pod name and container, but not the pod's UID, and tells nothing of ordinary init containers: for
those ``checkpoint.py`` is asked. Refuses to remember: every answer is the kubelet's at that moment.
Source: k8s.io/kubelet/pkg/apis/podresources/v1; kubernetes pkg/kubelet/apis/podresources/server_v1.go.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio

from cardwise.adapters.kubelet.proto import podresources_pb2, podresources_pb2_grpc
from cardwise.errors import ClusterError

TIMEOUT_S = 5.0
RATE_TRIES, RATE_WAIT_S = 20, 0.1
"""The kubelet answers 100 questions a second, and 10 at once."""
MOST_BYTES = 64 * 2**20
"""Of an answer: the kubelet lists every pod of the node with all its devices."""


@dataclass(frozen=True, slots=True)
class Held:
    """A container and the devices of one resource that the kubelet gave it."""

    namespace: str
    pod: str
    container: str
    ids: frozenset[str]


class PodResources:
    """A client of one kubelet. The connection is made when it is needed, and anew after the kubelet restarted."""

    def __init__(self, socket: Path) -> None:
        """Ask the kubelet behind ``socket``."""
        self._socket = socket
        self._channel: grpc.aio.Channel | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def held(self, resource: str) -> list[Held]:
        """Who holds devices of ``resource``. Raises ClusterError, to be tried again."""
        answer = await self._list(tries_left=RATE_TRIES)
        found = [
            Held(pod.namespace, pod.name, container.name, _ids(container, resource))
            for pod in answer.pod_resources
            for container in pod.containers
        ]
        return [each for each in found if each.ids]

    async def _list(self, tries_left: int) -> podresources_pb2.ListPodResourcesResponse:
        """The kubelet's answer; it takes so many questions a second, and refuses more."""
        while True:
            try:
                return await self._stub().List(podresources_pb2.ListPodResourcesRequest(), timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as exc:
                tries_left -= 1
                if exc.code() != grpc.StatusCode.RESOURCE_EXHAUSTED or not tries_left:
                    self._leave()
                    why = f"{self._socket}: the kubelet does not say whose slots they are: {exc.details()}"
                    raise ClusterError(why, retry=True) from exc
                await asyncio.sleep(RATE_WAIT_S)

    async def close(self) -> None:
        """End the connection, and every call on it."""
        self._leave(grace_s=0.0)
        await asyncio.gather(*self._ending)

    def _leave(self, grace_s: float = TIMEOUT_S) -> None:
        """Make a new connection for the next call. Others may still wait on this one: they are not broken off."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            task = asyncio.ensure_future(channel.close(grace_s))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _stub(self) -> podresources_pb2_grpc.PodResourcesListerStub:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", MOST_BYTES), ("grpc.use_local_subchannel_pool", 1)]
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        return podresources_pb2_grpc.PodResourcesListerStub(self._channel)


def _ids(container: podresources_pb2.ContainerResources, resource: str) -> frozenset[str]:
    """All of the container's devices of one resource: the kubelet tells each in an entry of its own."""
    return frozenset(
        id_ for devices in container.devices if devices.resource_name == resource for id_ in devices.device_ids
    )
