"""``cardwise quota plan``: the table, the file, Kueue's objects, a review; and what is refused."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner

from cardwise.adapters.quota_file import read_quota_file
from cardwise.cli.quota import quota_command
from cardwise.errors import CardwiseError, UserError
from tests.cli.test_commands import cardwise
from tests.conftest import ROOT

DUMP = ROOT / "examples" / "dump" / "dump.json"


def plan(*args):
    done = CliRunner().invoke(quota_command, ["plan", "--dump", str(DUMP), *map(str, args)])
    if isinstance(done.exception, CardwiseError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done


def planned(path, *args):
    path.write_text(plan("-o", "toml", *args).stdout)
    return path


def test_the_file_that_is_written_can_be_used_and_a_review_of_the_same_history_moves_nothing(tmp_path):
    first = planned(tmp_path / "quota.toml")
    told = json.loads(plan("--current", first, "--json").stdout)
    assert told["moved"] == 0
    second = planned(tmp_path / "second.toml", "--current", first)
    assert read_quota_file(second) == read_quota_file(first)


def test_json_adds_up_to_the_cards_there_are():
    told = json.loads(plan("--json").stdout)
    for card, total in told["cards"].items():
        for what, amount in total.items():
            given = sum(cards[card]["guaranteed"][what] for cards in told["teams"].values() if card in cards)
            assert given + told["shared"][card][what] == amount


def test_what_is_short_is_told_on_stderr_with_the_teams():
    done = plan()
    assert "note: A10 is short of memory-mib: sensitive teams (search, serving) want" in done.stderr
    assert "note:" not in done.stdout


def test_yaml_is_of_kueues_kinds_each_once():
    raws = list(yaml.safe_load_all(plan("-o", "yaml").stdout))
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in raws]
    assert len(set(names)) == len(names)
    assert {each["apiVersion"] for each in raws} == {"kueue.x-k8s.io/v1beta2"}
    assert ("LocalQueue", "search", "search") in names
    (config,) = yaml.safe_load_all(plan("-o", "configuration").stdout)
    assert config["kind"] == "Configuration"


def test_a_team_without_history_is_told_for_no_pod_of_it_would_be_admitted(tmp_path):
    path = planned(tmp_path / "quota.toml")
    path.write_text(path.read_text() + '\n[[teams]]\nname = "new"\nnamespaces = ["new"]\n')
    assert "no pod is admitted; write limits: new." in plan("--current", path).stderr


def test_a_window_is_chosen_by_name(tmp_path):
    path = planned(tmp_path / "quota.toml")
    window = '[[windows]]\nname = "night"\ntimezone = "UTC"\nbegin = "22:00"\nend = "06:00"\n[[windows.limits]]\n'
    path.write_text(f'{path.read_text()}\n{window}team = "search"\ncard = "A10"\nguaranteed = {{ slots = 1 }}\n')
    (queue,) = [
        each
        for each in yaml.safe_load_all(plan("--current", path, "-o", "yaml", "--window", "night").stdout)
        if each["kind"] == "ClusterQueue" and each["metadata"]["name"] == "search"
    ]
    first, *_ = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    assert (first["name"], first["nominalQuota"]) == ("cardwise.dev/gpu", "1")
    with pytest.raises(UserError, match="no window 'nigth'; write one of now, none, night"):
        plan("--current", path, "-o", "yaml", "--window", "nigth")


def test_an_export_of_prometheus_needs_the_nodes(tmp_path):
    done = cardwise("quota", "plan", "--prometheus", tmp_path / "asked.json")
    assert done.returncode == 2
    assert "give the nodes besides, with --dump FILE" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_planned_of_what_nobody_here_asked_for():
    done = cardwise("quota", "plan", "-o", "toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "give your cluster with --dump FILE" in done.stderr
