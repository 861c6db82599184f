"""Another device plugin on the node is named, with what to do."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Node
from cardwise.agent.rivals import REASON, rivals, tell_of_rivals
from cardwise.agent.telling import Teller
from cardwise.errors import ClusterError
from tests.agent.node_port import NODE, NodePort

HAMI = {wire.ANNOTATION_HAMI_CARDS: '[{"id":"GPU-1"}]'}
OURS = ("kubelet.sock", "cardwise.sock", "kubelet_internal_checkpoint")


def node(allocatable=None, *, labels=None, annotations=None):
    meta = {"name": NODE, "labels": labels or {}, "annotations": annotations or {}}
    status = {"allocatable": {"cpu": "32", wire.OWN_COUNT: "16", **(allocatable or {})}}
    return msgspec.convert({"metadata": meta, "status": status}, Node)


def found(here, sockets=OURS, own=wire.OWN_COUNT):
    return rivals(here, sockets, own)


@pytest.mark.parametrize(
    "here",
    [
        node(),
        node({wire.GPU: "0"}),  # what a kubelet keeps of a plugin that has gone
        node({"nvidia.com/hostdev": "8", "amd.com/gpu": "8"}),
        node(labels={"nvidia.com/gpu.deploy.device-plugin": "false", "nvidia.com/gpu.count": "8"}),
    ],
    ids=["alone", "gone", "other devices", "operator without its plugin"],
)
def test_a_node_of_ours_alone_has_no_rival(here):
    assert not found(here)


@pytest.mark.parametrize("name", [wire.GPU, wire.GPU_SHARED, "nvidia.com/mig-1g.10gb"])
def test_nvidias_plugin_is_named_with_what_it_offers(name):
    (text,) = found(node({name: "8"}))
    assert "NVIDIA's device plugin" in text
    assert f"({name}: 8)" in text
    assert "cardwise.dev/agent" in text


def test_an_amount_that_cannot_be_read_counts_as_some():
    assert found(node({wire.GPU: "many"}))


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("nvidia.com/gpu.deploy.device-plugin", "label node gpu-1 nvidia.com/gpu.deploy.device-plugin=false"),
        ("cloud.google.com/gke-accelerator", "gke-no-default-nvidia-gpu-device-plugin=true"),
    ],
)
def test_the_advice_fits_whoever_installed_nvidias_plugin(label, told):
    (text,) = found(node({wire.GPU: "8"}, labels={label: "true"}))
    assert told in text


def test_hami_is_named_by_its_annotation():
    (text,) = found(node({wire.GPU: "80"}, annotations=HAMI))
    assert text.startswith("HAMi's device plugin hands out")


def test_what_hami_left_behind_is_named_with_the_command_that_removes_it():
    (text,) = found(node(annotations=HAMI))
    assert f"kubectl annotate node gpu-1 {wire.ANNOTATION_HAMI_CARDS}-" in text


@pytest.mark.parametrize("name", ["volcano.sh/vgpu-number", "aliyun.com/gpu-mem", "tencent.com/vcuda-core"])
def test_other_plugins_that_share_cards_are_named_beside_nvidias(name):
    texts = found(node({name: "10", wire.GPU: "1"}))
    assert len(texts) == 2
    assert any(f"({name}: 10)" in text for text in texts)


@pytest.mark.parametrize("socket", ["nvidia-gpu.sock", "nvidiaGPU-1700000000.sock"])
def test_a_socket_of_a_plugin_that_offers_nothing_is_named(socket):
    (text,) = found(node(), (*OURS, socket))
    assert socket in text
    assert not found(node(), (*OURS, "mellanox.sock", "nvidia.txt"))
    assert len(found(node({wire.GPU: "8"}), (*OURS, socket))) == 1  # not told twice


def test_the_resource_that_the_agent_itself_offers_is_no_rival():
    assert not found(node({wire.GPU: "16"}), own=wire.GPU)


class Port(NodePort):
    """Says of its node what it is told to."""

    here = node({wire.GPU: "8"})
    asked = 0

    async def get_node(self, _name):
        self.asked += 1
        if self.asked == 1:
            raise ClusterError("the API server is down", retry=True)
        return self.here


def test_a_rival_is_told_once_as_an_event_of_the_node_though_the_api_server_was_down_at_first(tmp_path):
    port = Port()
    teller, at_once = Teller(port, NODE), {"look_every_s": 0.0, "try_again_s": 0.0}

    async def watch():
        work = tell_of_rivals(port, teller, tmp_path / "no kubelet here", wire.OWN_COUNT, **at_once)
        telling = asyncio.create_task(work)
        while port.asked < 5:
            await asyncio.sleep(0)
        telling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await telling
        await asyncio.sleep(0)

    asyncio.run(watch())
    (event,) = port.events
    assert (event["reason"], event["type"], event["involvedObject"]["name"]) == (REASON, "Warning", NODE)
    assert "nvidia.com/gpu: 8" in event["message"]
