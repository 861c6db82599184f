"""Each container gets its own slice or does not start: the agent behind a kubelet that behaves as the real one."""

from __future__ import annotations

import asyncio
import copy
import json

import pytest

from cardwise.adapters.kubelet.device_plugin import RefusedError
from cardwise.core.request import Isolation
from tests.agent.a_node import GPU, GpuNode
from tests.agent.node_port import pod, share
from tests.fakes.kubelet import ContainerError


async def test_a_container_gets_its_card_and_its_amounts():
    async with GpuNode("A10", "A10") as node:
        started = (await node.run(node.pod("a", 4096, 20, card=1)))["app"]
    assert started.env["CARDWISE_CARDS"] == node.uuid(1)
    assert (started.env["CARDWISE_MEMORY_MIB"], started.env["CARDWISE_CORES_PCT"]) == ("4096", "20")
    assert [each["path"] for each in started.device_nodes] == ["/dev/nvidiactl", "/dev/nvidia1"]
    assert started.mounts[0]["containerPath"] == "/usr/lib/libcuda.so.1"


async def test_sixteen_slots_a_card_that_name_none():
    async with GpuNode("H200", *["H200"] * 7) as node:
        assert node.kubelet.allocatable(GPU) == 128
        names = [device.id for device in node.agent.plugin.devices()]
    assert names[0] == "slot-000"
    assert sum(map(len, names)) < 2000  # case C50: a short message, whatever the cards hold


async def test_pods_that_start_at_once_each_get_their_own():
    """Cases C1 and C2: different sizes, any order, one node."""
    async with GpuNode("A10", "A10") as node:
        bodies = [node.pod(f"p{i}", 1000 * (i + 1), 5 + i, card=i % 2) for i in range(6)]
        bodies = [bodies[i] for i in (3, 0, 5, 1, 4, 2)]
        found = await asyncio.gather(*(node.run(body) for body in bodies))
    for body, started in zip(bodies, found, strict=True):
        i = int(body["metadata"]["name"][1:])
        assert started["app"].env["CARDWISE_MEMORY_MIB"] == str(1000 * (i + 1))
        assert started["app"].env["CARDWISE_CARDS"] == node.uuid(i % 2)


async def test_a_late_allocate_of_one_pod_does_not_give_its_slice_to_another():
    """Case C2."""
    async with GpuNode("A10") as node:
        first, second = node.pod("a", 1000, 10), node.pod("b", 3000, 30)

        async def slow(call):
            if call.pod["metadata"]["name"] == "a":
                await asyncio.sleep(0.3)

        node.kubelet.before_prestart = slow
        a, b = await asyncio.gather(node.run(first), node.run(second))
    assert (a["app"].env["CARDWISE_MEMORY_MIB"], b["app"].env["CARDWISE_MEMORY_MIB"]) == ("1000", "3000")


async def test_pods_that_ask_in_an_init_container_only_each_get_their_own():
    """Case C4: the kubelet's pod resources API does not tell of init containers."""
    async with GpuNode("A10") as node:
        seen = {}

        async def start(name, mib, pct):
            body = node.bound(pod(name, {"app": []}, inits={"load": [share(node.uuid(), mib, pct)]}))
            seen[name] = await node.run(body)

        await asyncio.gather(start("a", 1024, 10), start("b", 2048, 20))
    assert seen["a"]["load"].env["CARDWISE_MEMORY_MIB"] == "1024"
    assert seen["b"]["load"].env["CARDWISE_MEMORY_MIB"] == "2048"
    assert "CARDWISE_CARDS" not in seen["a"]["app"].env


async def test_an_app_container_that_takes_over_its_init_containers_slot_gets_its_own_amounts():
    async with GpuNode("A10") as node:
        uuid = node.uuid()
        body = pod("a", {"app": [share(uuid, 4096, 20)]}, inits={"load": [share(uuid, 8192, 50)]})
        node.bound(body)
        uid = body["metadata"]["uid"]
        await node.kubelet.admit(body)
        init = await node.kubelet.start_container(uid, "load")
        node.kubelet.stop_container(uid, "load")
        body["status"] = {
            "phase": "Pending",
            "initContainerStatuses": [{"name": "load", "state": {"terminated": {"exitCode": 0}}}],
        }
        node.port.put(body)
        app = await node.kubelet.start_container(uid, "app")
    assert init.device_ids == app.device_ids
    assert (init.env["CARDWISE_MEMORY_MIB"], app.env["CARDWISE_MEMORY_MIB"]) == ("8192", "4096")


