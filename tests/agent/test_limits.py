"""Limits are in force before a container starts, or it does not start; a dead daemon is no silent one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cardwise.adapters.journal import State
from cardwise.adapters.node_cards import decode_cards
from cardwise.core.request import Isolation
from tests.agent.a_node import GPU, GpuNode
from tests.agent.node_port import pod, share
from tests.agent.test_using import metrics
from tests.fakes.kubelet import ContainerError, Refused
from tests.fakes.mps import FakeMps

R615 = {"driver": "615.71.05", "cuda": 13040, "memory_limits": True}
MPS_READY = "CardwiseMPSReady"


@pytest.fixture
def mps():
    fake = FakeMps()
    yield fake
    fake.close()


class MpsNode(GpuNode):
    """A node whose MPS program is the fake one."""

    def __init__(self, mps, *models, **more):
        super().__init__(
            *models,
            settings={"mps_control": mps.command, "mps_check_every_s": 0.05, **more.pop("settings", {})},
            **more,
        )
        mps.tell(cards=list(self.nvml.uuids))
        mps.pipe_dir, self.mps = self.folder / "run" / "mps", mps

    async def __aexit__(self, *exc):
        self.mps.kill()
        await super().__aexit__(*exc)

    def cgroup(self, body):
        """The pod's cgroup, as the kubelet makes it before the first container."""
        uid = body["metadata"]["uid"]
        path = self.folder / "cgroup" / "kubepods" / f"pod{uid}"
        path.mkdir(parents=True)
        return path


def _unified(node):
    (node.folder / "cgroup").mkdir()
    (node.folder / "cgroup" / "cgroup.controllers").write_text("cpu memory dmem\n")
    return node


async def test_under_protocol_2_a_container_joins_our_daemon_with_its_limits(mps):
    mps.tell(version=12080)
    async with MpsNode(mps, "A10") as node:
        started = (await node.run(node.pod("a", 4096, 20)))["app"]
    assert started.env["CUDA_MPS_PIPE_DIRECTORY"] == str(node.folder / "run" / "mps")
    assert started.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"
    assert started.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{node.uuid()}=4096M"
    assert str(node.folder / "run" / "mps") in [each["hostPath"] for each in started.mounts]
    assert '"mode":"mps"' in node.port.annotations["cardwise.dev/cards"]


async def test_cards_under_mps_are_in_the_exclusive_mode_so_that_a_bypass_fails(mps):
    async with MpsNode(mps, "A10", "T4") as node:
        modes = [node.driver.sample(uuid).compute_mode for uuid in node.nvml.uuids]
    assert modes == [3, 3]


async def test_under_protocol_3_a_container_gets_a_namespace_and_the_kernel_holds_its_memory(mps):
    mps.tell(version=13040)
    async with _unified(MpsNode(mps, "H100", **R615)) as node:
        body = node.pod("a", 4096, 20)
        path = node.cgroup(body)
        started = (await node.run(body))["app"]
        limit = node.driver.memory_limit(node.uuid(), str(path))
    assert limit.hard_mib == 4096
    assert started.env["CUDA_MPS_PIPE_DIRECTORY"].endswith("/cardwise/slot_000")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in started.env


async def test_without_mps_but_with_r615_slices_take_turns_and_memory_is_held():
    async with _unified(GpuNode("H100", **R615)) as node:
        body = node.pod("a", 4096, 20)
        path = node.folder / "cgroup" / "kubepods" / f"pod{body['metadata']['uid']}"
        path.mkdir(parents=True)
        await node.run(body)
        assert node.driver.memory_limit(node.uuid(), str(path)).hard_mib == 4096
        assert '"mode":"time-slicing"' in node.port.annotations["cardwise.dev/cards"]


async def test_a_limit_that_the_daemon_does_not_take_refuses_the_container(mps):
    async with MpsNode(mps, "A10") as node:
        mps.tell(ignore=["memory"])
        with pytest.raises(ContainerError, match="MPS slice"):
            await node.run(node.pod("a"))
        assert node.slot_files() == []


