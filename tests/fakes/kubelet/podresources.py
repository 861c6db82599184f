"""The kubelet's pod resources service.

Sources: apis/podresources/server_v1.go, cm/container_manager.go (one entry per device and NUMA node), apis/grpc and
apis/podresources/constants.go (the limit on calls).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Protocol

import grpc

from cardwise.adapters.kubelet.proto import podresources_pb2 as api
from cardwise.adapters.kubelet.proto import podresources_pb2_grpc as services
from tests.fakes.kubelet.checkpoint import NO_NUMA_NODE
from tests.fakes.kubelet.devices import DeviceManager
from tests.fakes.kubelet.pods import Pod, all_containers, init_containers, is_sidecar, key_of, uid_of

CALLS_PER_S, BURST = 100.0, 10


class Node(Protocol):
    """What the service reads of the kubelet."""

    list_delay: float
    devices: DeviceManager

    def active(self) -> list[Pod]: ...
    def known(self) -> list[Pod]: ...


class PodResources(services.PodResourcesListerServicer):
    def __init__(self, node: Node) -> None:
        self._node = node
        self.calls = 0
        self._tokens, self._told_s = float(BURST), time.monotonic()

    async def List(self, _request, context):  # noqa: N802
        await self._let_in(context)
        active = self._node.active()
        self._node.devices.forget_inactive()
        return api.ListPodResourcesResponse(pod_resources=[self._of_pod(each) for each in active])

    async def Get(self, request, context):  # noqa: N802
        """Unlike List it knows terminal pods too."""
        await self._let_in(context)
        asked = request.pod_namespace, request.pod_name
        found = [each for each in self._node.known() if key_of(each) == asked]
        if not found:
            words = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            await context.abort(grpc.StatusCode.UNKNOWN, words)
        return api.GetPodResourcesResponse(pod_resources=self._of_pod(found[0]))

    async def GetAllocatableResources(self, _request, context):  # noqa: N802
        await self._let_in(context)
        manager = self._node.devices
        found = [
            part
            for resource, ids in manager.healthy.items()
            for each in sorted(ids)
            for part in _devices(resource, each, _nodes(manager.all_devices[resource][each]))
        ]
        return api.AllocatableResourcesResponse(devices=found)

    async def _let_in(self, context: grpc.aio.ServicerContext) -> None:
        self.calls += 1
        now_s = time.monotonic()
        self._tokens = min(BURST, self._tokens + (now_s - self._told_s) * CALLS_PER_S)
        self._told_s = now_s
        if self._tokens < 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1
        if self._node.list_delay:
            await asyncio.sleep(self._node.list_delay)

    def _of_pod(self, pod: Pod) -> api.PodResources:
        ordinary = {each["name"] for each in init_containers(pod) if not is_sidecar(each)}
        names = [each["name"] for each in all_containers(pod) if each["name"] not in ordinary]
        namespace, name = key_of(pod)
        containers = [
            api.ContainerResources(name=each, devices=self._of_container(uid_of(pod), each)) for each in names
        ]
        return api.PodResources(name=name, namespace=namespace, containers=containers)

    def _of_container(self, uid: str, container: str) -> list[api.ContainerDevices]:
        return [
            part
            for resource, grant in self._node.devices.of_container(uid, container).items()
            for node, ids in grant.ids_by_numa.items()
            for each in ids
            for part in _devices(resource, each, [] if node == NO_NUMA_NODE else [node])
        ]


def _devices(resource: str, device_id: str, nodes: list[int]) -> Iterator[api.ContainerDevices]:
    if not nodes:
        yield api.ContainerDevices(resource_name=resource, device_ids=[device_id])
    for node in nodes:
        topology = api.TopologyInfo(nodes=[api.NUMANode(ID=node)])
        yield api.ContainerDevices(resource_name=resource, device_ids=[device_id], topology=topology)


def _nodes(device) -> list[int]:
    return [node.ID for node in device.topology.nodes]
