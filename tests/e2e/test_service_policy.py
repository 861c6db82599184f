"""ServicePolicies on a real API server: what it takes, and what the controller does by them, killed and started again.

The hours of the day are an argument of the loop, so most of it runs in this process, with the chart's rights and a
clock that the test moves; the program itself runs beside it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from cardwise.adapters import wire
from cardwise.adapters.kube.client import connect
from cardwise.adapters.policies import FIELD_MANAGER, Policies
from cardwise.controller.forecasting import Forecasting
from cardwise.controller.scaling import Scaling
from tests.controlplane.cluster import ApiError
from tests.e2e.cardwise_plane import Program, wait_for
from tests.ports import free_ports

pytestmark = pytest.mark.controlplane

DEFINITION = Path(__file__).parents[2] / "charts" / "cardwise" / "files" / "servicepolicies.yaml"
RULES = [
    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": ["cardwise.dev"], "resources": ["servicepolicies"], "verbs": ["list"]},
    {"apiGroups": ["cardwise.dev"], "resources": ["servicepolicies/status"], "verbs": ["patch"]},
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get"]},
    {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["patch"]},
    {"apiGroups": ["autoscaling"], "resources": ["horizontalpodautoscalers"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "patch"]},
]
"""As the chart's ClusterRole has them, see tests/charts/test_controller.py."""
API = "/apis/cardwise.dev/v1alpha1/namespaces"
DAY = {"name": "day", "timezone": "Europe/Berlin", "begin": "08:00", "end": "20:00", "replicas": {"min": 5, "max": 10}}
SPEC = {"scaleTargetRef": {"name": "vllm"}, "replicas": {"min": 2, "max": 10}}
MORNING = datetime(2026, 6, 1, 4, 0, tzinfo=UTC)
USER = "scaling-controller"


@pytest.fixture(scope="module")
def plane(control_plane):
    """The API server that knows ServicePolicies, and an account with the chart's rights."""
    control_plane.kubectl("apply", "--server-side", "-f", str(DEFINITION))
    wait_for(lambda: control_plane.answer("GET", "/apis/cardwise.dev/v1alpha1/servicepolicies")[0] == 200)
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    control_plane.api("POST", f"{rbac}/clusterroles", {"metadata": {"name": USER}, "rules": RULES})
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}
    control_plane.api(
        "POST", f"{rbac}/clusterrolebindings", {"metadata": {"name": USER}, "roleRef": ref, "subjects": [subject]}
    )
    yield control_plane
    for kind in ("clusterrolebindings", "clusterroles"):
        control_plane.api("DELETE", f"{rbac}/{kind}/{USER}")
    control_plane.kubectl("delete", "-f", str(DEFINITION))


