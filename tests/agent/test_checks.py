"""What the agent says of its node when it starts."""

from __future__ import annotations

import msgspec
import pytest

from cardwise.adapters.kube_objects import Node
from cardwise.agent.checks import driver_findings, node_findings
from cardwise.core.card.facts import NodeFacts
from cardwise.errors import ClusterError
from tests.agent.a_node import GpuNode


def told(version="v1.36.3", cpu=("64", "62"), memory=("256Gi", "250Gi")):
    status = {
        "nodeInfo": {"kubeletVersion": version},
        "capacity": {"cpu": cpu[0], "memory": memory[0]},
        "allocatable": {"cpu": cpu[1], "memory": memory[1]},
    }
    return list(node_findings(msgspec.convert({"metadata": {"name": "n"}, "status": status}, Node)))


def test_a_node_in_order_has_no_findings():
    assert told() == []


@pytest.mark.parametrize("version", ["v1.28.9", "v1.20.15-gke.100"])
def test_a_kubelet_without_cdi_for_device_plugins_is_named_with_what_to_do(version):
    (text,) = told(version)
    assert f"the kubelet is {version}" in text
    assert "DevicePluginCDIDevices" in text


@pytest.mark.parametrize("version", ["v1.29.0", "", "unknown"])
def test_a_kubelet_that_knows_cdi_or_does_not_say_is_no_finding(version):
    assert told(version) == []


@pytest.mark.parametrize(
    ("what", "amounts"), [("CPU", {"cpu": ("64", "64000m")}), ("memory", {"memory": ("8Gi", "8Gi")})]
)
def test_a_node_that_keeps_nothing_back_is_told(what, amounts):
    (text,) = told(**amounts)
    assert f"keeps no {what} back" in text


@pytest.mark.parametrize(
    ("version", "is_told"), [("440.33.01", True), ("450.51", False), ("580.82", False), ("", False)]
)
def test_a_driver_that_is_too_old_is_named_and_one_that_is_not_known_is_no_finding(version, is_told):
    """SPEC A8."""
    found = driver_findings(NodeFacts(version, 0, ()))
    assert bool(found) == is_told
    assert not is_told or found[0].startswith(f"the driver is {version}, older than R450: upgrade it")


async def test_an_agent_over_an_old_driver_says_so_as_an_event_of_its_node():
    async with GpuNode("A10", driver="440.33.01") as node:
        await node.until(lambda: "CardwiseNodeCheck" in node.port.reasons())
        (event,) = [each for each in node.port.events if each["reason"] == "CardwiseNodeCheck"]
    assert "440.33.01" in event["message"]


async def test_a_node_is_checked_once_the_api_server_is_back(monkeypatch):
    monkeypatch.setattr("cardwise.agent.main.CHECK_AGAIN_S", 0.01)
    node = GpuNode("A10", driver="440.33.01")
    asked = []

    async def away(name):
        asked.append(name)
        if len(asked) < 3:
            raise ClusterError("the API server is down", retry=True)
        return msgspec.convert({"metadata": {"name": name}}, Node)

    node.port.get_node = away
    async with node:
        await node.until(lambda: "CardwiseNodeCheck" in node.port.reasons())
