"""What Helm makes of the chart, without a cluster."""

from __future__ import annotations

import itertools
import ssl
import tomllib

import msgspec
import pytest
import yaml

from cardwise.adapters import wire
from cardwise.config import choose_policy, policy_file_text
from cardwise.scheduler.settings import Settings, read_settings
from tests.charts.conftest import IMAGE, NAMESPACE
from tests.charts.helm import CHART, HelmError, helm, set_flags

pytestmark = pytest.mark.controlplane


def named(objects, kind, name):
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def workloads(objects):
    return [each for each in objects if each["kind"] in {"Deployment", "DaemonSet", "StatefulSet"}]


def containers(objects):
    for workload in workloads(objects):
        spec = workload["spec"]["template"]["spec"]
        for container in spec["containers"]:
            yield workload["metadata"]["name"], spec, container


def kube_scheduler_config(objects):
    return yaml.safe_load(named(objects, "ConfigMap", "cardwise-kube-scheduler")["data"]["config.yaml"])


def webhooks(objects):
    return {each["name"]: each for each in named(objects, "MutatingWebhookConfiguration", "cardwise")["webhooks"]}


@pytest.mark.parametrize("values", [{}, {"tls.mode": "cert-manager"}], ids=["self-signed", "cert-manager"])
def test_lint_finds_nothing(helm_home, values):
    helm("lint", "--strict", CHART, *set_flags({**IMAGE, **values}), home=helm_home)


def test_without_an_image_the_message_says_what_to_do(helm_home):
    with pytest.raises(HelmError, match="no image is published yet"):
        helm("template", "cardwise", CHART, "--kube-version", "1.36.2", home=helm_home)


@pytest.mark.parametrize(
    "values",
    [
        {"nonsense": 1},
        {"scheduler.replicas": 0},
        {"tls.mode": "none"},
        {"webhook.timeoutSeconds": 31},
        {"webhook.wholeCards": "some"},
        {"scheduler.policyFiles": {"a/b": "x"}},
        {"agent.settings.namespace": "elsewhere"},
        {"agent.settings.isolation": "mps"},
        {"agent.settings.slots-per-card": 49},
        {"agent.settings.run-folder": "/run/card wise"},
        {"agent.settings.state-folder": "/"},
    ],
    ids=str,
)
def test_values_that_mean_nothing_are_refused(render, values):
    with pytest.raises(HelmError, match=r"schema|specifications"):
        render(values)


def test_no_two_workloads_select_the_same_pods(render):
    """Case C31."""
    for one, other in itertools.permutations(workloads(render()), 2):
        selector, labels = one["spec"]["selector"]["matchLabels"], other["spec"]["template"]["metadata"]["labels"]
        assert not selector.items() <= labels.items(), (one["metadata"]["name"], other["metadata"]["name"])
        own = one["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= own.items()


def test_two_releases_select_different_pods(render):
    one, other = workloads(render(release="one")), workloads(render(release="other"))
    for mine, theirs in itertools.product(one, other):
        selector, labels = mine["spec"]["selector"]["matchLabels"], theirs["spec"]["template"]["metadata"]["labels"]
        assert not selector.items() <= labels.items()


def test_the_extender_is_the_leader_and_the_webhook_is_every_replica(render):
    objects = render()
    pods = named(objects, "Deployment", "cardwise-scheduler")["spec"]["template"]["metadata"]["labels"]
    assert named(objects, "Service", "cardwise-webhook")["spec"]["selector"] == pods
    assert named(objects, "Service", "cardwise-extender")["spec"]["selector"] == {**pods, "cardwise.dev/leads": "true"}


def test_every_container_is_sized(render):
    for name, _, container in containers(render()):
        where = f"{name}/{container['name']}"
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}, where
        assert "memory" in container["resources"]["limits"], where


def test_every_container_but_the_agents_is_confined(render):
    for name, spec, container in containers(render({"agent.enabled": False})):
        where = f"{name}/{container['name']}"
        assert spec["securityContext"]["runAsNonRoot"], where
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, where


def test_the_scheduler_reads_its_settings(render):
    objects = render({"scheduler.policy": {"best-effort": "fgd"}})
    text = named(objects, "ConfigMap", "cardwise-scheduler")["data"]["scheduler.toml"]
    settings = msgspec.convert(tomllib.loads(text), Settings)
    assert settings.namespace == NAMESPACE
    assert settings.policy == {"latency-sensitive": "balanced", "best-effort": "fgd"}
    (container,) = [each for _, _, each in containers(objects) if each["name"] == "scheduler"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"extender": settings.port, "webhook": settings.webhook_port}
    folder = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}["tls"]
    assert {settings.tls_cert_file, settings.tls_key_file} == {f"{folder}/tls.crt", f"{folder}/tls.key"}


def test_a_policy_file_is_found_under_its_name(render, tmp_path):
    ours = policy_file_text("dense", {"room": 9.0}, ["tuned on our own history"])
    files, policy = {"ours": ours, "scheduler": ours}, {"best-effort": "ours", "latency-sensitive": "fgd"}
    objects = render({"scheduler.policyFiles": files, "scheduler.policy": policy})
    data = named(objects, "ConfigMap", "cardwise-scheduler")["data"]
    (container,) = [each for _, _, each in containers(objects) if each["name"] == "scheduler"]
    for mount in container["volumeMounts"]:  # as the kubelet would
        if mount["name"] == "config":
            (here := tmp_path / mount["mountPath"].removeprefix("/etc/cardwise/")).parent.mkdir(exist_ok=True)
            here.write_text(data[mount["subPath"]].replace("/etc/cardwise/policies", f"{tmp_path}/policies"))
    settings = read_settings(tmp_path / "scheduler.toml")
    assert settings.policy["latency-sensitive"] == "fgd"
    chosen = choose_policy(settings.policy["best-effort"])
    assert (chosen.name, chosen.label, chosen.weights) == ("dense", "ours", {"room": 9.0})


