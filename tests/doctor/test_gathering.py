"""A live cluster and a live Prometheus, read once: a real client, a server on loopback, the real Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import subprocess
import urllib.request
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
from tests.controlplane.cluster import free_ports
from tests.doctor.faults import FAULTS
from tests.doctor.world import TAKEN, small
from tests.e2e.cardwise_plane import wait_for


class Api:
    """An API server that has the items of a world. forbidden: paths that this user may not read."""

    def __init__(self, world, taken=TAKEN):
        self.items, self.taken, self.forbidden, self.asked = world.items(), taken, set(), []

    async def handle(self, request):
        self.asked.append((request.method, request.path))
        date = {"Date": self.taken.strftime("%a, %d %b %Y %H:%M:%S GMT")}
        if request.path == "/version":
            return web.json_response({"major": "1"}, headers=date)
        if request.path in self.forbidden:
            said = {"kind": "Status", "code": 403, "message": "secrets is forbidden"}
            return web.json_response(said, status=403, headers=date)
        kind = next((kind for kind, path, _, _ in paths("cardwise-system") if path == request.path), None)
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
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = folder / "kubeconfig"
    config.write_text(KUBECONFIG.format(server=f"http://127.0.0.1:{runner.addresses[0][1]}"))
    try:
        async with connect(config) as client:
            yield client
    finally:
        await runner.cleanup()


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
    assert {method for method, _ in api.asked} == {"GET"}


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


async def test_pods_that_may_not_be_read_are_an_error(tmp_path):
    api = Api(small())
    api.forbidden = {"/api/v1/pods"}
    async with client_of(api, tmp_path) as client:
        with pytest.raises(ClusterError, match="403"):
            await gather(client, "cardwise-system", None, datetime.now(UTC))


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
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        pytest.skip("prometheus and promtool are not on PATH: apt-get install prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "history").write_text(exposition())
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "history", folder / "data"]
    subprocess.run(made, check=True, capture_output=True, timeout=120)
    (port,) = free_ports(1)
    (folder / "prometheus.yml").write_text("{}\n")
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=90d",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(lambda: _ready(port), 60)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _ready(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=2).status == 200
    except OSError:
        return False


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


async def test_a_prometheus_that_is_not_there_is_an_error(tmp_path):
    (port,) = free_ports(1)
    async with client_of(Api(small()), tmp_path) as client, Prometheus(f"http://127.0.0.1:{port}") as server:
        with pytest.raises(ClusterError, match="Prometheus at"):
            await gather(client, "cardwise-system", server, END)


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