async def test_a_dead_daemon_is_told_and_comes_back_without_a_restart_of_the_agent(mps):
    """Case C30."""
    async with MpsNode(mps, "A10") as node:
        await node.run(node.pod("a", 1000, 10))
        await node.until(lambda: node.port.conditions.get(MPS_READY, {}).get("status") == "True")
        mps.tell(start_fails=1)
        mps.kill()
        await node.until(lambda: node.port.conditions[MPS_READY]["status"] == "False", "never told")
        assert '"healthy":false' in node.port.annotations["cardwise.dev/cards"]
        assert '"stays":true' in node.port.annotations["cardwise.dev/cards"]  # the condition says why, and for how long
        await node.kubelet.wait_allocatable(GPU, 1)  # the one that is in use; the kubelet is told by a way of its own
        with pytest.raises(Refused, match="Available: 0"):
            await node.run(node.pod("b", 1000, 10))
        mps.tell(start_fails=0)
        await node.until(lambda: node.port.conditions[MPS_READY]["status"] == "True", "never back")
        await node.kubelet.wait_allocatable(GPU, 16)
        assert (await node.run(node.pod("c", 1000, 10)))["app"].env["CARDWISE_MEMORY_MIB"] == "1000"


async def test_while_the_daemon_is_dead_cards_that_need_none_take_slices(mps):
    """Case C30: cards before Volta take turns, for MPS has no limits there."""
    node = MpsNode(mps, "A10", "A10")
    node.nvml.set(1, capability="6.1")
    async with node:
        await node.until(lambda: node.port.conditions.get(MPS_READY, {}).get("status") == "True")
        mps.tell(start_fails=1)
        mps.kill()
        await node.until(lambda: node.port.conditions[MPS_READY]["status"] == "False", "never told")
        told = decode_cards(node.port.annotations["cardwise.dev/cards"])
        assert [(each.isolation, each.healthy) for each in told] == [
            (Isolation.MPS, False),
            (Isolation.TIME_SLICING, True),
        ]
        body = node.bound(pod("turns", {"app": [share(node.uuid(1), 1000, 10)]}))
        assert (await node.run(body))["app"].env["CARDWISE_CARDS"] == node.uuid(1)


@pytest.mark.parametrize(
    ("told", "low"),
    [
        ({"cardwise.dev/class": "best-effort"}, True),
        ({"cardwise.dev/workload": "training"}, True),
        ({}, False),
    ],
    ids=["best-effort", "training", "inference"],
)
async def test_who_is_best_effort_or_trains_gives_way_on_the_card(mps, told, low):
    """SPEC B8."""
    mps.tell(version=12080)
    async with MpsNode(mps, "A10") as node:
        started = (await node.run(node.bound(pod("a", {"app": [share(node.uuid())]}, annotations=told))))["app"]
    assert started.env.get("CUDA_MPS_CLIENT_PRIORITY") == ("1" if low else None)


async def test_processes_that_a_pod_declares_share_its_limit(mps):
    """Case C32."""
    mps.tell(version=12080)
    async with MpsNode(mps, "A10") as node:
        body = pod("a", {"app": [share(node.uuid(), 1000, 10)]}, annotations={"cardwise.dev/processes": "2"})
        started = (await node.run(node.bound(body)))["app"]
    assert started.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{node.uuid()}=500M"


async def test_a_nonsense_number_of_processes_is_refused_with_what_to_write(mps):
    async with MpsNode(mps, "A10") as node:
        body = pod("a", {"app": [share(node.uuid())]}, annotations={"cardwise.dev/processes": "many"})
        with pytest.raises(
            ContainerError, match=r"'many' is no number of processes; write a whole number from 1 to 64"
        ):
            await node.run(node.bound(body))


async def test_a_step_that_the_node_cannot_stand_on_offers_no_cards():
    async with GpuNode("A10", settings={"isolation": "kernel-memory-and-namespace"}) as node:
        assert '"healthy":false,"stays":true' in node.port.annotations["cardwise.dev/cards"]
        assert "driver 580 is older than 615" in node.agent.inventory.sick[node.uuid()]


async def test_a_deleted_pod_takes_its_limits_with_it(mps):
    mps.tell(version=13040)
    async with MpsNode(mps, "H100") as node:
        body = node.pod("a")
        await node.run(body)
        await node.delete(body)
        await node.until(lambda: not list(node.agent.journal.rows))
        assert any("namespace delete" in said for said in mps.said)


async def test_a_restarted_agent_holds_the_limits_of_what_runs(mps):
    async with MpsNode(mps, "A10") as node:
        await node.run(node.pod("a", 4096, 20))
        await node.restart_agent()
        mps.kill()
        before = len(mps.said)
        await node.until(lambda: node.agent.isolating.alarms.get("daemon-dead"))
        await node.until(lambda: node.agent.isolating.mps.state(node.uuid()).ready)
        assert any("4096M" in said for said in mps.said[before:])


