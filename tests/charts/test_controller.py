"""The controller of the chart: none by default; it reads its settings; a loop that is off has no rights."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import urllib.request

import pytest
import yaml

from cardwise.config import policy_file_text
from cardwise.controller.settings import read_settings
from tests.charts.conftest import IMAGE, NAMESPACE, wait_for
from tests.charts.helm import CHART, HelmError, helm, set_flags
from tests.charts.test_rendering import named, workloads
from tests.e2e.test_service_policy import RULES
from tests.ports import free_ports

pytestmark = pytest.mark.controlplane

ON = {"controller.enabled": True}
NAME = "cardwise-controller"
TYPE = {"apiVersion": "cardwise.dev/v1alpha1", "kind": "ServicePolicy"}


def rights(rules):
    """What these rules allow, as (group, resource, verb)."""
    return {
        (group, resource, verb)
        for rule in rules
        for group, resource, verb in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def rules(objects):
    """All that the account may do in the cluster."""
    return rights(named(objects, "ClusterRole", NAME)["rules"])


def settings_of(objects, tmp_path):
    path = tmp_path / "controller.toml"
    path.write_text(
        named(objects, "ConfigMap", NAME)["data"]["controller.toml"].replace("/etc/cardwise", str(tmp_path))
    )
    return read_settings(path)


def test_there_is_none_by_default(render):
    objects = render()
    assert [each for each in objects if NAME in each["metadata"]["name"]] == []
    assert [each for each in objects if each["kind"] == "CustomResourceDefinition"] == []


def test_lint_finds_nothing(helm_home):
    helm("lint", "--strict", CHART, *set_flags({**IMAGE, **ON}), home=helm_home)


def test_it_reads_its_settings(render, tmp_path):
    told = {
        "prometheus": {"url": "http://prometheus:9090"},
        "preemption": {"grace-s": 30},
        "rescue": {"enabled": False},
    }
    objects = render({**ON, "controller.settings": told})
    settings = settings_of(objects, tmp_path)
    assert (settings.namespace, settings.prometheus.url) == (NAMESPACE, "http://prometheus:9090")
    assert (settings.preemption.grace_s, settings.rescue.enabled, settings.prefetch.enabled) == (30, False, True)
    (container,) = named(objects, "Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "metrics", "containerPort": settings.port}]
    (lease,) = [each for each in named(objects, "Role", NAME)["rules"] if "resourceNames" in each]
    assert lease["resourceNames"] == [settings.lease]


def test_it_places_by_the_schedulers_policies(render, tmp_path):
    files, policy = {"ours": policy_file_text("dense", {"room": 9.0})}, {"best-effort": "ours"}
    objects = render({**ON, "scheduler.policyFiles": files, "scheduler.policy": policy})
    (container,) = named(objects, "Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    data = named(objects, "ConfigMap", NAME)["data"]
    for mount in container["volumeMounts"]:  # as the kubelet would
        if mount["name"] == "config":
            (here := tmp_path / mount["mountPath"].removeprefix("/etc/cardwise/")).parent.mkdir(exist_ok=True)
            here.write_text(data[mount["subPath"]])
    assert settings_of(objects, tmp_path).policy["best-effort"] == f"{tmp_path}/policies/ours.toml"


def test_a_quota_file_is_found_where_the_settings_say(render, tmp_path):
    objects = render({**ON, "controller.quotaFile": "cohort = 'x'\n"})
    (container,) = named(objects, "Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    paths = [each["mountPath"] for each in container["volumeMounts"]]
    assert settings_of(objects, tmp_path).quota.file.replace(str(tmp_path), "/etc/cardwise") in paths
    assert ("kueue.x-k8s.io", "clusterqueues", "patch") in rules(objects)


def test_changed_settings_replace_the_pods(render):
    stamps = {
        named(render({**ON, "controller.settings.preemption.grace-s": grace}), "Deployment", NAME)["spec"]["template"][
            "metadata"
        ]["annotations"]["checksum/config"]
        for grace in (30, 40)
    }
    assert len(stamps) == 2


def test_no_two_workloads_select_the_same_pods(render):
    """Case C31."""
    objects = render({**ON, "gateways": {"chat": {"settings": {"services": [{"name": "a", "kind": "pass"}]}}}})
    for one, other in itertools.permutations(workloads(objects), 2):
        selector, labels = one["spec"]["selector"]["matchLabels"], other["spec"]["template"]["metadata"]["labels"]
        assert not selector.items() <= labels.items(), (one["metadata"]["name"], other["metadata"]["name"])


def test_it_is_confined_and_sized(render):
    spec = named(render(ON), "Deployment", NAME)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert "memory" in container["resources"]["limits"]


def test_its_rights_suffice_for_service_policies(render):
    """The rules under which tests/e2e/test_service_policy.py scales."""
    assert rights(RULES) <= rules(render(ON))


@pytest.mark.parametrize(
    ("loop", "right"),
    [
        ("scaling", ("apps", "deployments/scale", "patch")),
        ("scaling", ("", "services", "patch")),
        ("rescue", ("", "nodes/status", "patch")),
        ("prefetch", ("", "pods", "create")),
    ],
)
def test_a_loop_that_is_off_has_no_rights(render, loop, right):
    assert right in rules(render(ON))
    assert right not in rules(render({**ON, f"controller.settings.{loop}.enabled": False}))


@pytest.mark.parametrize(
    ("off", "may"),
    [(["preemption"], True), (["preemption", "consolidation"], False), (["preemption", "rescue"], False)],
)
def test_who_waits_is_written_on_for_evictions_and_for_moves(render, off, may):
    told = {f"controller.settings.{loop}.enabled": False for loop in off}
    assert (("", "pods/status", "patch") in rules(render({**ON, **told}))) is may


def test_with_all_loops_off_it_only_looks(render):
    loops = ("scaling", "preemption", "consolidation", "rescue", "prefetch")
    off = {f"controller.settings.{loop}.enabled": False for loop in loops}
    assert {verb for _, resource, verb in rules(render({**ON, **off})) if resource != "events"} == {
        "get",
        "list",
        "watch",
    }


@pytest.mark.parametrize(
    "values",
    [
        {"controller.settings.nonsense.a": 1},
        {"controller.settings.scaling.enabled": "yes"},
        {"controller.settings.prometheus.url": "prometheus:9090"},
    ],
    ids=str,
)
def test_values_that_mean_nothing_are_refused(render, values):
    with pytest.raises(HelmError, match=r"schema|specifications"):
        render({**ON, **values})


def test_who_may_edit_a_namespace_may_write_its_policies(render):
    edit = named(render(ON), "ClusterRole", "cardwise-servicepolicies-edit")
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert "create" in edit["rules"][0]["verbs"]
    view = named(render(ON), "ClusterRole", "cardwise-servicepolicies-view")
    assert view["rules"][0]["verbs"] == ["get", "list", "watch"]


def page(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return ""


@pytest.fixture(scope="module")
def installed(release, render):
    """The controller's objects on the cluster of the release."""
    made = [
        each for each in render(ON) if "controller" in str(each["metadata"]) or "servicepolic" in str(each["metadata"])
    ]
    release.plane.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(made))
    yield release
    release.plane.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(made))
    release.plane.kubectl("delete", "lease", "cardwise-controller", "-n", NAMESPACE, "--ignore-not-found")


