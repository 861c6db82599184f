"""The page of the chart: none by default; it reads only, and nobody reaches it but by a port forward."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from cardwise.cli.page import page_command
from tests.charts.conftest import IMAGE
from tests.charts.helm import CHART, HelmError, helm, set_flags
from tests.charts.test_rendering import containers, named

pytestmark = pytest.mark.controlplane

ON = {"page.enabled": True}
NAME = "cardwise-page"


def test_there_is_none_by_default(render):
    assert [each for each in render() if NAME in each["metadata"]["name"]] == []


def test_lint_finds_nothing(helm_home):
    helm("lint", "--strict", CHART, *set_flags({**IMAGE, **ON}), home=helm_home)


def test_it_may_read_pods_and_nodes_and_nothing_else(render):
    (rule,) = named(render(ON), "ClusterRole", NAME)["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}
    assert [each for each in render(ON) if each["kind"] == "Role" and NAME in each["metadata"]["name"]] == []


def test_no_service_leads_to_it_and_no_pod_reaches_it(render):
    objects = render(ON)
    pods = named(objects, "Deployment", NAME)["spec"]["template"]["metadata"]["labels"]
    for each in objects:
        if each["kind"] == "Service":
            assert not each["spec"]["selector"].items() <= pods.items()
    fence = named(objects, "NetworkPolicy", NAME)["spec"]
    assert fence["podSelector"]["matchLabels"].items() <= pods.items()
    assert (fence["policyTypes"], fence["ingress"]) == (["Ingress"], [])


@pytest.mark.parametrize("values", [{}, {"page.prometheusUrl": "http://prometheus:9090"}], ids=["plain", "prometheus"])
def test_its_command_is_one_that_is_understood(render, values):
    (page,) = [each for _, _, each in containers(render({**ON, **values})) if each["name"] == "page"]
    assert page["command"][:2] == ["cardwise", "page"]
    options = page["command"][2:]
    answer = CliRunner().invoke(page_command, [*options, "--help"])
    assert answer.exit_code == 0
    assert [each for each in options if each.startswith("--prometheus")] == [
        f"--prometheus={url}" for url in values.values()
    ]
    known = {option for each in page_command.params for option in each.opts}
    assert {each.partition("=")[0] for each in options} <= known


def test_an_address_that_is_none_is_refused(render):
    with pytest.raises(HelmError, match="prometheusUrl"):
        render({**ON, "page.prometheusUrl": "prometheus:9090"})
