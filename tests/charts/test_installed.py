"""The chart on a real API server: what is refused, to whom, and what is never held up."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import shlex
import time

import pytest
import yaml

from tests.charts.conftest import IMAGE, NAMESPACE, wait_for
from tests.charts.helm import CHART, set_flags
from tests.controlplane.plane import KubectlError

pytestmark = pytest.mark.controlplane

ALLOC, BOUND = "cardwise.dev/alloc", "cardwise.dev/bound"
RECORD = '{"v":1}'


def pod(name, limits=None, *, kind="containers", part="limits", annotations=None, labels=None, beside=None, **spec):
    asking = {"name": "asks", "image": "none", "resources": {part: limits or {}}}
    containers = {"containers": [{"name": "main", "image": "none", "resources": {"limits": beside or {}}}], **spec}
    containers[kind] = [*containers.get(kind, []), asking]
    metadata = {"name": name, "annotations": annotations or {}, "labels": labels or {}}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": containers})


@pytest.fixture
def plane(release):
    return release.plane


@pytest.fixture
def space(plane):
    return plane.namespace(f"space-{time.monotonic_ns()}")


@pytest.fixture
def bound(release, plane, space):
    """A pod that the scheduler's account has bound, with an allocation."""
    node = f"node-{space}"
    plane.fake_node(node)
    plane.kubectl("apply", "-n", space, "-f", "-", stdin=pod("bound"))
    bind(plane, space, "bound", node, {ALLOC: RECORD}, {BOUND: "true"}, user=release.scheduler)
    yield "bound"
    plane.kubectl("delete", "pod", "bound", "-n", space, "--force", "--grace-period=0", "--ignore-not-found")


def bind(plane, space, name, node, annotations=None, labels=None, *, user, path="pods/{}/binding"):
    metadata = {"name": name, "namespace": space, "annotations": annotations or {}, "labels": labels or {}}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
    address = f"/api/v1/namespaces/{space}/{path.format(name)}"
    return plane.kubectl(
        "create", "--raw", address, "-f", "-", *(["--as", user] if user else []), stdin=json.dumps(body)
    )


def read(plane, space, name):
    return plane.api("GET", f"/api/v1/namespaces/{space}/pods/{name}")


# -------------------------------------------------------------------- install


def test_upgrades_keep_the_certificate(release):
    before = release.secret()
    old = release.plane.api("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/cardwise-scheduler")
    flags = set_flags({**IMAGE, "webhook.timeoutSeconds": 2})
    release.helm("upgrade", "cardwise", str(CHART), "--namespace", NAMESPACE, *flags)
    new = release.plane.api("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/cardwise-scheduler")
    assert release.secret() == before
    assert new["metadata"]["generation"] == old["metadata"]["generation"], "pods would be replaced for nothing"
    configuration = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/cardwise"
    webhooks = release.plane.api("GET", configuration)["webhooks"]
    assert {base64.b64decode(each["clientConfig"]["caBundle"]) for each in webhooks} == {before["ca.crt"]}


def test_another_release_is_refused(release):
    with pytest.raises(Exception, match="exists and cannot be imported"):
        release.helm("install", "second", str(CHART), "--namespace", "default", *set_flags(IMAGE))


@pytest.mark.parametrize("whole_cards", ["labelled", "all", "none"])
def test_server_side_apply_takes_every_object(plane, release, render, whole_cards):
    made = render({"webhook.wholeCards": whole_cards})
    kept = yaml.safe_dump_all(each for each in made if each["kind"] != "Secret")
    plane.kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-", stdin=kept)


def test_the_api_server_finds_no_fault_in_the_policies(plane, release):
    """It checks the expressions' types against pods, nodes and Bindings when a controller runs; so start that one."""
    plane.start_controller_manager(["validatingadmissionpolicy-status-controller"])
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def checked():
        policies = plane.api("GET", path)["items"]
        return policies if all("typeChecking" in each.get("status", {}) for each in policies) else None

    try:
        for policy in wait_for(checked):
            assert not policy["status"]["typeChecking"].get("expressionWarnings"), policy["metadata"]["name"]
    finally:
        plane.kill("kube-controller-manager")


