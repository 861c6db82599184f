"""doctor on a large cluster: how long it takes, how much memory, and how much there is to read.

A cluster of the tests' own builders: 1,000 nodes of 8 cards, 20,000 pods with a slice each in 300 services, pods of
some 6 kB as real ones are, half an hour of series. Once healthy, once with a dozen faults that hit up to 300 pods or
nodes each. Read from a file, and live: the API server's pages and Prometheus' answers come from servers on loopback,
in another process. Time, CPU and memory are those of the command, a process of its own; everything shares this machine.

Run: ``python -m benchmarks.doctor [--nodes 1000] [--pods 20000]``
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec
from aiohttp import web
from tests.adapters.test_kube_client import KUBECONFIG
from tests.doctor.world import SPIKE, STEPS, TAKEN, World, flat, spiking
from tests.ports import free_ports

from cardwise.doctor.gathering import paths
from cardwise.doctor.queries import ENDS_ONLY, QUERIES, STEP_S, WINDOW_S

COMMAND = """
import pathlib, sys, time
from cardwise.cli.main import main
most = pathlib.Path(sys.argv.pop(1))
try:
    main()
finally:  # not by wait4, whose largest size is at least that of who started the process
    status = pathlib.Path("/proc/self/status").read_text()
    most.write_text(f"{time.process_time()} {status.partition('VmHWM:')[2].split()[0]}")
"""
CARDS, SERVICES, HIT = 8, 300, 300
FILLER = "x" * 4000
HEALTHY, BROKEN = "healthy", "broken"


class Large(World):
    """The tests' world, whose series are added without a look for their like."""

    def tell(self, query: str, value: Any, **labels: str) -> None:  # noqa: ANN401 - a number or a list, as there
        """A series."""
        self.metrics.setdefault(query, []).append((labels, value if isinstance(value, list) else flat(value)))


def large(nodes: int, pods: int) -> Large:
    """Healthy."""
    world = Large()
    for n in range(nodes):
        world.node(f"n{n:04}", cards=CARDS)
    names: dict[int, list[str]] = {}
    for i in range(pods):
        card = i % (nodes * CARDS)
        made = world.pod(f"s{i % SERVICES:03}-{i}", f"n{card // CARDS:04}", mib=4096, pct=20, card=card % CARDS)
        made["spec"]["volumes"] = [{"name": "filler", "configMap": {"name": FILLER}}]
        names.setdefault(i % SERVICES, []).append(made["metadata"]["name"])
    for service, replicas in names.items():
        world.service(f"serving/s{service:03}", *replicas)
    return world


def break_it(world: Large, nodes: int) -> None:
    """A dozen faults, each of many pods or nodes, no two of which read quite alike."""
    by_service: dict[str, list[str]] = {}
    for name in world.pods:
        if name.startswith("s"):
            by_service.setdefault(name.partition("-")[0], []).append(name)
    services = sorted(by_service)[:HIT]
    for i, service in enumerate(services):
        first, second, third = by_service[service][:3]
        world.ended(first, f"RuntimeError: CUDA out of memory. Tried to allocate {i}.00 MiB", restarts=2 + i % 7)
        world.ended(second, reason="OOMKilled", code=137, restarts=i % 5)
        container = world.pods[third]["spec"]["containers"][0]
        if i % 3 == 0:
            container |= {"command": ["vllm", "serve"], "args": ["m", "--gpu-memory-utilization", "0.9"]}
        elif i % 3 == 1:
            container["livenessProbe"] = {"httpGet": {"path": "/v1/chat/completions", "port": 8000}}
        else:
            world.started(third, 900 + i, ready=120 + i)
        world.pod(f"huge-{i}", mib=30000 + i)
        world.event(f"x{i}", "FailedCreate", f'pods "x{i}" is forbidden: exceeded quota: gpu, used: {i}', "ReplicaSet")
    for service in services[:20]:
        world.tell("p99_s", spiking(0.05, 0.9, SPIKE), service=f"serving/{service}")
    parts = [[f"n{n:04}" for n in range(nodes) if n % 5 == part] for part in range(4)]
    for i, name in enumerate(parts[0]):
        world.nodes[name]["status"]["allocatable"] = dict(world.nodes[name]["status"]["capacity"])
        world.leases["kube-node-lease", parts[1][i]] = -90 - i
        world.leases["cardwise-system", f"cardwise-agent-{parts[2][i]}"] = 700 + i
        told = {"type": "CardwiseMPSReady", "status": "False", "message": f"daemon {i} does not answer"}
        world.nodes[parts[3][i]]["status"]["conditions"][2] = told


# ---------------------------------------------------------------- servers


def serve(world: Large, api_port: int, prometheus_port: int) -> None:
    """The API server and Prometheus, until the process is ended."""
    asyncio.run(_serve(world, api_port, prometheus_port))


