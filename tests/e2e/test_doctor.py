"""``cardwise doctor`` on a real API server: its lists, its dates, its refusals."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from cardwise.adapters.kube.client import connect
from cardwise.adapters.node_cards import encode_cards
from cardwise.doctor.facts import facts_of
from cardwise.doctor.gathering import gather
from cardwise.doctor.ranking import diagnose
from cardwise.errors import ClusterError
from tests.builders import card
from tests.controlplane.certs import Authority
from tests.controlplane.cluster import base64_of
from tests.controlplane.plane import ControlPlane
from tests.doctor.world import certificate
from tests.e2e.cardwise_plane import Cardwise, wait_for

pytestmark = pytest.mark.controlplane

NAMESPACE, NODE = "doctor-e2e", "doctor-gpu"
ASK = {"cardwise.dev/gpu": "1", "cardwise.dev/gpu-memory": "40960", "cardwise.dev/gpu-cores": "20"}


async def _gathered(kubeconfig, namespace=NAMESPACE):
    async with connect(kubeconfig) as client:
        return await gather(client, namespace, None, datetime.now(UTC))


def test_a_real_cluster_is_read_and_its_faults_are_named(control_plane):
    control_plane.namespace(NAMESPACE)
    slots = {"cardwise.dev/gpu": 16}
    told = {"cardwise.dev/cards": encode_cards([card(f"GPU-{NODE}", "A10", 24576)])}
    control_plane.fake_node(NODE, extended=slots, annotations=told, lease=True)
    metadata = {"name": "cardwise-tls", "namespace": NAMESPACE}
    ends_days = (datetime(2026, 11, 30, 12, tzinfo=UTC) - datetime.now(UTC)).days  # certificates count from there
    data = {"tls.crt": certificate(3 - ends_days), "tls.key": "", "ca.crt": ""}
    secret = {"metadata": metadata, "type": "kubernetes.io/tls", "data": data}
    control_plane.api("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
    container = {"name": "main", "image": "registry.example/x:1", "resources": {"limits": ASK, "requests": ASK}}
    spec = {"schedulerName": "cardwise", "containers": [container]}
    pod = {"metadata": {"name": "waits", "namespace": NAMESPACE}, "spec": spec}
    control_plane.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    try:
        capture = asyncio.run(_gathered(control_plane.kubeconfig))
    finally:
        control_plane.api("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/waits", {"gracePeriodSeconds": 0})
        control_plane.api("DELETE", f"/api/v1/nodes/{NODE}")
    assert capture.beside.gaps == []
    assert {"Node", "Pod", "Event", "Lease", "EndpointSlice", "Secret", "RuntimeClass"} <= capture.kinds
    assert abs(capture.beside.clock_off_s) < 5
    later = msgspec.structs.replace(capture.beside, taken=capture.beside.taken + timedelta(seconds=40))
    found = {each.finding.code: each.finding for each in diagnose(facts_of(replace(capture, beside=later)))}
    assert "asks for 40960 MiB of one card" in found["CW202"].cause
    assert f"Secret {NAMESPACE}/cardwise-tls expires in" in found["CW102"].cause
    assert f"node {NODE} keeps no" in found["CW106"].cause


def test_a_user_without_rights_is_told_so(control_plane):
    with pytest.raises(ClusterError, match="403"):
        asyncio.run(_gathered(control_plane.user_kubeconfig("doctor-nobody")))


# ---------------------------------------------------------------- whether the webhook answers

HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/cardwise"


@pytest.fixture(scope="module")
def cw(tmp_path_factory):
    """cardwise with its webhook, on an API server of its own: the configuration is broken here."""
    with Cardwise(tmp_path_factory.mktemp("cardwise"), plane=ControlPlane(tmp_path_factory.mktemp("plane"))) as found:
        yield found


def told_of_webhook(cw):
    """What doctor finds of the webhook, and what was tried."""
    capture = asyncio.run(_gathered(cw.plane.kubeconfig, None))
    found = [each.finding for each in diagnose(facts_of(capture)) if each.finding.code == "CW101"]
    return found, capture.beside.tried


def test_a_webhook_that_answers_is_known_by_a_pod_that_is_never_made(cw):
    found, tried = told_of_webhook(cw)
    assert found == []
    assert (tried.namespace, tried.translated) == ("default", True)
    assert cw.plane.api("GET", "/api/v1/namespaces/default/pods")["items"] == []


def test_a_user_who_may_not_create_pods_is_told_that_it_was_not_tried(cw):
    rules = [
        {"apiGroups": ["", "admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["get", "list"]},
    ]
    cw.plane.api(
        "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": "reader"}, "rules": rules}
    )
    subjects = [{"kind": "User", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}]
    role = {"kind": "ClusterRole", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "reader"}, "subjects": subjects, "roleRef": role}
    cw.plane.api("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    kubeconfig = cw.plane.user_kubeconfig("reader")

    def read():
        try:
            return asyncio.run(_gathered(kubeconfig, None))
        except ClusterError:  # the API server has not heard of the binding yet
            return None

    gaps = wait_for(read).beside.gaps
    assert any("was not tried" in gap and 'User "reader" cannot create resource "pods"' in gap for gap in gaps), gaps


def test_a_certificate_that_the_api_server_does_not_trust_is_named_though_the_webhook_runs(cw, tmp_path):
    right = cw.plane.api("GET", HOOKS)
    cw.plane.api(
        "PATCH", HOOKS, _trusting(Authority(tmp_path).ca.read_bytes()), content_type="application/json-patch+json"
    )
    try:
        (only,), _ = wait_for(lambda: (told := told_of_webhook(cw)) and told[0] and told)
    finally:
        cw.plane.api("PUT", HOOKS, {**cw.plane.api("GET", HOOKS), "webhooks": right["webhooks"]})
    assert "certificate signed by unknown authority" in only.evidence[0]
    assert only.likelihood > 0.9


def test_a_webhook_that_nobody_serves_is_named_with_the_api_servers_words(cw):
    cw.leader.kill()
    (only,), tried = told_of_webhook(cw)
    assert tried.refused.startswith('failed calling webhook "pods.cardwise.dev"')
    assert "connection refused" in only.evidence[0]
    assert "the admission webhook cannot be asked" in only.cause


def _trusting(bundle):
    return [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": base64_of(bundle)}]
