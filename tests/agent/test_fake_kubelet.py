"""The fake kubelet does what the real one does: these are its sources' rules, played against a tiny plugin."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
from pathlib import Path

import grpc
import pytest

from cardwise.adapters.kubelet.proto import deviceplugin_pb2 as api
from cardwise.adapters.kubelet.proto import deviceplugin_pb2_grpc as services
from cardwise.adapters.kubelet.proto import podresources_pb2, podresources_pb2_grpc
from tests.controlplane.plane import ControlPlane
from tests.fakes.kubelet import (
    CHECKPOINT,
    ClusterKubelet,
    ContainerError,
    FakeKubelet,
    Refused,
    checkpoint,
    podresources,
)

# Written by the kubelet's own code, 1.36.3: pkg/kubelet/cm/devicemanager/checkpoint, MarshalCheckpoint.
WRITTEN_BY_GO = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"uid-a","ContainerName":"app","ResourceName":"cardwise.dev/gpu",'
    '"DeviceIDs":{"-1":["slot-007"]},"AllocResp":"KhwKGmNhcmR3aXNlLmRldi9zbG90PXNsb3QtMDA3"},{"PodUID":"uid-b",'
    '"ContainerName":"app","ResourceName":"cardwise.dev/gpu","DeviceIDs":{"-1":["slot-004"],"10":["slot-001"],'
    '"2":["slot-002","slot-003"]},"AllocResp":""}],"RegisteredDevices":{"a.dev/none":[],"cardwise.dev/gpu":'
    '["slot-001","slot-007"]}},"Checksum":498049387}'
)

GPU = "cardwise.dev/gpu"
KIND = "cardwise.dev/slot"


class Plugin(services.DevicePluginServicer):
    """A device plugin of eight slots. health: what its stream says next. refuse: why PreStartContainer fails."""

    def __init__(self, kubelet, *, prefer=None, count=8, numa=None):
        self.kubelet, self.prefer, self.numa = kubelet, prefer, numa
        self.health = {f"slot-{number:03}": "Healthy" for number in range(count)}
        self.refuse, self.prestart_s = "", 0.0
        self.allocated, self.prestarted, self.preferred = [], [], []
        self._news = asyncio.Condition()
        self._told = 0  # counted: news that come before the stream waits for them are news all the same
        self._ended = False
        self._server = None

    async def start(self, endpoint="tiny.sock"):
        self._server = grpc.aio.server()
        services.add_DevicePluginServicer_to_server(self, self._server)
        socket = self.kubelet.plugins / endpoint
        socket.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{socket}")
        await self._server.start()
        await self.register(endpoint)
        await self.kubelet.wait_registered(GPU)

    async def register(self, endpoint="tiny.sock", version="v1beta1", resource=GPU):
        request = api.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
        async with grpc.aio.insecure_channel(f"unix:{self.kubelet.registration_socket}") as channel:
            await services.RegistrationStub(channel).Register(request)

    async def stop(self):
        await self.end_stream()
        await self._server.stop(None)

    async def end_stream(self):
        self._ended = True
        await self._notify()

    async def tell(self, **health):
        self.health.update({f"slot-{number.removeprefix('s')}": said for number, said in health.items()})
        await self._notify()

    async def _notify(self):
        async with self._news:
            self._told += 1
            self._news.notify_all()

    async def GetDevicePluginOptions(self, _request, _context):  # noqa: N802
        return api.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=self.prefer is not None
        )

    async def ListAndWatch(self, _request, _context):  # noqa: N802
        while not self._ended:
            told = self._told
            nodes = [api.NUMANode(ID=self.numa)] if self.numa is not None else []
            topology = api.TopologyInfo(nodes=nodes) if nodes else None
            yield api.ListAndWatchResponse(
                devices=[api.Device(ID=each, health=said, topology=topology) for each, said in self.health.items()]
            )
            async with self._news:
                await self._news.wait_for(lambda seen=told: self._told != seen)

    async def GetPreferredAllocation(self, request, _context):  # noqa: N802
        asked = request.container_requests[0]
        self.preferred.append(asked)
        answer = api.ContainerPreferredAllocationResponse(deviceIDs=self.prefer)
        return api.PreferredAllocationResponse(container_responses=[answer])

    async def Allocate(self, request, _context):  # noqa: N802
        ids = list(request.container_requests[0].devices_ids)
        self.allocated.append(ids)
        names = [api.CDIDevice(name=f"{KIND}={each}") for each in ids]
        answer = api.ContainerAllocateResponse(envs={"TINY": "1", "WHO": "plugin"}, cdi_devices=names)
        return api.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(self, request, context):  # noqa: N802
        self.prestarted.append(sorted(request.devices_ids))
        await asyncio.sleep(self.prestart_s)
        if self.refuse:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse)
        return api.PreStartContainerResponse()


def container(name, slots=1, **more):
    return {"name": name, "resources": {"limits": {GPU: str(slots), "cpu": "500m"}}, **more}


def pod(name="a", *containers, inits=(), **metadata):
    spec = {"containers": list(containers) or [container("app")], "initContainers": list(inits), "nodeName": "n0"}
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", **metadata}, "spec": spec}


def slot_files(folder, *ids, **more):
    """A CDI file per slot, as the agent writes them."""
    for each in ids:
        edits = {"env": [f"SLOT={each}", "WHO=cdi"], **more}
        spec = {"cdiVersion": "0.6.0", "kind": KIND, "devices": [{"name": each, "containerEdits": edits}]}
        (folder / "cdi" / f"{each}.json").write_text(json.dumps(spec))


@pytest.fixture
def folder():
    """A short one: the names of sockets are bounded."""
    made = Path(tempfile.mkdtemp(prefix="fk-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def kubelet(folder):
    made = FakeKubelet(folder, "n0", seed=1)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def plugin(kubelet):
    made = Plugin(kubelet)
    await made.start()
    slot_files(kubelet.folder, *made.health)
    yield made
    await made.stop()


async def listed(kubelet):
    """{pod: {container: ids}}, as a client of the pod resources service sees it."""
    async with grpc.aio.insecure_channel(f"unix:{kubelet.pod_resources_socket}") as channel:
        stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
        answer = await stub.List(podresources_pb2.ListPodResourcesRequest())
    return {
        each.name: {part.name: sorted(i for d in part.devices for i in d.device_ids) for part in each.containers}
        for each in answer.pod_resources
    }


def ids_of(kubelet, name, of):
    return kubelet.devices.of_container(f"uid-{name}", of)[GPU].ids


def saved(kubelet):
    return json.loads((kubelet.plugins / CHECKPOINT).read_text())


# ---------------------------------------------------------------- plugins


async def test_a_plugin_that_registers_brings_its_devices(kubelet, plugin):
    assert (kubelet.capacity(GPU), kubelet.allocatable(GPU)) == (8, 8)


async def test_an_unhealthy_device_stays_capacity_and_is_not_allocatable(kubelet, plugin):
    await plugin.tell(s003="Unhealthy")
    await kubelet.wait_allocatable(GPU, 7)
    assert kubelet.capacity(GPU) == 8
    await plugin.tell(s003="Healthy")
    await kubelet.wait_allocatable(GPU, 8)


async def test_news_before_the_stream_waits_for_them_are_sent(kubelet):
    plugin = Plugin(kubelet)
    stream = plugin.ListAndWatch(None, None)
    await anext(stream)
    await plugin.tell(s003="Unhealthy")
    said = await asyncio.wait_for(anext(stream), 5)
    assert [each.ID for each in said.devices if each.health == "Unhealthy"] == ["slot-003"]
    await plugin.end_stream()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(stream), 5)


async def test_a_stream_that_ends_leaves_nothing_allocatable(kubelet, plugin):
    await plugin.end_stream()
    await kubelet.wait_allocatable(GPU, 0)
    assert kubelet.capacity(GPU) == 8
    with pytest.raises(Refused, match="no healthy devices present; cannot allocate unhealthy devices"):
        await kubelet.admit(pod())


async def test_a_plugin_that_is_gone_for_long_is_forgotten(folder):
    kubelet = FakeKubelet(folder, "n0", stop_grace_s=0.0)
    await kubelet.start()
    plugin = Plugin(kubelet)
    await plugin.start()
    await plugin.stop()
    await kubelet.wait(lambda: GPU not in kubelet.devices.capacity()[0], "still there")
    assert saved(kubelet)["Data"]["RegisteredDevices"] == {}
    await kubelet.stop()


async def test_a_plugin_may_come_back_on_the_same_socket(kubelet, plugin):
    await plugin.stop()
    await kubelet.wait_allocatable(GPU, 0)
    again = Plugin(kubelet, count=4)
    await again.start()
    await kubelet.wait_allocatable(GPU, 4)
    await again.stop()


async def test_an_old_stream_that_ends_takes_the_new_registration_with_it(kubelet, plugin):
    newer = Plugin(kubelet)
    await newer.start("newer.sock")
    await plugin.end_stream()
    await kubelet.wait_allocatable(GPU, 0)
    await newer.stop()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": "v1"}, 'requested API version "v1" is not supported by kubelet'),
        ({"resource": "gpu"}, 'the ResourceName "gpu" is invalid'),
        ({"resource": "kubernetes.io/gpu"}, "is invalid"),
    ],
    ids=["version", "no-domain", "native"],
)
async def test_a_wrong_registration_is_refused(kubelet, plugin, changed, words):
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await plugin.register(**changed)
    assert words in told.value.details()


async def test_a_plugin_that_does_not_listen_is_not_registered(folder):
    kubelet = FakeKubelet(folder, "n0", dial_timeout_s=0.2)
    await kubelet.start()
    with pytest.raises(grpc.aio.AioRpcError) as told:
        await Plugin(kubelet).register("absent.sock")
    assert told.value.details() == "failed to dial device plugin: context deadline exceeded"
    await kubelet.stop()


# ---------------------------------------------------------------- which devices


async def test_without_a_preference_devices_are_taken_at_random(kubelet, plugin):
    firsts = set()
    for number in range(12):
        await kubelet.admit(pod(f"p{number}"))
        firsts |= ids_of(kubelet, f"p{number}", "app")
        kubelet.remove_pod(f"uid-p{number}")
    assert len(firsts) > 3


async def test_a_preference_is_followed_where_it_is_free(kubelet):
    plugin = Plugin(kubelet, prefer=["slot-005", "slot-006"])
    await plugin.start()
    await kubelet.admit(pod("a", container("app", 2)))
    await kubelet.admit(pod("b", container("app", 2)))
    assert ids_of(kubelet, "a", "app") == {"slot-005", "slot-006"}
    assert not ids_of(kubelet, "b", "app") & {"slot-005", "slot-006"}
    assert (plugin.preferred[0].allocation_size, len(plugin.preferred[0].available_deviceIDs)) == (2, 8)
    await plugin.stop()


async def test_each_container_is_asked_for_once(kubelet, plugin):
    await kubelet.admit(pod("a", container("one"), container("two", 2), {"name": "none"}))
    assert sorted(map(len, plugin.allocated)) == [1, 2]


async def test_more_than_there_are_is_refused_in_the_kubelets_words(kubelet, plugin):
    with pytest.raises(Refused) as told:
        await kubelet.admit(pod("a", container("app", 9)))
    assert told.value.reason == "UnexpectedAdmissionError"
    assert told.value.message == (
        "Allocate failed due to requested number of devices unavailable for cardwise.dev/gpu. Requested: 9, "
        "Available: 8, which is unexpected"
    )


async def test_devices_of_a_pod_that_is_gone_are_given_again(kubelet, plugin):
    await kubelet.admit(pod("a", container("app", 8)))
    kubelet.remove_pod("uid-a")
    await kubelet.admit(pod("b", container("app", 8)))
    assert {each["PodUID"] for each in saved(kubelet)["Data"]["PodDeviceEntries"]} == {"uid-b"}


async def test_an_app_container_gets_what_an_init_container_had(kubelet, plugin):
    await kubelet.admit(pod("a", container("app", 3), inits=[container("fetch", 2)]))
    assert ids_of(kubelet, "a", "fetch") < ids_of(kubelet, "a", "app")


async def test_a_second_app_container_gets_nothing_of_the_first(kubelet, plugin):
    await kubelet.admit(pod("a", container("one", 2), container("two", 2), inits=[container("fetch", 2)]))
    assert ids_of(kubelet, "a", "fetch") == ids_of(kubelet, "a", "one")
    assert not ids_of(kubelet, "a", "one") & ids_of(kubelet, "a", "two")


async def test_a_sidecar_keeps_its_devices(kubelet, plugin):
    await kubelet.admit(pod("a", container("app", 2), inits=[container("side", 2, restartPolicy="Always")]))
    assert not ids_of(kubelet, "a", "side") & ids_of(kubelet, "a", "app")


# ---------------------------------------------------------------- starting


async def test_a_container_gets_the_plugins_env_its_own_and_last_that_of_cdi(kubelet, plugin):
    own = [
        {"name": "WHO", "value": "pod"},
        {"name": "TINY", "value": "2"},
        {"name": "NOTE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['cardwise.dev/alloc']"}}},
    ]
    told = pod("a", container("app", env=own), annotations={"cardwise.dev/alloc": "x"})
    started = (await kubelet.run_pod(told))["app"]
    (slot,) = started.device_ids[GPU]
    assert started.env == {"TINY": "2", "WHO": "cdi", "NOTE": "x", "SLOT": slot}
    assert started.cdi_names == (f"{KIND}={slot}",)


async def test_prestart_comes_before_every_start(kubelet, plugin):
    await kubelet.run_pod(pod())
    again = await kubelet.start_container("uid-a", "app")
    assert (len(plugin.prestarted), len(plugin.allocated), again.attempt) == (2, 1, 1)


async def test_a_prestart_that_fails_is_a_config_error_with_the_plugins_words(kubelet, plugin):
    plugin.refuse = "card 0 is fenced"
    with pytest.raises(ContainerError) as told:
        await kubelet.run_pod(pod())
    assert told.value.reason == "CreateContainerConfigError"
    words = "rpc error: code = FailedPrecondition desc = card 0 is fenced"
    assert told.value.message == f"device plugin PreStartContainer rpc failed with err: {words}"


async def test_a_prestart_that_is_too_slow_is_cut_off(kubelet, plugin):
    kubelet.devices.prestart_timeout_s = 0.1
    plugin.prestart_s = 5.0
    with pytest.raises(ContainerError, match="code = DeadlineExceeded desc = context deadline exceeded"):
        await kubelet.run_pod(pod())


async def test_a_cdi_device_that_is_absent_fails_the_creation(kubelet, plugin):
    for each in (kubelet.folder / "cdi").iterdir():
        each.unlink()
    with pytest.raises(ContainerError) as told:
        await kubelet.run_pod(pod())
    (name,) = [f"{KIND}={each}" for each in ids_of(kubelet, "a", "app")]
    assert told.value.reason == "CreateContainerError"
    assert told.value.message.endswith(f"unresolvable CDI devices {name}")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda spec: spec.update(unknown=1),
        lambda spec: spec.update(cdiVersion="9.9.9"),
        lambda spec: spec["devices"][0].update(containerEdits={}),
        lambda spec: spec["devices"][0]["containerEdits"].update(env=["no-equals-sign"]),
        lambda spec: spec["devices"][0]["containerEdits"].update(additionalGids=[1]),
    ],
    ids=["unknown-field", "version", "empty-edits", "env", "newer-field"],
)
async def test_a_cdi_file_with_a_fault_is_as_good_as_absent(kubelet, plugin, spoil):
    for each in (kubelet.folder / "cdi").iterdir():
        spec = json.loads(each.read_text())
        spoil(spec)
        each.write_text(json.dumps(spec))
    with pytest.raises(ContainerError, match="unresolvable CDI devices"):
        await kubelet.run_pod(pod())


async def test_a_device_that_two_files_define_is_absent(kubelet, plugin):
    for each in list((kubelet.folder / "cdi").iterdir()):
        shutil.copy(each, each.with_name(f"copy-{each.name}"))
    with pytest.raises(ContainerError, match="unresolvable CDI devices"):
        await kubelet.run_pod(pod())


async def test_edits_of_a_file_come_once_and_before_those_of_its_devices(kubelet, plugin):
    for each in (kubelet.folder / "cdi").iterdir():
        each.unlink()
    lines = [f"cdiVersion: 0.6.0\nkind: {KIND}\ncontainerEdits:\n  env: [WHO=file]\n"]
    lines.append("  mounts: [{hostPath: /h, containerPath: /c}]\ndevices:\n")
    lines += [f"- name: {each}\n  containerEdits: {{env: [WHO={each}]}}\n" for each in plugin.health]
    (kubelet.folder / "cdi" / "all.yaml").write_text("".join(lines))
    started = (await kubelet.run_pod(pod("a", container("app", 2))))["app"]
    assert started.env["WHO"] == started.cdi_names[-1].split("=")[1]
    assert [each["containerPath"] for each in started.mounts] == ["/c"]


async def test_hooks_hold_and_double_calls(kubelet, plugin):
    seen = []

    async def twice(call):
        seen.append((call.resource, call.pod["metadata"]["name"], call.container, len(plugin.prestarted)))
        return 2

    kubelet.before_prestart = twice
    await kubelet.run_pod(pod())
    assert seen == [(GPU, "a", "app", 0)]
    assert len(plugin.prestarted) == 2


# ---------------------------------------------------------------- pod resources


async def test_the_list_leaves_ordinary_init_containers_out(kubelet, plugin):
    await kubelet.admit(pod("a", inits=[container("fetch"), container("side", restartPolicy="Always")]))
    (told,) = (await listed(kubelet)).values()
    assert told.keys() == {"side", "app"}
    assert told["app"] == sorted(ids_of(kubelet, "a", "app"))


async def test_the_list_leaves_terminal_pods_out_and_get_does_not(kubelet, plugin):
    await kubelet.admit(pod("a"))
    kubelet.end_pod("uid-a")
    assert await listed(kubelet) == {}
    async with grpc.aio.insecure_channel(f"unix:{kubelet.pod_resources_socket}") as channel:
        stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
        told = await stub.Get(podresources_pb2.GetPodResourcesRequest(pod_name="a", pod_namespace="ns"))
        assert [each.name for each in told.pod_resources.containers] == ["app"]
        with pytest.raises(grpc.aio.AioRpcError, match="pod b in namespace ns not found"):
            await stub.Get(podresources_pb2.GetPodResourcesRequest(pod_name="b", pod_namespace="ns"))


async def test_the_list_has_one_entry_per_device(kubelet, plugin):
    await kubelet.admit(pod("a", container("app", 3)))
    async with grpc.aio.insecure_channel(f"unix:{kubelet.pod_resources_socket}") as channel:
        answer = await podresources_pb2_grpc.PodResourcesListerStub(channel).List(
            podresources_pb2.ListPodResourcesRequest()
        )
    entries = answer.pod_resources[0].containers[0].devices
    assert [len(each.device_ids) for each in entries] == [1, 1, 1]


async def test_too_many_calls_at_once_are_rejected(kubelet, plugin, monkeypatch):
    monkeypatch.setattr(podresources, "CALLS_PER_S", 0.0)  # however long it takes to make thirty
    answers = await asyncio.gather(*(listed(kubelet) for _ in range(30)), return_exceptions=True)
    refused = [each for each in answers if isinstance(each, grpc.aio.AioRpcError)]
    assert refused
    assert {each.details() for each in refused} == {"rejected by rate limit"}


async def test_the_list_can_be_late(kubelet, plugin):
    kubelet.list_delay = 0.2
    start_s = asyncio.get_running_loop().time()
    await listed(kubelet)
    assert asyncio.get_running_loop().time() - start_s >= 0.2


# ---------------------------------------------------------------- the checkpoint and restarts


async def test_the_checkpoint_is_the_kubelets(kubelet, plugin):
    await kubelet.admit(pod("a", container("app", 2)))
    told = saved(kubelet)
    (entry,) = told["Data"]["PodDeviceEntries"]
    answer = api.ContainerAllocateResponse.FromString(base64.b64decode(entry.pop("AllocResp")))
    ids = entry["DeviceIDs"]["-1"]
    assert entry == {
        "PodUID": "uid-a",
        "ContainerName": "app",
        "ResourceName": GPU,
        "DeviceIDs": {"-1": ids},
    }
    assert set(ids) == ids_of(kubelet, "a", "app")
    assert sorted(each.name for each in answer.cdi_devices) == sorted(f"{KIND}={each}" for each in ids)
    assert set(told["Data"]["RegisteredDevices"][GPU]) == set(plugin.health)
    assert told.keys() == {"Data", "Checksum"}


def test_a_checkpoint_that_the_kubelet_wrote_is_read_and_written_the_same(tmp_path):
    path = tmp_path / CHECKPOINT
    path.write_text(WRITTEN_BY_GO)
    checkpoint.write(path, checkpoint.read(path))
    assert path.read_text() == WRITTEN_BY_GO


async def test_devices_with_a_numa_node_stand_under_it(kubelet):
    plugin = Plugin(kubelet, numa=1)
    await plugin.start()
    await kubelet.admit(pod())
    (entry,) = saved(kubelet)["Data"]["PodDeviceEntries"]
    assert entry["DeviceIDs"].keys() == {"1"}
    await plugin.stop()


async def test_a_checkpoint_with_another_checksum_is_not_read(kubelet, plugin):
    await kubelet.run_pod(pod())
    path = kubelet.plugins / CHECKPOINT
    path.write_text(path.read_text().replace('"Checksum":', '"Checksum":1'))
    await kubelet.restart()
    assert kubelet.devices.granted == {}


async def test_a_restart_keeps_the_checkpoint_and_what_runs(kubelet, plugin):
    await kubelet.run_pod(pod())
    before, had = kubelet.registration_socket.stat(), ids_of(kubelet, "a", "app")
    assert await kubelet.restart() == {}
    after = kubelet.registration_socket.stat()
    assert (after.st_ino, after.st_ctime_ns) != (before.st_ino, before.st_ctime_ns)
    assert not (kubelet.plugins / "tiny.sock").exists()
    assert (kubelet.capacity(GPU), ids_of(kubelet, "a", "app")) == (0, had)
    assert kubelet.running().keys() == {("uid-a", "app")}
    again = Plugin(kubelet)
    await again.start()
    await kubelet.start_container("uid-a", "app")
    assert (again.allocated, again.prestarted) == ([], [sorted(had)])
    await again.stop()


async def test_after_a_restart_no_prestart_is_called_until_the_plugin_registers(kubelet, plugin):
    await kubelet.run_pod(pod())
    await kubelet.restart()
    await kubelet.start_container("uid-a", "app")
    assert len(plugin.prestarted) == 1


async def test_a_restart_refuses_a_pod_whose_container_waits(kubelet, plugin):
    plugin.refuse = "not yet"
    with pytest.raises(ContainerError):
        await kubelet.run_pod(pod())
    refused = await kubelet.restart()
    assert refused["uid-a"].reason == "UnexpectedAdmissionError"
    assert await listed(kubelet) == {}


def test_a_folder_that_is_too_long_is_named(tmp_path):
    async def run():
        await FakeKubelet(tmp_path / ("x" * 100), "n0").start()

    with pytest.raises(ValueError, match="take a shorter folder"):
        asyncio.run(run())


# ---------------------------------------------------------------- with an API server


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with ControlPlane(tmp_path_factory.mktemp("plane")) as made:
        yield made


class Machine:
    """A node of its own for each test, and pods on it."""

    def __init__(self, plane, kubelet, node):
        self.plane, self.kubelet, self.node = plane, kubelet, node
        self.cluster = ClusterKubelet(kubelet, plane.api, poll_s=0.05, retry_s=(0.1, 0.2))
        self.pods = f"/api/v1/namespaces/{node}/pods"

    async def call(self, method, path, body=None):
        return await asyncio.to_thread(self.plane.api, method, path, body)

    async def create(self, name, *containers, inits=(), **spec):
        told = pod(name, *containers, inits=inits)["spec"]
        for each in (*told["containers"], *told["initContainers"]):
            each["image"] = "tiny"
        body = {"metadata": {"name": name}, "spec": {**told, "nodeName": self.node, **spec}}
        return await self.call("POST", self.pods, body)

    async def until(self, what, deadline_s=60.0):
        """The first answer that is not empty."""
        end_s = asyncio.get_running_loop().time() + deadline_s
        while not (answer := await what()):
            assert asyncio.get_running_loop().time() < end_s, f"nothing after {deadline_s} s"
            await asyncio.sleep(0.05)
        return answer

    async def status(self, name, done):
        async def look():
            told = (await self.call("GET", f"{self.pods}/{name}"))["status"]
            return told if done(told) else None

        return await self.until(look)

    async def in_phase(self, name, phase):
        return await self.status(name, lambda told: told.get("phase") == phase)

    async def amounts(self):
        told = (await self.call("GET", f"/api/v1/nodes/{self.node}"))["status"]
        return told["capacity"].get(GPU), told["allocatable"].get(GPU)

    async def amounts_are(self, *wanted):
        async def look():
            return await self.amounts() == wanted

        assert await self.until(look)

    async def names(self):
        return {each["metadata"]["name"] for each in (await self.call("GET", self.pods))["items"]}


@pytest.fixture
async def machine(plane, folder, request):
    node = f"n-{folder.name.removeprefix('fk-').replace('_', '-').lower()}x"
    await asyncio.to_thread(plane.namespace, node)
    await asyncio.to_thread(plane.fake_node, node)
    kubelet = FakeKubelet(folder, node)
    await kubelet.start()
    made = Machine(plane, kubelet, node)
    made.plugin = Plugin(kubelet)
    await made.plugin.start()
    slot_files(folder, *made.plugin.health)
    await made.cluster.start()
    yield made
    await made.cluster.stop()
    await made.plugin.stop()
    await kubelet.stop()


@pytest.mark.controlplane
async def test_a_bound_pod_runs_and_its_node_has_the_slots(machine):
    await machine.create("a", inits=[container("fetch")])
    told = await machine.in_phase("a", "Running")
    assert "running" in told["containerStatuses"][0]["state"]
    assert told["initContainerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"
    assert {each["type"]: each["status"] for each in told["conditions"]}["Ready"] == "True"
    assert machine.cluster.running().keys() == {(machine.node, "a", "app")}
    await machine.amounts_are("8", "8")


@pytest.mark.controlplane
async def test_a_plugin_that_ends_takes_the_nodes_allocatable(machine):
    await machine.amounts_are("8", "8")
    await machine.plugin.end_stream()
    await machine.amounts_are("8", "0")


@pytest.mark.controlplane
async def test_a_refused_container_waits_with_its_reason_and_runs_once_it_may(machine):
    machine.plugin.refuse = "card 0 is fenced"
    await machine.create("a")
    waits = lambda told: told.get("containerStatuses", [{}])[0].get("state", {}).get("waiting", {})  # noqa: E731
    told = await machine.status("a", lambda told: "fenced" in waits(told).get("message", ""))
    assert (told["phase"], waits(told)["reason"]) == ("Pending", "CreateContainerConfigError")

    async def counted():
        events = (await machine.call("GET", f"/api/v1/namespaces/{machine.node}/events"))["items"]
        return [each for each in events if each["reason"] == "Failed" and each["count"] > 1]

    (event,) = await machine.until(counted)
    assert event["message"].startswith("Error: device plugin PreStartContainer rpc failed with err: rpc error")
    assert event["involvedObject"]["fieldPath"] == "spec.containers{app}"
    machine.plugin.refuse = ""
    await machine.in_phase("a", "Running")
    assert len(machine.plugin.allocated) == 1


@pytest.mark.controlplane
async def test_a_pod_that_is_not_admitted_fails_for_good(machine):
    await machine.create("a", container("app", 9))
    told = await machine.in_phase("a", "Failed")
    assert told["reason"] == "UnexpectedAdmissionError"
    assert told["message"].startswith(
        "Pod was rejected: Allocate failed due to requested number of devices unavailable"
    )


@pytest.mark.controlplane
async def test_a_deleted_pod_ends_and_leaves_its_slots(machine):
    await machine.create("a", container("app", 8))
    await machine.in_phase("a", "Running")
    await machine.call("DELETE", f"{machine.pods}/a")

    async def gone():
        return not await machine.names()

    assert await machine.until(gone)
    assert machine.cluster.running() == {}
    await machine.create("b", container("app", 8))
    await machine.in_phase("b", "Running")


@pytest.mark.controlplane
async def test_a_container_that_ends_is_started_again_or_the_pod_is_over(machine):
    await machine.create("a")
    await machine.create("b", restartPolicy="Never")
    await machine.in_phase("a", "Running")
    await machine.in_phase("b", "Running")
    await machine.cluster.exit(machine.node, "a", "app", 1)
    await machine.cluster.exit(machine.node, "b", "app", 0)
    told = await machine.status("a", lambda told: told["containerStatuses"][0]["restartCount"] == 1)
    assert told["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    await machine.in_phase("b", "Succeeded")
    assert machine.cluster.running()[machine.node, "a", "app"].attempt == 1


@pytest.mark.controlplane
async def test_a_restart_keeps_what_runs_and_fails_what_waits(machine):
    await machine.create("a")
    await machine.in_phase("a", "Running")
    machine.plugin.refuse = "not yet"
    await machine.create("b")
    await machine.status("b", lambda told: told.get("containerStatuses", [{}])[0].get("state", {}).get("waiting"))
    await machine.cluster.restart()
    await machine.in_phase("b", "Failed")
    assert machine.cluster.running().keys() == {(machine.node, "a", "app")}
    await machine.amounts_are("0", "0")
    again = Plugin(machine.kubelet)
    await again.start()
    await machine.amounts_are("8", "8")
    await again.stop()
