"""What the chart installs for Prometheus and Grafana: nothing unless asked, and then what fits the rest of it."""

from __future__ import annotations

import gzip
import json

import pytest
import yaml

from tests.charts.helm import CHART, HelmError
from tests.dashboards.server import BOARDS, RULES

GATEWAY = {"settings": {"services": [{"name": "a", "kind": "pass", "replicas": ["http://a:1"]}]}}
ON = {
    "monitoring.podMonitors.enabled": True,
    "monitoring.rules.enabled": True,
    "monitoring.dashboards.enabled": True,
    "controller.enabled": True,
    "gateways": {"chat": GATEWAY},
}
KINDS = {"PodMonitor", "PrometheusRule"}
PROGRAMS = {"scheduler", "agent", "controller", "gateway-chat"}


def of(objects, kind, prefix="cardwise-"):
    named = {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}
    return {name.removeprefix(prefix): each for name, each in named.items() if name.startswith(prefix)}


def test_by_default_there_is_nothing_of_it(render):
    objects = render()
    assert not KINDS & {each["kind"] for each in objects}
    assert not of(objects, "ConfigMap", "cardwise-dashboard-")


def test_each_program_is_scraped_at_a_port_of_its_pods_and_of_no_others(render):
    objects = render(ON)
    monitors = of(objects, "PodMonitor")
    assert set(monitors) == PROGRAMS
    workloads = [each for each in objects if each["kind"] in {"Deployment", "DaemonSet"}]
    for name, monitor in monitors.items():
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        templates = [each["spec"]["template"] for each in workloads]
        (pod,) = [each["spec"] for each in templates if wanted <= each["metadata"]["labels"].items()]
        ports = {port["name"] for container in pod["containers"] for port in container.get("ports", ())}
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in ports, name
        assert endpoint["honorLabels"] is True


def test_whoever_scrapes_is_let_through_to_each_port_that_is_scraped(render):
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    objects = render({**ON, "networkPolicy.metricsFrom": [peer]})
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    templates = [each["spec"]["template"] for each in objects if each["kind"] in {"Deployment", "DaemonSet"}]
    for name, monitor in of(objects, "PodMonitor").items():
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (template,) = [each for each in templates if wanted <= each["metadata"]["labels"].items()]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        labels = template["metadata"]["labels"].items()
        for policy in policies:
            if policy["podSelector"]["matchLabels"].items() <= labels:
                assert any(_lets_in(rule, peer, endpoint["port"]) for rule in policy["ingress"]), name


def _lets_in(rule, peer, port):
    ports = [each["port"] for each in rule.get("ports", ())]
    return (not ports or port in ports) and ("from" not in rule or peer in rule["from"])


def test_a_program_that_is_not_installed_is_not_scraped(render):
    assert set(of(render({**ON, "controller.enabled": False, "agent.enabled": False}), "PodMonitor")) == PROGRAMS - {
        "controller",
        "agent",
    }


def test_the_scheduler_is_asked_by_https_and_by_a_name_of_its_certificate(render):
    objects = render({**ON, "tls.mode": "cert-manager"})
    (endpoint,) = of(objects, "PodMonitor")["scheduler"]["spec"]["podMetricsEndpoints"]
    names = [name for each in objects if each["kind"] == "Certificate" for name in each["spec"].get("dnsNames", ())]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["serverName"] in names


def test_a_cards_series_does_not_carry_the_agents_pod(render):
    (endpoint,) = of(render(ON), "PodMonitor")["agent"]["spec"]["podMetricsEndpoints"]
    assert {"action": "labeldrop", "regex": "namespace|pod|container"} in endpoint["relabelings"]


def test_the_rules_are_those_of_the_files(render):
    told = of(render(ON), "PrometheusRule")
    assert {name: rule["spec"] for name, rule in told.items()} == {
        path.stem: yaml.safe_load(path.read_text()) for path in RULES
    }


def test_an_alert_leads_to_its_runbook(render):
    told = of(render({**ON, "monitoring.rules.runbookUrl": "https://docs.example/%s.html"}), "PrometheusRule")
    rules = [rule for group in told["alerts"]["spec"]["groups"] for rule in group["rules"]]
    assert all(rule["annotations"]["runbook_url"] == f"https://docs.example/{rule['alert']}.html" for rule in rules)


def test_a_url_without_a_place_for_the_alert_is_refused(render):
    with pytest.raises(HelmError, match="runbookUrl"):
        render({**ON, "monitoring.rules.runbookUrl": "https://docs.example/"})


def test_labels_by_which_prometheus_and_grafana_select_are_put_on(render):
    more = {"monitoring.podMonitors.labels": {"release": "x"}, "monitoring.rules.labels": {"release": "x"}}
    objects = render({**ON, **more})
    selected = [*of(objects, "PodMonitor").values(), *of(objects, "PrometheusRule").values()]
    assert all(each["metadata"]["labels"]["release"] == "x" for each in selected)
    boards = of(objects, "ConfigMap", "cardwise-dashboard-").values()
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in boards)


def test_a_config_map_holds_each_dashboard_and_helm_the_whole_release(render):
    """The API server keeps no ConfigMap over 1 MiB, nor a Secret, as which Helm keeps the release, packed."""
    boards = of(render(ON), "ConfigMap", "cardwise-dashboard-").values()
    assert all(len(json.dumps(each)) < 2**20 / 4 for each in boards)
    whole = gzip.compress(json.dumps(render(ON)).encode())
    files = [path.read_bytes() for path in CHART.rglob("*") if path.is_file()]
    chart = gzip.compress(b"".join(files))
    assert 4 / 3 * (len(whole) + 4 / 3 * len(chart)) < 2**20 / 2


def test_each_dashboard_is_a_config_map(render):
    boards = of(render(ON), "ConfigMap", "cardwise-dashboard-")
    assert {name: json.loads(each["data"][f"cardwise-{name}.json"]) for name, each in boards.items()} == {
        path.stem: json.loads(path.read_text()) for path in BOARDS
    }
