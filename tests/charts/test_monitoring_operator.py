"""What the chart installs for the Prometheus Operator, through the real operator to a real Prometheus.

The values are those of docs/howto/monitoring.md, the Prometheus selects as kube-prometheus-stack's does. Operator and
Prometheus must be built (``CARDWISE_TEST_OPERATOR=1``, :mod:`tests.charts.operator_build`); skipped, with the reason,
where they are not.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import re
import shlex
import subprocess

import httpx2
import pytest
import yaml

from tests.agent.node_port import NODE
from tests.charts import operator_build
from tests.charts.conftest import IMAGE, NAMESPACE, Release, wait_for
from tests.charts.helm import CHART, set_flags
from tests.charts.operator_plane import APIS, OperatorPlane, led_by
from tests.charts.operator_world import PORTS, at_work, stand_dead_agent, stand_pod
from tests.charts.test_monitoring import GATEWAY, PROGRAMS
from tests.controlplane.given import given
from tests.dashboards.server import BOARDS, RULES, Server, queries, rules, variable_queries
from tests.e2e.docs_blocks import ROOT, blocks_of, commands_of
from tests.e2e.test_dashboards import EMPTY, OTHERS, none_left
from tests.ports import LOOPBACK
from tests.prometheus import prometheus_beside

pytestmark = pytest.mark.controlplane
PAGE, SECTION = "docs/howto/monitoring.md", "With the Prometheus Operator"
RELEASE, OTHER = ({"matchLabels": {"release": name}} for name in ("kube-prometheus-stack", "mine"))
STACK = {
    "podMonitorSelector": RELEASE,
    "podMonitorNamespaceSelector": {},
    "ruleSelector": RELEASE,
    "ruleNamespaceSelector": {},
    "scrapeInterval": "30s",
    "scrapeTimeout": "10s",  # longer than the interval of our monitors here
    "evaluationInterval": "1s",
}
"""How the Prometheus of kube-prometheus-stack selects; intervals aside, to which :data:`MORE` adds."""
MORE = {**IMAGE, "controller.enabled": True, "gateways": {"chat": GATEWAY}, "monitoring.podMonitors.interval": "1s"}
"""What the page's values leave out: all programs, and a test's patience."""
SCHEDULER_TLS = f"/api/v1/namespaces/{NAMESPACE}/secrets/cardwise-tls"


@pytest.fixture(scope="module")
def release(tmp_path_factory, helm_home):
    """The chart with the page's values, beside the operator at work."""
    if not operator_build.wanted():
        pytest.skip(operator_build.ABSENT)
    if given()[0]:
        pytest.skip("signs certificates for accounts: the cluster of KUBECONFIG has its own authority")
    folder, path = tmp_path_factory.mktemp("operator"), f"{operator_build.programs()}{os.pathsep}{os.environ['PATH']}"
    (folder / "values.yaml").write_text(page_blocks("yaml")[0])
    with pytest.MonkeyPatch.context() as patch, OperatorPlane(folder / "plane") as plane:
        patch.setenv("PATH", path)  # its Prometheus goes before Debian's, which knows no Kubernetes
        made = Release(plane, helm_home)
        plane.start_operator()
        where = ("--namespace", NAMESPACE, "--create-namespace")
        made.helm("install", "cardwise", str(CHART), *where, "-f", str(folder / "values.yaml"), *set_flags(MORE))
        plane.kubectl("create", "serviceaccount", "default", "-n", "kube-system")
        yield made


def page_blocks(language):
    """What the page shows of the operator."""
    blocks = blocks_of((ROOT / PAGE).read_text(), PAGE)
    return [each.text for each in blocks if each.language == language and each.section == SECTION]


@pytest.fixture(scope="module")
def written(release):
    """What the operator makes of it for the Prometheus of kube-prometheus-stack, in another namespace."""
    return release.plane.prometheus("stack", STACK)


def test_every_monitor_becomes_a_job_and_none_is_refused(release, written):
    assert set(written.jobs) == {f"{NAMESPACE}/cardwise-{program}" for program in PROGRAMS}
    assert all(job["honor_labels"] for job in written.jobs.values())
    assert release.plane.refused(NAMESPACE) == {}
    assert release.plane.operator_complaints() == []


def test_every_group_of_rules_arrives_whole(release, written):
    made = release.plane.api("GET", f"{APIS}/namespaces/{NAMESPACE}/prometheusrules")["items"]
    assert written.groups == {group["name"]: group["rules"] for each in made for group in each["spec"]["groups"]}
    assert sum(map(len, written.groups.values())) == len(rules())


