"""The node: its sockets, its pods, and one way for a container to start.

Sources: kubelet.go (HandlePodAdditions: pods are admitted one after another), kubelet_pods.go
(GenerateRunContainerOptions, isPodInactive), kuberuntime/kuberuntime_container.go (startContainer),
cm/devicemanager/pod_devices.go (deviceRunContainerOptions), manager.go (CleanupPluginDirectory).
"""

from __future__ import annotations

import asyncio
import random
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import grpc

from cardwise.adapters.kubelet.proto import deviceplugin_pb2_grpc, podresources_pb2_grpc
from tests.fakes.kubelet.cdi import resolve
from tests.fakes.kubelet.checkpoint import CHECKPOINT
from tests.fakes.kubelet.devices import PRESTART_TIMEOUT_S, STOP_GRACE_S, DeviceManager, Granted, Hook, Hooks
from tests.fakes.kubelet.faults import CREATE_CONTAINER_CONFIG, ContainerError, DeviceError, Refused
from tests.fakes.kubelet.plugins import DIAL_TIMEOUT_S, Registry
from tests.fakes.kubelet.podresources import PodResources
from tests.fakes.kubelet.pods import (
    Container,
    Pod,
    all_containers,
    container_named,
    env_of,
    init_containers,
    is_sidecar,
    uid_of,
)
from tests.fakes.kubelet.started import Started

POLL_S = 0.005
LONGEST_SOCKET = 107


@dataclass
class Here:
    """A pod that the kubelet knows."""

    pod: Pod
    terminal: bool = False
    running: dict[str, Started] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)


