"""The known trap, for real: a tokenizer that is short of CPU makes P99 spike while the card does nothing.

Two services under the same load and the same CPU limit, on cards of one node. ``chat``'s engine burns CPU before it
comes to its card; ``control``'s card is the bottleneck. Real are the engines and the kernel that holds them, the
gateway, the load test, the agent, the API server, and Prometheus with the chart's rules. Two things stand in: the card,
whose utilization is the work that the engine gave it, and cAdvisor, whose figures are the kernel's of the engine's
process. Prints what ``cardwise doctor`` says, and the dashboard. With ``CARDWISE_TRAP_MINUTES=4`` there are so long
short requests, with which all is well, and then so long the trap: the run of docs/troubleshooting/cw404.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from aiohttp import web

from tests.agent.node_port import pod, share
from tests.dashboards.server import BOARDS, prometheus, queries
from tests.e2e.cpu_limit import Held, own_cgroup
from tests.e2e.test_agent_process import GPU, Machine
from tests.e2e.test_gateway import Engine, Gateway, own_address, started
from tests.fakes.loopback import served
from tests.gateway.world import number
from tests.prometheus import must_have

pytestmark = pytest.mark.controlplane

CHAT, CONTROL = "chat", "control"
CORES = 0.12
"""The CPU limit of both."""
ENGINES = {CHAT: ("--tokenize-cpu-ms", "3", "--t0-ms", "40"), CONTROL: ("--t0-ms", "126")}
CALLERS, SHORT, LONG = 6, 1, 16
"""Rows of a request: a long one takes 48 ms of CPU, 0.4 s under the limit, and no more of the card than a short one."""
TARGET_S = 0.5
LONGER_S = 60 * float(os.environ.get("CARDWISE_TRAP_MINUTES", "0"))
MOST_S = 90.0
IDLE, LACKS = 0.4, 0.25
"""Shares, as the doctor's (load.py) and the panel's words have them."""
PANELS = ("Latency", "Busy, all tenants", "SMs, of a card", "CPU", "CPU they lack")
P99 = 'histogram_quantile(0.99, sum by (le) (rate(cardwise_gateway_latency_seconds_bucket{{service="{name}"}}[2m])))'
STEPS_S = (0, 30)
"""Ago: the doctor calls a service slow that was so at two of its steps."""
GATEWAY = """
host = "127.0.0.1"
port = 0
admin-host = "127.0.0.1"
admin-port = 0
drain-s = 1
"""
SERVICE = """
[[services]]
name = "{name}"
kind = "oip"
model = "{name}"
batch = false
depth = 64
target-p99-ms = 500
kubernetes = {{namespace = "default", service = "{name}"}}
"""


@dataclass
class Replica:
    """A service's only one."""

    name: str
    card: int
    engine: Engine
    held: Held
    body: dict
    container_id: str

    @property
    def labels(self):
        """As cAdvisor has them."""
        path = f"/kubepods/pod{self.body['metadata']['uid']}/{self.container_id}"
        return f'{{namespace="default",pod="{self.name}",container="app",id="{path}"}}'


# -------------------------------------------------------------------- what stands in


@contextlib.asynccontextmanager
async def cards_that_work(machine, replicas):
    """The driver tells what the engines give their cards to do."""
    showing = asyncio.create_task(_show_work(machine, replicas))
    try:
        yield
        assert not showing.done()
    finally:
        showing.cancel()


async def _show_work(machine, replicas):
    """A card's utilization is the share of the last second in which the engine's work kept it busy."""
    async with httpx2.AsyncClient(timeout=20) as client:
        before = {}
        while True:
            for each in replicas:
                told = (await client.get(f"{each.engine.url}/metrics")).text
                work_s, now_s = number(told, "cardwise_engine_work_seconds_total"), time.monotonic()
                last_s, then_s = before.get(each.name, (work_s, now_s - 1))
                before[each.name] = (work_s, now_s)
                busy_pct = min(100, round(100 * (work_s - last_s) / (now_s - then_s)))
                machine.nvml.set(each.card, gpu_util=busy_pct)
                machine.nvml.process(each.card, each.engine.process.pid, 3000, sm=busy_pct)
            await asyncio.sleep(1)


def figures(replicas):
    """As cAdvisor tells them, of the kernel's counters."""
    for each in replicas:
        periods, throttled = each.held.periods()
        yield f"container_cpu_usage_seconds_total{each.labels} {each.held.used_s()}"
        yield f"container_pressure_cpu_waiting_seconds_total{each.labels} {each.held.waited_s()}"
        yield f"container_cpu_cfs_periods_total{each.labels} {periods}"
        yield f"container_cpu_cfs_throttled_periods_total{each.labels} {throttled}"


