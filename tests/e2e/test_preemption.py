"""Preemption of shares on a real control plane: kube-scheduler, our extender, and the controller, all as processes."""

from __future__ import annotations

import json
import sys
import time
import urllib.request

import pytest

from cardwise.adapters import wire
from cardwise.adapters.kube.client import connect
from cardwise.adapters.kube.port import Evictee
from cardwise.errors import BudgetError, ConflictError
from tests.controlplane.cluster import FAKE, LABEL, ApiError
from tests.controlplane.given import any_cluster
from tests.e2e.cardwise_plane import Cardwise, Program, wait_for
from tests.ports import free_ports

pytestmark = pytest.mark.controlplane

BEST_EFFORT = {"annotations": {wire.ANNOTATION_CLASS: "best-effort"}}
SETTINGS = """
namespace = "default"
lease = "e2e-preemption-{port}"
host = "127.0.0.1"
port = {port}
[preemption]
wait-s = 1.0
settle-s = 1.0
grace-s = 20
[rescue]
enabled = false
[prefetch]
enabled = false
[scaling]
enabled = false
"""
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
PODS = "/api/v1/namespaces/default/pods"


def asks(mib, pct=10):
    return {wire.GPU: 1, wire.USER_MEMORY: mib, wire.USER_CORES: pct}


class Controller(Program):
    """``cardwise controller`` with this loop alone."""

    def __init__(self, cw, folder):
        settings = folder / "controller.toml"
        (self._port,) = free_ports(1)
        settings.write_text(SETTINGS.format(port=self._port))
        command = [
            *(sys.executable, "-m", "cardwise", "controller", "--identity", "e2e"),
            *("--config", str(settings), "--kubeconfig", str(cw.plane.kubeconfig)),
        ]
        super().__init__(command, folder / "controller.log")

    def leads(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=60) as answer:
                return "cardwise_controller_leader 1.0" in answer.read().decode()
        except OSError:
            return False


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cardwise")
    with Cardwise(folder, 1, any_cluster(folder / "plane")) as cardwise:
        for name, value in (("cardwise-e2e-low", 10), ("cardwise-e2e-high", 1000)):
            body = {"metadata": {"name": name, "labels": {LABEL: FAKE}}, "value": value}
            cardwise.plane.answer("POST", CLASSES, body)
        yield cardwise
        for name in ("cardwise-e2e-low", "cardwise-e2e-high"):
            cardwise.plane.api("DELETE", f"{CLASSES}/{name}")


@pytest.fixture
def cw(installed):
    yield installed
    installed.plane.api("DELETE", BUDGETS)
    installed.delete_all()


@pytest.fixture
def controller(cw, tmp_path):
    made = Controller(cw, tmp_path)
    made.start()
    wait_for(made.leads, 60)  # a lease that is new is waited for where pods have an allocation already
    yield made
    made.kill()


def low(cw, name, mib, **more):
    """A best-effort pod that is bound and ready."""
    cw.pod(name, asks(mib), spec={"priorityClassName": "cardwise-e2e-low"}, **BEST_EFFORT, **more)
    cw.bound(name)
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    path, kind = f"{PODS}/{name}/status", "application/strategic-merge-patch+json"
    cw.plane.api("PATCH", path, status, content_type=kind)


def high(cw, name, mib):
    cw.pod(name, asks(mib), spec={"priorityClassName": "cardwise-e2e-high"})


def annotations(cw, name):
    return cw.get(name)["metadata"].get("annotations", {})


def is_going(cw, name):
    """Whether a pod is being deleted, or gone."""
    status, told = cw.plane.answer("GET", f"{PODS}/{name}")
    return status == 404 or "deletionTimestamp" in told["metadata"]


