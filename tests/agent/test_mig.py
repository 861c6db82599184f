"""MIG on a node: instances are published as cards of their own, handed to one pod each, and followed as they change."""

from __future__ import annotations

import contextlib
import json

import pytest

from cardwise.adapters import wire
from cardwise.core.request import Isolation
from tests.agent.a_node import GPU, GpuNode
from tests.agent.node_port import pod, share
from tests.fakes.kubelet import ContainerError
from tests.fakes.nvml import scenario as nvml

SMALL, LARGE = 19, 9  # 1g.10gb and 3g.40gb, as the driver numbers them


@contextlib.asynccontextmanager
async def divided(*wanted, models=("H100",), **more):
    """A node whose first card is divided: profile and start of each instance."""
    node = GpuNode(*models, **more)
    node.nvml.mig(0)
    node.built = lambda agent: setattr(agent.refreshing, "soon_s", 0.05)
    make(node, *wanted)
    write_toolkit(node)
    async with node:
        yield node


def make(node, *wanted):
    """Divide the first card by another process's driver, as it were."""
    from cardwise.adapters.nvml.driver import Driver  # noqa: PLC0415 - beside the agent's own

    with Driver() as driver:
        driver.facts()
        return [driver.create_instance(node.uuid(), profile, start) for profile, start in wanted]


def instances(node):
    from cardwise.adapters.nvml.driver import Driver  # noqa: PLC0415

    with Driver() as driver:
        return driver.facts().cards[0].instances