@contextlib.asynccontextmanager
async def cadvisor(replicas):
    """Its port."""

    async def tell(_request):
        return web.Response(text="\n".join([*figures(replicas), ""]))

    async with served(web.get("/metrics", tell)) as port:
        yield port


# -------------------------------------------------------------------- the cluster


@contextlib.asynccontextmanager
async def replica(machine, folder, name, card):
    """An engine in a pod that holds all compute of a card, and an EndpointSlice that leads to it."""
    engine = Engine(folder, own_address(), "--model", name, *ENGINES[name])
    async with engine:
        with own_cgroup(engine.process.pid, name) as held:
            body = make_pod(machine, name, card)
            made = Replica(name, card, engine, held, body, f"{card:064x}")
            machine.nvml.process(card, engine.process.pid, 3000, sm=0)
            await machine.kubelet.run_pod(body)
            tell_it_runs(machine, made)
            path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
            await asyncio.to_thread(machine.plane.api, "POST", path, endpoints(made))
            try:
                yield made
            finally:
                await asyncio.to_thread(machine.plane.api, "DELETE", f"{path}/{name}")


def offer_slots(machine):
    """What the kubelet puts into the node's status: the agent's slots, and what it keeps back of CPU and memory."""
    slots = {GPU: str(machine.kubelet.allocatable(GPU))}
    status = {"capacity": slots, "allocatable": {**slots, "cpu": "31", "memory": "120Gi"}}
    path = f"/api/v1/nodes/{machine.name}/status"
    machine.plane.api("PATCH", path, {"status": status}, content_type="application/merge-patch+json")


def make_pod(machine, name, card):
    told = pod(name, {"app": [share(machine.nvml.uuid(card), 4096, 100)]}, node=machine.name)
    told["metadata"] = {key: told["metadata"][key] for key in ("name", "annotations")}
    container = told["spec"]["containers"][0]
    container["resources"]["limits"]["cpu"] = f"{CORES * 1000:.0f}m"
    told["spec"] = {"nodeName": machine.name, "containers": [container]}
    body = machine.plane.api("POST", "/api/v1/namespaces/default/pods", told)
    machine.bodies.append(body)
    (machine.folder / "cgroup" / "kubepods" / f"pod{body['metadata']['uid']}").mkdir(parents=True)
    return body


def tell_it_runs(machine, made):
    """What the kubelet reports, and in which cgroup the agent finds the process."""
    folder = machine.folder / "proc" / str(made.engine.process.pid)
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(f"0::/kubepods/pod{made.body['metadata']['uid']}/{made.container_id}\n")
    begun = f"{datetime.now(UTC) - timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"  # no cold start is seen, for it is none
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": begun}
    status = {
        "name": "app",
        "image": "registry.example/engine:1",
        "imageID": "",
        "containerID": f"containerd://{made.container_id}",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": begun}},
    }
    path = f"/api/v1/namespaces/default/pods/{made.name}/status"
    patch = {"status": {"phase": "Running", "conditions": [ready], "containerStatuses": [status]}}
    machine.plane.api("PATCH", path, patch, content_type="application/merge-patch+json")


def endpoints(made):
    return {
        "metadata": {"name": made.name, "labels": {"kubernetes.io/service-name": made.name}},
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [made.engine.address],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "targetRef": {"kind": "Pod", "name": made.name, "namespace": "default"},
            }
        ],
        "ports": [{"name": "http", "port": made.engine.port, "protocol": "TCP"}],
    }


@contextlib.asynccontextmanager
async def the_gateway(plane, folder, replicas):
    settings = folder / "gateway.toml"
    settings.write_text(GATEWAY + "".join(SERVICE.format(name=each.name) for each in replicas))
    flags = ("--config", settings, "--kubeconfig", plane.kubeconfig)
    async with started("gateway", *flags, log=folder / "gateway.log") as (_, line):
        made = Gateway(line)
        async with made.client, asyncio.timeout(30):
            while 'cardwise_gateway_replicas_ready{service="control"} 1' not in (told := await made.metrics()) or (
                'cardwise_gateway_replicas_ready{service="chat"} 1' not in told
            ):
                await asyncio.sleep(0.05)
        yield made


# -------------------------------------------------------------------- the load, and what is seen


def table(seen):
    """Panels by service."""
    rows = [("panel", *seen), *((title, *(dict(found)[title] for found in seen.values())) for title in PANELS)]
    return "\n".join("".join(f"{cell!s:<20}" for cell in row).rstrip() for row in rows)