class Space:
    """A namespace with a Deployment "vllm", and the loop on it. now_s, utc: clocks that a test moves."""

    def __init__(self, plane, kubeconfig):
        self.plane, self.kubeconfig = plane, kubeconfig
        self.name = plane.namespace(f"policies-{time.monotonic_ns()}")
        self.now_s, self.utc = 1000.0, MORNING
        self.deploy()

    def deploy(self, replicas=2):
        app = {"app": "vllm"}
        pod = {"metadata": {"labels": app}, "spec": {"containers": [{"name": "a", "image": "none"}]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": app}, "template": pod}
        self.plane.api("POST", self.path("deployments"), {"metadata": {"name": "vllm"}, "spec": spec})

    def path(self, kind, name=""):
        group = {"deployments": "/apis/apps/v1", "services": "/api/v1", "events": "/api/v1", "pods": "/api/v1"}.get(
            kind
        )
        base = API if group is None else f"{group}/namespaces"
        return f"{base}/{self.name}/{kind}{'/' if name else ''}{name}"

    def put_policy(self, name="chat", **spec):
        body = {"apiVersion": "cardwise.dev/v1alpha1", "kind": "ServicePolicy", "metadata": {"name": name}}
        return self.plane.api("POST", self.path("servicepolicies"), {**body, "spec": {**SPEC, **spec}})

    def change_policy(self, name="chat", **spec):
        path = self.path("servicepolicies", name)
        self.plane.api("PATCH", path, {"spec": spec}, content_type="application/merge-patch+json")

    def policy(self, name="chat"):
        return self.plane.api("GET", self.path("servicepolicies", name))

    def deployment(self):
        return self.plane.api("GET", self.path("deployments", "vllm"))

    @property
    def replicas(self):
        return self.deployment()["spec"]["replicas"]

    def condition(self, kind):
        (found,) = [each for each in self.policy()["status"]["conditions"] if each["type"] == kind]
        return found["status"], found["reason"]

    def events(self):
        return [each["reason"] for each in self.plane.api("GET", self.path("events"))["items"]]

    def scale_by_hand(self, replicas):
        self.plane.kubectl("scale", "deployment", "vllm", f"--replicas={replicas}", "-n", self.name)

    @contextlib.asynccontextmanager
    async def loop(self):
        """A new process's loop, as far as it remembers."""
        async with connect(self.kubeconfig) as client:
            forecasting = Forecasting(None, lambda: self.now_s, None)
            yield Scaling(
                client,
                Policies(client),
                None,
                forecasting,
                lambda: self.now_s,
                lambda: True,
                lambda: self.utc,
            )

    async def turn(self, loop, *, minutes=0.0):
        self.now_s += minutes * 60
        self.utc += timedelta(minutes=minutes)
        await loop.turn()

    def drop(self):
        for kind in ("servicepolicies", "deployments", "services", "pods"):
            self.plane.api("DELETE", self.path(kind), {"gracePeriodSeconds": 0})


@pytest.fixture
def space(plane):
    made = Space(plane, plane.user_kubeconfig(USER))
    yield made
    made.drop()


# ---------------------------------------------------------------- what the API server takes


def test_a_whole_policy_is_taken_with_its_defaults(space):
    window = {**DAY, "days": ["mon", "fri"], "gateway": {"maxBatch": 32}}
    cron = {
        "name": "night",
        "timezone": "UTC",
        "startCron": "0 22 * * *",
        "endCron": "0 6 * * *",
        "replicas": {"min": 2},
    }
    load = {"query": "sum(rate(x[1m]))", "perReplica": 12.5, "p99Query": "p99", "forecast": {}}
    made = space.put_policy(
        targetP99Ms=300,
        twoNodes=True,
        windows=[window, cron],
        load=load,
        scaling={},
        gateway={"service": "vllm", "maxBatch": 8, "maxWaitMs": 2.5, "depth": 24},
        preemptible=True,
    )["spec"]
    assert made["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm"}
    assert made["load"]["forecast"] == {"historyDays": 28, "horizonMinutes": 60}
    assert made["scaling"] == {"stepUp": 4, "stepDown": 2, "coolDownSeconds": 300}


NIGHT = {"name": "night", "timezone": "UTC", "startCron": "0 1 * * *", "endCron": "0 2 * * *", "replicas": {"min": 2}}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"replicas": {"min": 5, "max": 4}}, "max must be at least min"),
        ({"replicas": {"min": 0}}, "greater than or equal to 1"),
        ({"twoNodes": True, "replicas": {"min": 1}}, "twoNodes needs min of at least 2"),
        ({"twoNodes": True, "windows": [{**DAY, "replicas": {"min": 1}}]}, "in every window too"),
        (
            {"windows": [{**DAY, "startCron": "0 8 * * *", "endCron": "0 9 * * *"}]},
            "either begin and end, or startCron",
        ),
        ({"windows": [{**NIGHT, "endCron": None}]}, "either begin and end, or startCron"),
        ({"windows": [{**NIGHT, "days": ["mon"]}]}, "a cron expression has days of its own"),
        ({"windows": [{**DAY, "end": "08:00"}]}, "00:00 to 24:00 is the whole day"),
        ({"windows": [{**DAY, "end": "25:00"}]}, "should match"),
        ({"windows": [{**DAY, "days": ["Mon"]}]}, "Unsupported value"),
        ({"windows": [{**DAY, "timezone": ""}]}, "timezone"),
        ({"windows": [{**DAY, "timezone": None}]}, "timezone: Required"),
        ({"windows": [{**DAY, "replicas": None}]}, "a window sets replicas, gateway, or both"),
        ({"windows": [DAY, DAY]}, "Duplicate value"),
        ({"windows": [{**DAY, "gateway": {"depth": 3}}]}, "must also stand in spec.gateway"),
        (
            {"windows": [{**DAY, "gateway": {"depth": 3}}], "gateway": {"service": "s", "maxBatch": 1}},
            "must also stand in spec.gateway",
        ),
        ({"load": {"query": "x"}}, "perReplica: Required"),
        ({"load": {"query": "up", "perReplica": 0}}, "perReplica"),
        ({"targetP99Ms": 0}, "targetP99Ms"),
        ({"load": {"query": "x", "perReplica": 1, "p99Query": "p99"}}, "p99Query needs targetP99Ms"),
        ({"scaleTargetRef": {"name": "x", "kind": "Pod"}}, "Unsupported value"),
        ({"scaleTargetRef": {"name": "../x"}}, "should match"),
        ({"nonsense": 1}, 'unknown field "spec.nonsense"'),
    ],
    ids=lambda each: each[:40] if isinstance(each, str) else "",
)
def test_a_policy_that_contradicts_itself_is_refused_in_words(plane, spec, said):
    told = {"apiVersion": "cardwise.dev/v1alpha1", "kind": "ServicePolicy", "metadata": {"name": "wrong"}}
    told["spec"] = _without_none({**SPEC, **spec})
    path = f"{API}/default/servicepolicies?fieldValidation=Strict&dryRun=All"
    with pytest.raises(ApiError, match=re.escape(said)):
        plane.api("POST", path, told)


