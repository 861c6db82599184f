"""The kubelet's device plugin API v1beta1, as plain values: what a plugin must answer, and how it is served.

Refuses to know what a device is: the agent's rules stand behind :class:`Plugin`.
Source: k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
import structlog

from cardwise.adapters.kubelet.proto import deviceplugin_pb2 as pb
from cardwise.adapters.kubelet.proto import deviceplugin_pb2_grpc as pb_grpc
from cardwise.errors import CardwiseError, ClusterError

log = structlog.get_logger()

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
REGISTER_TIMEOUT_S = 10.0
GRACE_S = 0.5
"""For calls under way when the plugin stops; the stream of devices never ends by itself."""


class RefusedError(CardwiseError):
    """A container must not start as things are: the text reaches the pod's event. The kubelet tries again."""


class UnknownDeviceError(CardwiseError):
    """The kubelet asks for a device that was never offered."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device that the kubelet may give away."""

    id: str
    healthy: bool = True


class Plugin(Protocol):
    """What stands behind the API."""

    def offers(self) -> AsyncIterator[Sequence[Device]]:
        """All devices now, and again whenever one changes, for ever."""
        ...

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """Which of the available ones are best taken; a hint."""
        ...

    def cdi_names(self, ids: Sequence[str]) -> Sequence[str]:
        """The CDI device of each. Raises UnknownDeviceError."""
        ...

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Make a container's devices ready. Raises RefusedError, or another CardwiseError."""
        ...


@dataclass(slots=True)
class Served:
    """A plugin that is served. streams: kubelets that listen to its devices; without one it is as good as gone."""

    streams: int = 0


class _Servicer(pb_grpc.DevicePluginServicer):
    def __init__(self, plugin: Plugin, served: Served) -> None:
        self._plugin, self._served = plugin, served

    async def GetDevicePluginOptions(self, _request: pb.Empty, _context: Any) -> pb.DevicePluginOptions:  # noqa: N802, ANN401 - the API's
        return options()

    async def ListAndWatch(self, _request: pb.Empty, _context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: N802, ANN401
        self._served.streams += 1
        try:
            async for devices in self._plugin.offers():
                told = [pb.Device(ID=each.id, health=HEALTHY if each.healthy else UNHEALTHY) for each in devices]
                yield pb.ListAndWatchResponse(devices=told)
        finally:
            self._served.streams -= 1

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, _context: object
    ) -> pb.PreferredAllocationResponse:
        answers = [
            pb.ContainerPreferredAllocationResponse(
                deviceIDs=self._plugin.prefer(
                    each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size
                )
            )
            for each in request.container_requests
        ]
        return pb.PreferredAllocationResponse(container_responses=answers)

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:  # noqa: N802, ANN401
        try:
            named = [self._plugin.cdi_names(each.devices_ids) for each in request.container_requests]
        except UnknownDeviceError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        answers = [
            pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=name) for name in names]) for names in named
        ]
        return pb.AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802
        self,
        request: pb.PreStartContainerRequest,
        context: Any,  # noqa: ANN401
    ) -> pb.PreStartContainerResponse:
        try:
            await self._plugin.pre_start(request.devices_ids)
        except RefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except CardwiseError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.PreStartContainerResponse()


def options() -> pb.DevicePluginOptions:
    """What the kubelet must know before it asks: it calls before each start, and takes hints."""
    return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


@contextlib.asynccontextmanager
async def serving(plugin: Plugin, socket: Path) -> AsyncIterator[Served]:
    """Serve ``plugin`` on a unix socket until the ``with`` ends. Raises ClusterError if the socket cannot be made."""
    server, served = grpc.aio.server(), Served()
    pb_grpc.add_DevicePluginServicer_to_server(_Servicer(plugin, served), server)
    try:
        socket.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
    except (RuntimeError, OSError) as exc:
        raise ClusterError(f"{socket}: no socket can be made there: {exc}", retry=True) from exc
    try:
        yield served
    finally:
        await server.stop(GRACE_S)
        with contextlib.suppress(OSError):
            socket.unlink()


async def register(kubelet: Path, endpoint: str, resource: str) -> None:
    """Tell the kubelet behind the socket that ``endpoint``, beside it, offers ``resource``. Raises ClusterError."""
    request = pb.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options())
    async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as exc:
            raise ClusterError(f"{kubelet}: the kubelet takes no registration: {exc.details()}", retry=True) from exc
