"""What the chart installs for the Prometheus Operator, on a real API server that has the operator's own CRDs."""

from __future__ import annotations

import pytest
import yaml

from tests.charts.conftest import NAMESPACE, wait_for
from tests.charts.operator_build import crds
from tests.charts.test_monitoring import KINDS, ON, PROGRAMS
from tests.controlplane.plane import KubectlError

pytestmark = pytest.mark.controlplane
EVERYTHING = {
    **ON,
    "monitoring.rules.runbookUrl": "https://docs.example/%s.html",
    "monitoring.podMonitors.labels": {"release": "x"},
}


@pytest.fixture(scope="module")
def applied(release, render):
    """Kubectl's answer to a manifest, as ``applied(objects)``: by the server, fields that it does not know refused."""
    plane = release.plane
    for crd in crds("podmonitors", "prometheusrules"):
        plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    monitoring = "/apis/monitoring.coreos.com/v1"
    wait_for(lambda: plane.answer("GET", f"{monitoring}/podmonitors")[0] == 200)
    wait_for(lambda: plane.answer("GET", f"{monitoring}/prometheusrules")[0] == 200)

    def apply(objects):
        text = yaml.safe_dump_all(objects)
        return plane.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=text)

    return apply


def test_the_operators_objects_are_taken_as_they_are(applied, release, render):
    mine = [each for each in render(EVERYTHING) if each["kind"] in KINDS]
    applied(mine)
    path = f"/apis/monitoring.coreos.com/v1/namespaces/{NAMESPACE}"
    for plural, kind in (("podmonitors", "PodMonitor"), ("prometheusrules", "PrometheusRule")):
        kept = {
            each["metadata"]["name"]: each["spec"] for each in release.plane.api("GET", f"{path}/{plural}")["items"]
        }
        assert kept == {each["metadata"]["name"]: each["spec"] for each in mine if each["kind"] == kind}
    assert len(release.plane.api("GET", f"{path}/podmonitors")["items"]) == len(PROGRAMS)


def test_a_misspelt_field_would_be_refused(applied, render):
    """Else the test above says nothing."""
    (monitor, *_) = [each for each in render(EVERYTHING) if each["kind"] == "PodMonitor"]
    monitor["spec"]["podMetricsEndpoints"][0]["honourLabels"] = True
    with pytest.raises(KubectlError, match="honourLabels"):
        applied([monitor])