async def test_while_it_is_unclear_which_container_starts_it_waits_for_the_status():
    async with GpuNode("A10") as node:
        uuid = node.uuid()
        body = pod("a", {"app": [share(uuid, 4096, 20)]}, inits={"load": [share(uuid, 8192, 50)]})
        node.bound(body)
        uid = body["metadata"]["uid"]
        await node.kubelet.admit(body)
        await node.kubelet.start_container(uid, "load")
        body["status"] = {"phase": "Pending", "initContainerStatuses": [{"name": "load", "state": {"running": {}}}]}
        node.port.put(body)
        node.kubelet.stop_container(uid, "load")
        starting = asyncio.ensure_future(node.kubelet.start_container(uid, "app"))
        await asyncio.sleep(0.4)
        assert not starting.done()
        body["status"]["initContainerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
        node.port.put(body)
        assert (await starting).env["CARDWISE_MEMORY_MIB"] == "4096"


async def test_eight_cards_are_the_eight_that_were_decided():
    """Case C17."""
    async with GpuNode(*["H200"] * 8) as node:
        order = [node.uuid(i) for i in (3, 1, 0, 2, 7, 6, 5, 4)]
        body = node.bound(pod("big", {"app": [share(uuid, 143156, 100, whole=True) for uuid in order]}))
        started = (await node.run(body))["app"]
    assert started.env["CARDWISE_CARDS"].split(",") == order
    assert {each["path"] for each in started.device_nodes} == {"/dev/nvidiactl", *(f"/dev/nvidia{i}" for i in range(8))}
    assert len(started.cdi_names) == 8


async def test_two_containers_of_one_pod_get_one_card_each():
    async with GpuNode("A10", "T4") as node:
        body = node.bound(pod("a", {"one": [share(node.uuid(0), 2000, 10)], "two": [share(node.uuid(1), 3000, 30)]}))
        found = await node.run(body)
    assert found["one"].env["CARDWISE_CARDS"] == node.uuid(0)
    assert found["two"].env["CARDWISE_CARDS"] == node.uuid(1)


async def refused(node, body):
    """The words with which the kubelet reports that the pod's container does not start."""
    node.bound(body)
    with pytest.raises(ContainerError) as caught:
        await node.run(body)
    assert node.slot_files() == []
    return str(caught.value)


async def test_a_pod_that_the_scheduler_did_not_bind_is_refused():
    async with GpuNode() as node:
        body = pod("a", {"app": [share(node.uuid())]})
        del body["metadata"]["annotations"]["cardwise.dev/alloc"]
        assert "was not bound by cardwise's scheduler" in await refused(node, body)
        await node.until(lambda: "CardwiseRefused" in node.port.reasons())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda n: pod("a", {"app": [share(n.uuid())]}, alloc_node="other"), "for node other", id="node"),
        pytest.param(lambda _: pod("a", {"app": [share("GPU-gone")]}), "GPU-gone is not on this node", id="card"),
        pytest.param(
            lambda n: _renamed(pod("a", {"app": [share(n.uuid())]})), "nothing for container x", id="container"
        ),
        pytest.param(lambda n: pod("a", {"app": [share(n.uuid(), 30000)]}), "30000 MiB are asked", id="too-much"),
        pytest.param(lambda n: _garbled(pod("a", {"app": [share(n.uuid())]})), "is not readable", id="garbled"),
        pytest.param(lambda n: _more_cards(pod("a", {"app": [share(n.uuid())]})), "2 slots", id="count"),
    ],
)
async def test_an_allocation_that_contradicts_the_node_is_refused(make, words):
    async with GpuNode() as node:
        assert words in await refused(node, make(node))


def _renamed(body):
    body["spec"]["containers"][0]["name"] = "x"
    return body


