"""What the pages for a cluster take for granted: whose pods there are, what Prometheus knows, what programs wrote.

Beside each command, by how it begins; a page's own commands make the rest.
"""

from __future__ import annotations

import json
import tomllib

import pytest

from tests.charts.conftest import NAMESPACE
from tests.controlplane import kueue_build
from tests.controlplane.binaries import BinariesMissingError
from tests.controlplane.kueue_plane import APIS as KUEUE
from tests.e2e.docs_cluster import GPU_NODES, MERGE, STRATEGIC, until

NODE, ASKS = GPU_NODES[0], "asks"
"""What stands for NODE, and the app whose pod stands for POD."""


def past(now):
    """Two namespaces that are busy by turns for weeks, a service with a card for a day, a pod that asks for a slice."""
    lines = []
    for phase, name in enumerate(("day", "night")):
        for at in range(now - now % 3600 - 28 * 86400, now, 3600):
            busy = 70 if at // 43200 % 2 == phase else 5
            lines.append(f'cardwise_slice_sm_percent{{namespace="{name}"}} {busy} {at}')
    pod = 'namespace="serving",pod="resnet-0"'
    asked = {"cardwise_dev_gpu": 1, "cardwise_dev_gpu_memory": 4096, "cardwise_dev_gpu_cores": 20}
    labels = [f'kube_pod_container_resource_requests{{{pod},node="{NODE}",resource="{each}"}}' for each in asked]
    series = dict(zip(labels, asked.values(), strict=True)) | {f'kube_pod_status_phase{{{pod},phase="Running"}}': 1}
    lines += [f"{name} {value} {at}" for name, value in series.items() for at in range(now - 6 * 3600, now, 300)]
    service, card = 'service="s"', 'uuid="u",model="A10",node="n"'
    rates = {
        f'cardwise_gateway_requests_total{{{service},status="200"}}': 20,
        **{f'cardwise_gateway_latency_seconds_bucket{{{service},le="{le}"}}': 20 for le in ("0.1", "+Inf")},
        f"cardwise_gateway_latency_seconds_sum{{{service}}}": 1,
    }
    levels = {
        f"cardwise_gateway_queue_depth{{{service}}}": 0,
        f"cardwise_card_info{{{card}}}": 1,
        'cardwise_card_utilization_percent{uuid="u"}': 40,
        f'cardwise_slice_memory_granted_mib{{uuid="u",{pod},container="c"}}': 4096,
    }
    for name, value in (rates | levels).items():
        for i, at in enumerate(range(now - 90000, now, 60)):
            lines.append(f"{name} {value * i * 60 if name in rates else value} {at}")
    return "".join(f"{line}\n" for line in lines)


def _a_service(cluster):
    cluster.workload("deployment", "team-a", "web")


def _slices(cluster):
    cluster.workload("deployment", "default", ASKS, {"nvidia.com/gpu.memory": "4096"})


def _a_leader(cluster):
    """As the container beside each scheduler labels it."""
    cluster.plane.kubectl("rollout", "status", "-n", NAMESPACE, "deployment/cardwise-scheduler")
    pods = cluster.plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    name = next(each["metadata"]["name"] for each in pods if each["metadata"]["name"].startswith("cardwise-scheduler-"))
    cluster.plane.kubectl("label", "pod", name, "-n", NAMESPACE, "cardwise.dev/leads=true")
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"

    def leads():
        items = cluster.plane.api("GET", slices)["items"]
        return any(each["endpoints"] for each in items if each["metadata"]["name"].startswith("cardwise-extender"))

    until(leads)


def _whole_cards(cluster):
    if cluster.plane.answer("GET", "/api/v1/namespaces/serving/pods/resnet-50-5d9c7b6f4-00000")[0] != 200:
        cluster.bare_pod("serving", "resnet-50-5d9c7b6f4-00000", {"nvidia.com/gpu": "1"})


def _a_borrower(cluster):
    cluster.workload("statefulset", "ml", "batch", {"nvidia.com/gpu.memory": "8192"})


def _hamis(cluster):
    """Made while the namespace was HAMi's: a pod that names its scheduler, and a Deployment with its names."""
    cluster.workload("deployment", "search", "ranker", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"})
    if cluster.plane.answer("GET", "/api/v1/namespaces/search/pods/old")[0] != 200:
        cluster.bare_pod("search", "old", {}, spec={"schedulerName": "hami-scheduler"})


def _a_model(cluster):
    spec = {"selector": {"app": "resnet"}, "ports": [{"port": 8080}]}
    cluster.plane.api("POST", "/api/v1/namespaces/models/services", {"metadata": {"name": "resnet"}, "spec": spec})


def _an_agents_lease(cluster):
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": f"cardwise-agent-{NODE}", "namespace": NAMESPACE},
        "spec": {"holderIdentity": NODE},
    }
    cluster.plane.kubectl("create", "-f", "-", *cluster.release.as_agent_of(NODE), stdin=json.dumps(lease))


