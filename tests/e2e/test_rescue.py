"""Rescuing on a real control plane: ReplicaSets and disruption budgets are Kubernetes' own, the kubelets' part is ours.

The scheduler and the loop are processes of their own.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from dataclasses import replace

import pytest

from cardwise.adapters import wire
from tests.builders import card
from tests.controlplane.cluster import ApiError
from tests.controlplane.given import any_cluster
from tests.controlplane.plane import ControlPlane
from tests.e2e.cardwise_plane import Cardwise, Program, wait_for
from tests.ports import free_ports

pytestmark = pytest.mark.controlplane

CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "disruption-controller",
    "garbage-collector-controller",
)
SETTINGS = {"fenced-s": 0.5, "lost-s": 2.0, "settle-s": 3.0, "pending-s": 60.0}
MAKES_ROOM = """
namespace = "default"
lease = "e2e-consolidation-{port}"
host = "127.0.0.1"
port = {port}
[preemption]
wait-s = 1.0
settle-s = 1.0
[consolidation]
wait-s = 2.0
[rescue]
settle-s = 3.0
[prefetch]
enabled = false
[scaling]
enabled = false
"""
APPS = "/apis/apps/v1/namespaces/default"
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
MERGE = "application/strategic-merge-patch+json"


class Kubelets:
    """Of all nodes that are not lost: pods become ready once ``let`` allows it, and end when they are told to.

    lowest: the fewest ready pods of each app since it was asked for.
    """

    def __init__(self, plane):
        self.plane, self.lost, self.held, self.lowest = plane, set(), set(), {}
        self._end, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)

    def start(self):
        self._thread.start()

    def stop(self):
        self._end.set()
        self._thread.join(20)

    def _run(self):
        while not self._end.wait(0.2):
            with contextlib.suppress(OSError, ApiError):  # a busy API server is asked again
                listed = self.plane.api("GET", PODS)["items"]
                for app in list(self.lowest):
                    self.lowest[app] = min(self.lowest[app], len([p for p in listed if _app(p) == app and _serves(p)]))
                for pod in listed:
                    self._serve(pod)

    def _serve(self, pod):
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        if not node or node in self.lost:
            return
        if "deletionTimestamp" in pod["metadata"]:
            uid = {"uid": pod["metadata"]["uid"]}
            self.plane.answer("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0, "preconditions": uid})
        elif not _serves(pod) and node not in self.held:
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
            self.plane.answer("PATCH", f"{PODS}/{name}/status", body, content_type=MERGE)


def _app(pod):
    return pod["metadata"].get("labels", {}).get("app", "")


def _serves(pod):
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


class Controller(Program):
    """The loop's process."""

    def __init__(self, cw, folder):
        kubeconfig = str(cw.plane.kubeconfig)
        command = [sys.executable, "-m", "tests.e2e.rescuing_process", kubeconfig, json.dumps(SETTINGS)]
        super().__init__(command, folder / "rescuing.log")


class WholeController(Program):
    """``cardwise controller``, which also decides who makes room for whom."""

    def __init__(self, cw, folder):
        settings, (port,) = folder / "controller.toml", free_ports(1)
        settings.write_text(MAKES_ROOM.format(port=port))
        config = ["--config", str(settings), "--kubeconfig", str(cw.plane.kubeconfig), "--identity", "e2e"]
        super().__init__([sys.executable, "-m", "cardwise", "controller", *config], folder / "controller.log")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cardwise")
    plane = any_cluster(folder / "plane")
    if not isinstance(plane, ControlPlane):
        pytest.skip("the kubelets' part is the test's: a given cluster has kubelets, or evicts from fake nodes itself")
    with Cardwise(folder, 1, plane) as cardwise:
        plane.start_controller_manager(CONTROLLERS)
        yield cardwise


@pytest.fixture
def kubelets(installed):
    made = Kubelets(installed.plane)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def cw(installed, kubelets):
    yield installed
    for kind in ("deployments", "statefulsets"):
        installed.plane.api("DELETE", f"{APPS}/{kind}")
    installed.plane.api("DELETE", BUDGETS)
    wait_for(lambda: not installed.plane.api("GET", f"{APPS}/replicasets")["items"])
    kubelets.lost.clear()
    installed.delete_all()