class FakeKubelet:
    """``folder`` gets device-plugins/, pod-resources/ and cdi/; keep it short, sockets have names of at most 107 bytes.

    cdi_folders: where the runtime looks CDI names up, the later over the earlier; ``folder``/cdi unless told.
    list_delay: seconds before the pod resources service answers. hooks: ``before_allocate`` and ``before_prestart`` may
    be set at any time. seed: of all that the real one does at random.
    """

    def __init__(
        self,
        folder: Path,
        node: str,
        *,
        cdi_folders: Sequence[Path] | None = None,
        prestart_timeout_s: float = PRESTART_TIMEOUT_S,
        stop_grace_s: float = STOP_GRACE_S,
        dial_timeout_s: float = DIAL_TIMEOUT_S,
        list_delay: float = 0.0,
        seed: int | None = None,
    ) -> None:
        self.folder, self.node = Path(folder), node
        self.plugins = self.folder / "device-plugins"
        self.registration_socket = self.plugins / "kubelet.sock"
        self.pod_resources_socket = self.folder / "pod-resources" / "kubelet.sock"
        self.cdi_folders = list(cdi_folders or [self.folder / "cdi"])
        self.list_delay = list_delay
        self.prestart_timeout_s, self.stop_grace_s = prestart_timeout_s, stop_grace_s
        self._dial_timeout_s = dial_timeout_s
        self._random = random.Random(seed)  # noqa: S311 - no secret
        self._hooks = Hooks()
        self._pods: dict[str, Here] = {}
        self._admission = asyncio.Lock()
        self._servers: list[grpc.aio.Server] = []
        self._registry: Registry | None = None
        self.devices = self._new_devices()
        self.pod_resources = PodResources(self)

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """As the kubelet starts: the plugins' sockets are removed, the checkpoint is read."""
        for each in (self.plugins, self.pod_resources_socket.parent, *self.cdi_folders):
            each.mkdir(parents=True, exist_ok=True)
        self.devices = self._new_devices()
        self.devices.read_checkpoint()
        for each in self.plugins.iterdir():
            if each.name != CHECKPOINT and stat.S_ISSOCK(each.lstat().st_mode):
                each.unlink()
        self._registry = Registry(self.plugins, self.devices, self._dial_timeout_s)
        self.pod_resources = PodResources(self)
        await self._serve(
            self.registration_socket,
            lambda server: deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(self._registry, server),
        )
        await self._serve(
            self.pod_resources_socket,
            lambda server: podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(self.pod_resources, server),
        )

    async def stop(self) -> None:
        """End the services; containers run on, the checkpoint stays."""
        if self._registry:
            await self._registry.stop()
            self._registry = None
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()
        for socket in (self.registration_socket, self.pod_resources_socket):
            socket.unlink(missing_ok=True)

    async def restart(self) -> dict[str, Refused]:
        """Stop, start, and admit all pods anew, as the kubelet does: what it refused, by pod uid.

        A container that runs is left alone. A pod with a container that asks for devices and does not run at this
        moment (it waits, or it is an init container that has ended) is refused: no plugin has registered yet. It is
        terminal then, and its containers end.
        """
        await self.stop()
        await self.start()
        self.devices.sources_ready = False
        refused = {}
        for uid, here in list(self._pods.items()):
            if not here.terminal:
                try:
                    await self.admit(here.pod)
                except Refused as error:
                    refused[uid] = error
                    here.running.clear()
        self.devices.sources_ready = True
        return refused

    async def _serve(self, socket: Path, add: Callable[[grpc.aio.Server], None]) -> None:
        if len(str(socket).encode()) > LONGEST_SOCKET:
            raise ValueError(f"{socket}: longer than {LONGEST_SOCKET} bytes; take a shorter folder")
        socket.unlink(missing_ok=True)
        server = grpc.aio.server()
        add(server)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        self._servers.append(server)

    def _new_devices(self) -> DeviceManager:
        return DeviceManager(
            self.plugins,
            lambda: {uid_of(each) for each in self.active()},
            self._random,
            self._hooks,
            lambda uid, name: uid in self._pods and name in self._pods[uid].running,
            prestart_timeout_s=self.prestart_timeout_s,
            stop_grace_s=self.stop_grace_s,
        )

    # ---------------------------------------------------------------- what plugins have said

    @property
    def before_allocate(self) -> Hook | None:
        return self._hooks.before_allocate

    @before_allocate.setter
    def before_allocate(self, hook: Hook | None) -> None:
        self._hooks.before_allocate = hook

    @property
    def before_prestart(self) -> Hook | None:
        return self._hooks.before_prestart

    @before_prestart.setter
    def before_prestart(self, hook: Hook | None) -> None:
        self._hooks.before_prestart = hook

    def capacity(self, resource: str) -> int:
        return self.devices.capacity()[0].get(resource, 0)

    def allocatable(self, resource: str) -> int:
        """Healthy devices, whoever has them."""
        return self.devices.capacity()[1].get(resource, 0)

    async def wait_registered(self, resource: str, timeout_s: float = 60.0) -> None:
        """Until a plugin has registered and has sent its devices once."""
        await self.wait(lambda: self._is_registered(resource), f"no plugin for {resource}", timeout_s)

    async def wait_allocatable(self, resource: str, count: int, timeout_s: float = 60.0) -> None:
        await self.wait(lambda: self.allocatable(resource) == count, f"never {count} of {resource}", timeout_s)

    async def wait(self, done: Callable[[], bool], complaint: str, timeout_s: float = 60.0) -> None:
        until_s = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() > until_s:
                raise TimeoutError(f"{complaint} after {timeout_s:g} s")
            await asyncio.sleep(POLL_S)

    def _is_registered(self, resource: str) -> bool:
        endpoint = self.devices.endpoints.get(resource)
        return bool(endpoint and endpoint.stopped_at_s is None and resource in self.devices.all_devices)

    # ---------------------------------------------------------------- pods

    def known(self) -> list[Pod]:
        return [each.pod for each in self._pods.values()]

    def active(self) -> list[Pod]:
        """The pods that are not terminal."""
        return [each.pod for each in self._pods.values() if not each.terminal]

    def running(self) -> dict[tuple[str, str], Started]:
        """By pod uid and container."""
        return {(uid, name): each for uid, here in self._pods.items() for name, each in here.running.items()}

    async def admit(self, pod: Pod) -> None:
        """Grant every container its devices, init containers first, one pod at a time.

        Raises Refused: the pod is terminal then.
        """
        async with self._admission:
            here = self._pods.setdefault(uid_of(pod), Here(pod))
            here.pod = pod
            try:
                for container in all_containers(pod):
                    await self.devices.allocate(pod, container)
            except DeviceError as error:
                here.terminal = True
                raise Refused.because(error) from error

    def know(self, pod: Pod, *, terminal: bool) -> None:
        """A pod that was not admitted by this kubelet, such as one that had ended before."""
        self._pods.setdefault(uid_of(pod), Here(pod, terminal))

    def update_pod(self, pod: Pod) -> None:
        """What the API server says of a pod now."""
        self._pods[uid_of(pod)].pod = pod

    async def start_container(self, pod_uid: str, container: str) -> Started:
        """Start or restart a container of an admitted pod. Raises ContainerError."""
        here = self._pods[pod_uid]
        spec = container_named(here.pod, container)
        here.running.pop(container, None)
        try:
            granted = await self.devices.prepare(here.pod, spec, not here.terminal)
        except DeviceError as error:
            raise ContainerError(CREATE_CONTAINER_CONFIG, str(error)) from error
        attempt = here.attempts.get(container, 0)
        started = _started(here.pod, spec, granted, self.cdi_folders, attempt)
        here.attempts[container] = attempt + 1
        here.running[container] = started
        return started

    def stop_container(self, pod_uid: str, container: str) -> None:
        """The container has ended, by itself or not."""
        self._pods[pod_uid].running.pop(container, None)

    async def run_pod(self, pod: Pod) -> dict[str, Started]:
        """Admit a pod and start its containers once: ordinary init containers end at once, sidecars run on.

        Raises Refused, or the first ContainerError: at once if of an ordinary init container, else when all were tried.
        """
        await self.admit(pod)
        uid, found, failed = uid_of(pod), {}, None
        for container in all_containers(pod):
            name = container["name"]
            ordinary = container in init_containers(pod) and not is_sidecar(container)
            try:
                found[name] = await self.start_container(uid, name)
            except ContainerError as error:
                if ordinary:
                    raise
                failed = failed or error
            if ordinary:
                self.stop_container(uid, name)
        if failed:
            raise failed
        return found

    def end_pod(self, pod_uid: str) -> None:
        """All containers have ended for good, the pod is still in the API."""
        here = self._pods[pod_uid]
        here.terminal = True
        here.running.clear()

    def remove_pod(self, pod_uid: str) -> None:
        """The pod is gone. Its devices are free at the next admission or List; the checkpoint names them until then."""
        self._pods.pop(pod_uid, None)