def test_the_pods_meet_the_restricted_standard(plane, render):
    plane.namespace("restricted")
    plane.kubectl("label", "namespace", "restricted", "pod-security.kubernetes.io/enforce=restricted")
    made = [each for each in render() if each["kind"] == "Deployment"]
    assert len(made) == 2
    for workload in made:
        template = workload["spec"]["template"]
        plane.kubectl("create", "serviceaccount", template["spec"]["serviceAccountName"], "-n", "restricted")
        pod_of = {"apiVersion": "v1", "kind": "Pod", **template}
        pod_of["metadata"] = {**template["metadata"], "name": workload["metadata"]["name"]}
        plane.kubectl("create", "-n", "restricted", "--dry-run=server", "-f", "-", stdin=json.dumps(pod_of))


# -------------------------------------------------------------------- allocations


def test_the_scheduler_binds_with_an_allocation(plane, space, bound):
    made = read(plane, space, bound)
    assert made["metadata"]["annotations"][ALLOC] == RECORD
    assert made["metadata"]["labels"][BOUND] == "true"
    assert made["spec"]["nodeName"]


@pytest.mark.parametrize(
    "command",
    [
        ("annotate", "--overwrite", "pod", "bound", f"{ALLOC}={{}}"),
        ("annotate", "pod", "bound", f"{ALLOC}-"),
        ("annotate", "--overwrite", "pod", "bound", f"{ALLOC}="),
        ("label", "--overwrite", "pod", "bound", f"{BOUND}=false"),
        ("label", "pod", "bound", f"{BOUND}-"),
        ("patch", "pod", "bound", "--subresource=status", "-p", f'{{"metadata":{{"annotations":{{"{ALLOC}":null}}}}}}'),
        ("patch", "pod", "bound", "--subresource=resize", "-p", f'{{"metadata":{{"annotations":{{"{ALLOC}":"x"}}}}}}'),
    ],
    ids=lambda command: " ".join(command[:5]),
)
@pytest.mark.parametrize("user", ["admin", "kube-scheduler"])
def test_nobody_else_changes_an_allocation(release, plane, space, bound, command, user):
    as_user = ["--as", release.kube_scheduler, "--as-group", "system:masters"] if user != "admin" else []
    before = read(plane, space, bound)["metadata"]
    try:
        plane.kubectl(*command, "-n", space, *as_user)
    except KubectlError as error:
        assert "ValidatingAdmissionPolicy 'cardwise-allocation'" in error.stderr  # noqa: PT017 - may also do nothing
    after = read(plane, space, bound)["metadata"]
    assert (after["annotations"], after["labels"]) == (before["annotations"], before["labels"])


@pytest.mark.parametrize(
    "command",
    [
        ("annotate", "--overwrite", "pod", "bound", f"{ALLOC}={{}}"),
        ("annotate", "pod", "bound", f"{ALLOC}-"),
        ("label", "pod", "bound", f"{BOUND}-"),
        ("patch", "pod", "bound", "--subresource=status", "-p", f'{{"metadata":{{"annotations":{{"{ALLOC}":null}}}}}}'),
    ],
    ids=lambda command: " ".join(command[:5]),
)
def test_the_refusal_says_which_policy(plane, space, bound, command):
    with pytest.raises(KubectlError, match=r"ValidatingAdmissionPolicy 'cardwise-allocation'.*leave it as it is"):
        plane.kubectl(*command, "-n", space)


@pytest.mark.parametrize("value", ["1", ""])
def test_nobody_forges_an_allocation_on_a_pod_that_has_none(plane, space, value):
    plane.kubectl("apply", "-n", space, "-f", "-", stdin=pod("plain"))
    with pytest.raises(KubectlError, match="cardwise-allocation"):
        plane.kubectl("annotate", "pod", "plain", f"{ALLOC}={value}", "-n", space)
    with pytest.raises(KubectlError, match="cardwise-allocation"):
        plane.kubectl("label", "pod", "plain", f"{BOUND}={value}", "-n", space)


