"""The control plane that other tests stand on: real programs that keep what a cluster promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.controlplane.cluster import LABEL, NODE_LEASES, base64_of
from tests.controlplane.given import MARK, GivenCluster, GivenClusterError, UnmarkedError
from tests.controlplane.plane import (
    APISERVER,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    ControlPlaneError,
    KubectlError,
)
from tests.e2e.cardwise_plane import Cardwise
from tests.ports import free_ports

pytestmark = pytest.mark.controlplane

DEADLINE_S = 60
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


# ---------------------------------------------------------------- a cluster that KUBECONFIG gives


ACCOUNT = "system:serviceaccount:default:default"


def kubeconfig(plane, folder, user):
    """As an operator has it: YAML, and not the first of its contexts is the current one."""
    (folder / "ca.crt").write_bytes(plane.ca.read_bytes())
    told = {
        "clusters": [{"name": "there", "cluster": {"server": plane.url, "certificate-authority": "ca.crt"}}],
        "users": [{"name": "operator", "user": user}],
        "contexts": [
            {"name": "other", "context": {"cluster": "elsewhere", "user": "nobody"}},
            {"name": "mine", "context": {"cluster": "there", "user": "operator"}},
        ],
        "current-context": "mine",
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(told))
    return path


@pytest.fixture
def marked(control_plane):
    """Our control plane in the part of somebody's disposable cluster, with a node that no test made."""
    control_plane.kubectl(*MARK.split()[1:])
    control_plane.api("POST", "/api/v1/nodes", {"metadata": {"name": "somebodys"}})
    yield control_plane
    control_plane.kubectl("label", "namespace", "default", f"{LABEL}-")
    control_plane.kubectl("delete", "node", "somebodys")


def names(plane, path):
    return {each["metadata"]["name"] for each in plane.api("GET", path)["items"]}


def test_a_marked_cluster_is_used_and_left_as_it_was_found(marked, tmp_path):
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    accounts = names(marked, "/api/v1/namespaces/default/serviceaccounts")
    given = GivenCluster(tmp_path / "plane", marked.kubeconfig)
    with Cardwise(tmp_path, plane=given) as cardwise:
        assert cardwise.webhook
        assert given.on_loopback
        given.namespace("of-tests")
        cardwise.node("n0")
        cardwise.pod("asks")
        assert [share.uuid for share in cardwise.bound("asks").shares] == ["n0-0"]
        assert APISERVER not in given.running()
        cardwise.delete_all()
        assert {"somebodys"} <= names(marked, "/api/v1/nodes")
        assert "n0" not in names(marked, "/api/v1/nodes")
        cardwise.node("n1")
        cardwise.pod("left")
    assert "somebodys" in names(marked, "/api/v1/nodes")
    assert "n1" not in names(marked, "/api/v1/nodes")
    assert not names(marked, NODE_LEASES)
    assert not names(marked, "/api/v1/namespaces/default/pods")
    assert not names(marked, "/apis/coordination.k8s.io/v1/namespaces/default/leases")
    assert not names(marked, hooks)
    assert names(marked, "/api/v1/namespaces/default/serviceaccounts") == accounts
    assert marked.api("GET", "/api/v1/namespaces/of-tests")["status"]["phase"] == "Terminating"


def test_the_default_scheduler_of_a_given_cluster_is_never_replaced(marked, tmp_path):
    given = GivenCluster(tmp_path, marked.kubeconfig)
    for config in (None, {"profiles": [{"schedulerName": "ours"}, {}]}, "profiles:\n- plugins: {}\n"):
        with pytest.raises(ControlPlaneError, match="the cluster's own"):
            given.start_scheduler(config)


@pytest.mark.parametrize("kind", ["files", "data", "token"])
def test_credentials_of_a_kubeconfig_are_read(marked, tmp_path, kind):
    cert, key = marked.client.cert, marked.client.key
    if kind == "token":
        marked.kubectl("create", "clusterrolebinding", "operator", "--clusterrole=cluster-admin", "--user=" + ACCOUNT)
        user = {"token": marked.kubectl("create", "token", "default").strip()}
    elif kind == "files":
        user = {"client-certificate": str(cert), "client-key": str(key)}
    else:
        user = {"client-certificate-data": base64_of(cert.read_bytes()), "client-key-data": base64_of(key.read_bytes())}
    given = GivenCluster(tmp_path / "plane", kubeconfig(marked, tmp_path, user))
    assert "somebodys" in names(given, "/api/v1/nodes")
    assert "node/somebodys" in given.kubectl("get", "nodes", "-o", "name")


def test_credentials_that_cannot_be_copied_are_refused_by_name(marked, tmp_path):
    path = kubeconfig(marked, tmp_path, {"exec": {"command": "cloud-login"}})
    with pytest.raises(GivenClusterError, match="exec: here a cluster has a server"):
        GivenCluster(tmp_path, path)


def collected(kubeconfig):
    """pytest's own words on which cluster it would use."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "--collect-only", "tests/e2e/test_control_plane.py"],
        cwd=Path(__file__).parents[2],
        env={k: v for k, v in os.environ.items() if "XDIST" not in k} | {"KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_cluster_that_is_not_marked_is_left_alone(control_plane, tmp_path):
    with pytest.raises(UnmarkedError, match=f"kubectl label namespace default {LABEL}=disposable"):
        GivenCluster(tmp_path, control_plane.kubeconfig)
    done = collected(control_plane.kubeconfig)
    assert done.returncode == 0
    (said,) = [line for line in done.stdout.splitlines() if "KUBECONFIG" in line]
    assert f"{control_plane.url} is not marked as disposable and is left alone" in said
    assert "everything in `default` and all fake nodes will be deleted there" in said
    assert said.endswith("a control plane of our own is used")


def test_a_marked_cluster_is_announced(marked):
    assert f"the tests use {marked.url}, which is marked as disposable" in collected(marked.kubeconfig).stdout


def test_a_kubeconfig_that_leads_nowhere_is_an_error_and_no_reason_to_go_on(control_plane, tmp_path):
    nobody = json.loads(control_plane.kubeconfig.read_text())
    nobody["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_ports(1)[0]}"
    path = tmp_path / "config"
    path.write_text(json.dumps(nobody))
    for told, complaint in ((path, "no answer from https://127.0.0.1"), (tmp_path / "absent", "no cluster there")):
        done = collected(told)
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert f"ERROR: KUBECONFIG={told}: {complaint}" in done.stderr
        assert "or unset KUBECONFIG" in done.stderr
