"""`cardwise page` as a person starts it: a real API server, a real browser, and a real Prometheus for traffic."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from aiohttp import web

from cardwise.adapters import wire
from cardwise.adapters.kube import feed
from cardwise.adapters.kube.client import connect
from cardwise.adapters.kube.port import Lost
from cardwise.adapters.node_cards import encode_cards
from cardwise.adapters.prometheus import Prometheus
from cardwise.web.traffic import QUERIES, Traffic
from tests.builders import card
from tests.controlplane.given import any_cluster
from tests.e2e.browser import DEADLINE_S, browser, serving_page
from tests.ports import free_ports

LIMITS = {wire.OWN_COUNT: 1, wire.OWN_MEMORY: 30000, wire.OWN_CORES: 20}
METRICS = """
# TYPE cardwise_gateway_requests counter
cardwise_gateway_requests_total{{service="chat",status="200"}} {served}
cardwise_gateway_requests_total{{service="chat",status="429"}} {refused}
# TYPE cardwise_gateway_rejections counter
cardwise_gateway_rejections_total{{service="chat",reason="full"}} {refused}
# TYPE cardwise_gateway_latency_seconds histogram
cardwise_gateway_latency_seconds_bucket{{service="chat",le="0.1"}} {served}
cardwise_gateway_latency_seconds_bucket{{service="chat",le="+Inf"}} {served}
# TYPE cardwise_gateway_queue_length gauge
cardwise_gateway_queue_length{{service="chat"}} 3
# TYPE cardwise_gateway_queue_depth gauge
cardwise_gateway_queue_depth{{service="chat"}} 64
# TYPE cardwise_gateway_target_seconds gauge
cardwise_gateway_target_seconds{{service="chat"}} 0.2
# EOF
"""


def waiting_pod(name):
    container = {"name": "app", "image": "none", "resources": {"limits": LIMITS, "requests": LIMITS}}
    return {"metadata": {"name": name}, "spec": {"schedulerName": "cardwise", "containers": [container]}}


class Overheard:
    """A way to the API server that asks for a bookmark at once, and keeps what bookmarks told and where watches began.

    Else one comes each minute at most. Source: KEP-3157, "WatchList".
    """

    def __init__(self, client):
        self.request, self._client = client.request, client
        self.begun, self.bookmarks, self.again = [], [], asyncio.Event()

    @contextlib.asynccontextmanager
    async def stream(self, path, params, idle_timeout_s):
        self.begun.append(params["resourceVersion"])
        if self.bookmarks:
            self.again.set()
        soon = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        async with self._client.stream(path, {**params, **soon}, idle_timeout_s) as chunks:
            yield self._kept(chunks)

    async def _kept(self, chunks):
        async for chunk in chunks:
            told = [json.loads(line) for line in chunk.splitlines() if b"BOOKMARK" in line]
            self.bookmarks += [each["object"]["metadata"]["resourceVersion"] for each in told]
            yield chunk


async def goes_on_from_a_bookmark(client, resource):
    """A watch that is told a bookmark, and the one after it."""
    heard, breaks = Overheard(client), []

    async def follow():
        async for event in feed.follow(heard, resource):
            if isinstance(event, Lost):
                breaks.append(event.why)  # noqa: PERF401 - it never ends

    task = asyncio.create_task(follow())
    try:
        async with asyncio.timeout(DEADLINE_S):
            await heard.again.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert breaks == []
    assert int(heard.begun[-1]) >= int(heard.bookmarks[0])


@pytest.mark.controlplane
async def test_a_real_cluster_is_shown_and_followed(tmp_path, monkeypatch):
    with any_cluster(tmp_path / "plane") as plane:
        monkeypatch.setattr(feed, "WATCH_S", 2)
        async with connect(plane.kubeconfig) as client:
            followed = (feed.PODS, feed.NODES, feed.services_in(""), feed.slices_in(""))
            await asyncio.gather(*(goes_on_from_a_bookmark(client, each) for each in followed))
        cards = {wire.ANNOTATION_CARDS: encode_cards([card("c0"), card("c1")])}
        await asyncio.to_thread(plane.fake_node, "n0", extended={wire.OWN_COUNT: 16}, annotations=cards)
        with serving_page("page", "--kubeconfig", plane.kubeconfig) as (process, url):
            async with browser() as page:
                await page.open(url)
                assert await page.js("document.getElementById('card-c1') !== null")
                where = "/api/v1/namespaces/default/pods"
                await asyncio.to_thread(plane.api, "POST", where, waiting_pod("large"))
                await page.until("!document.getElementById('waiting').hidden")
                told = await page.js("document.getElementById('pending').innerText")
                assert "too little card memory" in told
                assert "30,000 MiB and 20 %" in told
                await page.js("document.querySelector('#pending .why').click()")
                await page.until("document.querySelector('#why ol')")
                assert "n0" in await page.js("document.getElementById('why').innerText")
                await asyncio.to_thread(plane.api, "DELETE", f"{where}/large", {"gracePeriodSeconds": 0})
                await page.until("document.getElementById('waiting').hidden")
                assert page.errors == []
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        plane.clear()


def test_an_address_of_prometheus_that_is_none_ends_it_with_what_to_write(tmp_path):
    config = tmp_path / "kubeconfig"
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n"
    )
    command = [sys.executable, "-m", "cardwise", "page", "--kubeconfig", str(config), "--prometheus", "nowhere:9090"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 2
    assert "write http://prometheus:9090" in done.stderr
    assert "Traceback" not in done.stderr


@contextlib.asynccontextmanager
async def scraped(folder):
    """The address of a Prometheus that scrapes what a gateway says."""
    if not shutil.which("prometheus"):
        pytest.skip("prometheus is not on PATH: apt-get install prometheus")
    served = iter(range(0, 10**9, 90))

    async def metrics(_request):
        count = next(served)
        text = METRICS.format(served=count, refused=count // 9)
        return web.Response(text=text.lstrip(), headers={"Content-Type": "application/openmetrics-text; version=1.0.0"})

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (port,) = free_ports(1)
    (folder / "prometheus.yml").write_text(
        "scrape_configs: [{job_name: e, scrape_interval: 1s, scrape_timeout: 1s, "
        f"static_configs: [{{targets: ['127.0.0.1:{runner.addresses[0][1]}']}}]}}]\n"
    )
    flags = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        command = ["prometheus", *flags, f"--web.listen-address=127.0.0.1:{port}"]
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()
        await runner.cleanup()


async def test_traffic_is_what_prometheus_knows_of_the_gateways(tmp_path):
    async with scraped(tmp_path) as url, Prometheus(url) as prometheus, asyncio.timeout(DEADLINE_S):
        traffic = Traffic(prometheus, lambda: datetime.now(UTC))
        while not (traffic.told and all(traffic.told[0][key] is not None for key in QUERIES)):
            await asyncio.sleep(0.5)  # two scrapes make a rate
            await traffic.ask()
        (row,) = traffic.told
        assert (row["service"], row["queue"], row["queue_depth"], row["target_ms"]) == ("chat", 3, 64, 200)
        assert row["refused_share"] == pytest.approx(0.1, rel=0.02)
        assert 0 < row["p99_ms"] <= 100
        assert row["requests_per_s"] > 0
        assert traffic.notes == []


async def test_without_an_answer_traffic_is_unknown_and_old_numbers_are_gone():
    (port,) = free_ports(1)
    async with Prometheus(f"http://127.0.0.1:{port}") as prometheus:
        traffic = Traffic(prometheus, lambda: datetime.now(UTC), told=[{"service": "chat"}])
        await traffic.ask()
        assert traffic.told == []
        (note,) = traffic.notes
        assert f"127.0.0.1:{port}" in note