def test_promtool_finds_nothing_wrong(release, written, tmp_path):
    settings = tmp_path / "prometheus.yml"
    settings.write_text(written.outside(tmp_path, release.plane.prometheus_kubeconfig()))
    assert "SUCCESS" in promtool("check", "config", settings)
    told = promtool("check", "rules", "--lint=all", "--lint-fatal", *(tmp_path / path[1:] for path in written.rules))
    assert sum(map(int, re.findall(r"(\d+) rules found", told))) == len(rules())


def promtool(*args):
    done = subprocess.run(["promtool", *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ---------------------------------------------------------------- where Prometheus is told otherwise


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("label", {"podMonitorSelector": OTHER, "ruleSelector": OTHER}),
        ("own", {"podMonitorNamespaceSelector": None, "ruleNamespaceSelector": None}),
    ],
    ids=["by another label", "in its own namespace alone"],
)
def test_a_prometheus_that_selects_otherwise_gets_nothing_and_nobody_complains(release, name, other):
    told = release.plane.prometheus(name, {**STACK, **other})
    assert (told.jobs, told.groups) == ({}, {})
    assert release.plane.operator_complaints() == []


def test_an_enforced_namespace_label_is_kept_off_as_the_page_says(release, written):
    enforced = {**STACK, "enforcedNamespaceLabel": "namespace"}
    spoilt = release.plane.prometheus("enforced", enforced)
    written_over = {"target_label": "namespace", "replacement": NAMESPACE}
    assert all(written_over in job["metric_relabel_configs"] for job in spoilt.jobs.values())
    kept_in = f'namespace="{NAMESPACE}"'
    assert all(kept_in in rule["expr"] for group in spoilt.groups.values() for rule in group)
    excepted = release.plane.prometheus("excepted", {**enforced, **yaml.safe_load(page_blocks("yaml")[1])["spec"]})
    assert (excepted.jobs, excepted.groups) == (written.jobs, written.groups)


def test_the_pages_commands_show_what_to_compare(release, written):
    (shown,) = page_blocks("console")
    selects, labels, events, may = (release.plane.kubectl(*shlex.split(each)[1:]) for each in commands_of(shown))
    assert re.search(r"(?m)^stack +(map\[matchLabels:map\[release:kube-prometheus-stack\]\] +map\[\] *){2}$", selects)
    ours = [line for line in labels.splitlines() if ".monitoring.coreos.com/cardwise-" in line]
    assert len(ours) == len(PROGRAMS) + len(RULES)
    assert all("release=kube-prometheus-stack" in line for line in ours)
    assert events == ""
    assert may == "yes\n"


# ---------------------------------------------------------------- a real Prometheus


async def test_targets_come_up_with_the_labels_that_rules_and_dashboards_go_by(release, written, tmp_path):
    """By the operator's settings, and beside them by those that the page has for whoever has no operator."""
    plane = release.plane
    async with at_work(release, tmp_path) as (both, ports):
        pods = {program: stand_pod(plane, program, port) for program, port in ports.items()}
        kubeconfig = plane.prometheus_kubeconfig()
        by_operator = written.outside(tmp_path, kubeconfig)
        async with (
            asked_prometheus(tmp_path / "operator", by_operator) as server,
            asked_prometheus(tmp_path / "hand", by_hand(kubeconfig, tmp_path / "tls" / "ca.crt")) as other,
        ):
            wanted = [labels_of(pod, program, ports[program]) for program, pod in pods.items()]
            assert await none_left(lambda: targets_amiss(server, wanted), both) == []
            assert await none_left(lambda: targets_amiss(other, labels_by_hand(ports)), both) == []
            for each in (server, other):
                assert await none_left(functools.partial(without_data, each), both) == []
                await every_rule_works(each)
                await every_choice_has_values(each)
            dead = stand_dead_agent(plane)
            for each in (server, other):
                assert await none_left(functools.partial(unalerted, each, dead), both) == []


@contextlib.asynccontextmanager
async def asked_prometheus(folder, settings):
    folder.mkdir()
    async with prometheus_beside(folder, settings) as url, httpx2.AsyncClient(base_url=url, timeout=20) as client:
        yield Server(client)