def _without_none(value):
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, list) else value


def test_its_columns_say_what_holds(space):
    space.put_policy(windows=[DAY])
    asyncio.run(_one_turn(space, minutes=240))
    head, line = space.plane.kubectl("get", "svcpol", "-n", space.name).splitlines()
    assert head.split() == ["NAME", "TARGET", "WINDOW", "MIN", "MAX", "REPLICAS", "WANTED", "WHY", "READY", "AGE"]
    assert line.split()[:9] == ["chat", "vllm", "day", "5", "10", "5", "5", "Schedule", "True"]


async def _one_turn(space, *, minutes):
    async with space.loop() as loop:
        await space.turn(loop, minutes=minutes)


# ---------------------------------------------------------------- scaling


async def test_the_hours_of_the_day_scale_a_deployment(space):
    space.put_policy(windows=[DAY], scaling={"stepDown": 3})
    async with space.loop() as loop:
        await space.turn(loop)
        assert (space.replicas, space.policy()["status"]["nextChange"]) == (2, "2026-06-01T06:00:00Z")
        await space.turn(loop, minutes=120)
        assert space.replicas == 5
        await space.turn(loop, minutes=12 * 60 - 1)
        for _ in range(8):
            await space.turn(loop, minutes=1)
        assert (space.replicas, space.policy()["status"]["window"]) == (2, "")
    assert space.events() == ["CardwiseScaled"] * 2
    status = space.policy()["status"]
    assert status["observedGeneration"] == 1
    assert {each["type"]: each["status"] for each in status["conditions"]} == {
        "Ready": "True",
        "ScalingAllowed": "True",
        "ScalingLimited": "False",
    }


async def test_the_api_server_knows_that_the_number_is_ours(space):
    space.put_policy(windows=[DAY])
    async with space.loop() as loop:
        await space.turn(loop, minutes=240)
        assert (await loop.policies.target(space.name, "vllm")).writer == FIELD_MANAGER


