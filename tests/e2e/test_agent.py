"""From ``kubectl apply`` to the card inside the container: scheduler, agent and a real control plane."""

from __future__ import annotations

import json
import time

import pytest

from cardwise.adapters import wire
from tests.controlplane.given import any_cluster
from tests.e2e.cardwise_plane import Cardwise, wait_for
from tests.e2e.gpu_machine import GPU, GpuMachine

pytestmark = pytest.mark.controlplane

SLICE = {wire.GPU: 1, wire.USER_MEMORY: 4096, wire.USER_CORES: 20}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cardwise")
    with Cardwise(folder, 1, any_cluster(folder / "plane")) as cardwise:
        yield cardwise


@pytest.fixture
def cw(installed):
    yield installed
    installed.delete_all()


@pytest.fixture
def machine(cw):
    with GpuMachine(cw, "gpu-1", "A10", "A10") as machine:
        yield machine
        for pod in cw.plane.api("GET", "/api/v1/namespaces/default/pods")["items"]:
            cw.delete(pod["metadata"]["name"])


def test_an_applied_pod_runs_with_the_card_that_the_scheduler_chose(cw, machine):
    cw.pod("web", SLICE)
    started = machine.running("web")
    (share,) = cw.bound("web").shares
    assert started.env["CARDWISE_CARDS"] == share.uuid
    assert (started.env["CARDWISE_MEMORY_MIB"], started.env["CARDWISE_CORES_PCT"]) == ("4096", "20")
    assert wait_for(lambda: cw.get("web")["status"]["phase"] == "Running")


def test_a_deleted_pod_leaves_nothing_on_the_node_and_its_room_is_given_again(cw, machine):
    for i in range(3):
        cw.pod(f"p{i}", {**SLICE, wire.USER_MEMORY: 20000})
        if i < 2:
            machine.running(f"p{i}")
    assert not cw.is_bound("p2")
    cw.delete("p0")
    machine.running("p2")
    cw.delete("p1")
    cw.delete("p2")
    wait_for(lambda: not machine.slot_files())


def test_five_slices_run_on_one_card_and_the_sixth_waits_with_the_reason(cw):
    """SPEC A1, in the numbers of the fake A10: 22516 MiB may be handed out."""
    with GpuMachine(cw, "gpu-2", "A10") as machine:
        for i in range(6):
            cw.pod(f"s{i}", SLICE)
        wait_for(lambda: len(machine.driven.running()) == 5)
        (waiting,) = [i for i in range(6) if not cw.is_bound(f"s{i}")]
        told = f"s{waiting}"  # its first try may have met another's binding; the next says what is missing
        wait_for(lambda: any("too little card" in text for text in cw.events(told, "FailedScheduling")))
        for i in range(6):
            cw.delete(f"s{i}")


def test_an_agent_that_is_killed_comes_back_and_what_runs_is_untouched(cw, machine):
    cw.pod("before", SLICE)
    started = machine.running("before")
    machine.kill_agent()
    wait_for(lambda: machine.node()["status"]["allocatable"][GPU] == "0")
    machine.start_agent()
    wait_for(lambda: machine.node()["status"]["allocatable"][GPU] == "32")
    cw.pod("after", SLICE)
    assert machine.running("after").device_ids != started.device_ids
    assert machine.driven.running()["default", "before", "app"] is started


def test_a_kubelet_that_restarts_is_registered_with_again(cw, machine):
    cw.pod("before", SLICE)
    started = machine.running("before")
    machine.call(machine.driven.restart())
    wait_for(lambda: machine.node()["status"]["allocatable"].get(GPU) == "32")
    cw.pod("after", SLICE)
    machine.running("after")
    assert machine.driven.running()["default", "before", "app"] is started


def test_a_pod_that_was_bound_past_the_scheduler_does_not_start_and_says_why(cw, machine):
    own = {wire.OWN_COUNT: 1, wire.OWN_MEMORY: 1000, wire.OWN_CORES: 10}
    cw.pod("forged", own, spec={"schedulerName": "nobody", "nodeName": "gpu-1"}) if not cw.webhook else _bind_by_hand(
        cw
    )
    assert "was not bound by cardwise's scheduler" in machine.waiting("forged")
    described = cw.plane.kubectl("describe", "pod", "forged")
    assert "was not bound by cardwise's scheduler" in described


def _bind_by_hand(cw):
    """The webhook refuses a node name with an ask, so a binding past the scheduler is what is left."""
    cw.pod("forged", SLICE, spec={"schedulingGates": [{"name": "test/hold"}]})
    patch = {"spec": {"schedulingGates": None}, "metadata": {"labels": {"x": "y"}}}
    cw.plane.kill("kube-scheduler")
    path = "/api/v1/namespaces/default/pods/forged"
    cw.plane.api("PATCH", path, patch, content_type="application/strategic-merge-patch+json")
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}
    cw.plane.api("POST", f"{path}/binding", {"metadata": {"name": "forged"}, "target": target})
    cw.plane.restart("kube-scheduler")


def test_a_lost_card_is_fenced_told_and_taken_back_never_by_itself(cw, machine):
    machine.nvml.lost(0)
    told = wait_for(lambda: [c for c in _cards(machine) if not c.get("healthy", True)])
    assert [each["uuid"] for each in told] == [machine.nvml.uuid(0)]
    wait_for(lambda: _fenced(cw) == [machine.nvml.uuid(0)])
    cw.pod("one", {**SLICE, wire.USER_MEMORY: 20000})
    cw.pod("two", {**SLICE, wire.USER_MEMORY: 20000})
    wait_for(lambda: len(machine.driven.running()) == 1)
    time.sleep(1)
    assert len([name for name in ("one", "two") if cw.is_bound(name)]) == 1
    wait_for(lambda: machine.node()["status"]["allocatable"][GPU] == "16")
    wait_for(lambda: any(e["reason"].startswith("Card") and machine.nvml.uuid(0) in e["message"] for e in _events(cw)))


def _fenced(cw):
    """The cards that the scheduler knows to be sick."""
    return [card["uuid"] for node in cw.leader.state()["nodes"] for card in node["cards"] if not card["healthy"]]


def _events(cw):
    return cw.plane.api("GET", "/api/v1/namespaces/default/events")["items"]


def _cards(machine):
    return json.loads(machine.node()["metadata"]["annotations"][wire.ANNOTATION_CARDS])


def test_prometheus_is_told_of_grants_by_pod(cw, machine):
    cw.pod("web", SLICE)
    uuid = machine.running("web").env["CARDWISE_CARDS"]
    line = f'cardwise_slice_memory_granted_mib{{container="app",namespace="default",pod="web",uuid="{uuid}"}} 4096.0'
    assert line in machine.metrics()