async def run(*args):
    """The output of a command of ours, and its exit code."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cardwise", *map(str, args), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    return out.decode(), err.decode(), process.returncode


async def load(url, folder, name, rows, seconds):
    """Callers of one service, each waiting for its answer, by ``cardwise loadtest``."""
    what = ("--oip", name, "--tensor", f"x:FP32:{rows},4", "--concurrency", CALLERS, "--timeout", 30)
    how = ("--seconds", seconds, "--warm-up", 1, "--out", folder / f"{name}.json")
    out, err, code = await run("loadtest", url, *what, *how)
    assert code in {0, 3}, out + err


@contextlib.asynccontextmanager
async def under_load(url, folder, rows, seconds):
    """Both services, until the ``with`` ends."""
    tasks = [asyncio.create_task(load(url, folder, name, rows, seconds)) for name in ENGINES]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended


async def slow_at_two_steps(server, loads):
    """Until the P99 of both was above the target at two steps of the doctor's."""
    while not all([await _slow(server, name, ago_s) for name in ENGINES for ago_s in STEPS_S]):
        assert not any(each.done() for each in loads)
        await asyncio.sleep(0.5)


async def _slow(server, name, ago_s):
    told = (await server.get("query", query=P99.format(name=name), time=time.time() - ago_s))["result"]
    return bool(told) and float(told[0]["value"][1]) > TARGET_S


def on_the_dashboard(title):
    """The queries of a panel of the service's dashboard, asked of ``chat``."""
    (board,) = [path for path in BOARDS if path.stem == "service"]
    return [expr for panel, expr in queries(board) if panel == f"service: {title}"]


async def shown(server, name, title):
    """The highest value that the panel shows now."""
    asked = [expr.replace(f'"{CHAT}"', f'"{name}"') for expr in on_the_dashboard(title)]
    told = [each["value"][1] for expr in asked for each in await server.ask(expr)]
    return max(float(value) for value in told)


async def panels(server, name):
    """What somebody sees who looks from the P99 to the card, and from there to the CPU."""
    return [(title, round(await shown(server, name, title), 2)) for title in PANELS]


async def diagnosed(plane, server, folder):
    """What the doctor says, and the same as JSON, from what it saved."""
    dump = folder / "dump.json"
    at = ("--kubeconfig", plane.kubeconfig, "--namespace", "default", "--prometheus", server.url)
    said, err, code = await run("doctor", *at, "--save", dump)
    assert code == 1, said + err
    told, err, code = await run("doctor", "--dump", dump, "--json")
    assert code == 1, told + err
    return said, json.loads(told)


async def trapped(plane, folder):
    """The doctor's words, its findings, and the dashboard by service, after half a minute in the trap."""
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        machine = await enter(Machine(plane, "gpu-trap"))
        await asyncio.to_thread(offer_slots, machine)
        replicas = [await enter(replica(machine, folder, name, card)) for card, name in enumerate(ENGINES)]
        for each in replicas:
            each.held.limit(CORES)
        gateway = await enter(the_gateway(plane, folder, replicas))
        await enter(cards_that_work(machine, replicas))
        ports = {"agent": machine.port, "gateway": gateway.admin_port, "others": await enter(cadvisor(replicas))}
        server = await enter(prometheus(folder, ports))
        url = f"http://127.0.0.1:{gateway.client.base_url.port}"
        if LONGER_S:
            await asyncio.gather(*(load(url, folder, name, SHORT, LONGER_S) for name in ENGINES))
        async with under_load(url, folder, LONG, LONGER_S + MOST_S) as loads:
            await asyncio.sleep(LONGER_S)
            await slow_at_two_steps(server, loads)
            seen = {name: await panels(server, name) for name in ENGINES}
            said, told = await diagnosed(plane, server, folder)
    return said, told, seen


async def test_a_tokenizer_that_is_short_of_cpu_is_called_that_and_not_a_slow_card(control_plane, tmp_path, capsys):
    must_have("prometheus")
    said, told, seen = await trapped(control_plane, tmp_path)
    with capsys.disabled():
        sys.stdout.write(f"\n{said}\n{table(seen)}\n")
    (only,) = [each for each in told["findings"] if f"service:{CHAT}" in each["places"]]
    assert only["code"] == "CW404"
    assert "its CPU is short, not its card" in only["cause"]
    assert "CW404" not in {each["code"] for each in told["findings"] if f"service:{CONTROL}" in each["places"]}
    chat, control = dict(seen[CHAT]), dict(seen[CONTROL])
    assert min(chat["Latency"], control["Latency"]) > TARGET_S
    assert (chat["Busy, all tenants"] < IDLE, control["Busy, all tenants"] < IDLE) == (True, False)
    assert (chat["SMs, of a card"] < 100 * IDLE, control["SMs, of a card"] < 100 * IDLE) == (True, False)
    assert (chat["CPU they lack"] > LACKS, control["CPU they lack"] > LACKS) == (True, False)