async def test_whoever_scales_by_hand_is_left_alone_for_an_hour(space):
    space.put_policy(windows=[DAY])
    async with space.loop() as loop:
        await space.turn(loop, minutes=240)
        space.scale_by_hand(3)
        await space.turn(loop)
        assert space.condition("ScalingAllowed") == ("False", "OtherWriter")
    async with space.loop() as restarted:
        await space.turn(restarted, minutes=58)
        assert space.replicas == 3
        await space.turn(restarted, minutes=3)
        assert space.replicas == 5
        assert space.condition("ScalingAllowed") == ("True", "OnlyWriter")
    assert space.events().count("CardwiseOtherWriter") == 1


async def test_a_manifest_that_is_applied_again_is_another_writer(space):
    space.put_policy(windows=[DAY])
    made = space.deployment()
    kept = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "vllm", "namespace": space.name}}
    manifest = yaml.safe_dump({**kept, "spec": {**made["spec"], "replicas": 2}})
    async with space.loop() as loop:
        await space.turn(loop, minutes=240)
        flags = ("--server-side", "--force-conflicts", "--field-manager=gitops")
        space.plane.kubectl("apply", *flags, "-f", "-", stdin=manifest)
        await space.turn(loop)
        assert (space.replicas, space.policy()["status"]["handsOffBy"]) == (2, "gitops")
        space.change_policy(scaling={"stepUp": 5})
        await space.turn(loop)
        assert space.replicas == 5


async def test_an_autoscaler_keeps_the_number(space):
    space.put_policy(windows=[DAY])
    space.plane.kubectl("autoscale", "deployment", "vllm", "--min=1", "--max=4", "-n", space.name)
    async with space.loop() as loop:
        await space.turn(loop, minutes=240)
        assert space.replicas == 2
        assert space.condition("ScalingAllowed") == ("False", "HorizontalPodAutoscaler")
        space.plane.kubectl("delete", "hpa", "vllm", "-n", space.name)
        await space.turn(loop)
        assert space.replicas == 5


async def test_a_deployment_that_is_deleted_and_made_again_is_taken_up_anew(space):
    space.put_policy(windows=[DAY])
    async with space.loop() as loop:
        await space.turn(loop, minutes=240)
        space.plane.api("DELETE", space.path("deployments", "vllm"))
        wait_for(lambda: space.plane.answer("GET", space.path("deployments", "vllm"))[0] == 404)
        await space.turn(loop)
        assert space.condition("Ready") == ("False", "TargetNotFound")
        space.deploy(replicas=1)
        await space.turn(loop)
        assert (space.replicas, space.condition("Ready")) == (5, ("True", "Applied"))


async def test_a_policy_that_is_deleted_in_the_middle_of_a_turn_is_no_trouble(space):
    space.put_policy(windows=[DAY])
    async with space.loop() as loop:
        read = loop.policies.target

        async def late(*place):
            space.plane.api("DELETE", space.path("servicepolicies", "chat"))
            return await read(*place)

        loop.policies.target = late
        await space.turn(loop, minutes=240)
        assert space.plane.api("GET", space.path("servicepolicies"))["items"] == []


async def test_a_deployment_that_changed_meanwhile_is_decided_on_anew(space):
    space.put_policy(windows=[DAY])
    async with space.loop() as loop:
        read = loop.policies.target

        async def late(*place):
            found = await read(*place)
            space.scale_by_hand(4)
            return found

        loop.policies.target = late
        await space.turn(loop, minutes=240)
        assert space.replicas == 4
        loop.policies.target = read
        await space.turn(loop)
        assert space.replicas == 5


async def test_a_gateways_service_has_the_numbers_of_the_hour_and_keeps_its_others(space):
    own = {wire.ANNOTATION_GATEWAY: "main", "example.test/mine": "1"}
    body = {"metadata": {"name": "vllm", "annotations": own}, "spec": {"ports": [{"port": 80}]}}
    space.plane.api("POST", space.path("services"), body)
    gateway = {"service": "vllm", "maxBatch": 8, "maxWaitMs": 4.5}
    space.put_policy(windows=[{**DAY, "gateway": {"maxBatch": 2}}], gateway=gateway)
    async with space.loop() as loop:
        for minutes, batch in ((0, "8"), (240, "2"), (12 * 60, "8")):
            await space.turn(loop, minutes=minutes)
            told = space.plane.api("GET", space.path("services", "vllm"))["metadata"]["annotations"]
            assert told == {
                **own,
                "cardwise.dev/gateway-max-batch": batch,
                "cardwise.dev/gateway-max-wait-ms": "4.5",
            }
        assert space.condition("GatewayApplied") == ("True", "Applied")