@pytest.mark.parametrize("value", ["1", ""])
def test_nobody_creates_a_pod_with_an_allocation_even_where_the_webhook_does_not_look(plane, release, value):
    for told in ({"annotations": {ALLOC: value}}, {"labels": {BOUND: value}}):
        with pytest.raises(KubectlError, match="cardwise-allocation"):
            plane.kubectl("create", "-n", "kube-system", "-f", "-", stdin=pod("forged", **told))


def test_other_changes_of_a_pod_pass(plane, space, bound):
    plane.kubectl("annotate", "pod", bound, "example.test/note=1", "cardwise.dev/class=best-effort", "-n", space)
    plane.kubectl("label", "pod", bound, "team=a", "-n", space)
    status = '{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'
    plane.kubectl("patch", "pod", bound, "--subresource=status", "-p", status, "-n", space)
    debug = '{"spec":{"ephemeralContainers":[{"name":"debug","image":"none"}]}}'
    plane.kubectl("patch", "pod", bound, "--subresource=ephemeralcontainers", "-p", debug, "-n", space)
    made = read(plane, space, bound)
    assert made["metadata"]["annotations"].items() >= {(ALLOC, RECORD), ("example.test/note", "1")}
    assert made["status"]["phase"] == "Running"
    plane.kubectl("delete", "pod", bound, "-n", space, "--force", "--grace-period=0")


def test_a_kubelet_reports_the_status_of_an_allocated_pod(plane, space, bound):
    node = f"node-{space}"
    kubelet = ["--as", f"system:node:{node}", "--as-group", "system:nodes", "--as-group", "system:masters"]
    status = '{"status":{"phase":"Running"}}'
    plane.kubectl("patch", "pod", bound, "--subresource=status", "-p", status, "-n", space, *kubelet)
    assert read(plane, space, bound)["status"]["phase"] == "Running"


@pytest.mark.parametrize("path", ["pods/{}/binding", "bindings"])
@pytest.mark.parametrize("told", [({ALLOC: RECORD}, {}), ({ALLOC: ""}, {}), ({}, {BOUND: "true"})], ids=str)
def test_nobody_forges_a_binding(plane, space, path, told):
    plane.kubectl("apply", "-n", space, "-f", "-", stdin=pod("waits"))
    with pytest.raises(KubectlError, match="ValidatingAdmissionPolicy 'cardwise-binding'"):
        bind(plane, space, "waits", "anywhere", *told, user=None, path=path)
    assert "nodeName" not in read(plane, space, "waits")["spec"]


def test_other_schedulers_bind_pods_without_cards(plane, space):
    plane.kubectl("apply", "-n", space, "-f", "-", stdin=pod("plain"))
    bind(plane, space, "plain", "anywhere", {"example.test/note": "1"}, user="system:kube-scheduler")
    assert read(plane, space, "plain")["spec"]["nodeName"] == "anywhere"


# -------------------------------------------------------------------- nodes


@pytest.mark.parametrize("name", ["cards", "load", "lendable", "evicted", "cached-models"])
@pytest.mark.parametrize("subresource", [(), ("--subresource=status",)], ids=["node", "status"])
def test_only_the_agent_says_what_a_node_has(release, plane, space, name, subresource):
    key = f"cardwise.dev/{name}"
    plane.fake_node(space, annotations={key: "1"})
    change = ("patch", "node", space, *subresource, "-p")
    for patch in ({key: "2"}, {key: None}, {key: ""}):
        with pytest.raises(KubectlError, match="ValidatingAdmissionPolicy 'cardwise-node-facts'"):
            plane.kubectl(*change, json.dumps({"metadata": {"annotations": patch}}))
    plane.kubectl(*change, json.dumps({"metadata": {"annotations": {key: "2"}}}), *release.as_agent_of(space))
    assert plane.api("GET", f"/api/v1/nodes/{space}")["metadata"]["annotations"][key] == "2"


