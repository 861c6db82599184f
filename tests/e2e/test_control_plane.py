"""The control plane that other tests stand on: real programs that keep what a cluster promises."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.controlplane.plane import (
    APISERVER,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    ControlPlaneError,
    KubectlError,
)

pytestmark = pytest.mark.controlplane

DEADLINE_S = 30
CONTAINER = {"name": "main", "image": "none"}


def pod(name, resources=None, **spec):
    container = {**CONTAINER, "resources": {"limits": resources or {}}}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}
    )


def deployment(name, replicas):
    labels = {"app": name}
    return json.dumps(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [CONTAINER]}},
            },
        }
    )


def wait_for(what, deadline_s=DEADLINE_S):
    """The first answer that is not empty."""
    deadline = time.monotonic() + deadline_s
    while not (answer := what()):
        assert time.monotonic() < deadline, f"nothing after {deadline_s} s"
        time.sleep(0.1)
    return answer


def allowed(action):
    try:
        action()
    except KubectlError:
        return False
    return True


@pytest.fixture
def scheduler(control_plane):
    control_plane.start_scheduler()
    yield
    control_plane.kill(SCHEDULER)


@pytest.fixture
def controller_manager(control_plane):
    control_plane.start_controller_manager()
    yield
    control_plane.kill(CONTROLLER_MANAGER)


def test_server_and_client_say_the_version_that_was_built(control_plane):
    version = json.loads(control_plane.kubectl("version", "-o", "json"))
    assert version["serverVersion"]["gitVersion"].startswith("v1.")
    assert version["serverVersion"]["gitVersion"] == version["clientVersion"]["gitVersion"]


def test_the_scheduler_binds_a_pod_to_the_only_node_with_the_resource(control_plane, scheduler):
    control_plane.fake_node("plain")
    control_plane.fake_node("cards", extended={"cardwise.test/slots": 4}, labels={"pool": "a10"}, lease=True)
    space = control_plane.namespace("bind")

    control_plane.kubectl("apply", "-n", space, "-f", "-", stdin=pod("wants-slots", {"cardwise.test/slots": 2}))
    where = ("get", "pod", "wants-slots", "-n", space, "-o", "jsonpath={.spec.nodeName}")
    assert wait_for(lambda: control_plane.kubectl(*where)) == "cards"


@pytest.mark.parametrize(
    "config",
    [
        {"profiles": [{"schedulerName": "ours"}]},
        "profiles:\n- schedulerName: ours\n",
        json.dumps({"profiles": [{"schedulerName": "ours"}]}),
    ],
    ids=["object", "yaml", "json"],
)
def test_the_scheduler_takes_a_configuration(control_plane, config):
    space = control_plane.namespace(f"config-{time.monotonic_ns()}")
    control_plane.fake_node(space)
    control_plane.start_scheduler(config)
    try:
        control_plane.kubectl("apply", "-n", space, "-f", "-", stdin=pod("of-ours", schedulerName="ours"))
        where = ("get", "pod", "of-ours", "-n", space, "-o", "jsonpath={.spec.nodeName}")
        assert wait_for(lambda: control_plane.kubectl(*where))
    finally:
        control_plane.kill(SCHEDULER)


@pytest.mark.parametrize("program", [APISERVER, ETCD])
def test_state_outlives_a_crash(control_plane, program):
    name = f"kept-{program}"
    control_plane.kubectl("create", "configmap", name, "--from-literal=a=1")
    control_plane.kill(program)
    try:
        assert program not in control_plane.running()
        if program == APISERVER:
            with pytest.raises(KubectlError, match="refused"):
                control_plane.kubectl("get", "configmap", name)
    finally:
        control_plane.restart(program)
    assert control_plane.kubectl("get", "configmap", name, "-o", "jsonpath={.data.a}") == "1"


def test_a_deployment_becomes_pods(control_plane, controller_manager):
    control_plane.kubectl("create", "namespace", "deploy")
    control_plane.kubectl("apply", "-n", "deploy", "-f", "-", stdin=deployment("web", 3))
    names = ("get", "pods", "-n", "deploy", "-l", "app=web", "-o", "name")
    assert wait_for(lambda: len(control_plane.kubectl(*names).split()) == 3)


def test_another_user_may_do_only_what_a_role_says(control_plane):
    reader = control_plane.user_kubeconfig("ann", groups=["readers"])
    with pytest.raises(KubectlError, match="forbidden"):
        control_plane.kubectl("get", "nodes", kubeconfig=reader)

    # An own role: the rules of "view" are filled in by the controller manager, which need not run here.
    control_plane.kubectl("create", "clusterrole", "reader", "--verb=get,list", "--resource=pods")
    control_plane.kubectl("create", "clusterrolebinding", "readers", "--clusterrole=reader", "--group=readers")
    assert wait_for(lambda: allowed(lambda: control_plane.kubectl("get", "pods", kubeconfig=reader)))
    with pytest.raises(KubectlError, match="forbidden"):
        control_plane.kubectl("create", "configmap", "of-ann", kubeconfig=reader)


def test_a_program_that_cannot_start_says_why(control_plane):
    with pytest.raises(ControlPlaneError, match="nonsense"):
        control_plane.start_scheduler({"nonsense": True})


def test_no_program_outlives_its_parent(tmp_path):
    script = (
        "import json, os, pathlib, signal, sys\n"
        "from tests.controlplane.plane import ControlPlane\n"
        "plane = ControlPlane(pathlib.Path(sys.argv[1]))\n"
        "plane.start()\n"
        "print(json.dumps(list(plane.running().values())), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    pids = json.loads(done.stdout)
    assert len(pids) == 2
    wait_for(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])
