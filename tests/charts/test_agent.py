"""The agent in the chart: what it is given on a node, what its account may do, and that this is what it needs."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import yaml

from cardwise.adapters import wire
from cardwise.adapters.kube.client import connect
from cardwise.adapters.kube.port import Evictee, LeaseRecord
from cardwise.agent.publishing import lease_name
from cardwise.agent.settings import MOST_SLOTS, Settings, read_settings
from cardwise.core.card.isolation import AUTO, Step
from cardwise.errors import ClusterError
from tests.charts.conftest import NAMESPACE
from tests.charts.helm import CHART
from tests.charts.test_installed import ALLOC, BOUND, RECORD, bind, pod
from tests.charts.test_rendering import named, workloads
from tests.controlplane.plane import KubectlError
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.mps import FakeMps
from tests.fakes.nvml import Node, environment
from tests.ports import free_ports

pytestmark = pytest.mark.controlplane

CHARTS_OWN = {"namespace", "resource", "proc-folder", "cgroup-folder", "sys-folder"}
"""What the chart decides: where the Lease lies, the resource that the scheduler knows, folders of every Linux."""
PAGE = CHART.parents[1] / "docs" / "howto" / "install.md"


def values():
    return yaml.safe_load((CHART / "values.yaml").read_text())["agent"]


def schema():
    return json.loads((CHART / "values.schema.json").read_text())["properties"]["agent"]["properties"]


def daemon_set(objects):
    return named(objects, "DaemonSet", "cardwise-agent")["spec"]


def pod_of(objects):
    return daemon_set(objects)["template"]["spec"]


def agent_of(objects):
    (container,) = pod_of(objects)["containers"]
    return container


def mounts_of(objects):
    """By path in the container: the path of the host (None: none of the host's), and whether it may be written."""
    volumes = {each["name"]: each.get("hostPath", {}).get("path") for each in pod_of(objects)["volumes"]}
    mounts = agent_of(objects)["volumeMounts"]
    return {each["mountPath"]: (volumes[each["name"]], not each.get("readOnly", False)) for each in mounts}


# -------------------------------------------------------------------- rendering


def test_it_runs_on_labelled_nodes_only_and_where_cards_are_tainted(render):
    pod = pod_of(render())
    assert pod["nodeSelector"] == {"cardwise.dev/agent": "true"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert pod["priorityClassName"] == "system-node-critical"


def test_one_node_at_a_time_is_without_its_agent(render):
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    assert daemon_set(render())["updateStrategy"] == strategy


def test_without_the_agent_nothing_of_it_is_left_but_what_its_account_may_not(render):
    left = [each for each in render({"agent.enabled": False}) if each["metadata"]["name"] == "cardwise-agent"]
    assert not left
    assert len(workloads(render({"agent.enabled": False}))) == 2


def test_it_reads_its_settings(render, tmp_path):
    objects = render({"agent.settings.slots-per-card": 10, "agent.settings.model-folders": ["/models"]})
    (tmp_path / "agent.toml").write_text(named(objects, "ConfigMap", "cardwise-agent")["data"]["agent.toml"])
    settings = read_settings(tmp_path / "agent.toml")
    assert (settings.namespace, settings.slots_per_card, settings.model_folders) == (NAMESPACE, 10, ("/models",))
    container = agent_of(objects)
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == {"metrics": settings.port}
    config = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}["config"]
    assert container["command"] == ["cardwise", "agent", "--config", f"{config}/agent.toml"]


def test_every_setting_is_a_value_with_the_programs_default_or_the_charts_own():
    defaults = msgspec.json.decode(msgspec.json.encode(Settings()))
    assert values()["settings"] == {key: value for key, value in defaults.items() if key not in CHARTS_OWN}
    assert schema()["settings"]["properties"].keys() == values()["settings"].keys()


def test_the_schema_knows_what_the_program_takes():
    told = schema()["settings"]["properties"]
    assert told["isolation"]["enum"] == [AUTO, *(each.value for each in Step if each is not Step.SM_PARTITION)]
    assert told["slots-per-card"] == {"type": "integer", "minimum": 1, "maximum": MOST_SLOTS}


def leaves(node, path=()):
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, node


OTHER = {
    ("isolation",): "whole",
    ("cdi-read-folders",): ["/etc/cdi"],
    ("model-folders",): ["/models"],
    ("memory-every-s",): 0.5,
    ("reclaim",): "lent",
    ("lend-most-pct",): 40,
    ("tolerations",): [{"operator": "Exists"}],
}


def another(path, value):
    """A value of the same kind that is not this one."""
    if path[-1:] in OTHER:
        return OTHER[path[-1:]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}-x" if isinstance(value, str) else {"a": "b"}


@pytest.mark.parametrize(("path", "value"), list(leaves(values())), ids=lambda each: str(each)[:60])
def test_every_value_is_used(render, path, value):
    certified = {"tls.mode": "cert-manager"}  # else every rendering makes certificates of its own
    changed = copy.deepcopy(values())
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = another(path, value)
    assert render({**certified, "agent": changed}) != render(certified)


def test_a_changed_setting_replaces_the_pods(render):
    stamps = {
        daemon_set(render({"agent.settings.isolation": told}))["template"]["metadata"]["annotations"]["checksum/config"]
        for told in ("auto", "whole")
    }
    assert len(stamps) == 2


def test_an_empty_runtime_class_leaves_the_nodes_default(render):
    assert pod_of(render())["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod_of(render({"agent.runtimeClassName": ""}))


# -------------------------------------------------------------------- privileges


def test_a_path_of_the_host_is_the_same_inside(render):
    """What the agent writes into CDI files and tells MPS names paths of the host."""
    mounts = mounts_of(render())
    assert mounts.pop("/dev/shm") == ("/run/cardwise/mps-shm", True)  # noqa: S108 - where CUDA looks
    assert {path for path, (host, _) in mounts.items() if host is None} == {"/etc/cardwise", "/tmp"}  # noqa: S108
    assert all(host in (path, None) for path, (host, _) in mounts.items())


def test_every_folder_of_the_settings_is_mounted_and_only_what_is_written_may_be_written(render):
    elsewhere = {
        "kubelet-folder": "/k0s/device-plugins",
        "pod-resources-socket": "/k0s/pod-resources/kubelet.sock",
        "cdi-folder": "/cdi/ours",
        "cdi-read-folders": ["/cdi/theirs", "/cdi/ours"],
        "state-folder": "/disk/cardwise",
        "run-folder": "/run/elsewhere",
        "model-folders": ["/models", "/cache/hub"],
    }
    mounts = mounts_of(render({f"agent.settings.{key}": value for key, value in elsewhere.items()}))
    written = {"/k0s/device-plugins", "/cdi/ours", "/disk/cardwise", "/run/elsewhere", "/sys/fs/cgroup"}
    assert {path for path, (host, write) in mounts.items() if host == path and write} == written
    assert {path for path, (host, write) in mounts.items() if host == path and not write} == {
        "/k0s/pod-resources",
        "/cdi/theirs",
        "/models",
        "/cache/hub",
        "/sys",
    }
    assert mounts["/dev/shm"] == ("/run/elsewhere/mps-shm", True)  # noqa: S108


def test_the_page_tells_every_privilege_and_every_path_of_the_host(render):
    objects = render()
    section = PAGE.read_text().partition("\n### What it may do on a node\n")[2].partition("\n## ")[0]
    told = {path: "w" in rights for path, rights in re.findall(r"^\| `(/[^`]+)` \| (r|rw) \|", section, re.MULTILINE)}
    assert told == {host: write for host, write in mounts_of(objects).values() if host}
    container, pod = agent_of(objects), pod_of(objects)
    given = {
        "hostPID": pod["hostPID"],
        "privileged": container["securityContext"]["privileged"],
        "root": container["securityContext"]["runAsUser"] == 0,
    }
    assert given == {name: bool(re.search(rf"^\| \*\*{name}\*\* \|", section, re.MULTILINE)) for name in given}
    assert not [key for key in ("hostNetwork", "hostIPC") if key in pod]
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_the_runtime_is_told_to_give_every_card_and_what_nvml_and_mps_need(render):
    env = {each["name"]: each.get("value") for each in agent_of(render())["env"]}
    assert env["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "utility,compute"
    assert (env["MALLOC_ARENA_MAX"], env["MALLOC_TRIM_THRESHOLD_"]) == ("1", "65536")


# -------------------------------------------------------------------- on an API server


@pytest.fixture
def plane(release):
    return release.plane


@pytest.fixture
def node(plane):
    name = f"gpu-{time.monotonic_ns()}"
    plane.fake_node(name, annotations={"example.test/kept": "1"})
    yield name
    plane.kubectl("delete", "node", name)


@pytest.fixture(scope="module")
def runtime_class(release):
    kind = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
    release.plane.kubectl("create", "-f", "-", stdin=json.dumps(kind))
    yield
    release.plane.kubectl("delete", "runtimeclass", "nvidia")


def test_its_pod_is_admitted_where_privileged_pods_are_and_nowhere_else(plane, render, runtime_class):
    template = daemon_set(render())["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": "agent"}}
    for level in ("privileged", "baseline"):
        plane.namespace(f"level-{level}")
        plane.kubectl("label", "namespace", f"level-{level}", f"pod-security.kubernetes.io/enforce={level}")
        plane.kubectl("create", "serviceaccount", "cardwise-agent", "-n", f"level-{level}")
    create = ("create", "--dry-run=server", "-f", "-", "-n")
    plane.kubectl(*create, "level-privileged", stdin=json.dumps(pod))
    with pytest.raises(KubectlError, match="violates PodSecurity") as refusal:
        plane.kubectl(*create, "level-baseline", stdin=json.dumps(pod))
    for what in ("host namespaces (hostPID=true)", "hostPath volumes", "privileged"):
        assert what in refusal.value.stderr


@pytest.mark.parametrize(
    ("may", "verb", "resource", "namespace"),
    [
        (True, "get", "pods", "default"),
        (True, "list", "pods", ""),
        (True, "watch", "pods", ""),
        (True, "get", "nodes", ""),
        (True, "patch", "nodes", ""),
        (True, "patch", "nodes/status", ""),
        (True, "create", "events", "default"),
        (True, "create", "leases.coordination.k8s.io", NAMESPACE),
        (True, "get", "leases.coordination.k8s.io", NAMESPACE),
        (True, "update", "leases.coordination.k8s.io", NAMESPACE),
        (False, "update", "leases.coordination.k8s.io", "kube-node-lease"),
        (False, "list", "leases.coordination.k8s.io", NAMESPACE),
        (False, "list", "nodes", ""),
        (False, "update", "nodes", ""),
        (False, "delete", "nodes", ""),
        (False, "patch", "pods", "default"),
        (False, "patch", "pods/status", "default"),
        (True, "create", "pods/eviction", "default"),
        (False, "delete", "pods", "default"),
        (False, "create", "pods", NAMESPACE),
        (False, "create", "pods/binding", "default"),
        (False, "create", "pods/exec", "default"),
        (False, "patch", "events", "default"),
        (False, "get", "secrets", NAMESPACE),
        (False, "get", "configmaps", NAMESPACE),
        (False, "create", "serviceaccounts/token", NAMESPACE),
    ],
)
def test_its_account_may_do_what_it_does_and_no_more(release, plane, may, verb, resource, namespace):
    kind, _, group = resource.partition(".")
    kind, _, subresource = kind.partition("/")
    where = {"verb": verb, "resource": kind, "subresource": subresource, "group": group, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": release.agent, "resourceAttributes": where},
    }
    answer = plane.api("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer["status"]["allowed"] is may


async def writes(kubeconfig, node, lease=None):
    """What an agent writes, by its own client; the refusals."""
    now = datetime.now(UTC)
    condition = {"type": wire.CONDITION_MPS, "status": "True", "reason": "Ready", "message": f"{now}"}
    beat, refused = LeaseRecord(holder=node, renewed=f"{now:%Y-%m-%dT%H:%M:%S.%fZ}"), {}
    async with connect(kubeconfig, None) as client:
        for name, write in (
            ("annotations", client.annotate_node(node, {wire.ANNOTATION_LOAD: f"{now}"})),
            ("condition", client.set_node_condition(node, condition)),
            ("lease", client.write_lease(NAMESPACE, lease or lease_name(node), beat)),
        ):
            try:
                await write
            except ClusterError as exc:
                refused[name] = str(exc)
    return refused


def test_the_token_of_its_pod_writes_to_its_own_node_only(release, plane, node):
    kubeconfig = release.agent_pod_kubeconfig(node)
    assert not asyncio.run(writes(kubeconfig, node))
    other = f"{node}-other"
    plane.fake_node(other)
    refused = asyncio.run(writes(kubeconfig, other))
    assert refused.keys() == {"annotations", "condition", "lease"}
    assert all("own node only" in text for text in refused.values())
    assert wire.ANNOTATION_LOAD not in plane.api("GET", f"/api/v1/nodes/{other}")["metadata"].get("annotations", {})


def test_a_token_of_its_account_that_is_no_pods_writes_nothing(release, node):
    refused = asyncio.run(writes(release.agent_account_kubeconfig(), node))
    assert refused.keys() == {"annotations", "condition", "lease"}
    assert all("by the token of its pod" in text for text in refused.values())


async def evict(kubeconfig, space, name):
    """The agent's own client; why it was refused, or nothing."""
    async with connect(kubeconfig, None) as client:
        found = await client.get_local_pod(space, name)
        try:
            await client.evict(Evictee(space, name, found.metadata.uid, 1))
        except ClusterError as exc:
            return str(exc)
    return ""


def made(plane, space, name, *, best_effort=True, **spec):
    """A pod; what would send it to the webhook, which nobody serves here, is written afterwards."""
    plane.kubectl("apply", "-n", space, "-f", "-", stdin=pod(name, **spec))
    if best_effort:
        plane.kubectl("annotate", "pod", name, "-n", space, "cardwise.dev/class=best-effort")


def bound_pod(release, plane, space, name, node, *, best_effort=True):
    made(plane, space, name, best_effort=best_effort)
    bind(plane, space, name, node, {ALLOC: RECORD}, {BOUND: "true"}, user=release.scheduler)


@pytest.fixture
def space(plane):
    return plane.namespace(f"evicted-{time.monotonic_ns()}")


def test_it_evicts_best_effort_pods_of_its_own_node_that_have_a_card_and_nobody_else(release, plane, space, node):
    other = f"{node}-beside"
    plane.fake_node(other)
    bound_pod(release, plane, space, "be", node)
    bound_pod(release, plane, space, "be-elsewhere", other)
    bound_pod(release, plane, space, "latency", node, best_effort=False)
    made(plane, space, "no-card", nodeName=node)
    kubeconfig = release.agent_pod_kubeconfig(node)
    refused = {name: asyncio.run(evict(kubeconfig, space, name)) for name in ("be-elsewhere", "latency", "no-card")}
    assert "evicts pods of its own node only" in refused["be-elsewhere"]
    assert all("best-effort pods (annotation cardwise.dev/class)" in refused[name] for name in ("latency", "no-card"))
    assert "403: " in asyncio.run(evict(release.agent_account_kubeconfig(), space, "be"))
    assert asyncio.run(evict(kubeconfig, space, "be")) == ""
    left = plane.api("GET", f"/api/v1/namespaces/{space}/pods")["items"]
    assert {each["metadata"]["name"] for each in left if "deletionTimestamp" not in each["metadata"]} == set(refused)
    plane.kubectl("delete", "pods", "--all", "-n", space, "--force", "--grace-period=0")


@pytest.mark.parametrize("lease", ["cardwise-scheduler", "cardwise-agent-another"])
def test_it_takes_nobody_elses_lease(release, node, lease):
    refused = asyncio.run(writes(release.agent_pod_kubeconfig(node), node, lease))
    assert "ValidatingAdmissionPolicy 'cardwise-agent-lease'" in refused["lease"]


def test_it_renews_nobody_elses_lease(release, plane, node):
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "another"}}
    plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(lease))
    held = '{"spec":{"holderIdentity":"me"}}'
    with pytest.raises(KubectlError, match="ValidatingAdmissionPolicy 'cardwise-agent-lease'"):
        plane.kubectl("patch", "lease", "another", "-n", NAMESPACE, "-p", held, *release.as_agent_of(node))
    plane.kubectl("patch", "lease", "another", "-n", NAMESPACE, "-p", held)
    plane.kubectl("delete", "lease", "another", "-n", NAMESPACE)