def _started(
    pod: Pod, container: Container, granted: Mapping[str, Granted], cdi_folders: Sequence[Path], attempt: int
) -> Started:
    """The plugin's answers together (of two for one thing the first counts), then the pod's own, then CDI's."""
    env: dict[str, str] = {}
    annotations: dict[str, str] = {}
    mounts: dict[str, Mapping[str, Any]] = {}
    nodes: dict[str, Mapping[str, Any]] = {}
    names: list[str] = []
    for answer in (each.answer for each in granted.values()):
        env = {**answer.envs, **env}
        annotations = {**answer.annotations, **annotations}
        for mount in answer.mounts:
            mounts.setdefault(mount.container_path, _mount(mount))
        for node in answer.devices:
            nodes.setdefault(node.container_path, _device_node(node))
        names += [each.name for each in answer.cdi_devices if each.name not in names]
    env |= env_of(pod, container)
    edits = resolve(names, cdi_folders)
    env |= dict(each.split("=", 1) for each in edits.env)
    for mount in edits.mounts:  # the later of two for one path stays
        mounts.pop(mount["containerPath"], None)
        mounts[mount["containerPath"]] = mount
    for node in edits.device_nodes:
        nodes.pop(node["path"], None)
        nodes[node["path"]] = node
    return Started(
        env=env,
        mounts=tuple(sorted(mounts.values(), key=lambda each: len(PurePosixPath(each["containerPath"]).parts))),
        device_nodes=tuple(nodes.values()),
        cdi_names=tuple(names),
        hooks=tuple(edits.hooks),
        annotations=annotations,
        device_ids={resource: tuple(sorted(each.ids)) for resource, each in granted.items()},
        attempt=attempt,
    )


def _mount(mount: Any) -> Mapping[str, Any]:
    options = ["ro" if mount.read_only else "rw"]
    return {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": options}


def _device_node(node: Any) -> Mapping[str, Any]:
    return {"hostPath": node.host_path, "path": node.container_path, "permissions": node.permissions}
