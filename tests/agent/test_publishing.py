"""What the cluster is told: again when it has forgotten, and not more often than anyone can read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Node
from cardwise.agent.inventory import Inventory
from cardwise.agent.publishing import REPEAT_S, Publishing
from cardwise.agent.telling import MOST_ALIKE, MOST_WAITING, Teller
from cardwise.core.card.facts import CardFacts, NodeFacts
from tests.agent.a_node import GpuNode
from tests.agent.node_port import NODE, NodePort
from tests.clock import Clock

CARD = CardFacts("GPU-a", "A10", 0, 0, "00000000:07:00.0", 23028)


@pytest.fixture
def told():
    """A publisher, its port and its clock."""
    port, clock = NodePort(), Clock(1000.0)
    inventory = Inventory(NodeFacts("580", 13000, (CARD,)))
    publishing = Publishing(port, NODE, "default", inventory, lambda: {"GPU-a": 0.5}, frozenset, clock)
    return SimpleNamespace(port=port, clock=clock, publishing=publishing)


async def publish(told):
    await told.publishing.publish()
    await told.publishing.tell_conditions()


async def test_all_that_was_told_of_a_node_comes_back_after_it_was_made_anew(told):
    told.publishing.tell_ready(wire.CONDITION_MPS, True, "it answers")
    await publish(told)
    told.port.annotations.clear()
    told.port.conditions.clear()
    told.clock.now_s += REPEAT_S
    await publish(told)
    assert wire.ANNOTATION_LOAD in told.port.annotations
    assert wire.ANNOTATION_CARDS in told.port.annotations
    assert told.port.conditions[wire.CONDITION_MPS]["status"] == "True"


async def test_a_condition_keeps_the_time_of_its_status_while_only_its_text_changes(told, monkeypatch):
    told.publishing.tell_ready(wire.CONDITION_MPS, True, "it answers")
    await publish(told)
    told.port.conditions[wire.CONDITION_MPS]["lastTransitionTime"] = "long ago"
    told.publishing._since[wire.CONDITION_MPS] = ("True", "long ago")
    told.publishing.tell_ready(wire.CONDITION_MPS, True, "it answers slowly")
    await publish(told)
    assert told.port.conditions[wire.CONDITION_MPS]["lastTransitionTime"] == "long ago"
    told.publishing.tell_ready(wire.CONDITION_MPS, False, "it is gone")
    await publish(told)
    assert told.port.conditions[wire.CONDITION_MPS]["lastTransitionTime"] != "long ago"


async def test_a_condition_that_an_agent_before_has_written_keeps_its_time(told):
    status = {"conditions": [{"type": wire.CONDITION_MPS, "status": "True"}]}
    before = msgspec.convert({"metadata": {"name": NODE}, "status": status}, Node)
    told.port.get_node = lambda _name: asyncio.sleep(0, before)
    told.publishing.tell_ready(wire.CONDITION_MPS, True, "it answers")
    await publish(told)
    assert "lastTransitionTime" not in told.port.conditions[wire.CONDITION_MPS]  # the API server's stays


# ---------------------------------------------------------------- events


async def rest(teller):
    while teller._writing is not None and not teller._writing.done():
        await asyncio.sleep(0)


async def test_events_of_a_card_for_one_reason_are_few_a_minute_and_the_rest_is_counted():
    port = NodePort()
    teller = Teller(port, NODE, alike_s=0.05)
    for _ in range(1000):
        teller.of_node("card-xid", "GPU-a: Xid 31", card="GPU-a")
    teller.of_node("card-xid", "GPU-b: Xid 31", card="GPU-b")
    teller.of_node("card-hot", "GPU-a is hot", card="GPU-a")
    await asyncio.sleep(0.2)
    await rest(teller)
    assert len(port.events) == MOST_ALIKE + 2 + 1
    assert port.events[-1]["message"] == "GPU-a: Xid 31; so or alike 997 times more within 0 s"
    assert port.events[-1]["count"] == 997


async def test_what_befalls_a_card_again_is_said_again():
    port = NodePort()
    teller = Teller(port, NODE)
    for _ in range(2):
        teller.of_node("card-hot", "GPU-a is hot", card="GPU-a")
        teller.of_node("CardwiseNodeCheck", "the kubelet is old")
    await rest(teller)
    assert port.reasons() == ["card-hot", "CardwiseNodeCheck", "card-hot"]


async def test_an_api_server_that_does_not_answer_costs_a_short_queue():
    port = NodePort()
    port.post_event = lambda *_: asyncio.sleep(3600)
    teller = Teller(port, NODE)
    for i in range(10 * MOST_WAITING):
        teller.of_node("CardwiseNodeCheck", f"finding {i}")
    await asyncio.sleep(0)
    assert teller.lost == 9 * MOST_WAITING
    assert len(asyncio.all_tasks()) <= 3
    teller._writing.cancel()


async def test_ten_thousand_xids_are_a_handful_of_events():
    async with GpuNode("A10") as node:
        with node.nvml.path.with_name(node.nvml.path.name + ".events").open("a") as file:
            file.writelines(f"0 8 {[31, 13, 63, 94, 48][i % 5]} {0xFFFFFFFF} {0xFFFFFFFF}\n" for i in range(2000))
        await node.until(lambda: sum(node.agent.wellness.xids.values()) == 2000)
        await rest(node.agent.wellness.teller)
        assert len(node.port.events) < 40