def _garbled(body):
    body["metadata"]["annotations"]["cardwise.dev/alloc"] = "{"
    return body


def _more_cards(body):
    body["spec"]["containers"][0]["resources"]["limits"][GPU] = "2"
    return body


async def test_two_leaders_that_both_gave_away_a_card_give_it_to_one_container():
    async with GpuNode() as node:
        await node.run(node.pod("a", 15000, 60, seq=1))
        with pytest.raises(ContainerError, match=r"15000 MiB are asked, 7516 of 22516 MiB are free; held by default/a"):
            await node.run(node.pod("b", 15000, 30, seq=2))


async def test_what_the_driver_keeps_is_not_handed_out():
    """Case C27, in the numbers of the fake T4: 15360 MiB, 448 of them the driver's."""
    async with GpuNode("T4") as node:
        assert '"mib":14912' in node.port.annotations["cardwise.dev/cards"]


async def test_without_the_container_toolkit_the_refusal_says_what_to_do():
    async with GpuNode(toolkit=False) as node:
        with pytest.raises(ContainerError, match="nvidia-ctk cdi generate"):
            await node.run(node.pod("a"))
        node.write_toolkit()
        uid = node.port.pods[next(iter(node.port.pods))]["metadata"]["uid"]
        assert (await node.kubelet.start_container(uid, "app")).env["CARDWISE_CARDS"] == node.uuid()


async def test_a_toolkit_that_knows_cards_by_number_only_is_understood():
    async with GpuNode() as node:
        node.write_toolkit(names=("0",))
        assert (await node.run(node.pod("a")))["app"].env["CARDWISE_CARDS"] == node.uuid()


async def test_the_same_call_twice_has_the_same_answer_and_counts_once():
    """Case C5."""
    async with GpuNode() as node:
        body = node.pod("a", 20000, 90)
        first = (await node.run(body))["app"]
        again = await node.kubelet.start_container(body["metadata"]["uid"], "app")
        rows = list(node.agent.journal.rows)
    assert (again.env, again.device_ids) == (first.env, first.device_ids)
    assert len(rows) == 1


async def test_a_start_that_failed_leaves_nothing_and_can_be_tried_again():
    """Case C5."""
    async with GpuNode(toolkit=False) as node:
        with pytest.raises(ContainerError):
            await node.run(node.pod("a", 20000, 90))
        assert not list(node.agent.journal.rows)
        node.write_toolkit()
        assert (await node.run(node.pod("b", 20000, 90)))["app"].env["CARDWISE_MEMORY_MIB"] == "20000"


async def test_a_pod_that_the_watch_has_not_told_of_is_asked_for():
    async with GpuNode() as node:
        body = node.bound(pod("late", {"app": [share(node.uuid())]}), told=False)
        assert (await node.run(body))["app"].env["CARDWISE_CARDS"] == node.uuid()


async def test_a_pod_of_the_same_name_gets_its_own_slice_and_not_the_old_ones():
    async with GpuNode() as node:
        old = node.pod("a", 1000, 10, uid="00000000-0000-0000-0000-000000000001")
        await node.run(old)
        node.port.remove(old)  # force-deleted: the kubelet still has it
        new = pod("a", {"app": [share(node.uuid(), 3000, 30)]}, uid="00000000-0000-0000-0000-000000000002")
        node.bound(new)
        started = (await node.run(new))["app"]
        with pytest.raises(ContainerError, match="has UID"):
            await node.kubelet.start_container(old["metadata"]["uid"], "app")
    assert started.env["CARDWISE_MEMORY_MIB"] == "3000"


async def test_a_deleted_pod_leaves_no_file_and_no_row():
    async with GpuNode() as node:
        body = node.pod("a")
        await node.run(body)
        assert node.slot_files() == ["cardwise.dev-slot-000.json"]
        await node.delete(body)
        await node.until(lambda: not node.slot_files() and not list(node.agent.journal.rows))


async def test_a_pod_that_the_kubelet_still_has_is_not_swept():
    async with GpuNode() as node:
        body = node.pod("a")
        await node.run(body)
        node.port.remove(body)
        await asyncio.sleep(0.4)
        assert node.slot_files() == ["cardwise.dev-slot-000.json"]