def test_a_kubelet_and_an_admin_change_the_rest_of_a_node(plane, space):
    plane.fake_node(space, annotations={"cardwise.dev/cards": "1"})
    # system:masters, for kubectl reads before it patches, which a kubelet has no right to; the policies go by the user
    kubelet = ["--as", f"system:node:{space}", "--as-group", "system:nodes", "--as-group", "system:masters"]
    status = {
        "metadata": {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "status": {"conditions": [{"type": "MemoryPressure", "status": "False"}]},
    }
    plane.kubectl("patch", "node", space, "--subresource=status", "-p", json.dumps(status), *kubelet)
    plane.kubectl("cordon", space)
    plane.kubectl("label", "node", space, "pool=a")
    node = plane.api("GET", f"/api/v1/nodes/{space}")
    assert node["spec"]["unschedulable"]
    assert "MemoryPressure" in [each["type"] for each in node["status"]["conditions"]]
    assert node["metadata"]["annotations"]["cardwise.dev/cards"] == "1"


# -------------------------------------------------------------------- what the controller writes


@pytest.mark.parametrize(
    "name", ["nominated", "preempted-for", "preempted-by", "preemptions", "moving", "moves", "stays"]
)
@pytest.mark.parametrize("kind", ["pod", "node"])
def test_only_the_controller_says_what_is_kept_for_whom_and_who_was_evicted(plane, space, kind, name):
    key, where = f"cardwise.dev/{name}", ("-n", space) if kind == "pod" else ()
    plane.kubectl("apply", "-n", space, "-f", "-", stdin=pod(space))
    plane.fake_node(space)
    controller = ["--as", f"system:serviceaccount:{NAMESPACE}:cardwise-controller", "--as-group", "system:masters"]
    change = ("annotate", "--overwrite", kind, space, *where)
    with pytest.raises(KubectlError, match="ValidatingAdmissionPolicy 'cardwise-preemption'"):
        plane.kubectl(*change, f"{key}=1")
    plane.kubectl(*change, f"{key}=1", *controller)
    for forged in (f"{key}=2", f"{key}-"):
        with pytest.raises(KubectlError, match="ValidatingAdmissionPolicy 'cardwise-preemption'"):
            plane.kubectl(*change, forged)
    plane.kubectl("annotate", kind, space, *where, "example.test/note=1")


def test_nobody_creates_a_pod_with_a_share_kept_for_it(plane, release):
    told = {"annotations": {"cardwise.dev/nominated": "{}"}}
    with pytest.raises(KubectlError, match="cardwise-preemption"):
        plane.kubectl("create", "-n", "kube-system", "-f", "-", stdin=pod("forged", **told))


# -------------------------------------------------------------------- who is sent to the webhook, which is down (C45)

WHOLE = {
    "nvidia.com/gpu": pod("asks", {"nvidia.com/gpu": "1"}),
    "nvidia.com/gpu.shared": pod("asks", {"nvidia.com/gpu.shared": "1"}),
    "init container": pod("asks", {"nvidia.com/gpu": "8"}, kind="initContainers"),
    "beside other devices": pod("asks", {"nvidia.com/gpu": "8", "nvidia.com/hostdev": "8"}),
    "a scheduler of its own": pod("asks", {"nvidia.com/gpu": "1"}, schedulerName="volcano"),
    "a node of its own": pod("asks", {"nvidia.com/gpu": "1"}, nodeName="gpu-1"),
}
SLICES = {
    "memory": pod("asks", {"nvidia.com/gpu.memory": "4096"}),
    "memory of a counted card": pod("asks", {"nvidia.com/gpu": "1", "nvidia.com/gpu.memory": "4096"}),
    "compute": pod("asks", {"nvidia.com/gpu.cuda-cores": "20"}),
    "misspelt": pod("asks", {"nvidia.com/gpu": "1", "nvidia.com/gpu.memmory": "4096"}),
    "own name": pod("asks", {"cardwise.dev/gpu": "1"}),
    "HAMi, init container": pod("asks", {"nvidia.com/gpumem": "4096"}, kind="initContainers"),
    "HAMi, percent": pod("asks", {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}),
    "HAMi, compute": pod("asks", {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "50"}),
    "beside a whole card": pod("asks", {"nvidia.com/gpu": "1"}, beside={"nvidia.com/gpumem": "4096"}),
    "whole card, by cardwise": pod("asks", {"nvidia.com/gpu": "1"}, schedulerName="cardwise"),
    "annotation": pod("asks", annotations={"cardwise.dev/class": "best-effort"}),
    "annotation of NVIDIA": pod("asks", annotations={"nvidia.com/gpu.model": "a10"}),
}


@pytest.fixture
def labelled(plane, space):
    """A namespace whose whole cards are to be cardwise's."""
    plane.kubectl("label", "namespace", space, "cardwise.dev/whole-cards=true")
    refused = functools.partial(plane.kubectl, "create", "-n", space, "--dry-run=server", "-f", "-")

    def heard():  # the API server hears of the label a moment later
        with contextlib.suppress(KubectlError):
            return not refused(stdin=WHOLE["nvidia.com/gpu"])
        return True

    wait_for(heard)
    return space


@pytest.mark.parametrize("whole", WHOLE.values(), ids=WHOLE.keys())
def test_a_pod_that_asks_for_whole_cards_is_created_as_if_we_were_not_there(plane, space, whole):
    plane.kubectl("create", "-n", space, "-f", "-", stdin=whole)
    made, told = read(plane, space, "asks")["spec"], json.loads(whole)["spec"]
    assert made["schedulerName"] == told.get("schedulerName", "default-scheduler")
    for kind in ("containers", "initContainers"):
        for is_now, was in zip(made.get(kind, ()), told.get(kind, ()), strict=True):
            assert is_now["resources"].get("limits", {}) == was["resources"]["limits"]
            assert "env" not in is_now


@pytest.mark.parametrize("whole", WHOLE.values(), ids=WHOLE.keys())
def test_in_a_labelled_namespace_it_is_refused_naming_the_webhook(plane, labelled, whole):
    with pytest.raises(KubectlError, match=r'failed calling webhook "whole-cards\.cardwise\.dev"'):
        plane.kubectl("create", "-n", labelled, "-f", "-", stdin=whole)


@pytest.mark.parametrize("value", ["false", "yes", ""])
def test_another_value_of_the_label_adopts_nothing(plane, space, value):
    plane.kubectl("label", "namespace", space, f"cardwise.dev/whole-cards={value}")
    time.sleep(1)  # in which the API server hears of the label
    plane.kubectl("create", "-n", space, "-f", "-", stdin=WHOLE["nvidia.com/gpu"])


@pytest.mark.parametrize("asks", SLICES.values(), ids=SLICES.keys())
def test_a_pod_that_asks_for_slices_is_refused_naming_the_webhook(plane, space, asks):
    with pytest.raises(KubectlError, match=r'failed calling webhook "admit\.cardwise\.dev"'):
        plane.kubectl("create", "-n", space, "-f", "-", stdin=asks)


@pytest.mark.parametrize("namespace", ["kube-system", NAMESPACE])
def test_namespaces_we_stand_on_never_wait_for_the_webhook(plane, release, namespace):
    name = f"own-{time.monotonic_ns()}"
    plane.kubectl("create", "-n", namespace, "-f", "-", stdin=pod(name, {"nvidia.com/gpu.memory": "4096"}))


PLAIN = {
    "nothing": pod("plain"),
    "CPU": pod("plain", {"cpu": "1", "memory": "1Gi"}),
    "other cards": pod("plain", {"amd.com/gpu": "1"}),
    "MIG instance": pod("plain", {"nvidia.com/mig-1g.10gb": "1"}),
    "other devices": pod("plain", {"nvidia.com/hostdev": "1"}),
    "our scheduler": pod("plain", schedulerName="cardwise"),
    "init container": pod("plain", {"cpu": "1"}, kind="initContainers", part="requests"),
    "annotations": pod("plain", annotations={"example.test/cardwise.dev": "1", "nvidia.com/note": "1"}),
    "labels": pod("plain", labels={"cardwise.dev/team": "a", "nvidia.com/gpu": "1"}),
}


@pytest.mark.parametrize("plain", PLAIN.values(), ids=PLAIN.keys())
@pytest.mark.parametrize("where", ["space", "labelled"])
def test_a_pod_without_an_ask_is_created(request, plane, plain, where):
    plane.kubectl("create", "-n", request.getfixturevalue(where), "-f", "-", stdin=plain)


# -------------------------------------------------------------------- what stays after an uninstall


def shown(beginning):
    """The command of the page that begins so."""
    page = (CHART.parents[1] / "docs" / "howto" / "install.md").read_text()
    (line,) = [each for typed in page.splitlines() if (each := typed.strip().removeprefix("$ ")).startswith(beginning)]
    return shlex.split(line)[1:]


def test_pods_that_wait_for_cardwise_are_found_as_the_page_says(plane, space):
    plane.kubectl("create", "-n", space, "-f", "-", stdin=pod("waits", schedulerName="cardwise"))
    plane.kubectl("create", "-n", space, "-f", "-", stdin=pod("other"))
    found = plane.kubectl(*shown("kubectl get pods -A --field-selector"))
    assert [line.split()[1] for line in found.splitlines() if line.startswith(space)] == ["waits"]


def test_what_was_written_on_nodes_goes_as_the_page_says(plane, space):
    plane.fake_node(space, annotations={"cardwise.dev/freed": "1.2", "example.test/kept": "1"})
    told = [{"type": "CardwiseConsistent", "status": "True"}, {"type": "MemoryPressure", "status": "False"}]
    plane.kubectl("patch", "node", space, "--subresource=status", "-p", json.dumps({"status": {"conditions": told}}))
    patch = 'kubectl patch node NODE --subresource=status -p \'{"status":{"conditions":[{"type":"CardwiseConsistent"'
    for command in (shown(patch), shown("kubectl annotate nodes --all cardwise.dev/freed-")):
        plane.kubectl(*(space if word == "NODE" else word for word in command))
    node = plane.api("GET", f"/api/v1/nodes/{space}")
    assert node["metadata"]["annotations"].keys() >= {"example.test/kept"}
    assert "cardwise.dev/freed" not in node["metadata"]["annotations"]
    types = {each["type"] for each in node["status"]["conditions"]}
    assert "MemoryPressure" in types
    assert "CardwiseConsistent" not in types


# -------------------------------------------------------------------- rights


@pytest.mark.parametrize(
    ("may", "verb", "resource", "namespace"),
    [
        (True, "create", "pods/binding", "default"),
        (True, "patch", "nodes", ""),
        (True, "patch", "nodes/status", ""),
        (True, "create", "events", "default"),
        (True, "update", "leases.coordination.k8s.io/cardwise-scheduler", NAMESPACE),
        (True, "patch", "pods", NAMESPACE),
        (False, "update", "leases.coordination.k8s.io/cardwise-kube-scheduler", NAMESPACE),
        (False, "update", "leases.coordination.k8s.io/cardwise-scheduler", "default"),
        (False, "patch", "pods", "default"),
        (False, "create", "pods", "default"),
        (False, "delete", "pods", "default"),
        (False, "update", "pods/status", "default"),
        (False, "delete", "nodes", ""),
        (False, "get", "secrets", NAMESPACE),
        (False, "get", "configmaps", NAMESPACE),
    ],
)
def test_the_scheduler_may_do_what_it_does_and_no_more(release, plane, may, verb, resource, namespace):
    kind, _, name = resource.partition("/")
    where = {"namespace": namespace, "verb": verb}
    if "." in kind:
        kind, _, group = kind.partition(".")
        where |= {"group": group, "resource": kind, "name": name}
    else:
        where |= {"resource": kind, "subresource": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": release.scheduler, "resourceAttributes": where},
    }
    answer = plane.api("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer["status"]["allowed"] is may