def test_a_changed_policy_file_replaces_the_pods(render):
    stamps = set()
    for weight in (1.0, 2.0):
        objects = render({"scheduler.policyFiles": {"ours": policy_file_text("dense", {"room": weight})}})
        made = named(objects, "Deployment", "cardwise-scheduler")["spec"]["template"]["metadata"]["annotations"]
        stamps.add(made["checksum/config"])
    assert len(stamps) == 2


@pytest.mark.parametrize(
    ("values", "selected"),
    [
        ({}, {"admit.cardwise.dev": None, "whole-cards.cardwise.dev": {"cardwise.dev/whole-cards": "true"}}),
        ({"webhook.wholeCards": "all"}, {"admit.cardwise.dev": None, "whole-cards.cardwise.dev": None}),
        ({"webhook.wholeCards": "none"}, {"admit.cardwise.dev": None}),
    ],
    ids=["by default", "all", "none"],
)
def test_pods_that_ask_for_whole_cards_only_are_sent_from_labelled_namespaces_unless_told_otherwise(
    render, values, selected
):
    made = webhooks(render({**values, "webhook.excludedNamespaces": ["apart"]}))
    assert {name: each["namespaceSelector"].get("matchLabels") for name, each in made.items()} == selected
    for each in made.values():
        (left_out,) = each["namespaceSelector"]["matchExpressions"]
        assert left_out["values"] == ["kube-system", NAMESPACE, "apart"]
        assert each["failurePolicy"] == "Fail"


def test_kube_scheduler_asks_about_every_name_that_the_webhook_writes(render):
    (extender,) = kube_scheduler_config(render())["extenders"]
    managed = {each["name"]: each["ignoredByScheduler"] for each in extender["managedResources"]}
    assert managed == {wire.OWN_COUNT: False, wire.OWN_MEMORY: True, wire.OWN_CORES: True, wire.OWN_MEMORY_PCT: True}
    assert not extender["ignorable"]


def test_the_parts_name_each_other_alike(render):
    objects = render()
    config = kube_scheduler_config(objects)
    assert [each["schedulerName"] for each in config["profiles"]] == [wire.SCHEDULER_NAME]
    assert config["extenders"][0]["urlPrefix"] == f"https://cardwise-extender.{NAMESPACE}.svc:10260"
    policies = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicy"]
    bound = [each["spec"]["policyName"] for each in objects if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert sorted(bound) == sorted(each["metadata"]["name"] for each in policies)
    words = yaml.safe_dump([each["spec"] for each in policies])
    for name in (wire.ANNOTATION_ALLOC, wire.LABEL_BOUND, wire.ANNOTATION_CARDS, wire.ANNOTATION_LOAD):
        assert name in words


def test_one_certificate_serves_all_who_need_it(render, tmp_path):
    objects = render()
    data = named(objects, "Secret", "cardwise-tls")["data"]
    assert {each["clientConfig"]["caBundle"] for each in webhooks(objects).values()} == {data["ca.crt"]}
    served = [each for each in workloads(objects) if each["kind"] == "Deployment"]
    checksums = {each["spec"]["template"]["metadata"]["annotations"]["checksum/tls"] for each in served}
    assert len(checksums) == 1
    for name, value in data.items():
        (tmp_path / name).write_bytes(msgspec.convert(value, bytes, strict=False))
    for service in ("cardwise-extender", "cardwise-webhook"):
        handshake(tmp_path, f"{service}.{NAMESPACE}.svc")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, "other.example.test")


def handshake(folder, host):
    """Both ends of a TLS connection in memory: fails unless the certificate is for the host and of the CA."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(folder / "ca.crt")
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].cipher()
    assert ends[0].getpeercert()


def test_cert_manager_fills_in_what_the_chart_leaves_out(render):
    objects = render({"tls.mode": "cert-manager"})
    webhook = named(objects, "MutatingWebhookConfiguration", "cardwise")
    assert webhook["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/cardwise-tls"}
    assert not [each for each in webhook["webhooks"] if "caBundle" in each["clientConfig"]]
    assert not [each for each in objects if each["kind"] == "Secret"]
    certificate = named(objects, "Certificate", "cardwise-tls")["spec"]
    assert f"cardwise-extender.{NAMESPACE}.svc" in certificate["dnsNames"]
    assert certificate["issuerRef"]["name"] == "cardwise-ca"

    issuer = {"name": "corp", "kind": "ClusterIssuer"}
    own = render({"tls.mode": "cert-manager", "tls.certManager.issuerRef": issuer})
    certificates = {each["metadata"]["name"] for each in own if each["kind"] == "Certificate"}
    assert certificates == {"cardwise-tls", "cardwise-client-tls"}
    assert named(own, "Certificate", "cardwise-tls")["spec"]["issuerRef"] == issuer
