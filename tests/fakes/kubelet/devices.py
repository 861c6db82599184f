"""Which devices there are, who has which: the device manager.

Source: cm/devicemanager/manager.go, endpoint.go and pod_devices.go, function by function; what they do at random is
random here too, what they do under a lock happens here without a pause. Left out: NUMA alignment (the topology
manager's policy is "none", as by default).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from cardwise.adapters.kubelet.proto import deviceplugin_pb2 as api
from tests.fakes.kubelet import checkpoint as files
from tests.fakes.kubelet.faults import DeviceError, go_text
from tests.fakes.kubelet.pods import Container, Pod, init_containers, is_sidecar, limits, uid_of

HEALTHY = "Healthy"
STOP_GRACE_S = 300.0
PRESTART_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Call:
    """One call that the kubelet is about to make, for whom; the plugin is told the ids only."""

    resource: str
    device_ids: tuple[str, ...]
    pod: Pod
    container: str


Hook = Callable[[Call], Awaitable[int | None]]
"""Awaited before a call; it may wait, and may answer how many times at once the call is to be made."""


@dataclass
class Endpoint:
    """A plugin. Without ``stub``: known from the checkpoint only, not registered since the kubelet started."""

    resource: str
    stub: object = None
    options: api.DevicePluginOptions | None = None
    stopped_at_s: float | None = None

    def must_run(self) -> None:
        if self.stopped_at_s is not None:
            raise DeviceError(f"endpoint {self.resource} has been stopped")

    def grace_expired(self, grace_s: float) -> bool:
        return self.stopped_at_s is not None and time.monotonic() - self.stopped_at_s > grace_s


@dataclass(frozen=True)
class Granted:
    """What a container was given of a resource, and the plugin's answer."""

    ids_by_numa: Mapping[int, list[str]]
    answer: api.ContainerAllocateResponse

    @property
    def ids(self) -> set[str]:
        return {each for ids in self.ids_by_numa.values() for each in ids}


@dataclass
class Hooks:
    before_allocate: Hook | None = None
    before_prestart: Hook | None = None


