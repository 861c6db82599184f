"""The driver's events: what a card that hangs, a bug, or a driver that does not return makes of hearing them."""

from __future__ import annotations

import contextlib

import pytest

from tests.agent.a_node import GpuNode
from tests.agent.test_using import metrics
from tests.fakes.nvml import HOUR_MS


@contextlib.asynccontextmanager
async def hung_in(call):
    node = GpuNode("A10", "A10")
    node.nvml.hang(1, call, HOUR_MS)
    async with node:
        yield node
        node.nvml.heal()


@pytest.mark.parametrize("call", ["nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes"])
async def test_a_card_that_hangs_while_it_is_registered_makes_no_other_deaf(call):
    async with hung_in(call) as node:
        node.nvml.xid(0, 31)
        await node.until(lambda: (node.uuid(0), 31) in node.agent.wellness.xids)
        await node.until(lambda: "CardwiseEventsNotHeard" in node.port.reasons())
        text = await metrics(node)
    assert f'cardwise_card_events_heard{{uuid="{node.uuid(0)}"}} 1.0' in text
    assert f'cardwise_card_events_heard{{uuid="{node.uuid(1)}"}} 0.0' in text


async def test_a_card_that_comes_back_while_it_is_registered_is_heard():
    async with hung_in("nvmlDeviceRegisterEvents") as node:
        await node.until(lambda: node.uuid(1) in node.agent.using.deaf)
        node.nvml.heal()
        await node.until(lambda: not node.agent.using.deaf)
        node.nvml.xid(1, 31)
        await node.until(lambda: (node.uuid(1), 31) in node.agent.wellness.xids)


async def test_hearing_does_not_end_of_a_bug(monkeypatch):
    monkeypatch.setattr("cardwise.agent.using.EVENT_PAUSE_S", 0.05)
    async with GpuNode("A10") as node:
        good = node.driver.events

        def bad(_wait_ms):
            raise UnicodeDecodeError("utf-8", b"x", 0, 1, "an odd UUID")

        node.driver.events = bad
        await node.until(lambda: node.agent.using.deaf)
        await node.until(lambda: "CardwiseEventsNotHeard" in node.port.reasons())
        node.driver.events = good
        await node.until(lambda: not node.agent.using.deaf)
        node.nvml.xid(0, 31)
        await node.until(lambda: (node.uuid(0), 31) in node.agent.wellness.xids)


async def test_a_driver_that_does_not_return_from_waiting_is_told():
    async with GpuNode("A10") as node:
        node.agent.using.event_stuck_s = 0.2
        node.nvml.hang(-1, "nvmlEventSetWait_v2", HOUR_MS)
        await node.until(lambda: node.agent.using.deaf)
        assert "has not answered for" in node.agent.using.deaf[node.uuid(0)]
        node.nvml.heal()
        await node.until(lambda: not node.agent.using.deaf)


async def test_a_process_in_a_cgroup_of_odd_bytes_costs_the_others_nothing():
    async with GpuNode("A10") as node:
        folder = node.folder / "proc" / "4711"
        folder.mkdir(parents=True)
        (folder / "cgroup").write_bytes(b"0::/kubepods.slice/\xff\xfe\n")
        node.nvml.process(0, 4711, 100)

        def joined():
            node.agent.using.join()
            return node.agent.using.strangers

        await node.until(joined)
        assert [stranger.pid for stranger in node.agent.using.strangers] == [4711]