@pytest.mark.parametrize("version", [12080, 13040], ids=["v2", "v3"])
async def test_an_agent_that_is_upgraded_leaves_what_containers_have_of_it_as_it_is(mps, version):
    """Case C13: nothing that containers map is ours; what they share with us are the daemon's folders."""
    mps.tell(version=version)
    async with MpsNode(mps, "A10") as node:
        started = (await node.run(node.pod("a", 4096, 20)))["app"]
        mounts = [Path(each["hostPath"]) for each in started.mounts]
        folders = [each for each in mounts if each != Path("/usr/lib/libcuda.so.1")]  # the driver's, by the toolkit
        before, daemon = [each.stat().st_ino for each in folders], node.agent.isolating.mps.control.daemon.pid()
        await node.restart_agent()
        await node.until(lambda: node.agent.isolating.mps.state(node.uuid()).ready)
        assert [each.stat().st_ino for each in folders] == before
        assert node.agent.isolating.mps.control.daemon.pid() == daemon
    assert folders
    assert daemon


async def test_a_card_whose_limits_bind_is_told_as_such_and_others_are_not(mps):
    """Case C29: only the driver's limit per cgroup, or MIG, binds."""
    mps.tell(version=13040)
    async with _unified(MpsNode(mps, "H100", **R615)) as node:
        assert '"binds":true' in node.port.annotations["cardwise.dev/cards"]
        assert f'cardwise_card_holds_memory{{uuid="{node.uuid()}"}} 2.0' in await metrics(node)
    async with GpuNode("A10") as node:
        assert "binds" not in node.port.annotations["cardwise.dev/cards"]
        assert f'cardwise_card_holds_memory{{uuid="{node.uuid()}"}} 0.0' in await metrics(node)


@pytest.mark.parametrize("text", ["9" * 5000, "65", "\u0663"])
async def test_an_impossible_number_of_processes_is_refused_and_told(mps, text):
    async with MpsNode(mps, "A10") as node:
        body = pod("a", {"app": [share(node.uuid())]}, annotations={"cardwise.dev/processes": text})
        with pytest.raises(ContainerError, match="is no number of processes; write a whole number from 1 to 64"):
            await node.run(node.bound(body))
        await node.until(lambda: "CardwiseRefused" in node.port.reasons())


async def test_more_processes_than_mebibytes_are_refused_with_both_numbers(mps):
    async with MpsNode(mps, "A10") as node:
        body = pod("a", {"app": [share(node.uuid(), 10, 5)]}, annotations={"cardwise.dev/processes": "64"})
        with pytest.raises(ContainerError, match="64 processes, each with 1 MiB at least, do not fit into 10 MiB"):
            await node.run(node.bound(body))


async def namespaces(node):
    told = await node.agent.isolating.mps.control._list("namespace", "list", "--server=cardwise")
    return {line.split(",")[0] for line in told.splitlines()} - {"default"}


async def test_a_limit_of_a_start_that_a_crash_broke_off_goes_although_its_pod_is_gone_too(mps):
    mps.tell(version=13040)
    async with MpsNode(mps, "A10") as node:
        body = node.pod("a", 8000, 40)
        await node.run(body)
        row = next(iter(node.agent.journal.rows))
        node.agent.journal.put(replace(row, state=State.PREPARING))  # as of an agent that was killed right then
        await node.stop_agent()
        await node.delete(body)
        await node.start_agent()
        await node.registered()
        assert await namespaces(node) == set()


async def test_a_container_that_is_given_other_slots_leaves_nothing_in_the_old_ones(mps):
    """The kubelet lost its checkpoint; another pod got the slots and never started."""
    mps.tell(version=13040)
    async with MpsNode(mps, "A10") as node:
        body, other = node.pod("a", 8000, 40), node.pod("b", 1000, 5)
        uid = body["metadata"]["uid"]
        await node.run(body)
        await node.kubelet.stop()
        (node.folder / "device-plugins" / "kubelet_internal_checkpoint").unlink()
        await node.kubelet.start()
        await node.registered()
        await node.kubelet.admit(other)
        node.kubelet.stop_container(uid, "app")
        await node.kubelet.admit(body)
        assert (await node.kubelet.start_container(uid, "app")).device_ids == {GPU: ("slot-001",)}
        assert node.slot_files() == ["cardwise.dev-slot-001.json"]
        assert await namespaces(node) == {"slot_001"}