@dataclass
class DeviceManager:
    """``folder``: where the plugins' sockets are, and the checkpoint.

    active_pods: uids of the pods that are neither terminal nor gone; the devices of others are free at the next look.
    is_running: whether a container (pod uid, name) ran when the kubelet started.
    """

    folder: Path
    active_pods: Callable[[], Collection[str]]
    random: random.Random
    hooks: Hooks
    is_running: Callable[[str, str], bool]
    prestart_timeout_s: float = PRESTART_TIMEOUT_S
    stop_grace_s: float = STOP_GRACE_S
    sources_ready: bool = True
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    all_devices: dict[str, dict[str, api.Device]] = field(default_factory=dict)
    healthy: dict[str, set[str]] = field(default_factory=dict)
    unhealthy: dict[str, set[str]] = field(default_factory=dict)
    allocated: dict[str, set[str]] = field(default_factory=dict)
    granted: dict[tuple[str, str, str], Granted] = field(default_factory=dict)
    """By pod uid, container, resource."""
    _reuse: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    # ---------------------------------------------------------------- plugins come, report, go

    def connected(self, endpoint: Endpoint) -> None:
        self.endpoints[endpoint.resource] = endpoint

    def disconnected(self, resource: str) -> None:
        if resource in self.endpoints:
            lost = self.healthy.get(resource, set())
            self.healthy[resource] = set()
            self.unhealthy[resource] = self.unhealthy.get(resource, set()) | lost
            self.endpoints[resource].stopped_at_s = time.monotonic()

    def reported(self, resource: str, devices: Iterable[api.Device]) -> None:
        """A message of the plugin's stream: it names all devices, every time."""
        self.all_devices[resource] = {each.ID: each for each in devices}
        known = self.all_devices[resource].values()
        self.healthy[resource] = {each.ID for each in known if each.health == HEALTHY}
        self.unhealthy[resource] = {each.ID for each in known if each.health != HEALTHY}
        self.write_checkpoint()

    def capacity(self) -> tuple[dict[str, int], dict[str, int], set[str]]:
        """Capacity, allocatable, and the resources whose plugin is gone for longer than the grace period."""
        gone = {name for name in {*self.healthy, *self.unhealthy} if self._is_gone(name)}
        allocatable = {name: len(ids) for name, ids in self.healthy.items() if name not in gone}
        capacity = {name: count + len(self.unhealthy.get(name, ())) for name, count in allocatable.items()}
        for name in gone:
            for each in (self.endpoints, self.healthy, self.unhealthy):
                each.pop(name, None)
        if gone:
            self.write_checkpoint()
        return capacity, allocatable, gone

    def _is_gone(self, resource: str) -> bool:
        return resource not in self.endpoints or self.endpoints[resource].grace_expired(self.stop_grace_s)

    # ---------------------------------------------------------------- the checkpoint

    def write_checkpoint(self) -> None:
        entries = [
            files.Entry(*key, grant.ids_by_numa, grant.answer.SerializeToString())
            for key, grant in self.granted.items()
        ]
        registered = {name: self._shuffled(ids) for name, ids in self.healthy.items()}
        files.write(self.folder / files.CHECKPOINT, files.Checkpoint(entries, registered))

    def read_checkpoint(self) -> None:
        """At start: what was granted is granted still; every resource has no devices until its plugin registers."""
        found = files.read(self.folder / files.CHECKPOINT)
        if found is None:
            return
        for each in found.entries:
            answer = api.ContainerAllocateResponse.FromString(each.answer)
            key = (each.pod_uid, each.container, each.resource)
            self.granted[key] = Granted({node: list(ids) for node, ids in each.ids_by_numa.items()}, answer)
        self.allocated = self._granted_ids()
        for name in found.registered:
            self.healthy[name], self.unhealthy[name] = set(), set()
            self.endpoints[name] = Endpoint(name, stopped_at_s=time.monotonic())

    # ---------------------------------------------------------------- admission

    async def allocate(self, pod: Pod, container: Container) -> None:
        """Grant one container what its limits ask for. Raises DeviceError."""
        uid = uid_of(pod)
        self._reuse = {uid: self._reuse.get(uid, {})}
        reuse = self._reuse[uid]
        await self._allocate_container(pod, container, reuse)
        own = {resource: grant.ids for resource, grant in self.of_container(uid, container["name"]).items()}
        ordinary = any(each["name"] == container["name"] and not is_sidecar(each) for each in init_containers(pod))
        for resource, ids in own.items():
            before = reuse.get(resource, set())
            reuse[resource] = before | ids if ordinary else before - ids

    async def _allocate_container(self, pod: Pod, container: Container, reuse: dict[str, set[str]]) -> None:
        looked = changed = False
        for resource, amount in limits(container):
            if not self._is_plugin_resource(resource):
                continue
            if not looked:
                self.forget_inactive()
                looked = True
            ids = await self._choose(pod, container["name"], resource, int(amount), reuse.get(resource, set()))
            if ids:
                changed = True
                await self._grant(pod, container["name"], resource, ids)
        if changed:
            self.write_checkpoint()

    async def _grant(self, pod: Pod, container: str, resource: str, ids: set[str]) -> None:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            self.allocated = self._granted_ids()
            raise DeviceError(f"unknown Device Plugin {resource}")
        try:
            answer = await self._call_allocate(endpoint, Call(resource, self._shuffled(ids), pod, container))
        except DeviceError:
            self.allocated = self._granted_ids()
            raise
        if not answer.container_responses:
            raise DeviceError(f"no containers return in allocation response {answer}")
        key = (uid_of(pod), container, resource)
        self.granted[key] = Granted(self._by_numa(resource, ids), answer.container_responses[0])

    async def _call_allocate(self, endpoint: Endpoint, call: Call) -> api.AllocateResponse:
        copies = await _asked(self.hooks.before_allocate, call)
        endpoint.must_run()
        asked = api.ContainerAllocateRequest(devices_ids=call.device_ids)
        request = api.AllocateRequest(container_requests=[asked])
        return await _answer(lambda: endpoint.stub.Allocate(request), copies)

    def _by_numa(self, resource: str, ids: set[str]) -> dict[int, list[str]]:
        found: dict[int, list[str]] = defaultdict(list)
        for each in self._shuffled(ids):
            device = self.all_devices.get(resource, {}).get(each, api.Device())
            for node in [node.ID for node in device.topology.nodes] or [files.NO_NUMA_NODE]:
                found[node].append(each)
        return dict(found)

    async def _choose(
        self, pod: Pod, container: str, resource: str, required: int, reusable: set[str]
    ) -> set[str] | None:
        """The ids to ask the plugin for; None where nothing is to be asked."""
        held = self.granted.get((uid_of(pod), container, resource))
        before = held.ids if held else set()
        if held and len(before) != required:
            was = f'"{uid_of(pod)}" container "{container}" changed request for resource "{resource}"'
            raise DeviceError(f"pod {was} from {len(before)} to {required}")
        if not self.sources_ready and self.is_running(uid_of(pod), container):
            return None
        self._must_be_usable(resource, before)
        needed = required - len(before)
        return await self._pick(resource, needed, reusable) if needed else None

    def _must_be_usable(self, resource: str, before: set[str]) -> None:
        if resource not in self.healthy:
            raise DeviceError(f"cannot allocate unregistered device {resource}")
        if not self.healthy[resource]:
            raise DeviceError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not before <= self.healthy[resource]:
            words = "previously allocated devices are no longer healthy; cannot allocate unhealthy devices"
            raise DeviceError(f"{words} {resource}")

    async def _pick(self, resource: str, needed: int, reusable: set[str]) -> set[str]:
        """First an init container's devices, then what the plugin prefers, then any."""
        picked: set[str] = set()

        def take(ids: set[str]) -> bool:
            some = self._shuffled(ids - picked)[: needed - len(picked)]
            self.allocated.setdefault(resource, set()).update(some)
            picked.update(some)
            return len(picked) == needed

        if take(reusable):
            return picked
        available = self.healthy[resource] - self.allocated.get(resource, set())
        missing = needed - len(picked)
        if len(available) < missing:
            counts = f"Requested: {missing}, Available: {len(available)}"
            raise DeviceError(f"requested number of devices unavailable for {resource}. {counts}")
        preferred = await self._preferred(resource, available | picked, picked, needed)
        if take(preferred & available) or take(available):
            return picked
        counts = f"Requested: {needed}, Got: {len(picked)}"
        raise DeviceError(f"unexpectedly allocated less resources than required. {counts}")

    async def _preferred(self, resource: str, available: set[str], included: set[str], size: int) -> set[str]:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise DeviceError(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.options is None or not endpoint.options.get_preferred_allocation_available:
            return set()
        asked = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=self._shuffled(available),
            must_include_deviceIDs=self._shuffled(included),
            allocation_size=size,
        )
        try:
            endpoint.must_run()
            request = api.PreferredAllocationRequest(container_requests=[asked])
            answer = await _answer(lambda: endpoint.stub.GetPreferredAllocation(request))
        except DeviceError as error:
            raise DeviceError(f"device plugin GetPreferredAllocation rpc failed with err: {error}") from error
        return {each for part in answer.container_responses[:1] for each in part.deviceIDs}

    def _is_plugin_resource(self, resource: str) -> bool:
        return resource in self.healthy or resource in self.allocated

    # ---------------------------------------------------------------- a container starts

    async def prepare(self, pod: Pod, container: Container, is_active: bool) -> dict[str, Granted]:
        """Before a container is created: PreStartContainer. All it was granted, by resource. Raises DeviceError."""
        uid, name = uid_of(pod), container["name"]
        missing = False
        for resource, amount in limits(container):
            if self._is_plugin_resource(resource) and int(amount):
                await self._prestart(pod, name, resource)
                missing |= is_active and (uid, name, resource) not in self.granted
        if missing:  # the checkpoint was lost: ask for devices now
            await self.allocate(pod, container)
        return self.of_container(uid, name)

    async def _prestart(self, pod: Pod, container: str, resource: str) -> None:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise DeviceError(f"endpoint not found in cache for a registered resource: {resource}")
        if endpoint.options is None or not endpoint.options.pre_start_required:
            return  # so it is too after the kubelet's restart, until the plugin has registered again
        held = self.granted.get((uid_of(pod), container, resource))
        if held is None:
            whose = f"pod {uid_of(pod)}, container {container}, resource {resource}"
            raise DeviceError(f"no devices found allocated in local cache for {whose}")
        call = Call(resource, self._shuffled(held.ids), pod, container)
        copies = await _asked(self.hooks.before_prestart, call)
        request = api.PreStartContainerRequest(devices_ids=call.device_ids)
        try:
            endpoint.must_run()
            timeout_s = self.prestart_timeout_s
            await _answer(lambda: endpoint.stub.PreStartContainer(request, timeout=timeout_s), copies)
        except DeviceError as error:
            raise DeviceError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    # ---------------------------------------------------------------- who has what

    def of_container(self, uid: str, container: str) -> dict[str, Granted]:
        """By resource."""
        return {key[2]: grant for key, grant in self.granted.items() if key[:2] == (uid, container)}

    def forget_inactive(self) -> None:
        """Free the devices of pods that are terminal or gone. The checkpoint keeps them until it is written again."""
        if not self.sources_ready:
            return
        active = self.active_pods()
        gone = [key for key in self.granted if key[0] not in active]
        for key in gone:
            del self.granted[key]
        if gone:
            self.allocated = self._granted_ids()

    def _granted_ids(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for (_, _, resource), grant in self.granted.items():
            found.setdefault(resource, set()).update(grant.ids)
        return found

    def _shuffled(self, ids: Iterable[str]) -> tuple[str, ...]:
        ordered = sorted(ids)
        self.random.shuffle(ordered)
        return tuple(ordered)


async def _asked(hook: Hook | None, call: Call) -> int:
    return (await hook(call) if hook else None) or 1


async def _answer(call: Callable[[], Awaitable[object]], copies: int = 1) -> object:
    """The answer to the last of so many equal calls, made at once."""
    answers = await asyncio.gather(*(call() for _ in range(copies)), return_exceptions=True)
    last = answers[-1]
    if isinstance(last, grpc.aio.AioRpcError):
        raise DeviceError(go_text(last)) from last
    if isinstance(last, asyncio.CancelledError):  # the channel was closed meanwhile
        raise DeviceError("rpc error: code = Canceled desc = grpc: the client connection is closing")
    if isinstance(last, BaseException):
        raise last
    return last
