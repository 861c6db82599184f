"""A real Prometheus on loopback, and what of Grafana's words a query must lose before it is asked.

Needs ``prometheus`` and ``promtool`` on PATH (Debian: apt-get install prometheus); without them tests skip, and say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.controlplane.cluster import free_ports

CHART = Path(__file__).resolve().parents[2] / "charts" / "cardwise"
RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
BOARDS = sorted((CHART / "dashboards").glob("*.json"))
MISSING = "prometheus and promtool are not on PATH: apt-get install prometheus"
VARIABLES = {"$__rate_interval": "1m", "$node": ".*", "$uuid": ".*", "$queue": ".*", "$service": "chat"}


def must_have(*binaries):
    """Skip where one of them is missing."""
    if not all(map(shutil.which, binaries)):
        pytest.skip(MISSING)


def rules():
    """All rules of the chart."""
    files = [yaml.safe_load(path.read_text()) for path in RULES]
    return [rule for told in files for group in told["groups"] for rule in group["rules"]]


def queries(path):
    """What a dashboard asks, as (panel, PromQL without Grafana's variables)."""
    board = json.loads(path.read_text())
    panels = [(f"{path.stem}: {panel['title']}", target) for panel in board["panels"] for target in _targets(panel)]
    return [(title, without_variables(target["expr"])) for title, target in panels]


def variable_queries(path):
    """The series and the label that each choice of a dashboard lists, as (series, label)."""
    told = json.loads(path.read_text())["templating"]["list"]
    asked = [each["query"] for each in told if each["type"] == "query"]
    found = [re.fullmatch(r"label_values\((.+), (\w+)\)", query) for query in asked]
    return [(without_variables(match[1]), match[2]) for match in found]


def _targets(panel):
    return panel.get("targets") or ()


def without_variables(expr):
    """As Grafana sends it."""
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr.replace('"$1"', ""), f"a variable that nobody sets: {expr}"
    return expr


class Server:
    """Asks it."""

    def __init__(self, client):
        self._client = client

    async def get(self, path, **params):
        answer = (await self._client.get(f"/api/v1/{path}", params=params)).json()
        assert answer["status"] == "success", (params, answer.get("error"))
        return answer["data"]

    async def ask(self, expr):
        """The series of an instant query."""
        return (await self.get("query", query=expr))["result"]


@contextlib.asynccontextmanager
async def prometheus(folder, ports):
    """One that scrapes these ports each second, as the chart's PodMonitors would, by the chart's rules."""
    (port,) = free_ports(1)
    scrapes = [
        {"job_name": name, "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{each}"]}]}
        for name, each in ports.items()
    ]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": scrapes,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec("prometheus", *command, stdout=log, stderr=log)
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            await _ready(client, folder / "log")
            yield Server(client)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _ready(client, log):
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(httpx2.TransportError):
                if (await client.get("/-/ready")).status_code == 200:
                    return
            assert "err=" not in log.read_text(), log.read_text()
            await asyncio.sleep(0.05)
