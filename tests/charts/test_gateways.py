"""Gateways of the chart: none by default; each reads its settings, its part of the cluster, and drains in its time."""

from __future__ import annotations

import json
import tomllib

import msgspec
import pytest
import yaml

from cardwise.gateway.settings import Settings, read_settings
from tests.charts.conftest import IMAGE, NAMESPACE
from tests.charts.helm import CHART, HelmError, helm, set_flags
from tests.charts.test_rendering import named, workloads
from tests.e2e.test_gateway import RULES

pytestmark = pytest.mark.controlplane

NAME = "cardwise-gateway-chat"
SERVICE = {"name": "chat", "kind": "openai", "kubernetes": {"namespace": "models", "service": "vllm", "port": "http"}}
OWN_PORTS = {"host", "port", "admin-host", "admin-port"}
"""Of the settings, those that the chart decides."""
AUTOSCALE = {
    "namespace": "models",
    "deployment": "vllm",
    "service": "chat",
    "minReplicas": 1,
    "maxReplicas": 8,
    "queuePerReplica": 4,
    "inFlightPerReplica": 0.8,
}


def chat(settings=None, **more):
    return {"gateways": {"chat": {"settings": {"services": [SERVICE], **(settings or {})}, **more}}}


def of_gateways(objects):
    return [each for each in objects if each["metadata"]["name"].startswith("cardwise-gateway")]


def deployment(objects):
    return named(objects, "Deployment", NAME)["spec"]


def settings_of(objects, tmp_path):
    path = tmp_path / "gateway.toml"
    path.write_text(named(objects, "ConfigMap", NAME)["data"]["gateway.toml"])
    return read_settings(path)


def test_there_is_none_by_default(render):
    assert of_gateways(render()) == []


def test_it_reads_its_settings(render, tmp_path):
    service = {
        **SERVICE,
        "target-p99-ms": 250,
        "retry-share": 0.1,
        "idempotent": True,
        "hosts": ["a.example", "b.example"],
        "warm-up": {"path": "/v1/completions", "method": "POST", "body": '{"prompt": "<\\"ü\n>"}'},
        "profiles": [{"timezone": "Europe/Berlin", "begin": "22:00", "end": "06:00", "depth": 9}],
    }
    kubernetes = {"namespaces": ["models"], "defaults": {"kind": "oip", "max-batch": 8}}
    objects = render(chat({"services": [service], "kubernetes": kubernetes, "max-buffered-mib": 1048576 / 4096}))
    told = settings_of(objects, tmp_path)
    (read,) = told.services
    assert read.warm_up.body == service["warm-up"]["body"]
    assert (read.target_p99_ms, read.retry_share, read.idempotent) == (250, 0.1, True)
    assert (read.hosts, read.profiles[0].depth) == (["a.example", "b.example"], 9)
    assert (told.kubernetes.gateway, told.kubernetes.defaults) == ("chat", {"kind": "oip", "max-batch": 8})
    assert (told.drain_s, told.drain_delay_s, told.max_buffered_mib) == (30, 5, 256)
    (container,) = deployment(objects)["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": told.port, "admin": told.admin_port}
    assert container["command"][-1] == f"{container['volumeMounts'][0]['mountPath']}/gateway.toml"


def test_the_schema_knows_every_setting_but_those_that_are_the_charts():
    schema = json.loads((CHART / "values.schema.json").read_text())["definitions"]["gateway"]["properties"]["settings"]
    assert set(schema["properties"]) == {each.encode_name for each in msgspec.structs.fields(Settings)} - OWN_PORTS


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gateways": {"Chat": {}}}, "schema|specifications"),
        ({"gateways": {"c" * 41: {}}}, "schema|specifications"),
        (chat({"port": 80}), "schema|specifications"),
        (chat({"services": [{"name": "a", "kind": "plain"}]}), "schema|specifications"),
        (chat({"kubernetes": {"namespaces": []}}), "schema|specifications"),
        (chat(replicas=0), "schema|specifications"),
        (chat(autoscale=[{**AUTOSCALE, "queuePerReplica": "many"}]), "schema|specifications"),
        ({"gateways": {"chat": {}}}, "gateways.chat.settings: write services, or kubernetes"),
    ],
)
def test_values_that_mean_nothing_are_refused(render, values, message):
    with pytest.raises(HelmError, match=message):
        render(values)


