"""``cardwise compare`` on a real Prometheus that scrapes a real gateway before an emulated engine, slower after.

What agents, the scheduler and kube-state-metrics would tell comes from an exporter of the test. Needs ``prometheus`` on
PATH (Debian: apt-get install prometheus); skipped, with the reason, without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from aiohttp import web

from cardwise.compare.window import read_window
from tests.e2e.test_gateway import started, until
from tests.fakes.loopback import served
from tests.gateway.world import INFER
from tests.ports import free_ports
from tests.prometheus import must_have, prometheus_beside

BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]})
SECONDS, RATE = 26, 50
"""Of a window, and requests per second in it: 13 parts of four samples, and 1300 answers."""
GATEWAY = """
port = 0
admin-port = 0

[[services]]
name = "s"
kind = "pass"
probe-path = "/v2/health/ready"
limit = 20
depth = 4096
replicas = ["{replica}"]
"""
RULES = """
groups: [{name: g, interval: 500ms, rules: [{alert: CardwiseTest, expr: trouble > 0}]}]
"""
SCRAPES = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}
rule_files: [rules.yml]
scrape_configs:
- {{job_name: gateway, static_configs: [{{targets: ["127.0.0.1:{gateway}"]}}]}}
- {{job_name: rest, static_configs: [{{targets: ["127.0.0.1:{rest}"]}}]}}
"""


def cards(count, busy, trouble):
    """Slices of 4096 MiB and 40 % on so many cards of 20480 MiB, one for each of the service's pods."""
    told = [f"trouble {trouble}", "cardwise_scheduler_leader 1"]
    for i in range(2):
        card = f'uuid="U{i}"'
        told.append(f'cardwise_card_info{{{card},node="n",model="A10",index="{i}",mode="mps"}} 1')
        told.append(f"cardwise_card_memory_allocatable_mib{{{card}}} 20480")
        told.append(f"cardwise_card_utilization_percent{{{card}}} {busy}")
    for i in range(2):
        pod = f'namespace="d",pod="p{i}"'
        of_slice = f'uuid="U{i % count}",{pod},container="c"'
        told.append(f"cardwise_slice_memory_granted_mib{{{of_slice}}} 4096")
        told.append(f"cardwise_slice_compute_granted_percent{{{of_slice}}} 40")
        told.append(f'cardwise_gateway_replica_info{{service="s",replica="r{i}",{pod}}} 1')
        told.append(f'kube_pod_container_status_restarts_total{{{pod},container="c",uid="x{i}"}} 3')
    return "\n".join(told) + "\n"


@contextlib.asynccontextmanager
async def exporter(texts):
    """Its port. texts: of which the last is told."""

    async def metrics(_request):
        return web.Response(text=texts[-1])

    async with served(web.get("/metrics", metrics)) as port:
        yield port


async def measured(url):
    """A window of steady load, which lasts from before it until Prometheus has its last sample."""

    async def asked(client):
        answer = await client.post(f"{url}{INFER}", content=BODY, headers={"content-type": "application/json"})
        return answer.status_code

    begin_s = asyncio.get_running_loop().time()
    async with httpx2.AsyncClient(timeout=20) as client, asyncio.TaskGroup() as group:
        tasks = []
        for i in range(RATE * (SECONDS + 4)):
            await asyncio.sleep(max(begin_s + i / RATE - asyncio.get_running_loop().time(), 0))
            tasks.append(group.create_task(asked(client)))
            if i == 2 * RATE:
                begin = datetime.now(UTC)
            if i == RATE * (SECONDS + 2):
                end = datetime.now(UTC)
    assert {task.result() for task in tasks} == {200}
    return f"{begin.isoformat()}..{end.isoformat()}"


async def scraped(prometheus):
    async with httpx2.AsyncClient(timeout=20) as client:

        async def are_up():
            answer = await client.get(f"{prometheus}/api/v1/query", params={"query": "sum(up)"})
            found = answer.json()["data"]["result"]
            return bool(found) and found[0]["value"][1] == "2"

        await until(are_up, 60)


