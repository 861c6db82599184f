"""What a dashboard says to a reader: units that Grafana knows, colours that mean something, panels side by side."""

from __future__ import annotations

import itertools
import json

import pytest

from tests.dashboards.server import BOARDS

COLUMNS = 24
UNITS = {"none", "short", "percent", "percentunit", "s", "reqps", "mbytes", "Bps", "rotmhz", "celsius", "watt"}
"""Of Grafana's packages/grafana-data/src/valueFormats/categories.ts. An unknown one is written behind the number."""


@pytest.fixture(params=BOARDS, ids=lambda path: path.stem)
def board(request):
    return json.loads(request.param.read_text())


def panels(board, *kinds):
    return [each for each in board["panels"] if not kinds or each["type"] in kinds]


def defaults(panel):
    return panel["fieldConfig"]["defaults"]


def test_units_are_those_that_grafana_knows(board):
    found = {each["title"]: defaults(each)["unit"] for each in panels(board, "stat", "timeseries")}
    assert {title: unit for title, unit in found.items() if unit not in UNITS} == {}


def test_no_number_is_red_for_being_large(board):
    """Grafana's own steps are green, and red from 80 on: 80 cards would look like a fault."""
    for each in panels(board, "stat"):
        first, *others = defaults(each)["thresholds"]["steps"]
        assert first["value"] is None
        assert all(step["value"] <= 2 for step in others), each["title"]


def test_whole_numbers_have_whole_axes(board):
    wrong = [
        each["title"]
        for each in panels(board, "timeseries")
        if (defaults(each)["unit"] == "none") != ("decimals" in defaults(each))
    ]
    assert wrong == []


def test_what_can_be_below_zero_is_drawn_below_zero(board):
    """An axis with an end hides what is beyond it."""
    low = ("cardwise_card_slowdown_margin_celsius", "cardwise_quota_window")
    for each in panels(board, "timeseries"):
        if any(name in target["expr"] for target in each["targets"] for name in low):
            assert defaults(each).get("min", -1) < 0, each["title"]


def test_panels_lie_beside_each_other_within_the_page(board):
    taken = [(each["title"], _cells(each["gridPos"])) for each in panels(board)]
    for (one, cells), (other, others) in itertools.combinations(taken, 2):
        assert not cells & others, (one, other)


def _cells(place):
    assert place["x"] + place["w"] <= COLUMNS
    columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return {(x, y) for x in columns for y in lines}


def test_panels_of_a_row_have_names_of_their_own(board):
    titles, seen = [], set()
    for each in panels(board):
        if each["type"] == "row":
            seen = set()
            continue
        if each["title"] in seen:
            titles.append(each["title"])
        seen.add(each["title"])
    assert titles == []


def test_lines_have_names(board):
    """Else Grafana writes the whole series with all its labels."""
    unnamed = [
        each["title"]
        for each in panels(board, "timeseries")
        for target in each["targets"]
        if not target.get("legendFormat")
    ]
    assert unnamed == []