async def test_two_hundred_pods_one_after_the_other_leave_nothing():
    """Case C7, on the node."""
    async with GpuNode() as node:
        for i in range(200):
            body = node.pod(f"p{i}", 20000, 90)
            await node.run(body)
            await node.delete(body)
        await node.until(lambda: not node.slot_files() and not list(node.agent.journal.rows))


async def test_the_slot_file_is_valid_cdi_and_changes_in_one_step():
    async with GpuNode() as node:
        await node.run(node.pod("a"))
        spec = json.loads((node.folder / "cdi" / "cardwise.dev-slot-000.json").read_text())
    assert (spec["cdiVersion"], spec["kind"]) == ("0.6.0", "cardwise.dev/slot")
    assert [device["name"] for device in spec["devices"]] == ["slot-000"]
    assert not list((node.folder / "cdi").glob("*.tmp")) if (node.folder / "cdi").exists() else True


# ---------------------------------------------------------------- names are used again


def numbered(n):
    return f"00000000-0000-0000-0000-{n:012d}"


def without_checkpoint(node):
    """The kubelet's internal file has another format."""
    (node.folder / "device-plugins" / "kubelet_internal_checkpoint").write_text('{"Data":{"v2":[]}}')


async def test_two_pods_of_one_name_both_hold_what_they_have():
    async with GpuNode() as node:
        old = node.pod("db-0", 20000, 50, uid=numbered(1))
        await node.run(old)
        node.port.remove(old)  # force-deleted: the kubelet still has it
        await node.run(node.pod("db-0", 1000, 5, uid=numbered(2)))
        with pytest.raises(ContainerError, match=r"1516 of 22516 MiB are free; held by default/db-0, default/db-0"):
            await node.run(node.pod("third", 20000, 5))


async def test_without_a_checkpoint_a_pod_of_a_name_that_was_there_before_gets_its_own():
    async with GpuNode("A10", "A10") as node:
        old = node.pod("db-0", 20000, 50, uid=numbered(1))
        await node.run(old)
        node.kubelet.remove_pod(numbered(1))
        del node.port.pods[numbered(1)]
        new = node.bound(pod("db-0", {"app": [share(node.uuid(1), 1000, 5)]}, uid=numbered(2)), told=False)
        await node.kubelet.admit(new)
        without_checkpoint(node)
        started = await node.kubelet.start_container(numbered(2), "app")
    assert (started.env["CARDWISE_CARDS"], started.env["CARDWISE_MEMORY_MIB"]) == (node.uuid(1), "1000")


async def test_without_a_checkpoint_and_api_server_only_a_container_that_had_these_slots_starts():
    async with GpuNode() as node:
        ran, waits = node.pod("ran", 1000, 5), node.pod("waits", 1000, 5)
        await node.run(ran)
        await node.kubelet.admit(waits)
        without_checkpoint(node)
        node.port.down = True
        assert (await node.kubelet.start_container(ran["metadata"]["uid"], "app")).env["CARDWISE_MEMORY_MIB"] == "1000"
        with pytest.raises(ContainerError, match="the API server is down"):
            await node.kubelet.start_container(waits["metadata"]["uid"], "app")


async def test_without_a_checkpoint_two_pods_of_one_name_are_not_told_apart():
    async with GpuNode() as node:
        old = node.pod("db-0", 1000, 5, uid=numbered(1))
        await node.run(old)
        node.port.remove(old)
        await node.kubelet.admit(node.pod("db-0", 2000, 5, uid=numbered(2)))
        without_checkpoint(node)
        with pytest.raises(ContainerError, match="two pods default/db-0 and does not tell them apart"):
            await node.kubelet.start_container(numbered(2), "app")


