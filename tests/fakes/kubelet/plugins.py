"""How plugins and the kubelet meet: the registration service, and one client per resource.

Source: cm/devicemanager/plugin/v1beta1: server.go, handler.go, client.go. One oddity is kept: when a stream ends, the
client that is registered for its resource *now* is dropped. A plugin that registers again while its old stream still
runs loses the new registration as soon as the old stream ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path

import grpc

from cardwise.adapters.kubelet.proto import deviceplugin_pb2 as api
from cardwise.adapters.kubelet.proto import deviceplugin_pb2_grpc as services
from tests.fakes.kubelet.devices import DeviceManager, Endpoint
from tests.fakes.kubelet.faults import go_text

VERSION = "v1beta1"
DIAL_TIMEOUT_S = 10.0
RESOURCE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
# Each client has connections of its own: a plugin's socket is a new one after each of its starts.
CHANNEL = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.default_authority", "localhost"),
)


class PluginClient:
    """The kubelet's side of one plugin."""

    def __init__(self, resource: str, socket: Path, devices: DeviceManager) -> None:
        self.resource = resource
        self._devices = devices
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL)
        self._stub = services.DevicePluginStub(self._channel)
        self._closed = False

    async def connect(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._channel.channel_ready(), timeout_s)
        except TimeoutError:
            raise ConnectionError("failed to dial device plugin: context deadline exceeded") from None
        try:
            options = await self._stub.GetDevicePluginOptions(api.Empty())
        except grpc.aio.AioRpcError as error:
            raise ConnectionError(f"failed to get device plugin options: {go_text(error)}") from error
        self._devices.connected(Endpoint(self.resource, self._stub, options))

    async def run(self) -> None:
        """Until the stream ends, by whomever."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for message in self._stub.ListAndWatch(api.Empty()):
                if self._closed:  # a message that was on its way would make the devices healthy again, for good
                    return
                self._devices.reported(self.resource, message.devices)

    async def close(self) -> None:
        self._closed = True
        await self._channel.close()

    async def disconnect(self) -> None:
        await self.close()  # first, as client.go does
        self._devices.disconnected(self.resource)


class Registry(services.RegistrationServicer):
    """Plugins register here; ``folder`` is where their sockets are."""

    def __init__(self, folder: Path, devices: DeviceManager, dial_timeout_s: float = DIAL_TIMEOUT_S) -> None:
        self._folder = folder
        self._devices = devices
        self._dial_timeout_s = dial_timeout_s
        self._clients: dict[str, PluginClient] = {}
        self._runs: set[asyncio.Task[None]] = set()

    async def Register(self, request: api.RegisterRequest, context: grpc.aio.ServicerContext) -> api.Empty:  # noqa: N802
        try:
            await self._register(request)
        except (ValueError, ConnectionError) as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return api.Empty()

    async def _register(self, request: api.RegisterRequest) -> None:
        name = request.resource_name
        if request.version != VERSION:
            told = f'requested API version "{request.version}" is not supported by kubelet'
            raise ValueError(f'{told}. Supported version is ["{VERSION}"]')
        domain = name.partition("/")[0]
        if not RESOURCE_NAME.fullmatch(name) or "kubernetes.io" in domain or domain.startswith("requests."):
            raise ValueError(f'the ResourceName "{name}" is invalid')
        client = PluginClient(name, self._folder / request.endpoint, self._devices)
        self._clients[name] = client
        try:
            await client.connect(self._dial_timeout_s)
        except BaseException:
            self._clients.pop(name, None)
            await client.close()
            raise
        run = asyncio.create_task(self._run(client))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)

    async def _run(self, client: PluginClient) -> None:
        try:
            await client.run()
        finally:
            now = self._clients.pop(client.resource, None)
            if now:
                await now.disconnect()
            await client.close()

    async def stop(self) -> None:
        while self._clients:
            _, client = self._clients.popitem()
            await client.disconnect()
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