@pytest.fixture
def controller(cw, tmp_path):
    made = Controller(cw, tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def room_maker(cw, tmp_path):
    made = WholeController(cw, tmp_path)
    made.start()
    yield made
    made.kill()


def deploy(cw, kubelets, name="web", replicas=2, mib=16000):
    """A Deployment all of whose pods are ready, each on a node of its own; node by pod."""
    limits = {wire.GPU: "1", wire.USER_MEMORY: str(mib), wire.USER_CORES: "10"}
    spec = {"containers": [{"name": "app", "image": "none", "resources": {"limits": limits}}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    body = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    cw.plane.api("POST", f"{APPS}/deployments", {"metadata": {"name": name}, "spec": body})
    wait_for(lambda: len([pod for pod in pods(cw, name) if _serves(pod)]) == replicas)
    kubelets.lowest[name] = replicas
    return where(cw, name)


def pods(cw, name="web"):
    return [pod for pod in cw.plane.api("GET", PODS)["items"] if _app(pod) == name]


def where(cw, name="web"):
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in pods(cw, name)}


def fence(cw, node, *, healthy=False):
    cw.report(node, replace(card(f"{node}-0"), healthy=healthy))


def settled(cw, sick, name="web", replicas=2):
    """Once all pods of a service are ready elsewhere and no other of them is left: node by pod."""

    def look():
        listed = pods(cw, name)
        there = {pod["spec"].get("nodeName") for pod in listed}
        return len(listed) == replicas and all(map(_serves, listed)) and not there & set(sick) and where(cw, name)

    return wait_for(look)


def condition(cw, node, kind):
    told = cw.plane.api("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]
    return next((each for each in told if each["type"] == kind), None)


def released(cw, name="web"):
    return [pod for pod in pods(cw, name) if wire.ANNOTATION_MOVING in pod["metadata"].get("annotations", {})]


def test_a_service_leaves_two_fenced_cards_with_two_replicas_ready_all_the_time(cw, kubelets, controller):
    for name in ("n0", "n1", "n2", "n3"):
        cw.node(name)
    sick = set(deploy(cw, kubelets).values())
    assert len(sick) == 2
    for name in sorted(sick):
        fence(cw, name)
    now = settled(cw, sick)
    assert len(set(now.values())) == 2
    assert kubelets.lowest["web"] == 2
    wait_for(lambda: all((condition(cw, name, wire.CONDITION_RESCUED) or {}).get("status") != "False" for name in sick))


def test_a_disruption_budget_counts_the_pod_that_was_released_and_is_kept(cw, kubelets, controller):
    for name in ("n0", "n1", "n2"):
        cw.node(name)
    first = deploy(cw, kubelets)
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}}
    cw.plane.api("POST", BUDGETS, {"metadata": {"name": "two"}, "spec": spec})
    wait_for(lambda: cw.plane.api("GET", f"{BUDGETS}/two").get("status", {}).get("currentHealthy") == 2)
    sick = min(first.values())
    fence(cw, sick)
    settled(cw, {sick})
    assert kubelets.lowest["web"] == 2


def test_a_controller_killed_in_mid_move_goes_on_where_it_was(cw, kubelets, controller):
    for name in ("n0", "n1", "n2"):
        cw.node(name)
    first = deploy(cw, kubelets)
    (third,) = {"n0", "n1", "n2"} - set(first.values())
    kubelets.held.add(third)  # the successor starts, and is not ready
    pod, sick = min(first.items())
    fence(cw, sick)
    wait_for(lambda: third in where(cw).values())
    assert [each["metadata"]["name"] for each in released(cw)] == [pod]
    controller.kill()
    kubelets.held.clear()
    wait_for(lambda: len([each for each in pods(cw) if _serves(each)]) == 3)
    controller.start()
    now = settled(cw, {sick})
    assert third in now.values()
    assert kubelets.lowest["web"] == 2


def test_where_no_node_has_room_nobody_is_touched_and_the_report_says_so(cw, kubelets, controller):
    cw.node("n0")
    cw.node("n1")
    first = deploy(cw, kubelets, mib=20000)
    pod, sick = min(first.items())
    fence(cw, sick)
    told = wait_for(lambda: condition(cw, sick, wire.CONDITION_RESCUED))
    assert (told["status"], told["reason"]) == ("False", "Stuck")
    assert f"default/{pod}: no other node has room for it" in told["message"]
    assert wait_for(lambda: cw.events(pod, "CardwiseCannotMove"))
    assert where(cw) == first
    explained = cw.plane.api("GET", f"{PODS}/{pod}")["metadata"]["annotations"][wire.ANNOTATION_STAYS]
    assert "no other node has room" in explained
    cw.node("n2")
    settled(cw, {sick})
    assert kubelets.lowest["web"] == 2


def test_a_lost_node_is_left_before_kubernetes_leaves_it(cw, kubelets, controller):
    for name in ("n0", "n1", "n2"):
        cw.node(name)
    first = deploy(cw, kubelets)
    pod, lost = min(first.items())
    kubelets.lost.add(lost)
    status = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    cw.plane.api("PATCH", f"/api/v1/nodes/{lost}/status", status, content_type=MERGE)
    not_ready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    cw.plane.api("PATCH", f"{PODS}/{pod}/status", not_ready, content_type=MERGE)
    wait_for(lambda: len([each for each in pods(cw) if _serves(each)]) == 2)
    left = cw.get(pod)
    assert "deletionTimestamp" in left["metadata"], "marked, and counted until somebody says that the machine is off"


def test_a_pod_that_was_released_goes_with_its_deployment_without_the_controller(cw, kubelets, controller):
    for name in ("n0", "n1", "n2"):
        cw.node(name)
    first = deploy(cw, kubelets)
    kubelets.held |= {"n0", "n1", "n2"} - set(first.values())
    fence(cw, min(first.values()))
    wait_for(lambda: released(cw))
    controller.kill()
    cw.plane.api("DELETE", f"{APPS}/deployments/web")
    wait_for(lambda: not pods(cw))
    kubelets.held.clear()


def test_pods_that_carry_a_copied_mark_of_a_release_are_nobody_to_evict(cw, kubelets, controller):
    """Somebody made a template of what kubectl showed. Another service is moved meanwhile, so turns are taken."""
    for name in ("n0", "n1", "n2", "n3"):
        cw.node(name)
    marked = deploy(cw, kubelets, "copied", mib=1000)
    told = {"v": 1, "at": "2026-01-01T00:00:00Z", "ready": 0, "service": "default/copied", "owner": "x", "hash": "x"}
    for pod in marked:
        body = {"metadata": {"annotations": {wire.ANNOTATION_MOVING: json.dumps(told)}}}
        cw.plane.api("PATCH", f"{PODS}/{pod}", body, content_type=MERGE)
    sick = min(deploy(cw, kubelets).values())
    fence(cw, sick)
    settled(cw, {sick})
    assert kubelets.lowest == {"copied": 2, "web": 2}


def two_pieces(cw, kubelets):
    """Two cards, each with a service on it, and no card with 20000 MiB free: node by pod of the smaller one."""
    cw.node("n0")
    deploy(cw, kubelets, "large", replicas=1, mib=16000)
    cw.node("n1")
    return deploy(cw, kubelets, "small", replicas=1, mib=8000)


def waits(cw):
    """A service whose one replica finds no place."""
    limits = {wire.GPU: "1", wire.USER_MEMORY: "20000", wire.USER_CORES: "10"}
    spec = {"containers": [{"name": "app", "image": "none", "resources": {"limits": limits}}]}
    body = {"replicas": 1, "selector": {"matchLabels": {"app": "waits"}}}
    body["template"] = {"metadata": {"labels": {"app": "waits"}}, "spec": spec}
    cw.plane.api("POST", f"{APPS}/deployments", {"metadata": {"name": "waits"}, "spec": body})
    (name,) = wait_for(lambda: where(cw, "waits"))
    return name


def test_a_replica_moves_for_a_pod_that_waits_nobody_misses_it_and_killed_meanwhile_the_controller_goes_on(
    cw, kubelets, room_maker
):
    assert set(two_pieces(cw, kubelets).values()) == {"n1"}
    kubelets.held.add("n0")  # the successor starts, and is not ready
    name = waits(cw)
    wait_for(lambda: len(where(cw, "small")) == 2, 120)
    room_maker.kill()
    kubelets.held.clear()
    wait_for(lambda: len([each for each in pods(cw, "small") if _serves(each)]) == 2)
    assert where(cw, "waits") == {name: None}
    room_maker.start()
    wait_for(lambda: where(cw, "waits") == {name: "n1"}, 120)
    wait_for(lambda: list(where(cw, "small").values()) == ["n0"])
    assert (kubelets.lowest["small"], kubelets.lowest["large"]) == (1, 1)
    (told,) = cw.events(name, "CardwiseMakingRoom")
    assert "to n0; each serves until its successor is ready" in str(told)
