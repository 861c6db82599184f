"""A live cluster and a live Prometheus, read once: a real client, a server on loopback, the real Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from cardwise.adapters.capture import encode_capture, read_capture
from cardwise.adapters.kube.client import connect
from cardwise.adapters.prometheus import Prometheus
from cardwise.doctor.facts import facts_of
from cardwise.doctor.gathering import gather, paths
from cardwise.doctor.queries import QUERIES, STEP_S, WINDOW_S
from cardwise.doctor.ranking import diagnose
from cardwise.errors import ClusterError
from tests.adapters.test_kube_client import KUBECONFIG
from tests.doctor.faults import FAULTS
from tests.doctor.world import TAKEN, small
from tests.fakes.loopback import served
from tests.ports import deaf_port
from tests.prometheus import prometheus_in, store_history


class Api:
    """An API server that has the items of a world. forbidden: paths that this user may not read.

    created: status and answer for a pod that is created for trial; without it what a webhook would make of it.
    troubles: answers that come before the right ones, by path: status and words.
    """

    def __init__(self, world, taken=TAKEN):
        self.items, self.taken, self.forbidden, self.asked = world.items(), taken, set(), []
        self.created, self.troubles, self.params = None, {}, []

    async def handle(self, request):
        self.asked.append((request.method, request.path))
        date = {"Date": self.taken.strftime("%a, %d %b %Y %H:%M:%S GMT")}
        if request.path == "/version":
            return web.json_response({"major": "1"}, headers=date)
        self.params.append((request.path, dict(request.query)))
        if self.troubles.get(request.path):
            status, told = self.troubles[request.path].pop(0)
            return web.json_response({"kind": "Status", "code": status, "message": told}, status=status, headers=date)
        if request.method == "POST":
            status, told = self.created or (201, await request.json())
            if self.created is None:
                told["spec"]["schedulerName"] = "cardwise"
            return web.json_response(told, status=status, headers=date)
        if request.path in self.forbidden:
            said = {"kind": "Status", "code": 403, "message": "secrets is forbidden"}
            return web.json_response(said, status=403, headers=date)
        kind = next((kind for kind, path, _ in paths("cardwise-system") if path == request.path), None)
        if kind is None or (kind == "Workload" and not self._of("Workload", "")):
            return web.json_response({"kind": "Status", "code": 404, "message": "not found"}, status=404, headers=date)
        namespace = request.path.partition("/namespaces/")[2].partition("/")[0]
        found = self._of(kind, namespace)
        start = int(request.query.get("continue", 0))
        more = str(start + 3) if start + 3 < len(found) else ""  # pages of three, so that there are several
        page = [{key: value for key, value in each.items() if key != "kind"} for each in found[start : start + 3]]
        return web.json_response({"metadata": {"continue": more}, "items": page}, headers=date)

    def _of(self, kind, namespace):
        return [
            each
            for each in self.items
            if each["kind"] == kind and namespace in ("", each["metadata"].get("namespace", "default"))
        ]


@contextlib.asynccontextmanager
async def client_of(api, folder):
    async with served(web.route("*", "/{path:.*}", api.handle)) as port:
        config = folder / "kubeconfig"
        config.write_text(KUBECONFIG.format(server=f"http://127.0.0.1:{port}"))
        async with connect(config) as client:
            yield client


async def test_a_live_cluster_leads_to_the_same_diagnosis_as_its_dump(tmp_path):
    world = small()
    FAULTS["CW203", "8 GiB are free on each of four cards, 12 are asked for"](world)
    world.metrics = {}
    api = Api(world)
    async with client_of(api, tmp_path) as client:
        capture = await gather(client, "cardwise-system", None, datetime.now(UTC))
    live = diagnose(facts_of(capture))
    clock = [each for each in live if each.finding.code == "CW103"]  # this machine's, which is not of 2026-11-30 12:00
    assert [each for each in live if each not in clock] == list(world.diagnose(tmp_path))
    assert [path for method, path in api.asked if method != "GET"] == ["/api/v1/namespaces/default/pods"]
    assert ("/api/v1/namespaces/default/pods", {"dryRun": "All"}) in api.params


@pytest.mark.parametrize("off_s", [-20, 0, 20])
async def test_an_answer_that_is_heard_late_is_no_clock_that_is_off_and_one_that_is_is_seen(
    tmp_path, monkeypatch, off_s
):
    """A busy machine hears of a date seconds after it was true."""
    api = Api(small(), datetime.now(UTC) - timedelta(seconds=off_s))
    async with client_of(api, tmp_path) as client:
        told = client.date

        async def late():
            api.taken = datetime.now(UTC) - timedelta(seconds=off_s)
            date = await told()
            await asyncio.sleep(1.5)
            return date

        monkeypatch.setattr(client, "date", late)
        capture = await gather(client, "cardwise-system", None, datetime.now(UTC))
    assert abs(capture.beside.clock_off_s) <= abs(off_s)
    assert (capture.beside.clock_off_s > 5, capture.beside.clock_off_s < -5) == (off_s > 5, off_s < -5)


async def test_what_may_not_be_read_is_told_and_the_rest_is_looked_at(tmp_path):
    api = Api(small())
    secrets = "/api/v1/namespaces/cardwise-system/secrets"
    api.forbidden = {secrets, "/api/v1/events"}
    async with client_of(api, tmp_path) as client:
        capture = await gather(client, "cardwise-system", None, datetime.now(UTC))
    told = " ".join(facts_of(capture).gaps)
    assert "Secret: GET /api/v1/namespaces/cardwise-system/secrets: 403" in told
    assert "Event: GET /api/v1/events: 403" in told
    assert capture.nodes


async def test_pods_that_may_not_be_read_are_an_error_that_says_which_right_is_missing(tmp_path):
    api = Api(small())
    api.forbidden = {"/api/v1/pods"}
    async with client_of(api, tmp_path) as client:
        with pytest.raises(ClusterError, match=r"403: .*: kubectl auth can-i list nodes"):
            await gather(client, "cardwise-system", None, datetime.now(UTC))


@pytest.mark.parametrize("trouble", [(429, "too many requests"), (410, "the provided continue parameter is too old")])
async def test_an_api_server_that_is_busy_or_forgot_the_place_is_asked_again(tmp_path, trouble):
    api = Api(small())
    api.troubles = {"/api/v1/pods": [trouble]}
    async with client_of(api, tmp_path) as client:
        capture = await gather(client, None, None, datetime.now(UTC))
    assert len(capture.pods) == len([each for each in api.items if each["kind"] == "Pod"])
    assert [gap for gap in capture.beside.gaps if "Pod" in gap] == []


async def test_where_cardwise_is_installed_is_read_from_its_webhook(tmp_path):
    world = small()
    items = json.loads(json.dumps(world.items()).replace("cardwise-system", "gpu"))
    api = Api(world)
    api.items = items
    async with client_of(api, tmp_path) as client:
        found = await gather(client, None, None, TAKEN)
        wrong = await gather(client, "cardwise-system", None, TAKEN)
    assert "/api/v1/namespaces/gpu/secrets" in [path for path, _ in api.params]
    assert "CW101" not in [each.finding.code for each in diagnose(facts_of(found))]
    assert any("cardwise is installed in gpu" in gap for gap in wrong.beside.gaps)


class Slow(Api):
    """It takes so many seconds to list each kind; kubelets and agents go on meanwhile."""

    list_s = 30

    async def handle(self, request):
        kind = next((kind for kind, path, _ in paths("cardwise-system") if path == request.path), None)
        if kind is not None and kind != "Lease":
            self.taken += timedelta(seconds=self.list_s)
        return await super().handle(request)

    def _of(self, kind, namespace):
        found = json.loads(json.dumps(super()._of(kind, namespace)))
        for each in found if kind == "Lease" else ():
            each["spec"]["renewTime"] = (self.taken - timedelta(seconds=5)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
        return found


async def test_a_cluster_that_is_slow_to_list_has_no_silent_agents_and_no_clocks_that_differ(tmp_path):
    async with client_of(Slow(small()), tmp_path) as client:
        capture = await gather(client, "cardwise-system", None, TAKEN)
    found = [each.finding for each in diagnose(facts_of(capture)) if each.finding.code in {"CW103", "CW107"}]
    assert [each.subject for each in found if each.subject != "this machine"] == []


async def test_only_warnings_are_asked_for_of_all_events(tmp_path):
    api = Api(small())
    async with client_of(api, tmp_path) as client:
        await gather(client, None, None, TAKEN)
    assert {params["fieldSelector"] for path, params in api.params if path == "/api/v1/events"} == {"type=Warning"}


# ---------------------------------------------------------------- whether the webhook answers


def unreached(why):
    told = f'Internal error occurred: failed calling webhook "admit.cardwise.dev": failed to call webhook: {why}'
    return 500, {"kind": "Status", "code": 500, "message": told}


def denied(why):
    return 403, {"kind": "Status", "code": 403, "message": why}


async def tried(world, created, folder):
    api = Api(world)
    api.created = created
    async with client_of(api, folder) as client:
        capture = await gather(client, None, None, TAKEN)
    path = folder / "saved.json"
    path.write_text(encode_capture(capture))
    assert read_capture(path).beside.tried == capture.beside.tried
    found = [each.finding for each in diagnose(facts_of(capture)) if each.finding.code == "CW101"]
    return found, " ".join(capture.beside.gaps)


async def test_a_webhook_that_the_api_server_cannot_call_is_named_though_its_endpoint_is_ready(tmp_path):
    why = "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    (only,), gaps = await tried(small(), unreached(why), tmp_path)
    assert why in only.evidence[0]
    assert "was not tried" not in gaps


async def test_a_webhook_that_answers_is_well_whatever_its_endpoints_look_like(tmp_path):
    world = small()
    FAULTS["CW101", "no endpoint of the webhook is ready"](world)
    assert await tried(world, None, tmp_path) == ([], "")


async def test_a_webhook_that_refuses_the_pod_has_answered(tmp_path):
    refused = denied('admission webhook "admit.cardwise.dev" denied the request: no')
    assert await tried(small(), refused, tmp_path) == ([], "")


@pytest.mark.parametrize(
    "why",
    [
        'pods is forbidden: User "jane" cannot create resource "pods" in API group "" in the namespace "default"',
        'pods "cardwise-doctor-x" is forbidden: exceeded quota: gpu',
        'admission webhook "policy.example.com" denied the request: no pods of unknown registries',
        'admission webhook "other.example.com" does not support dry run',
    ],
)
async def test_who_may_not_create_the_pod_is_told_that_it_was_not_tried(tmp_path, why):
    found, gaps = await tried(small(), denied(why), tmp_path)
    assert found == []
    assert "whether the admission webhook answers was not tried" in gaps
    assert why in gaps


async def test_a_pod_that_passes_as_it_is_where_failures_are_ignored_is_told(tmp_path):
    world = small()
    items = json.loads(json.dumps(world.items()).replace('"failurePolicy": "Fail"', '"failurePolicy": "Ignore"'))
    world.items = lambda: items
    (only,), _ = await tried(world, (201, {"spec": {"schedulerName": "default-scheduler"}}), tmp_path)
    assert "passed as it was written" in only.cause


async def test_no_pod_is_created_for_trial_where_our_webhook_is_not_installed(tmp_path):
    world = small()
    world.kinds_absent = {"MutatingWebhookConfiguration"}
    api = Api(world)
    async with client_of(api, tmp_path) as client:
        await gather(client, None, None, TAKEN)
    assert {method for method, _ in api.asked} == {"GET"}


# ---------------------------------------------------------------- a Prometheus that is not well


@contextlib.asynccontextmanager
async def prometheus_that(answer, timeout_s=60.0):
    """One that answers so, and the list of what it was asked."""
    asked = []

    async def handle(request):
        asked.append((await request.post())["query"])
        return await answer()

    async with (
        served(web.route("*", "/{path:.*}", handle)) as port,
        Prometheus(f"http://127.0.0.1:{port}", timeout_s=timeout_s) as server,
    ):
        yield server, asked


async def test_a_prometheus_that_hangs_is_not_asked_to_the_end(tmp_path):
    hung = asyncio.Event()
    async with (
        prometheus_that(hung.wait, timeout_s=0.3) as (server, asked),
        client_of(Api(small()), tmp_path) as client,
    ):
        capture = await gather(client, None, server, TAKEN)
        hung.set()
    assert len(asked) < len(QUERIES) / 2
    assert any("no answer in 0.3 s: latency, load and limits" in gap for gap in capture.beside.gaps)


async def test_an_answer_in_part_is_told(tmp_path):
    async def partly():
        series = {"metric": {"uuid": "GPU-g1-0"}, "values": [[TAKEN.timestamp(), "1"]]}
        data = {"resultType": "matrix", "result": [series]}
        return web.json_response({"status": "success", "warnings": ["store eu-1 did not answer"], "data": data})

    async with prometheus_that(partly) as (server, _), client_of(Api(small()), tmp_path) as client:
        capture = await gather(client, None, server, TAKEN)
    assert "Prometheus answered in part: store eu-1 did not answer" in facts_of(capture).gaps


# ---------------------------------------------------------------- a real Prometheus

END = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=4)
EVERY_S = 15
SLOW = range(1000, 1240)
"""Seconds of the window in which the tokenizer was short of CPU."""


def exposition():
    """What agent, gateway and cAdvisor told in that half hour, as OpenMetrics with times: raw, as they export it."""
    times = range(-600, int(WINDOW_S) + 1, EVERY_S)
    begin = END.timestamp() - WINDOW_S
    slow = [t in SLOW for t in times]
    pod = 'namespace="serving",pod="resnet-a"'
    mine = f'uuid="GPU-g1-0",{pod},container="main"'
    series = {
        f"cardwise_slice_memory_granted_mib{{{mine}}}": [4096] * len(times),
        f"cardwise_slice_compute_granted_percent{{{mine}}}": [20] * len(times),
        f"cardwise_slice_sm_percent{{{mine}}}": [0.3 if each else 12 for each in slow],
        f"cardwise_slice_memory_used_mib{{{mine}}}": [3000] * len(times),
        'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-g1-0",gpu="0"}': [3 if each else 60 for each in slow],
        f'cardwise_gateway_replica_info{{service="serving/resnet",replica="10.0.0.9:80",{pod}}}': [1] * len(times),
        'cardwise_gateway_target_seconds{service="serving/resnet"}': [0.2] * len(times),
        'cardwise_gateway_queue_length{service="serving/resnet"}': [25 if each else 0 for each in slow],
        'cardwise_gateway_requests_total{service="serving/resnet",status="200"}': _sum([9 if e else 750 for e in slow]),
        f'container_cpu_usage_seconds_total{{{pod},container="main"}}': _sum([59.5 if e else 15 for e in slow]),
        f'container_cpu_cfs_periods_total{{{pod},container="main"}}': _sum([150] * len(times)),
        f'container_cpu_cfs_throttled_periods_total{{{pod},container="main"}}': _sum([140 if e else 1 for e in slow]),
    }
    for bound in ("0.05", "0.1", "0.25", "1.0", "+Inf"):
        fast = [750 if math.inf == float(bound) or float(bound) >= 0.1 else 400 for _ in slow]
        late = [9 if float(bound) >= 1.0 else 0 for _ in slow]
        name = f'cardwise_gateway_latency_seconds_bucket{{service="serving/resnet",le="{bound}"}}'
        series[name] = _sum([late[i] if slow[i] else fast[i] for i in range(len(slow))])
    lines = [
        f"{name} {value} {begin + t:.0f}"
        for name, values in series.items()
        for t, value in zip(times, values, strict=True)
    ]
    return "\n".join([*lines, "# EOF\n"])


def _sum(steps):
    total, found = 0.0, []
    for step in steps:
        total += step
        found.append(total)
    return found


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """The address of a real one that has that half hour."""
    folder = tmp_path_factory.mktemp("prometheus")
    store_history(folder, exposition())
    with prometheus_in(folder, "{}\n", "--storage.tsdb.retention.time=90d") as url:
        yield url


async def test_every_query_is_one_that_prometheus_understands(prometheus, tmp_path):
    world = small()
    async with client_of(Api(world), tmp_path) as client, Prometheus(prometheus) as server:
        capture = await gather(client, "cardwise-system", server, END)
    measured = capture.beside.measured
    assert set(measured.results) == set(QUERIES), measured.gaps
    assert {len(series.values) for found in measured.results.values() for series in found} == {
        int(WINDOW_S / STEP_S) + 1
    }


async def test_a_cpu_bound_tokenizer_is_named_from_raw_series_though_the_gpu_idles(prometheus, tmp_path):
    async with client_of(Api(small()), tmp_path) as client, Prometheus(prometheus) as server:
        capture = await gather(client, "cardwise-system", server, END)
    path = tmp_path / "saved.json"
    path.write_text(encode_capture(capture))
    found = [each.finding for each in diagnose(facts_of(read_capture(path))) if each.finding.code != "CW103"]
    assert [each.code for each in found] == ["CW404"], found
    assert "service serving/resnet: its CPU is short, not its card" in found[0].cause
    assert "holds it back" in " ".join(found[0].evidence)


async def test_a_prometheus_that_is_not_there_is_a_gap_and_the_cluster_is_looked_at(tmp_path):
    with deaf_port() as port:
        async with client_of(Api(small()), tmp_path) as client, Prometheus(f"http://127.0.0.1:{port}") as server:
            capture = await gather(client, "cardwise-system", server, END)
    (told,) = [gap for gap in facts_of(capture).gaps if "Prometheus" in gap]
    assert told.startswith(f"Prometheus at http://127.0.0.1:{port}: ")
    assert told.endswith(": latency, load and limits in force were not looked at")
    assert capture.nodes


# ---------------------------------------------------------------- the command


async def test_the_command_reads_a_live_cluster_saves_it_and_reads_that_again(prometheus, tmp_path):
    world = small()
    world.pod("waits", mib=40960)
    saved = tmp_path / "saved.json"
    api = Api(world, datetime.now(UTC))
    async with client_of(api, tmp_path):
        args = ["--kubeconfig", tmp_path / "kubeconfig", "--prometheus", prometheus, "--save", saved, "--json"]
        live = await asyncio.to_thread(_run, *args)
    again = _run("--dump", saved, "--json")
    told = json.loads(live.stdout)
    assert live.returncode == again.returncode == 1, live.stderr
    assert "CW202" in [each["code"] for each in told["findings"]]
    assert json.loads(again.stdout) == told


def _run(*args):
    from tests.cli.test_commands import cardwise  # noqa: PLC0415

    return cardwise("doctor", *args)