# ---------------------------------------------------------------- how a card is shared


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        pytest.param({"isolation": "mps"}, "is shared by time-slicing, and the pod demands mps;", id="mps"),
        pytest.param({"isolation": "mig, whole"}, "and the pod demands mig or whole;", id="several"),
        pytest.param({"limits": "hard"}, "and the pod demands hard limits", id="hard"),
    ],
)
async def test_a_demand_that_the_card_does_not_meet_is_refused(demand, words):
    told = {f"cardwise.dev/{key}": value for key, value in demand.items()}
    async with GpuNode() as node:
        assert words in await refused(node, pod("a", {"app": [share(node.uuid())]}, annotations=told))


async def test_a_share_of_a_card_that_was_shared_otherwise_is_refused():
    async with GpuNode() as node:
        body = pod("a", {"app": [share(node.uuid(), mode=Isolation.MPS)]})
        assert "is shared by time-slicing, and was allocated as shared by mps" in await refused(node, body)


@pytest.mark.parametrize("more", [{"mode": Isolation.TIME_SLICING}, {"mode": Isolation.MPS, "whole": True}])
async def test_a_card_that_is_shared_as_allocated_or_had_alone_is_handed_over(more):
    async with GpuNode() as node:
        body = node.bound(pod("a", {"app": [share(node.uuid(), **more)]}))
        assert (await node.run(body))["app"].env["CARDWISE_CARDS"] == node.uuid()


async def test_a_demand_that_is_met_no_more_refuses_the_next_start_and_the_books_keep_the_pod():
    async with GpuNode() as node:
        body = node.bound(
            pod("a", {"app": [share(node.uuid(), 15000, 60)]}, annotations={"cardwise.dev/isolation": "time-slicing"})
        )
        await node.run(body)
        await node.stop_agent()
        for each in (node.folder / "state").glob("journal.db*"):
            each.unlink()
        node._settings["isolation"] = "whole"
        await node.start_agent()
        await node.registered()
        await node.until(lambda: [row.pod for row in node.agent.journal.rows] == ["a"])
        with pytest.raises(ContainerError, match="is shared by whole, and the pod demands time-slicing"):
            await node.kubelet.start_container(body["metadata"]["uid"], "app")


# ---------------------------------------------------------------- what was handed over counts


async def test_an_allocation_that_shrinks_later_leaves_no_more_room():
    async with GpuNode() as node:
        body = node.pod("a", 20000, 50)
        await node.run(body)
        less = copy.deepcopy(body)
        less["metadata"]["annotations"]["cardwise.dev/alloc"] = body["metadata"]["annotations"][
            "cardwise.dev/alloc"
        ].replace("20000", "1")
        node.port.put(less)
        await node.until(lambda: '"mib":1,' in _alloc_known(node, body))
        with pytest.raises(ContainerError, match="2516 of 22516 MiB are free"):
            await node.run(node.pod("b", 20000, 50))


def _alloc_known(node, body):
    return node.agent.pods.by_uid[body["metadata"]["uid"]].metadata.annotations["cardwise.dev/alloc"]


async def test_a_containers_neighbour_does_not_shrink_with_the_allocation():
    async with GpuNode() as node:
        body = node.bound(pod("a", {"one": [share(node.uuid(), 15000, 10)], "two": [share(node.uuid(), 1000, 10)]}))
        uid = body["metadata"]["uid"]
        await node.kubelet.admit(body)
        await node.kubelet.start_container(uid, "one")
        other = pod("a", {"one": [share(node.uuid(), 1, 10)], "two": [share(node.uuid(), 7000, 10)]})
        body["metadata"]["annotations"] = other["metadata"]["annotations"]
        node.port.put(body)
        await node.until(lambda: '"mib":7000' in _alloc_known(node, body))
        await node.kubelet.start_container(uid, "two")
        with pytest.raises(ContainerError, match="516 of 22516 MiB are free"):
            await node.run(node.pod("b", 600, 5))