def write_toolkit(node, by=("index", "uuid")):
    """As nvidia-ctk writes it: each instance has device files of its own."""
    node.write_toolkit()
    path = node.folder / "etc" / "nvidia.json"
    spec = json.loads(path.read_text())
    for each in instances(node):
        edits = {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": f"/dev/nvidia-caps/{each.gpu_instance}"}]}
        names = {"index": f"0:{each.number}", "type-index": f"mig0:{each.number}", "uuid": each.uuid}
        spec["devices"] += [{"name": names[kind], "containerEdits": edits} for kind in by]
    path.write_text(json.dumps(spec))


def published(node):
    return {told["uuid"]: told for told in json.loads(node.port.annotations.get(wire.ANNOTATION_CARDS, "[]"))}


def caps(started):
    return [each["path"] for each in started.device_nodes if "caps" in each["path"]]


def on(uuid, name="a", mib=4096, **more):
    return pod(name, {"app": [share(uuid, mib, 20, mode=Isolation.MIG)]}, **more)


async def test_a_divided_card_is_published_as_its_instances():
    async with divided((SMALL, 0), (LARGE, 4)) as node:
        small, large = instances(node)
        await node.until(lambda: published(node))
        told = published(node)
    assert list(told) == [small.uuid, large.uuid]
    assert told[large.uuid] == {
        "uuid": large.uuid,
        "model": "H100-80GB-HBM3",
        "mib": 40448,
        "mode": "mig",
        "links": [3, 0],
        "binds": True,
    }


async def test_an_instance_is_one_slot_beside_the_sixteen_of_a_shared_card():
    async with divided((SMALL, 0), (LARGE, 4), models=("H100", "A10")) as node:
        await node.until(lambda: node.kubelet.allocatable(GPU) == 18)


async def test_a_pod_gets_the_instance_that_it_was_given():
    async with divided((SMALL, 0), (LARGE, 4)) as node:
        small, large = instances(node)
        started = (await node.run(node.bound(on(large.uuid))))["app"]
    assert caps(started) == [f"/dev/nvidia-caps/{large.gpu_instance}"]
    assert small.gpu_instance != large.gpu_instance
    assert started.env["CARDWISE_CARDS"] == large.uuid


@pytest.mark.parametrize("by", ["index", "type-index", "uuid"])
async def test_the_toolkits_ways_of_naming_instances_are_understood(by):
    async with divided((LARGE, 4), (SMALL, 0), (SMALL, 1)) as node:
        write_toolkit(node, by=[by])
        for i, each in enumerate(instances(node)):
            started = (await node.run(node.bound(on(each.uuid, f"p{i}"))))["app"]
            assert caps(started) == [f"/dev/nvidia-caps/{each.gpu_instance}"]


async def test_an_instance_that_came_after_the_toolkits_file_is_refused_and_not_taken_for_another():
    async with divided((SMALL, 0)) as node:
        (new,) = make(node, (LARGE, 4))
        node.nvml.event(0, nvml.MIG_CHANGED)
        await node.until(lambda: new.uuid in published(node))
        with pytest.raises(ContainerError, match=f"does not know card {new.uuid}, only .*run nvidia-ctk"):
            await node.run(node.bound(on(new.uuid)))


async def test_a_second_pod_on_the_same_instance_is_refused():
    async with divided((SMALL, 0), (LARGE, 4)) as node:
        large = instances(node)[1]
        await node.run(node.bound(on(large.uuid, "a", seq=1)))
        with pytest.raises(ContainerError, match=r"one pod has at a time; held by default/a"):
            await node.run(node.bound(on(large.uuid, "b", seq=2)))


async def test_the_card_itself_is_not_handed_out():
    async with divided((SMALL, 0)) as node:
        with pytest.raises(ContainerError, match="is not on this node, which has MIG-"):
            await node.run(node.bound(on(node.uuid())))


async def test_instances_that_come_and_go_are_followed():
    async with divided((SMALL, 0), (LARGE, 4)) as node:
        small, large = instances(node)
        body = node.bound(on(small.uuid))
        await node.run(body)
        node.driver.destroy_instance(node.uuid(), large)
        made = make(node, (SMALL, 4), (SMALL, 5))
        write_toolkit(node)
        node.nvml.event(0, nvml.MIG_CHANGED)
        await node.until(lambda: list(published(node)) == [small.uuid, *(each.uuid for each in made)])
        await node.until(lambda: node.kubelet.allocatable(GPU) == 3)
        again = await node.kubelet.start_container(body["metadata"]["uid"], "app")
        assert caps(again) == [f"/dev/nvidia-caps/{small.gpu_instance}"]
        started = (await node.run(node.bound(on(made[1].uuid, "b"))))["app"]
        assert caps(started) == [f"/dev/nvidia-caps/{made[1].gpu_instance}"]


async def test_instances_are_read_anew_also_if_the_driver_tells_nothing():
    async with divided(models=("H100", "A10")) as node:
        node.agent.refreshing.period_s = 0.05
        node.agent.refreshing.changed.set()
        (made,) = make(node, (LARGE, 0))
        await node.until(lambda: list(published(node)) == [made.uuid, node.uuid(1)])


async def test_a_half_made_instance_is_not_offered_until_it_is_whole():
    async with divided(models=("H100", "A10")) as node:
        node.nvml.fail(0, "nvmlGpuInstanceCreateComputeInstance", nvml.UNKNOWN)
        node.nvml.fail(0, "nvmlGpuInstanceDestroy", nvml.UNKNOWN)
        with pytest.raises(Exception, match="Unknown Error"):
            make(node, (LARGE, 0))
        node.nvml.heal().event(0, nvml.MIG_CHANGED)
        await node.until(lambda: node.agent.inventory.facts.cards[0].instances)
        assert [spec.uuid for spec in node.agent.inventory.specs()] == [node.uuid(1)]


async def test_what_troubles_a_card_troubles_its_instances_also_those_that_come_later():
    async with divided((SMALL, 0), models=("H100", "A10")) as node:
        await node.until(lambda: published(node))
        node.nvml.xid(0, 48)
        await node.until(lambda: [told.get("healthy", True) for told in published(node).values()] == [False, True])
        (made,) = make(node, (LARGE, 4))
        node.nvml.event(0, nvml.MIG_CHANGED)
        await node.until(lambda: made.uuid in published(node))
        assert [told.get("healthy", True) for told in published(node).values()] == [False, False, True]
        with pytest.raises(ContainerError, match="takes no new slices"):
            await node.run(node.bound(on(made.uuid)))


async def test_a_card_that_cannot_be_read_keeps_its_instances():
    async with divided((SMALL, 0)) as node:
        await node.until(lambda: published(node))
        node.nvml.fail(0, "nvmlDeviceGetMaxMigDeviceCount", nvml.UNKNOWN)
        await node.agent.refreshing.refresh()
        assert len(node.agent.inventory.specs()) == 1


async def test_a_demand_that_a_divided_card_cannot_meet_holds_its_instances_back():
    async with divided((SMALL, 0), models=("H100", "A10"), settings={"isolation": "time-slicing"}) as node:
        (small,) = instances(node)
        with pytest.raises(ContainerError, match="takes no new slices: MIG is on"):
            await node.run(node.bound(on(small.uuid)))


async def test_a_card_whose_mig_is_switched_on_later_is_handed_out_by_its_instances():
    async with GpuNode("H100") as node:
        await node.until(lambda: published(node))
        node.nvml.mig(0)
        (made,) = make(node, (LARGE, 0))
        await node.agent.refreshing.refresh()
        await node.until(lambda: list(published(node)) == [made.uuid])


async def test_what_a_pod_uses_of_its_instance_is_told_of_the_instance():
    async with divided((SMALL, 0), (LARGE, 4)) as node:
        large = instances(node)[1]
        await node.run(node.bound(on(large.uuid)))
        node.nvml.process(0, 99999999, 100, instance=large.gpu_instance)
        await node.until(lambda: node.agent.using.strangers)
        stranger = node.agent.using.strangers[0]
        assert (stranger.uuid, stranger.pid) == (large.uuid, 99999999)
        text = node.agent.metrics.text().decode()
    assert f'cardwise_card_memory_allocatable_mib{{uuid="{large.uuid}"}} 40448.0' in text
    assert f'cardwise_card_holds_faults{{uuid="{large.uuid}"}} 2.0' in text