def refusals(log):
    """What a log tells of rights that are missing; its times may well have a 403 among their digits."""
    lines = log.read_text().splitlines()
    told = [json.dumps({**json.loads(line), "timestamp": ""}) if line.startswith("{") else line for line in lines]
    return [line for line in told if re.search(r"\b403\b|forbidden", line, re.IGNORECASE)]


def test_a_refusal_is_found_in_a_log_and_a_time_with_its_digits_is_none(tmp_path):
    log, moment = tmp_path / "log", '"timestamp": "2026-11-30T19:00:44.403230Z"'
    log.write_text(f'{{"event": "stopped", {moment}}}\n{{"pod": "space-6112403014/a", {moment}}}\n')
    assert refusals(log) == []
    log.write_text(f'{{"event": "failed", "why": "GET /api/v1/pods: 403: pods is denied", {moment}}}\n')
    assert len(refusals(log)) == 1
    log.write_text("ClusterError: pods is Forbidden\n")
    assert len(refusals(log)) == 1


def test_the_program_has_all_the_rights_that_it_needs(installed, tmp_path):
    plane, log = installed.plane, tmp_path / "log"
    (port,) = free_ports(1)
    settings = tmp_path / "controller.toml"
    settings.write_text(f'namespace = "{NAMESPACE}"\nhost = "127.0.0.1"\nport = {port}\n')
    wait_for(lambda: plane.answer("GET", "/apis/cardwise.dev/v1alpha1/servicepolicies")[0] == 200)
    spec = {"scaleTargetRef": {"name": "none"}, "replicas": {"min": 1}}
    path = "/apis/cardwise.dev/v1alpha1/namespaces/default/servicepolicies"
    plane.api("POST", path, {**TYPE, "metadata": {"name": "chat"}, "spec": spec})
    account = installed.account(f"system:serviceaccount:{NAMESPACE}:cardwise-controller")
    command = [*(sys.executable, "-m", "cardwise", "controller"), *("--config", settings, "--kubeconfig", account)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        said = wait_for(lambda: plane.api("GET", f"{path}/chat").get("status"), 60)
        wait_for(lambda: "cardwise_prefetch_wishes{" in page(port), 60)  # the slowest of its loops has looked
        assert said["conditions"][0]["reason"] == "TargetNotFound"
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(30)
    assert refusals(log) == []


def test_its_pods_meet_the_restricted_standard(installed, render):
    plane = installed.plane
    space = plane.namespace("restricted-controller")
    plane.kubectl("label", "namespace", space, "pod-security.kubernetes.io/enforce=restricted")
    plane.kubectl("create", "serviceaccount", "cardwise-controller", "-n", space)
    template = named(render(ON), "Deployment", NAME)["spec"]["template"]
    template["metadata"]["name"] = "c"
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    plane.kubectl("create", "--dry-run=server", "-n", space, "-f", "-", stdin=yaml.safe_dump(pod))


def test_the_definition_stays_when_the_release_goes(render):
    made = named(render(ON), "CustomResourceDefinition", "servicepolicies.cardwise.dev")
    assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert made == yaml.safe_load((CHART / "files" / "servicepolicies.yaml").read_text())