async def _serve(world: Large, api_port: int, prometheus_port: int) -> None:
    items: dict[str, list[tuple[str, msgspec.Raw]]] = {}
    later = datetime.now(UTC) - TAKEN
    for each in world.items():
        _put_off(each, later)
        encoded = msgspec.Raw(msgspec.json.encode({key: value for key, value in each.items() if key != "kind"}))
        items.setdefault(each["kind"], []).append((each["metadata"].get("namespace", ""), encoded))
    begin = datetime.now(UTC).timestamp() - WINDOW_S
    times = [begin + i * STEP_S for i in range(STEPS)]
    answers = {
        query: _answer(world.metrics.get(name, []), times, slice(None, None, STEPS - 1 if name in ENDS_ONLY else 1))
        for name, query in QUERIES.items()
    }
    kinds = {path: kind for kind, path, _ in paths("cardwise-system")}

    async def api(request: web.Request) -> web.Response:
        if request.method == "POST":
            told = await request.json()
            told["spec"]["schedulerName"] = "cardwise"
            return web.json_response(told, status=201)
        found, start = items.get(kinds.get(request.path, ""), []), int(request.query.get("continue", 0))
        namespace = request.path.partition("/namespaces/")[2].partition("/")[0]
        found = [each for each in found if namespace in ("", each[0])]
        end = start + int(request.query.get("limit", 0))
        more = {"continue": str(end)} if end < len(found) else {}
        body = msgspec.json.encode({"metadata": more, "items": [encoded for _, encoded in found[start:end]]})
        return web.Response(body=body, content_type="application/json")

    async def prometheus(request: web.Request) -> web.Response:
        asked = await request.post()
        return web.Response(body=answers[str(asked["query"])], content_type="application/json")

    for handler, port in ((api, api_port), (prometheus, prometheus_port)):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def _answer(series: Sequence[tuple[dict[str, str], list[float]]], times: Sequence[float], which: slice) -> bytes:
    """Prometheus' answer, before it is asked: its own work is not what is measured."""
    found = [
        {"metric": labels, "values": list(zip(times[which], map(str, values[which]), strict=True))}
        for labels, values in series
    ]
    return msgspec.json.encode({"status": "success", "data": {"resultType": "matrix", "result": found}})


def _put_off(item: dict[str, Any], later: timedelta) -> None:
    """Leases and events of just now, for a command that goes by the real clock."""
    for part, name in ((item.get("spec", {}), "renewTime"), (item, "lastTimestamp")):
        if item["kind"] in ("Lease", "Event") and name in part:
            part[name] = (datetime.fromisoformat(part[name]) + later).isoformat()


def _wait_for(ports: Sequence[int]) -> None:
    for port in ports:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)


# ---------------------------------------------------------------- the command


def run(what: str, folder: Path, *arguments: str) -> None:
    """Run doctor, print what it took and how much it said."""
    start_s = time.perf_counter()
    command = [sys.executable, "-c", COMMAND, str(folder / "most"), "doctor", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - start_s
    cpu_s, most_kib = (folder / "most").read_text().split()
    lines = done.stdout.splitlines()
    print(
        f"{what:<16} {seconds:6.1f} s, {float(cpu_s):5.1f} s of CPU, {int(most_kib) / 1024:5.0f} MiB; "
        f"exit code {done.returncode}, {len(lines)} lines: {_last(lines)}",
        flush=True,
    )


def _last(lines: Sequence[str]) -> str:
    return next((line for line in lines if line.startswith("nothing found") or "; pages" in line), "")


@click.command()
@click.option("--nodes", default=1000, show_default=True)
@click.option("--pods", default=20_000, show_default=True)
def main(nodes: int, pods: int) -> None:
    """Print one line for each way."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for state in (HEALTHY, BROKEN):
            world = large(nodes, pods)
            if state == BROKEN:
                break_it(world, nodes)
            dump = folder / "dump.json"
            dump.write_text(json.dumps(world.as_json()))
            print(f"{nodes:,} nodes, {pods:,} pods, {state}: a file of {dump.stat().st_size / 1e6:.0f} MB", flush=True)
            run(f"{state}, file", folder, "--dump", str(dump))
            _run_live(f"{state}, live", folder, world)


def _run_live(what: str, folder: Path, world: Large) -> None:
    ports = free_ports(2)
    server = multiprocessing.get_context("fork").Process(target=serve, args=(world, *ports), daemon=True)
    server.start()
    config = folder / "kubeconfig"
    config.write_text(KUBECONFIG.format(server=f"http://127.0.0.1:{ports[0]}"))
    try:
        _wait_for(ports)
        run(what, folder, "--kubeconfig", str(config), "--prometheus", f"http://127.0.0.1:{ports[1]}")
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
