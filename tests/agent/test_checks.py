"""What the agent says of its node when it starts."""

from __future__ import annotations

import msgspec
import pytest

from cardwise.adapters.kube_objects import Node
from cardwise.agent.checks import node_findings


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