async def test_a_cron_expression_that_is_none_is_told_where_it_stands(space):
    space.put_policy(windows=[{**NIGHT, "startCron": "0 99 * * *"}])
    async with space.loop() as loop:
        await space.turn(loop)
    (said,) = space.policy()["status"]["conditions"]
    assert (said["reason"], said["status"]) == ("InvalidSpec", "False")
    assert said["message"].startswith("spec.windows[0]: start '0 99 * * *' is no cron expression: Bad hour")


async def test_whether_its_replicas_are_on_two_nodes_is_seen(space):
    space.put_policy(twoNodes=True)
    node = f"node-{space.name}"
    space.plane.fake_node(node)
    for i in range(2):
        spec = {"nodeName": node, "containers": [{"name": "a", "image": "none"}]}
        name = f"p{i}"
        space.plane.api(
            "POST", space.path("pods"), {"metadata": {"name": name, "labels": {"app": "vllm"}}, "spec": spec}
        )
        ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        path = f"{space.path('pods', name)}/status"
        space.plane.api("PATCH", path, ready, content_type="application/strategic-merge-patch+json")
    async with space.loop() as loop:
        await space.turn(loop)
    assert space.condition("OnTwoNodes") == ("False", "NotSpread")


# ---------------------------------------------------------------- the program


class Process(Program):
    """``cardwise controller``, as administrator: its other loops need more rights than these tests give."""

    def __init__(self, folder, kubeconfig):
        (self.port,) = free_ports(1)
        settings = folder / "controller.toml"
        settings.write_text(
            f'namespace = "default"\nlease = "e2e-{self.port}"\nhost = "127.0.0.1"\nport = {self.port}\n'
        )
        command = [
            *(sys.executable, "-m", "cardwise", "controller"),
            *("--config", str(settings), "--kubeconfig", str(kubeconfig), "--identity", "e2e"),
        ]
        super().__init__(command, folder / "controller.log")
        self.start()

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(30)

    def page(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""


def test_the_program_scales_is_killed_and_repeats_nothing(plane, space, tmp_path):
    always = {**DAY, "begin": "00:00", "end": "24:00"}
    space.put_policy(windows=[always])
    running = Process(tmp_path, plane.kubeconfig)
    try:
        wait_for(lambda: space.replicas == 5, 60)
        wait_for(lambda: running.page("/readyz")[0] == 200)
        assert running.page("/healthz") == (200, "ok\n")
        metrics = running.page("/metrics")[1]
        assert "cardwise_controller_leader 1.0" in metrics
        assert f'cardwise_scaling_wanted_replicas{{namespace="{space.name}",policy="chat"}} 5.0' in metrics
        before = wait_for(lambda: space.policy().get("status"))
        running.end(signal.SIGKILL)
        running.start()
        wait_for(lambda: running.page("/readyz")[0] == 200)
        space.scale_by_hand(1)
        wait_for(lambda: space.condition("ScalingAllowed") == ("False", "OtherWriter"), 60)
        assert space.policy()["status"]["lastScaleTime"] == before["lastScaleTime"]
        assert sorted(space.events()) == ["CardwiseOtherWriter", "CardwiseScaled"]
        assert running.end() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.process.kill()
        running.process.wait()


def test_settings_that_are_wrong_end_it_with_the_key_and_no_traceback(tmp_path):
    settings = tmp_path / "controller.toml"
    settings.write_text("[scaling]\nenable = true\n")
    command = [sys.executable, "-m", "cardwise", "controller", "--config", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {settings}: scaling.enable: is no key; write enabled\n"
