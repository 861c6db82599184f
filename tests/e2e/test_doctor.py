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
from tests.doctor.world import certificate

pytestmark = pytest.mark.controlplane

NAMESPACE, NODE = "doctor-e2e", "doctor-gpu"
ASK = {"cardwise.dev/gpu": "1", "cardwise.dev/gpu-memory": "40960", "cardwise.dev/gpu-cores": "20"}


async def _gathered(kubeconfig):
    async with connect(kubeconfig) as client:
        return await gather(client, NAMESPACE, None, datetime.now(UTC))


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
