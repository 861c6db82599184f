"""The chart's rules and dashboards: built from the code, of series that there are, each alert with its page."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from dashboards.all import texts

from cardwise.metrics_table import PROGRAMS
from tests.dashboards.server import BOARDS, CHART, RULES, must_have, queries, rules

ROOT = CHART.parents[1]
RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDS = {rule["record"] for rule in rules() if "record" in rule}
OURS = {series.name for table in PROGRAMS.values() for series in table}
EXPRS = [
    *(pytest.param(rule["expr"], id=rule.get("alert") or rule["record"]) for rule in rules()),
    *(pytest.param(expr, id=f"{title} {i}") for path in BOARDS for i, (title, expr) in enumerate(queries(path))),
]


def test_the_dashboards_in_the_chart_are_those_of_the_code():
    """If not: .venv/bin/python -m dashboards."""
    assert {path.name: path.read_text() for path in BOARDS} == texts()


@pytest.mark.parametrize("expr", EXPRS)
def test_a_query_asks_for_series_that_there_are(expr):
    asked = set(re.findall(r"(?<![\w:])cardwise_\w+", expr))
    known = OURS | {f"{name}{end}" for name in OURS for end in ("_bucket", "_sum", "_count")}
    assert asked <= known
    assert set(re.findall(r"\b(?:uuid|node|service|pod):\w+:\w+", expr)) <= RECORDS


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_lie_side_by_side_and_each_has_its_own_number(path):
    board = json.loads(path.read_text())
    taken = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in board["panels"]]
    assert sorted(numbers) == sorted(set(numbers))
    assert board["uid"] == f"cardwise-{path.stem}"


def test_promtool_accepts_the_rules_and_the_words_of_their_annotations():
    must_have("promtool")
    command = ["promtool", "check", "rules", *RULES]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_runbook_and_each_runbook_an_alert():
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_says_what_it_means_what_to_look_at_and_what_to_do(name):
    lines = (RUNBOOKS / f"{name}.md").read_text().splitlines()
    assert lines[0] == f"# {name}"
    assert [line for line in lines if line.startswith("## ")] == ["## What it means", "## Look at", "## Do"]


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_it_is_and_what_is_wrong(name):
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["description"].endswith(".")


def test_commands_and_series_of_runbooks_exist():
    for path in RUNBOOKS.glob("*.md"):
        asked = set(re.findall(r"(?<![\w:])cardwise_\w+", path.read_text()))
        known = OURS | {name.removesuffix("_total") for name in OURS}
        assert asked <= known, path.stem
        assert set(re.findall(r"\b(?:uuid|node|service|pod):\w+:\w+", path.read_text())) <= RECORDS


def test_the_debian_package_that_has_promtool_is_what_the_gate_installs():
    assert "prometheus" in Path(ROOT / ".ci" / "run").read_text()