@pytest.mark.parametrize(
    ("subresource", "patch"),
    [
        ("", {"metadata": {"annotations": {"example.test/kept": "2"}}}),
        ("", {"metadata": {"annotations": {"example.test/kept": None}}}),
        ("", {"metadata": {"annotations": {"example.test/new": "1"}}}),
        ("", {"metadata": {"annotations": {"cardwise.dev/freed": "1"}}}),
        ("", {"metadata": {"labels": {"pool": "a"}}}),
        ("", {"metadata": {"labels": {"kubernetes.io/os": None}}}),
        ("", {"metadata": {"finalizers": ["example.test/held"]}}),
        ("", {"spec": {"unschedulable": True}}),
        ("", {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}),
        ("status", {"status": {"capacity": {"cardwise.dev/gpu": "1000"}}}),
        ("status", {"status": {"allocatable": {"cpu": "1000"}}}),
        ("status", {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}),
        ("status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        ("status", {"status": {"conditions": [{"type": "CardwiseConsistent", "status": "True"}]}}),
        ("status", {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}),
        ("status", {"status": {"images": [{"names": ["a"], "sizeBytes": 1}]}}),
        ("status", {"metadata": {"annotations": {"example.test/new": "1"}}}),
    ],
    ids=str,
)
def test_of_its_own_node_it_changes_only_what_is_its_to_say(release, plane, node, subresource, patch):
    flags = ("--subresource", subresource) if subresource else ()
    before = plane.api("GET", f"/api/v1/nodes/{node}")
    with pytest.raises(KubectlError, match="ValidatingAdmissionPolicy 'cardwise-agent-node'"):
        plane.kubectl("patch", "node", node, *flags, "-p", json.dumps(patch), *release.as_agent_of(node))
    after = plane.api("GET", f"/api/v1/nodes/{node}")
    for each in (before, after):
        del each["metadata"]["resourceVersion"], each["metadata"]["managedFields"]
    assert after == before


def test_a_node_that_is_given_back_is_cleaned_as_the_page_says(release, plane, node):
    assert not asyncio.run(writes(release.agent_pod_kubeconfig(node), node))
    plane.kubectl("label", "node", node, "cardwise.dev/agent=true")
    section = PAGE.read_text().partition("\n### Give a node back\n")[2].partition("\n## ")[0].replace("\\\n", " ")
    typed = [line.strip().removeprefix("$ ") for line in section.splitlines()]
    commands = [shlex.split(line)[1:] for line in typed if line.startswith("kubectl")]
    assert len(commands) >= 4
    for command in commands:
        plane.kubectl(*(word.replace("NODE", node) for word in command))
    left = plane.api("GET", f"/api/v1/nodes/{node}")
    assert not [key for key in left["metadata"].get("annotations", {}) if key.startswith("cardwise.dev/")]
    assert "cardwise.dev/agent" not in left["metadata"]["labels"]
    assert wire.CONDITION_MPS not in [each["type"] for each in left["status"]["conditions"]]
    leases = plane.api("GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")["items"]
    assert lease_name(node) not in [each["metadata"]["name"] for each in leases]


# -------------------------------------------------------------------- at work


@pytest.fixture
def machine(plane):
    """What a node has: a kubelet, a driver, an MPS program; the folder of all that."""
    folder = Path(tempfile.mkdtemp(prefix="cw-"))  # short: sockets have short names
    mps = FakeMps()
    nvml = Node(folder / "nvml", "A10")
    mps.tell(cards=list(nvml.uuids), version=12080)
    mps.pipe_dir = folder / "run" / "mps"
    yield folder, nvml, mps
    mps.kill()
    mps.close()
    shutil.rmtree(folder, ignore_errors=True)


def here(release, folder, mps, port):
    """The chart's settings, with the folders of this machine."""
    settings = tomllib.loads(release.config_map("cardwise-agent", "agent.toml"))
    names = {"kubelet-folder": "device-plugins", "pod-resources-socket": "pod-resources/kubelet.sock"}
    names |= {"state-folder": "state", "run-folder": "run", "cdi-folder": "cdi"}
    settings |= {key: str(folder / name) for key, name in names.items()}
    settings |= {"cdi-read-folders": [str(folder / "etc")], "mps-control": mps.command, "port": port}
    settings |= {"host": "127.0.0.1", "cgroup-folder": str(folder / "cgroup")}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    (folder / "agent.toml").write_text(text)
    return folder / "agent.toml"


@contextlib.contextmanager
def agent_process(config, kubeconfig, node, nvml):
    env = {**environment(), "FAKE_NVML_STATE": str(nvml.path), "NODE_NAME": node, "KUBECONFIG": str(kubeconfig)}
    env = {key: value for key, value in env.items() if not key.startswith("KUBERNETES_")}
    program = Path(sys.executable).with_name("cardwise")
    log = config.with_suffix(".log")
    with (
        log.open("wb") as out,
        subprocess.Popen([program, "agent", "--config", config], stderr=out, env=env) as process,
    ):
        try:
            yield log
        finally:
            process.terminate()
            process.wait(20)
            sys.stdout.write(log.read_text())


async def test_with_the_charts_settings_and_rights_it_serves_a_node(release, plane, node, machine):
    folder, nvml, mps = machine
    (port,) = free_ports(1)
    config = here(release, folder, mps, port)
    kubelet = FakeKubelet(folder, node)
    await kubelet.start()
    try:
        with agent_process(config, release.agent_pod_kubeconfig(node), node, nvml) as log:
            await kubelet.wait_registered(wire.OWN_COUNT, 30)

            def told():
                now = plane.api("GET", f"/api/v1/nodes/{node}")
                kinds = {each["type"] for each in now["status"]["conditions"]}
                written = {wire.ANNOTATION_CARDS, wire.ANNOTATION_CACHED_MODELS} <= now["metadata"][
                    "annotations"
                ].keys()
                return written and wire.CONDITION_MPS in kinds

            await until(told)
            leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
            await until(lambda: plane.answer("GET", f"{leases}/{lease_name(node)}")[0] == 200)
            said = [json.loads(line) for line in log.read_text().splitlines()]
        assert not [each for each in said if "could not" in each["event"] or "not known" in each["event"]]
    finally:
        await kubelet.stop()


async def until(what, deadline_s=30.0):
    end_s = time.monotonic() + deadline_s
    while not await asyncio.to_thread(what):
        assert time.monotonic() < end_s, f"not within {deadline_s} s"
        await asyncio.sleep(0.1)