def _a_condition(kind):
    def write(cluster):
        conditions = [{"type": kind, "status": "False", "reason": "Test", "message": "of a test"}]
        body = {"status": {"conditions": conditions}}
        path = f"/api/v1/nodes/{NODE}/status"
        cluster.plane.api("PATCH", path, body, content_type=STRATEGIC)

    return write


def _no_condition(kind):
    def look(cluster):
        conditions = cluster.plane.api("GET", f"/api/v1/nodes/{NODE}")["status"]["conditions"]
        assert kind not in {each["type"] for each in conditions}

    return look


def _a_move(cluster):
    controller = cluster.release.account(f"system:serviceaccount:{NAMESPACE}:cardwise-controller")
    pod = cluster.pod_of("default", ASKS)
    cluster.plane.kubectl("annotate", "pod", pod, "cardwise.dev/moving={}", kubeconfig=controller)


def _one_that_waits(cluster):
    nowhere = {"cardwise.dev/gpu-model": "none"}
    cluster.bare_pod("default", "waits", {"nvidia.com/gpu.memory": "4096"}, annotations=nowhere)


def _quota_file(cluster):
    code, _, err = cluster.run("cardwise quota plan --dump examples/dump/dump.json -o toml > quota.toml")
    assert not code, err


def _kueue(cluster):
    _quota_file(cluster)
    try:
        crds = kueue_build.crds()
    except BinariesMissingError as error:
        pytest.skip(str(error))
    used = ("clusterqueues", "localqueues", "cohorts", "resourceflavors", "workloads", "workloadpriorityclasses")
    for crd in crds:
        if crd["spec"]["names"]["plural"] in used:
            cluster.plane.answer("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    until(lambda: all(cluster.plane.answer("GET", f"{KUEUE}/{kind}")[0] == 200 for kind in used))
    for team in tomllib.loads((cluster.user / "quota.toml").read_text())["teams"]:
        for name in team["namespaces"]:
            cluster.namespace(name)


def _one_in_a_queue(cluster):
    """As Kueue shows one that waits."""
    name = "ranker-6d4f9-x2"
    limits, labels = {"nvidia.com/gpu.memory": "12000"}, {"kueue.x-k8s.io/queue-name": "search"}
    pod = cluster.bare_pod("search", name, limits, labels=labels)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["metadata"]["uid"]}
    template = {"metadata": {}, "spec": {"containers": pod["spec"]["containers"], "restartPolicy": "Never"}}
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": f"pod-{name}", "ownerReferences": [owner]},
        "spec": {"queueName": "search", "podSets": [{"name": "main", "count": 1, "template": template}]},
    }
    cluster.plane.api("POST", f"{KUEUE}/namespaces/search/workloads", workload)


def _windows(cluster):
    windows = "--before -2h..-1h --after -1h..now --save-before before.json --save-after after.json"
    code, _, err = cluster.run(f"cardwise compare --prometheus {cluster.prometheus} {windows}")
    assert not code, err


def _back_in_service(cluster):
    cluster.plane.kubectl("taint", "nodes", NODE, "node.kubernetes.io/out-of-service-")


def _no_policy(cluster):
    """The API server forgets the policies a moment after they are deleted."""
    body = {"metadata": {"annotations": {"cardwise.dev/moves": "[]"}}}

    def is_free():
        path = f"/api/v1/nodes/{NODE}?dryRun=All"
        return cluster.plane.answer("PATCH", path, body, content_type=MERGE)[0] == 200

    until(is_free)


PATCH = 'kubectl patch node NODE --subresource=status -p \'{"status":{"conditions":[{"type":"'
BEFORE = {
    "kubectl label namespace team-a": _a_service,
    "kubectl drain NODE": _slices,
    "kubectl -n cardwise-system get pods -l cardwise.dev/leads=true": _a_leader,
    "kubectl get nodes,pods -A -o json": _whole_cards,
    "kubectl -n models annotate service resnet cardwise.dev/gateway=main": _a_model,
    "cardwise explain ml/batch-0": _a_borrower,
    "kubectl -n search get deployments": _hamis,
    "kubectl get pods -A -o jsonpath": _a_move,
    "cardwise quota plan --dump dump.json": _quota_file,
    "cardwise quota diff": _kueue,
    "cardwise quota why": _one_in_a_queue,
    "cardwise compare before.json after.json": _windows,
    "kubectl -n cardwise-system delete lease": _an_agents_lease,
    f"{PATCH}CardwiseMPSReady": _a_condition("CardwiseMPSReady"),
    f"{PATCH}CardwiseConsistent": _a_condition("CardwiseConsistent"),
    "helm uninstall": _one_that_waits,
}
"""By how a command begins: what is there before it."""
AFTER = {
    f"{PATCH}CardwiseMPSReady": _no_condition("CardwiseMPSReady"),
    f"{PATCH}CardwiseConsistent": _no_condition("CardwiseConsistent"),
    "kubectl taint nodes NODE": _back_in_service,
    "helm uninstall": _no_policy,
}
"""By how a command begins: what is looked at, or mended, after it."""
