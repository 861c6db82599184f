"""``cardwise complement`` shows who can share cards, and how sure that is."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from cardwise.cli.main import cli
from cardwise.errors import UserError
from tests.fakes.prometheus import FakePrometheus

EXAMPLE = Path(__file__).parents[2] / "examples" / "complement" / "profiles.csv"


def run(*args):
    return CliRunner().invoke(cli, ["complement", *map(str, args)], catch_exceptions=False, standalone_mode=False)


def told(*args):
    return json.loads(run(*args, "--json").stdout)


def test_the_example_puts_the_day_and_the_night_together():
    found = told(EXAMPLE)
    assert found["pairs"][0]["names"] == ["chat", "batch-embed"]
    assert [each["names"] for each in found["groups"]] == [["chat", "translate", "batch-embed"]]
    assert all(each["low_share"] <= each["saving_share"] for each in found["pairs"])


def test_the_table_says_what_its_numbers_are(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    out = run(EXAMPLE).stdout
    assert "chat + batch-embed" in out
    assert "for sure: the lower end of its 90 %" in out


def test_a_higher_demand_makes_no_group():
    assert told(EXAMPLE, "--least", 60)["groups"] == []
    assert "no group saves 60 % for sure" in run(EXAMPLE, "--least", 60).stdout


def test_too_short_a_file_says_so(tmp_path):
    (tmp_path / "p.csv").write_text("time,a,b\n0,1,2\n3600,2,1\n")
    assert "three whole days" in run(tmp_path / "p.csv").stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give either a CSV file"),
        ([EXAMPLE, "--prometheus", "http://x"], "either"),
        (["--prometheus", "http://x"], "--query"),
    ],
    ids=["nothing", "both", "no query"],
)
def test_what_to_give_is_told(args, said):
    with pytest.raises(UserError, match=said):
        run(*args)


def test_a_prometheus_is_asked_for_the_last_days():
    hour = int(datetime.now(UTC).timestamp()) // 3600 * 3600
    fake, stop, up = FakePrometheus(), threading.Event(), threading.Event()
    fake.series = {
        name: [(hour - 3600 * i, 8.0 if ((hour // 3600 - i) % 24 < 12) is day else 0.0) for i in range(10 * 24)]
        for name, day in (("day", True), ("night", False))
    }

    async def serve():
        async with fake.serving():
            up.set()
            await asyncio.to_thread(stop.wait, 60)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert up.wait(30)
        (pair,) = told("--prometheus", fake.url, "--query", "sum by (service) (cards)", "--days", "9")["pairs"]
    finally:
        stop.set()
        thread.join()
    assert (pair["names"], pair["saving_share"]) == (["day", "night"], 0.5)