def compare(*args, cwd):
    command = [sys.executable, "-m", "cardwise", "compare", *map(str, args)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@contextlib.asynccontextmanager
async def watching(folder, admin, rest):
    """A Prometheus that scrapes both; its address."""
    (folder / "rules.yml").write_text(RULES)
    async with prometheus_beside(folder, SCRAPES.format(gateway=admin, rest=rest)) as url:
        await scraped(url)
        yield url


@contextlib.asynccontextmanager
async def two_windows(folder):
    """Prometheus' address, and a window before and after: half the cards, and eight times the time per request."""
    (engine_port,) = free_ports(1)
    (folder / "gateway.toml").write_text(GATEWAY.format(replica=f"http://127.0.0.1:{engine_port}"))
    engine = ("engine", "--port", engine_port, "--device", "contended", "--sigma", 0, "--kappa", 0, "--t0-ms")
    texts, spans = [cards(2, 20, 0)], []
    log = folder / "log"
    async with exporter(texts) as rest, started("gateway", "--config", folder / "gateway.toml", log=log) as (_, line):
        gateway, admin = map(int, re.findall(r":(\d+)", line))
        async with watching(folder, admin, rest) as url:
            for t0_ms in (5, 40):
                async with started(*engine, t0_ms, log=log):
                    await is_ready(admin)
                    spans.append(await measured(f"http://127.0.0.1:{gateway}"))
                texts.append(cards(1, 40, 1))
            yield url, *spans


async def is_ready(admin):
    async with httpx2.AsyncClient(timeout=60) as client:

        async def so():
            return (await client.get(f"http://127.0.0.1:{admin}/readyz")).status_code == 200

        await until(so)


async def test_a_slower_engine_on_fewer_cards_is_a_regression(tmp_path):
    must_have("prometheus")
    async with two_windows(tmp_path) as (url, before, after):
        args = ["--prometheus", url, "--before", before, "--after", after, "--json"]
        saves = ["--save-before", "before.json", "--save-after", "after.json"]
        done = await asyncio.to_thread(compare, *args, *saves, "--fail-on-regression", "--html", "a.html", cwd=tmp_path)
        of_s = await asyncio.to_thread(compare, *args, "--service", "s", cwd=tmp_path)
        of_none = await asyncio.to_thread(compare, *args, "--service", "nobody", cwd=tmp_path)
        begin = datetime.fromisoformat(before.partition("..")[0])
        tiny = f"{begin.isoformat()}..{(begin + timedelta(seconds=2)).isoformat()}"
        short = await asyncio.to_thread(compare, "--prometheus", url, "--before", tiny, "--after", after, cwd=tmp_path)

    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    found = {each["what"]: each for each in told["changes"]}
    verdicts = {name: each["verdict"] for name, each in found.items()}
    assert told["overall"] == "regression"
    assert told["not_comparable"] == ""
    assert verdicts["mean of s"] == "worse"
    assert verdicts["P99 of s"] in {"worse", "unknown"}  # a busy machine may make it drift within half a minute
    assert found["P99 of s"]["after"] > found["mean of s"]["after"] > 0.04
    assert found["P99 of s"]["answers"] == pytest.approx([SECONDS * RATE] * 2, rel=0.1)
    assert (found["cards"]["before"], found["cards"]["after"]) == (2, pytest.approx(1, abs=0.1))
    assert found["memory granted"]["before"] == 8192
    assert verdicts["utilization"] == "better"
    assert found["utilization"]["change"] == pytest.approx(0.2, abs=0.02)
    assert verdicts["per million good answers"] == "better"
    assert found["alerts"]["note"] == "only after: CardwiseTest"
    assert verdicts["restarts"] == verdicts["failed scheduling"] == verdicts["failed by s"] == "no difference"
    assert (tmp_path / "a.html").read_text().count("<svg ") == 3

    again = await asyncio.to_thread(compare, "before.json", "after.json", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["changes"] == told["changes"]  # a file tells what Prometheus told
    kept = read_window(tmp_path / "before.json")
    assert 0.45 < kept.scrape_s < 0.75  # of 26 scrapes a busy machine may miss some
    assert sum(kept.services["s"].hung_up) == 0

    held = {each["what"]: each for each in json.loads(of_s.stdout)["changes"]}["cards"]
    assert held["before"] == pytest.approx(0.8)  # two slices of 40 % of a card, which is more than their memory's share
    assert of_none.returncode == short.returncode == 2
    assert 'knows no cardwise_gateway_ series of {service=~"nobody"}' in of_none.stderr
    assert "too short a window" in short.stderr
