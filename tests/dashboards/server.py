"""A real Prometheus with the chart's rules, and what of Grafana's words a query must lose before it is asked."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import httpx2
import yaml

from tests.prometheus import must_have, prometheus_beside  # noqa: F401 - the rules' tests take it from here

CHART = Path(__file__).resolve().parents[2] / "charts" / "cardwise"
RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
BOARDS = sorted((CHART / "dashboards").glob("*.json"))
VARIABLES = {"$__rate_interval": "1m", "$node": ".*", "$uuid": ".*", "$queue": ".*", "$service": "chat"}


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

    @property
    def url(self):
        return str(self._client.base_url)

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
    scrapes = [
        {"job_name": name, "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{each}"]}]}
        for name, each in ports.items()
    ]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in RULES],
        "scrape_configs": scrapes,
    }
    async with (
        prometheus_beside(folder, yaml.safe_dump(config)) as url,
        httpx2.AsyncClient(base_url=url, timeout=20) as client,
    ):
        yield Server(client)