def test_lint_finds_nothing(helm_home):
    helm("lint", "--strict", CHART, *set_flags({**IMAGE, **chat(autoscale=[AUTOSCALE])}), home=helm_home)


@pytest.mark.parametrize(("drain_s", "delay_s", "grace_s"), [(30, 5, 40), (12.5, 0, 18), (0, 0, 5)])
def test_its_pod_has_the_time_to_drain(render, drain_s, delay_s, grace_s):
    spec = deployment(render(chat({"drain-s": drain_s, "drain-delay-s": delay_s})))["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == grace_s
    assert "lifecycle" not in spec["containers"][0]


def test_its_probes_ask_about_the_gateway_and_not_through_it(render):
    (container,) = deployment(render(chat()))["template"]["spec"]["containers"]
    startup = container["startupProbe"]
    assert [startup[key] for key in ("initialDelaySeconds", "periodSeconds", "failureThreshold")] == [10, 10, 30]
    asked = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {each["port"] for each in asked.values()} == {"admin"}
    assert [asked[kind]["path"] for kind in ("startup", "liveness", "readiness")] == ["/healthz", "/healthz", "/readyz"]


def test_it_is_confined_and_sized_as_the_others(render):
    spec = deployment(render(chat()))["template"]["spec"]
    (container,) = spec["containers"]
    other = named(render(), "Deployment", "cardwise-scheduler")["spec"]["template"]["spec"]
    assert spec["securityContext"] == other["securityContext"]
    assert container["securityContext"] == other["containers"][0]["securityContext"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert container["resources"]["limits"].keys() == {"memory"}


@pytest.mark.parametrize(("replicas", "least"), [(1, None), (2, 1), (5, 4)])
def test_only_of_several_one_may_go_at_a_time(render, replicas, least):
    objects = render(chat(replicas=replicas))
    budgets = [each for each in of_gateways(objects) if each["kind"] == "PodDisruptionBudget"]
    assert [each["spec"]["minAvailable"] for each in budgets] == ([] if least is None else [least])
    spread = deployment(objects)["template"]["spec"]["topologySpreadConstraints"]
    assert {each["topologyKey"] for each in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def test_a_changed_setting_replaces_its_pods_and_no_other_gateways(render):
    def stamps(depth):
        both = {"chat": {"settings": {"services": [{**SERVICE, "depth": depth}]}}, "other": chat()["gateways"]["chat"]}
        objects = render({"gateways": both})
        return {
            each["metadata"]["name"]: each["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            for each in of_gateways(workloads(objects))
        }

    before, after = stamps(7), stamps(8)
    assert before[NAME] != after[NAME]
    assert before["cardwise-gateway-other"] == after["cardwise-gateway-other"]


def test_gateways_select_their_own_pods_alone(render):
    objects = render({"gateways": {"chat": chat()["gateways"]["chat"], "chat-2": chat()["gateways"]["chat"]}})
    for one in of_gateways(workloads(objects)):
        for other in workloads(objects):
            selector = one["spec"]["selector"]["matchLabels"]
            labels = other["spec"]["template"]["metadata"]["labels"]
            assert (selector.items() <= labels.items()) is (one is other)
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        spec = named(objects, kind, NAME)["spec"]
        selector = spec.get("podSelector", spec["selector"] if kind == "Service" else spec.get("selector"))
        pods = deployment(objects)["template"]["metadata"]["labels"]
        assert selector.get("matchLabels", selector) == pods


SLICES, SERVICES = RULES


@pytest.mark.parametrize(
    ("settings", "roles", "asks"),
    [
        pytest.param({}, {("Role", "models"): [SLICES]}, True, id="a Service that is named"),
        pytest.param(
            {"kubernetes": {"namespaces": ["models", "more"]}},
            {("Role", "models"): RULES, ("Role", "more"): RULES},
            True,
            id="Services that may opt in",
        ),
        pytest.param(
            {"kubernetes": {"namespaces": ["more"]}},
            {("Role", "models"): [SLICES], ("Role", "more"): RULES},
            True,
            id="both",
        ),
        pytest.param(
            {"kubernetes": {"namespaces": ["*"]}}, {("ClusterRole", None): RULES}, True, id="of all namespaces"
        ),
        pytest.param(
            {"services": [{"name": "a", "kind": "pass", "replicas": ["http://a:80"]}]}, {}, False, id="addresses alone"
        ),
    ],
)
def test_it_may_read_what_its_settings_name_and_nothing_else(render, settings, roles, asks):
    objects = render(chat(settings))
    given = {
        (each["kind"], each["metadata"].get("namespace")): each["rules"]
        for each in of_gateways(objects)
        if each["kind"] in {"Role", "ClusterRole"}
    }
    assert given == roles
    bindings = [each for each in of_gateways(objects) if each["kind"].endswith("Binding")]
    assert {(each["roleRef"]["kind"], each["metadata"].get("namespace")) for each in bindings} == set(roles)
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    assert all(each["subjects"] == [account] for each in bindings)
    assert deployment(objects)["template"]["spec"]["automountServiceAccountToken"] is asks


def test_whom_it_hears_is_told_where_policies_are_on(render):
    peer = {"namespaceSelector": {"matchLabels": {"team": "a"}}}
    prometheus = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    objects = render({**chat(clientsFrom=[peer]), "networkPolicy.metricsFrom": [prometheus]})
    rules = named(objects, "NetworkPolicy", NAME)["spec"]["ingress"]
    assert rules == [
        {"ports": [{"port": "http"}], "from": [peer]},
        {"ports": [{"port": "admin"}], "from": [prometheus]},
    ]
    assert [rule.get("from") for rule in named(render(chat()), "NetworkPolicy", NAME)["spec"]["ingress"]] == [
        None,
        None,
    ]
    without = render({**chat(), "networkPolicy.enabled": False})
    assert not [each for each in of_gateways(without) if each["kind"] == "NetworkPolicy"]


def test_models_scale_by_its_queue_and_by_what_is_in_flight(render):
    scaler = named(render(chat(autoscale=[AUTOSCALE])), "HorizontalPodAutoscaler", f"{NAME}-vllm")
    assert scaler["metadata"]["namespace"] == "models"
    assert scaler["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm"}
    found = {
        each["external"]["metric"]["name"]: each["external"]["target"]["averageValue"]
        for each in scaler["spec"]["metrics"]
    }
    assert found == {"cardwise_gateway_queue_length": "4", "cardwise_gateway_in_flight": "0.8"}


# -------------------------------------------------------------------- on an API server


def test_an_api_server_takes_all_of_it_and_grants_it_reading_alone(release, render):
    plane = release.plane
    plane.namespace("models")
    settings = {"kubernetes": {"namespaces": ["models"]}}
    objects = of_gateways(render(chat(settings, autoscale=[AUTOSCALE])))
    assert len(objects) == 9
    told = yaml.safe_dump_all(objects)
    plane.kubectl("create", "-f", "-", stdin=told)
    try:
        account = f"system:serviceaccount:{NAMESPACE}:{NAME}"
        for may, verb, resource, namespace in (
            (True, "list", "endpointslices.discovery.k8s.io", "models"),
            (True, "watch", "endpointslices.discovery.k8s.io", "models"),
            (True, "watch", "services", "models"),
            (False, "list", "endpointslices.discovery.k8s.io", "default"),
            (False, "list", "services", "default"),
            (False, "list", "pods", "models"),
            (False, "get", "secrets", "models"),
            (False, "patch", "services", "models"),
            (False, "patch", "endpointslices.discovery.k8s.io", "models"),
        ):
            kind, _, group = resource.partition(".")
            where = {"verb": verb, "resource": kind, "group": group, "namespace": namespace}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": account, "resourceAttributes": where},
            }
            answer = plane.api("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
            assert answer["status"]["allowed"] is may, (verb, resource, namespace)
    finally:
        plane.kubectl("delete", "--wait=false", "-f", "-", stdin=told)


def test_the_values_on_the_page_make_a_gateway(render, helm_home, tmp_path):
    page = (CHART.parents[1] / "docs" / "howto" / "gateway.md").read_text().partition("\n## In a cluster\n")[2]
    values = page.partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "values.yaml").write_text(values)
    flags = ("--kube-version", "1.36.2", "--namespace", NAMESPACE, *set_flags(IMAGE))
    text = helm("template", "cardwise", CHART, *flags, "-f", tmp_path / "values.yaml", home=helm_home)
    objects = [each for each in yaml.safe_load_all(text) if each]
    configs = [each for each in of_gateways(objects) if each["kind"] == "ConfigMap"]
    assert configs
    for each in configs:
        assert tomllib.loads(each["data"]["gateway.toml"])
        (tmp_path / "gateway.toml").write_text(each["data"]["gateway.toml"])
        read_settings(tmp_path / "gateway.toml")
