"""The quota file: read whole or refused with the key, and written so that it is read the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.adapters.kueue import configuration, differences, differs, objects
from cardwise.adapters.quota_file import (
    AmountsTable,
    CardTable,
    LimitsTable,
    QuotaFile,
    TaintTable,
    TeamTable,
    WindowLimits,
    WindowTable,
    faults_of,
    quota_file_text,
    read_quota_file,
    with_limits,
)
from cardwise.core.claim import LatencyClass
from cardwise.core.fleet.quota import Amounts, Limits
from cardwise.errors import InputError

TEXT = """
[[cards]]
model = "A10"
memory-mib = 24576
total = { slots = 64, memory-mib = 98304, compute-pct = 400 }

[[teams]]
name = "search"
namespaces = ["search"]

[[teams.limits]]
card = "A10"
guaranteed = { slots = 8, memory-mib = 24576, compute-pct = 100 }

[[teams]]
name = "batch"
class = "best-effort"

[[windows]]
name = "night"
timezone = "Europe/Berlin"
begin = "22:00"
end = "06:00"
days = ["fri"]

[[windows.limits]]
team = "batch"
card = "A10"
guaranteed = { slots = 16, memory-mib = 49152, compute-pct = 200 }
borrowable = { memory-mib = 1000 }
"""


def read(tmp_path, text):
    path = tmp_path / "quota.toml"
    path.write_text(text)
    return read_quota_file(path)


def test_a_window_changes_the_teams_that_it_names_and_leaves_the_others(tmp_path):
    told = read(tmp_path, TEXT)
    sure = Amounts(8, 24576, 100)
    assert told.limits_in(None) == {"search": {"A10": Limits(sure, Amounts(), sure)}, "batch": {}}
    night = Amounts(16, 49152, 200)
    assert told.limits_in(0) == {
        "search": {"A10": Limits(sure, Amounts(), sure)},
        "batch": {"A10": Limits(night, Amounts(0, 1000, 0), night)},
    }


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "search"', 'name = "Search"', "teams[0].name: is 'Search'; write lower-case"),
        ('name = "batch"', 'name = "search"', "teams[1].name: is 'search', as an earlier one"),
        ('card = "A10"', 'card = "A100"', "teams[0].limits[0].card: is 'A100'; write one of A10"),
        (
            "memory-mib = 24576, compute",
            "memory-mib = 98305, compute",
            "teams: guarantee 98305 memory-mib of A10 to search",
        ),
        (
            "memory-mib = 49152",
            "memory-mib = 80000",
            "windows[0].limits: guarantee 104576 memory-mib of A10 to batch, search",
        ),
        ('team = "batch"', 'team = "bach"', "windows[0].limits[0].team: is 'bach'; write one of search, batch"),
        (
            'team = "batch"',
            'team = "search"',
            "windows[0].limits[0].borrowable: is told for search, which does not borrow",
        ),
        ("Europe/Berlin", "Berlin", "windows[0]: timezone: 'Berlin' is none; write one such as Europe/Berlin or UTC"),
        ('"22:00"', '"25:00"', "windows[0]: '25:00' is no time of the day; write one such as 22:00"),
        ('["fri"]', '["freitag"]', "windows[0]: days: 'freitag' is none; write some of mon"),
        ('begin = "22:00"\n', "", "windows[0]: write either begin and end"),
        ('"06:00"', '"22:00"', "windows[0]: begins and ends at the same time"),
        ('class = "best-effort"', 'class = "batch"', "class: is 'batch'; write one of latency-sensitive, best-effort"),
        ("slots = 8", "slot = 8", "slot: is no key; write slots"),
    ],
)
def test_what_is_wrong_is_told_with_its_key_and_what_to_write(tmp_path, old, new, told):
    assert old in TEXT
    with pytest.raises(InputError) as caught:
        read(tmp_path, TEXT.replace(old, new, 1))
    assert told in str(caught.value)


def test_a_window_can_be_two_cron_expressions(tmp_path):
    hours = 'begin = "22:00"\nend = "06:00"\ndays = ["fri"]'
    told = read(tmp_path, TEXT.replace(hours, 'start = "0 22 * * *"\nstop = "0 6 * * *"'))
    assert told.schedule[0].when.start == "0 22 * * *"


NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
AMOUNTS = st.builds(AmountsTable, *[st.integers(0, 10)] * 3)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def files(draw):
    plenty = AmountsTable(10**6, 10**6, 10**6)
    card = CardTable(
        "A 10",
        draw(st.integers(1, 2**20)),
        plenty,
        draw(st.dictionaries(TEXTS, TEXTS, max_size=2)),
        draw(st.lists(st.builds(TaintTable, TEXTS, TEXTS, TEXTS), max_size=2)),
        draw(st.booleans()),
    )
    teams = [
        TeamTable(
            name,
            draw(st.lists(NAMES, max_size=2)),
            draw(st.lists(TEXTS, max_size=2)),
            LatencyClass.BEST_EFFORT,
            weight=draw(st.floats(0.001, 10)),
            limits=[LimitsTable("A 10", draw(AMOUNTS), draw(AMOUNTS))] if draw(st.booleans()) else [],
        )
        for name in draw(st.lists(NAMES, unique=True, max_size=3))
    ]
    windows = (
        [
            WindowTable(
                "w", "UTC", [WindowLimits("A 10", draw(AMOUNTS), team=each.name) for each in teams], "01:00", "24:00"
            )
        ]
        if teams and draw(st.booleans())
        else []
    )
    return QuotaFile(draw(NAMES), cards=[card], teams=teams, windows=windows)


@given(files())
def test_what_is_written_is_read_the_same(tmp_path_factory, told):
    path = tmp_path_factory.mktemp("files") / "quota.toml"
    path.write_text(quota_file_text(told, ["a comment"]), encoding="utf-8")
    assert read_quota_file(path) == told


def test_planned_limits_replace_those_of_the_file_and_nothing_else(tmp_path):
    told = read(tmp_path, TEXT)
    planned = with_limits(told, {"batch": {"A10": Limits(Amounts(1, 2, 3), Amounts(4, 5, 6))}})
    assert [len(team.limits) for team in planned.teams] == [0, 1]
    assert planned.limits_in(None)["batch"]["A10"].borrowable == Amounts(4, 5, 6)
    assert planned.windows == told.windows
    assert list(faults_of(planned)) == []


# ---------------------------------------------------------------- Kueue's objects


def cluster_queue(told, name):
    return next(each for each in objects(told) if each["kind"] == "ClusterQueue" and each["metadata"]["name"] == name)


def quotas(told, name):
    (flavor,) = cluster_queue(told, name)["spec"]["resourceGroups"][0]["flavors"]
    return {each["name"].removeprefix("cardwise.dev/"): each["nominalQuota"] for each in flavor["resources"]}


def test_where_all_cards_have_the_same_memory_percent_is_turned_into_mib(tmp_path):
    told = read(tmp_path, TEXT)
    (made,) = configuration(told)["resources"]["transformations"]
    assert made["outputs"] == {"cardwise.dev/gpu-memory": "245760m"}
    assert quotas(told, "search") == {"gpu": "8", "gpu-memory": "24576", "gpu-cores": "100"}


def test_where_cards_differ_percent_of_memory_has_a_quota_as_large_as_that_of_mib(tmp_path):
    more = '[[cards]]\nmodel = "L4"\nmemory-mib = 20000\ntotal = {}\n'
    told = read(tmp_path, more + TEXT)
    assert "transformations" not in configuration(told)["resources"]
    assert quotas(told, "search")["gpu-memory-percentage"] == "100"


def test_only_best_effort_queues_preempt_within_themselves(tmp_path):
    told = read(tmp_path, TEXT)
    within = {
        name: cluster_queue(told, name)["spec"]["preemption"]["withinClusterQueue"] for name in ("search", "batch")
    }
    assert within == {"search": "Never", "batch": "LowerPriority"}


def test_amounts_that_are_written_otherwise_are_the_same():
    old = {"resources": [{"name": "m", "nominalQuota": "80k"}, {"name": "c", "nominalQuota": 5}]}
    new = {"resources": [{"name": "c", "nominalQuota": "5"}, {"name": "m", "nominalQuota": "80000"}]}
    assert list(differences(old, new)) == []
    assert list(differences(old, {"resources": []})) != []


def test_what_others_add_to_an_object_does_not_differ(tmp_path):
    wanted = cluster_queue(read(tmp_path, TEXT), "search")
    found = {**wanted, "spec": {**wanted["spec"], "stopPolicy": "None"}, "status": {"pendingWorkloads": 1}}
    assert differs(found, wanted) == []
    assert differs({**found, "spec": {**found["spec"], "cohortName": "other"}}, wanted) == [
        "spec.cohortName: other → cardwise"
    ]
    assert differs(None, wanted)