def by_hand(kubeconfig, ca):
    """The page's settings for whoever has no operator. ca: the file that a reader takes from the Secret."""
    blocks = blocks_of((ROOT / PAGE).read_text(), PAGE)
    (shown,) = [each.text for each in blocks if each.text.startswith("scrape_configs")]
    path = "/etc/prometheus/cardwise-ca.crt"
    assert shown.count(path) == 1
    often = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    settings = {"global": often, "rule_files": [*map(str, RULES)], **yaml.safe_load(shown.replace(path, str(ca)))}
    return yaml.safe_dump(led_by(kubeconfig, settings))


def labels_of(pod, program, port):
    """What the rules and dashboards count on; a card's series must not change with the agent's pod."""
    common = {
        "job": f"{NAMESPACE}/cardwise-{program}",
        "instance": f"{LOOPBACK}:{port}",
        "endpoint": PORTS[program],
        "node": NODE,
    }
    if program == "agent":
        return common
    (container,) = [
        each["name"]
        for each in pod["spec"]["containers"]
        if any(one["name"] == PORTS[program] for one in each.get("ports", ()))
    ]
    return {**common, "namespace": NAMESPACE, "pod": pod["metadata"]["name"], "container": container}


def labels_by_hand(ports):
    return [
        {"job": f"cardwise-{program}", "instance": f"{LOOPBACK}:{port}", "node": NODE}
        for program, port in ports.items()
    ]


async def targets_amiss(server, wanted):
    """Targets that are not up, or have other labels than they should; and those that are missing."""
    told = (await server.get("targets", state="active"))["activeTargets"]
    up = [each["labels"] for each in told if each["health"] == "up"]
    worked = {each["metric"]["job"]: each["value"][1] for each in await server.ask("up")}
    missing = [labels for labels in wanted if labels not in up or worked.get(labels["job"]) != "1"]
    return [*missing, *([each["lastError"] or each["labels"] for each in told if each["labels"] not in wanted])]


async def without_data(server):
    """Queries of dashboards and recordings of rules that find nothing, though there is something to be found."""
    empty = (*EMPTY, *OTHERS)
    asked = [each for path in BOARDS for each in queries(path)]
    recorded = [(rule["record"], rule["record"]) for rule in rules() if "record" in rule]
    asked = [each for each in (*asked, *recorded) if not any(name in each[1] for name in empty)]
    return [each for each in asked if not await server.ask(each[1])]


async def every_rule_works(server):
    told = [rule for group in (await server.get("rules"))["groups"] for rule in group["rules"]]
    assert len(told) == len(rules())
    assert [(rule["name"], rule["lastError"]) for rule in told if rule["health"] != "ok"] == []


async def every_choice_has_values(server):
    for path in BOARDS:
        for series, label in variable_queries(path):
            if not any(name in series for name in OTHERS):
                found = await server.ask(series)
                assert found, (path.stem, series)
                assert all(each["metric"].get(label) for each in found), (path.stem, series)


async def unalerted(server, instance):
    alerts = await server.ask(f'ALERTS{{alertname="CardwiseAgentDown",node="{NODE}"}}')
    return [] if [each["metric"]["instance"] for each in alerts] == [instance] else [alerts]


# ---------------------------------------------------------------- last, for the event of a refusal stays a while


def test_the_schedulers_authority_may_come_late_and_be_renewed(release, written):
    """The operator hears of the Secret, and nobody has to touch the monitor."""
    plane, scheduler = release.plane, f"{NAMESPACE}/cardwise-scheduler"
    kept = plane.api("GET", SCHEDULER_TLS)
    plane.api("DELETE", SCHEDULER_TLS)
    try:
        assert "tlsConfig" in wait_for(lambda: plane.refused(NAMESPACE).get("cardwise-scheduler"))
        assert wait_for(lambda: without(written.jobs, scheduler) == plane.written("stack").jobs)
    finally:
        metadata = {key: kept["metadata"][key] for key in ("name", "labels", "annotations")}
        plane.api("POST", SCHEDULER_TLS.rpartition("/")[0], {**kept, "metadata": metadata})
    assert wait_for(lambda: plane.written("stack") == written)
    renewed = plane.ca.read_bytes()
    data = {"data": {"ca.crt": base64.b64encode(renewed).decode()}}
    plane.api("PATCH", SCHEDULER_TLS, data, content_type="application/merge-patch+json")
    assert wait_for(lambda: [*plane.written("stack").assets.values()] == [renewed])


def without(jobs, name):
    return {each: job for each, job in jobs.items() if each != name}
