"""Who uses what of a card: processes by their cgroups, and what the metrics say of it."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest

from cardwise.adapters.cgroup import home_of, pod_cgroup
from tests.agent.a_node import GpuNode
from tests.agent.node_port import pod, share

UID = "11111111-2222-3333-4444-555555555555"
CONTAINER = "c" * 64
POD = f"pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(
    "line",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{POD}/cri-containerd-{CONTAINER}.scope",
        f"0::/kubepods/besteffort/pod{UID}/{CONTAINER}",
        f"4:memory:/kubepods/pod{UID}/{CONTAINER}\n3:cpu:/",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-{POD}/crio-{CONTAINER}.scope/container",
    ],
    ids=["systemd", "cgroupfs", "version 1", "kind, with a cgroup of the container's own"],
)
def test_a_process_is_of_the_pod_and_container_in_whose_cgroup_it_is(tmp_path, line):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(line + "\n")
    home = home_of(7, tmp_path)
    assert (home.pod_uid, home.container_id) == (UID, CONTAINER)


def test_a_process_of_no_pod_and_one_that_is_gone_have_no_home(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text("0::/system.slice/sshd.service\n")
    assert (home_of(7, tmp_path), home_of(8, tmp_path)) == (None, None)


@pytest.mark.parametrize("qos", ["", "burstable", "besteffort"])
def test_a_pods_cgroup_is_found_under_either_driver(tmp_path, qos):
    systemd = f"kubepods-{qos}.slice/kubepods-{qos}-" if qos else "kubepods-"
    path = tmp_path / f"kubepods.slice/{systemd}pod{UID.replace('-', '_')}.slice"
    path.mkdir(parents=True)
    assert pod_cgroup(UID, tmp_path) == f"/{path.relative_to(tmp_path)}"
    assert pod_cgroup("other", tmp_path) is None


def running(node, body, pid, container="app", container_id=CONTAINER):
    """The pod's container runs, with a process on the node."""
    uid = body["metadata"]["uid"]
    status = {"name": container, "containerID": f"containerd://{container_id}", "state": {"running": {}}}
    body["status"] = {"phase": "Running", "containerStatuses": [status]}
    node.port.put(body)
    folder = node.folder / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::/kubepods/pod{uid}/{container_id}\n")


async def metrics(node):
    def read():
        with urllib.request.urlopen(f"http://127.0.0.1:{node.metrics_port}/metrics", timeout=60) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(read)


async def joined(node, what):
    """Until a sample with the processes was joined."""

    def look():
        node.agent.using.join()
        return what()

    await node.until(look)


async def test_a_containers_use_is_told_by_its_name():
    async with GpuNode("A10") as node:
        body = node.pod("a", 4096, 20)
        await node.run(body)
        running(node, body, 77)
        node.nvml.process(0, 77, 3000, sm=15)
        await joined(node, lambda: node.agent.using.slices and node.agent.using.slices[0].processes)
        text = await metrics(node)
    labels = f'{{container="app",namespace="default",pod="a",uuid="{node.uuid()}"}}'
    assert f"cardwise_slice_memory_used_mib{labels} 3000.0" in text
    assert f"cardwise_slice_memory_over_mib{labels} 0.0" in text
    assert f"cardwise_slice_sm_percent{labels} 15.0" in text
    assert 'cardwise_agent_call_seconds_count{call="PreStartContainer"} 1.0' in text


async def test_a_cpu_init_container_beside_a_gpu_app_leaves_the_series_to_the_app():
    """Case C48."""
    async with GpuNode("A10") as node:
        body = node.bound(pod("a", {"app": [share(node.uuid())]}, inits={"cpu": []}))
        await node.run(body)
        text = await metrics(node)
    assert 'container="app"' in text
    assert 'container="cpu"' not in text


async def test_memory_beyond_the_grant_is_told():
    async with GpuNode("A10") as node:
        body = node.pod("a", 4096, 20)
        await node.run(body)
        running(node, body, 77)
        node.nvml.process(0, 77, 5000)
        await joined(node, lambda: node.agent.using.slices and node.agent.using.slices[0].over_mib)
        assert node.agent.using.slices[0].over_mib == 904


async def test_a_process_on_a_card_that_it_was_not_given_is_a_stranger():
    async with GpuNode("A10", "A10") as node:
        body = node.pod("a", 4096, 20, card=0)
        await node.run(body)
        running(node, body, 77)
        node.nvml.process(1, 77, 100)
        node.nvml.process(1, 4242, 100)
        await joined(node, lambda: len(node.agent.using.strangers) == 2)
        assert {stranger.pid for stranger in node.agent.using.strangers} == {77, 4242}


async def test_a_sick_driver_call_holds_up_neither_metrics_nor_other_cards():
    async with GpuNode("A10", "T4") as node:
        worker = await node.hung(0)
        worker.since_s -= 60  # a shorter deadline would make the other card stuck too, if the machine is busy
        await node.until(lambda: node.uuid(0) in node.agent.inventory.sick)
        text = await metrics(node)
        node.nvml.heal()
    assert f'cardwise_card_takes_slices{{uuid="{node.uuid(0)}"}} 0.0' in text
    assert f'cardwise_card_takes_slices{{uuid="{node.uuid(1)}"}} 1.0' in text