def stays(cw, names, seconds=8.0):
    """Whether nobody of these goes while the controller has many turns. A wait: that nothing happens has no event."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if any(is_going(cw, name) for name in names):
            return False
        time.sleep(0.5)
    return True


def noted(cw, node):
    told = cw.plane.api("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
    return json.loads(told.get(wire.ANNOTATION_PREEMPTIONS, "[]"))


def test_case_c40_one_victim_is_told_graced_and_goes_then_the_high_one_is_bound(cw, controller):
    cw.node("n0")
    low(cw, "low", 20000)
    high(cw, "high", 15000)
    wait_for(lambda: is_going(cw, "low"))
    told = cw.get("low")["metadata"]
    uid = cw.get("high")["metadata"]["uid"]
    assert told["annotations"][wire.ANNOTATION_PREEMPTED_FOR] == f"default/high {uid}"
    assert told["deletionGracePeriodSeconds"] == 20
    assert not cw.is_bound("high")
    cw.pod("thief", asks(20000), spec={"priorityClassName": "cardwise-e2e-high"})
    cw.delete("low")
    cw.bound("high")
    assert not cw.is_bound("thief")
    (line,) = noted(cw, "n0")
    assert (line["owner"], line["by"]) == ("default/low", "default/high")
    assert wait_for(lambda: cw.events("low", "CardwisePreempted"))
    assert cw.events("high", "CardwisePreempting") == ["on n0 these go for it: default/low"]


def test_if_evicting_all_lower_work_would_not_make_room_nobody_is_evicted(cw, controller):
    cw.node("n0")
    low(cw, "low", 8000)
    cw.pod("sensitive", asks(12000))
    cw.bound("sensitive")
    high(cw, "high", 20000)
    told = wait_for(lambda: cw.events("high", "CardwiseNotPreempting"))
    assert "would not help" in told[0]
    assert stays(cw, ["low", "sensitive"])


def test_two_pods_of_the_same_priority_never_evict_each_other(cw, controller):
    cw.node("n0")
    low(cw, "a", 20000)
    cw.pod("b", asks(20000), spec={"priorityClassName": "cardwise-e2e-low"}, **BEST_EFFORT)
    assert stays(cw, ["a", "b"])
    assert cw.is_bound("a")
    assert not cw.is_bound("b")


def test_a_controller_that_is_killed_between_steps_goes_on_and_does_nothing_twice(cw, controller):
    cw.node("n0")
    low(cw, "low", 20000)
    high(cw, "high", 15000)
    wait_for(lambda: wire.ANNOTATION_NOMINATED in annotations(cw, "high"), every_s=0.01)
    controller.kill()
    first = annotations(cw, "high")[wire.ANNOTATION_NOMINATED]
    controller.start()
    wait_for(lambda: is_going(cw, "low"), every_s=0.01)
    controller.kill()
    told = cw.get("low")["metadata"]["deletionTimestamp"]
    controller.start()
    time.sleep(4)  # turns of the new one, in which nothing must happen
    assert cw.get("low")["metadata"]["deletionTimestamp"] == told
    assert annotations(cw, "high")[wire.ANNOTATION_NOMINATED] == first
    cw.delete("low")
    cw.bound("high")
    assert len(noted(cw, "n0")) == 1
    assert len(cw.events("low", "CardwisePreempted")) <= 1


def test_a_budget_that_allows_nobody_to_go_is_respected_and_another_set_goes(cw, controller):
    controller.kill()
    cw.node("n0")
    cw.node("n1")
    low(cw, "kept", 20000, labels={"app": "kept"})
    low(cw, "other", 20000, labels={"app": "other"})
    budget = {"metadata": {"name": "kept"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}}
    cw.plane.api("POST", BUDGETS, budget)
    controller.start()
    high(cw, "high", 20000)
    wait_for(lambda: is_going(cw, "other"))
    assert not is_going(cw, "kept")


async def test_the_eviction_api_says_no_for_a_budget_tries_without_effect_and_knows_the_very_pod(cw):
    cw.node("n0")
    low(cw, "kept", 20000, labels={"app": "kept"})
    uid = cw.get("kept")["metadata"]["uid"]
    budget = {"metadata": {"name": "kept"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}}
    async with connect(cw.plane.kubeconfig) as port:
        await port.evict(Evictee("default", "kept", uid, 5), dry_run=True)
        assert not is_going(cw, "kept")
        with pytest.raises(ConflictError):
            await port.evict(Evictee("default", "kept", "another", 5))
        cw.plane.api("POST", BUDGETS, budget)
        with pytest.raises(BudgetError, match="disruption budget"):
            await port.evict(Evictee("default", "kept", uid, 5), dry_run=True)
        (listed,) = [each for each in await port.list_budgets() if each.name == "default/kept"]
        assert listed.spec.selector.match_labels == {"app": "kept"}
        await port.list_workloads()  # also where Kueue is not installed
        with pytest.raises(ConflictError):
            await port.annotate_pod("default", "kept", "another", {"x": "y"})
        await port.nominate("default", "kept", uid, "")
    assert not is_going(cw, "kept")


def test_nobody_but_the_controller_may_create_pods_with_its_marks(cw):
    if not cw.webhook:
        pytest.skip("the given cluster's API server does not reach a webhook on the loopback of this machine")
    with pytest.raises(ApiError, match="written by the controller alone"):
        cw.pod("forged", annotations={wire.ANNOTATION_NOMINATED: "{}"})