# ---------------------------------------------------------------- calls that make no sense


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        pytest.param(["slot-000", "slot-000"], "asked for twice in one call: slot-000", id="twice"),
        pytest.param([], "nothing: no slots of this node", id="none"),
        pytest.param(["../../etc/x"], "'../../etc/x': no slots of this node", id="path"),
        pytest.param(["s" * 3_000_000], "no slots of this node", id="long"),
        pytest.param([f"x{i}" for i in range(20000)], "and 19,996 more: no slots of this node", id="many"),
        pytest.param([f"slot-{i:05d}" for i in range(20000)], "and 19,996 more are; it tries again", id="unknown"),
    ],
)
async def test_slots_that_cannot_be_ours_are_refused_in_few_words_and_leave_nothing(ids, words):
    async with GpuNode() as node:
        with pytest.raises(RefusedError) as caught:
            await node.agent.plugin.pre_start(ids)
        assert words in str(caught.value)
        assert len(str(caught.value)) < 500
        assert not node.agent.sweeping.preparing._locks


async def test_a_bug_of_ours_is_told_to_the_pod_and_refuses_the_container():
    async with GpuNode() as node:

        class Broken:
            async def enforce(self, _owner, _grants):
                raise KeyError("what nobody expected")

            async def lift(self, _row):
                return

        node.agent.sweeping.preparing.limits = Broken()
        with pytest.raises(ContainerError, match="cardwise: a bug of ours: KeyError: 'what nobody expected'"):
            await node.run(node.pod("a"))
        assert (node.slot_files(), list(node.agent.journal.rows)) == ([], [])
        await node.until(lambda: "CardwiseRefused" in node.port.reasons())


async def test_an_init_container_that_runs_again_in_a_new_sandbox_gets_its_own_amounts():
    """After a reboot the status still says that it has ended; the pod has no sandbox yet."""
    async with GpuNode() as node:
        uuid = node.uuid()
        body = node.bound(pod("a", {"app": [share(uuid, 1000, 5)]}, inits={"load": [share(uuid, 15000, 60)]}))
        uid = body["metadata"]["uid"]
        await node.kubelet.admit(body)
        for sandbox, container, mib in (
            ("False", "load", "15000"),
            ("True", "app", "1000"),
            ("False", "load", "15000"),
        ):
            body = copy.deepcopy(body)
            body["status"] = {
                "phase": "Running",
                "conditions": [{"type": "PodReadyToStartContainers", "status": sandbox}],
                "initContainerStatuses": [{"name": "load", "state": {"terminated": {"exitCode": 0}}}],
            }
            node.port.put(body)
            await node.until(lambda told=sandbox: _sandbox_known(node, uid) == told)
            assert (await node.kubelet.start_container(uid, container)).env["CARDWISE_MEMORY_MIB"] == mib
            node.kubelet.stop_container(uid, container)


def _sandbox_known(node, uid):
    return next((each.status for each in node.agent.pods.by_uid[uid].status.conditions), None)


async def test_an_app_container_that_starts_before_the_status_tells_of_its_init_container_gets_its_own_amounts():
    async with GpuNode() as node:
        uuid = node.uuid()
        body = node.bound(pod("a", {"app": [share(uuid, 1000, 5)]}, inits={"load": [share(uuid, 15000, 60)]}))
        uid = body["metadata"]["uid"]
        await node.kubelet.admit(body)
        await node.kubelet.start_container(uid, "load")
        node.kubelet.stop_container(uid, "load")
        starting = asyncio.ensure_future(node.kubelet.start_container(uid, "app"))
        await asyncio.sleep(0.4)
        assert not starting.done()
        ended = [{"name": "load", "state": {"terminated": {"exitCode": 0}}}]
        node.port.put({**body, "status": {"phase": "Pending", "initContainerStatuses": ended}})
        assert (await starting).env["CARDWISE_MEMORY_MIB"] == "1000"


async def test_of_two_streams_the_one_that_is_busy_while_a_card_falls_sick_hears_of_it_too():
    """As a kubelet that restarts has them: the old one is not over yet."""
    async with GpuNode() as node:
        plugin = node.agent.plugin
        busy, quick = plugin.offers(), plugin.offers()
        await anext(busy)  # it has not come back for more, as while its message is sent
        await anext(quick)
        hearing = asyncio.ensure_future(anext(quick))
        await asyncio.sleep(0)
        node.agent.inventory.report("test", node.uuid(), "sick")
        plugin.renew()
        assert not any(device.healthy for device in await asyncio.wait_for(hearing, 60))
        assert not any(device.healthy for device in await asyncio.wait_for(anext(busy), 60))
