"""``cardwise fit``: how many sets go onto some cards, counted whole, and why no more."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.adapters import wire
from cardwise.adapters.node_cards import encode_cards
from cardwise.cli.fit import fit_command
from cardwise.errors import UserError
from cardwise.plan.tables import tables
from tests.builders import card
from tests.cli.test_commands import cardwise

MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: chat}}
spec:
  replicas: {replicas}
  template:
    spec:
      containers:
        - name: app
          image: none
          resources:
            requests: {{cpu: "{cpu}"}}
            limits: {{nvidia.com/gpu: 1, nvidia.com/gpu.memory: {mib}, nvidia.com/gpu.cuda-cores: {pct}}}
"""


def fit(*args):
    """The exit code and the JSON of a run in this process."""
    done = CliRunner(catch_exceptions=False).invoke(fit_command, [*map(str, args), "--json"])
    return done.exit_code, json.loads(done.stdout)


def refused(*args):
    with pytest.raises(UserError) as caught:
        fit(*args)
    return str(caught.value)


@pytest.fixture
def manifest(tmp_path):
    def write(replicas=2, mib=10000, pct=20, cpu="1", more=""):
        path = tmp_path / "chat.yaml"
        path.write_text(MANIFEST.format(replicas=replicas, mib=mib, pct=pct, cpu=cpu) + more)
        return path

    return write


# ---------------------------------------------------------------- how many


def test_five_slices_of_4096_mib_and_a_fifth_go_onto_a_24_gib_card():
    """SPEC A1."""
    code, told = fit("--slice", "4096:20", "--cards", "X:24576=3")
    assert (code, told["sets"], told["pods_per_set"]) == (0, 15, 1)
    assert told["cards"] == [
        {
            "model": "X",
            "cards": 3,
            "used": 3,
            "memory_total_mib": 3 * 24576,
            "memory_allocated_mib": 15 * 4096,
            "compute_allocated_pct": 300.0,
        }
    ]


def test_a_set_of_which_one_pod_waits_is_not_counted_and_leaves_nothing_behind(manifest):
    """Three pods of 10000 MiB go onto a card of 30000 each: one set of two, and a half that is taken away again."""
    _, told = fit("-f", manifest(), "--cards", "X:30000=1")
    assert (told["sets"], told["pods_per_set"]) == (1, 2)
    assert told["cards"][0]["memory_allocated_mib"] == 20000


def test_the_next_set_says_what_it_fails_for_in_numbers_and_what_to_do():
    _, told = fit("--slice", "chat=20000:20", "--cards", "X:24576=1")
    (stopped,) = told["stopped_by"]
    assert stopped["pod"] == "default/chat-set-2"
    assert "1 too little card memory" in stopped["why"]
    assert "4576 of 24576 MiB are free on the card, the pod asks for 20000" in stopped["detail"]
    assert "ask for fewer MiB" in stopped["advice"]


def test_cpu_of_the_node_counts_too(manifest):
    _, told = fit("-f", manifest(replicas=1, mib=1, pct=1, cpu="3"), "--node", "name=a,memory=24576,cards=1,cpu=8")
    assert told["sets"] == 2
    assert "Insufficient cpu" in told["stopped_by"][0]["why"]


def test_slices_of_several_sizes_make_one_set():
    _, told = fit("--slice", "20000:50", "--slice", "4000:50", "--cards", "X:24576=2")
    assert (told["sets"], told["pods_per_set"]) == (2, 2)


def test_the_policy_decides_who_goes_where_so_it_decides_how_many():
    mixed = ["--slice", "8000:10", "--cards", "X:24576=4"]
    assert fit(*mixed, "--policy", "dense")[1]["sets"] == 12
    assert fit(*mixed, "--policy", "whole-card")[1]["sets"] == 4


def test_a_daemon_set_is_placed_once_and_not_with_each_set(manifest):
    daemon = """
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: probe}
spec:
  template:
    spec:
      containers:
        - {name: app, image: none, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpu.memory: 4576}}}
"""
    _, told = fit("-f", manifest(replicas=1, mib=10000, more=daemon), "--cards", "X:24576=1")
    assert told["sets"] == 2
    assert told["cards"][0]["memory_allocated_mib"] == 24576


@settings(max_examples=25)
@given(st.integers(1, 24576), st.integers(1, 100), st.integers(1, 4))
def test_as_many_slices_fit_as_the_scarcer_of_memory_and_compute_holds_on_each_card(mib, pct, cards):
    expected = cards * min(24576 // mib, 100 // pct)
    code, told = fit("--slice", f"{mib}:{pct}", "--cards", f"X:24576={cards}", "--most", 40)
    assert told["sets"] == min(expected, 40)
    assert told["capped"] is (expected >= 40)
    assert code == (0 if expected else 1)


# ---------------------------------------------------------------- how it ends


@pytest.mark.parametrize(("at_least", "code"), [(5, 0), (6, 1), (0, 0)])
def test_the_exit_code_says_whether_enough_fit(at_least, code):
    assert fit("--slice", "4096:20", "--cards", "X:24576=1", "--at-least", at_least)[0] == code


def test_the_search_ends_at_most_sets_and_says_so():
    done = cardwise("fit", "--slice", "10:1", "--cards", "X:24576=1", "--most", "3")
    assert done.returncode == 0
    assert "At least 3 sets of 1 pod fit; --most ended the search." in done.stdout


def test_the_table_names_cards_reason_and_answer():
    done = cardwise("fit", "--slice", "4096:20", "--cards", "A10=4,L4=8")
    assert done.returncode == 0
    assert "note: CPU and memory of nodes assumed: 8 cards, 16 CPUs and 64 GiB per card" in done.stdout
    assert "2554 of 23034 MiB are free on the card" in done.stdout
    assert "60 sets of 1 pod fit; the next does not. latency-sensitive by balanced" in done.stdout


def test_a_card_of_any_name_is_shown_without_what_a_terminal_would_obey():
    done = cardwise("fit", "--slice", "4096:20", "--cards", "a\x1b[31m:24000=1")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert r"A\x1b[31M" in done.stdout


def test_nothing_that_fits_ends_with_1_and_the_reason_and_no_traceback():
    done = cardwise("fit", "--slice", "90000:10", "--cards", "A10=1")
    assert (done.returncode, done.stderr) == (1, "")
    assert "0 sets of 1 pod fit: not even one" in done.stdout


def with_metadata(text, metadata):
    return text.replace("    spec:\n      containers", f"    metadata: {metadata}\n    spec:\n      containers")


def test_a_workload_that_the_webhook_denies_fits_no_time_and_says_why(tmp_path):
    text = MANIFEST.format(replicas=1, mib=500, pct=10, cpu="1")
    (tmp_path / "m.yaml").write_text(with_metadata(text, "{annotations: {cardwise.dev/engine: vllm}}"))
    code, told = fit("-f", tmp_path / "m.yaml", "--cards", "X:24576=1")
    assert (code, told["sets"], told["stopped_by"]) == (1, 0, [])
    assert "500 MiB leave engine vllm nothing" in told["denied"][0]["why"]


def test_standard_input_without_a_manifest_is_a_users_mistake():
    done = cardwise("fit", "-f", "-", "--cards", "X:24576=1")
    assert (done.returncode, "standard input: is empty" in done.stderr) == (2, True)


# ---------------------------------------------------------------- on what


@pytest.fixture
def dump(tmp_path):
    """A cluster of one node whose agent tells of its cards, one by labels, and a pod on it."""
    told = {wire.ANNOTATION_CARDS: encode_cards([card("u0", "A10", 24576), card("u1", "A100", 81920)])}
    amounts = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "2", "pool": "b"}
    ready = [{"type": "Ready", "status": "True"}]
    nodes = [
        {"kind": "Node", "metadata": {"name": "a", "annotations": told}, "status": {"allocatable": amounts}},
        {
            "kind": "Node",
            "metadata": {"name": "b", "labels": labels},
            "status": {"allocatable": amounts, "capacity": amounts, "conditions": ready},
        },
    ]
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": [container]}}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"kind": "List", "items": [*nodes, pod]}))
    return path


def test_the_nodes_of_a_dump_are_filled_from_empty_by_what_agent_or_labels_tell(dump):
    _, told = fit("--slice", "15000:100", "--dump", dump)
    assert [(each["model"], each["cards"], each["memory_total_mib"]) for each in told["cards"]] == [
        ("A10", 1, 24576),
        ("A100", 1, 81920),
        ("T4", 2, 30720),
    ]
    assert told["sets"] == 4
    assert any("Pods of the dump were left out" in note for note in told["notes"])


def test_a_node_selector_is_obeyed_with_the_labels_of_the_dump(dump, tmp_path):
    text = MANIFEST.format(replicas=1, mib=15000, pct=100, cpu="1").replace(
        "    spec:\n      containers", "    spec:\n      nodeSelector: {pool: b}\n      containers"
    )
    (tmp_path / "m.yaml").write_text(text)
    _, told = fit("-f", tmp_path / "m.yaml", "--dump", dump)
    assert told["sets"] == 2


def memory_of(*args):
    """Of one card of these."""
    (model,) = fit("--slice", "1000:10", *args, "--most", 1)[1]["cards"]
    return model["memory_total_mib"] // model["cards"]


@pytest.mark.parametrize("name", tables().cards)
def test_a_card_has_one_size_by_every_name_that_plan_knows(name):
    expected = tables().cards[name].memory_mib
    assert memory_of("--cards", f"{name}=2") == memory_of("--node", f"name=a,model={name},cards=2") == expected


def test_the_memory_of_a_node_of_unknown_cards_is_assumed_and_said_so():
    _, told = fit("--slice", "1000:10", "--node", "name=a,model=NEW,cards=1", "--most", 1)
    assert told["notes"] == ["node a: memory not given, and NEW is not known: 24576 MiB assumed"]


def test_a_pod_of_an_unnamed_slice_has_a_short_name():
    _, told = fit("--slice", "20000:20", "--cards", "X:24576=1")
    assert told["stopped_by"][0]["pod"] == "default/slice-1-set-2"


# ---------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--cards", "A10=1"], "what shall be placed? give either manifests with -f FILE, or --slice MIB:PERCENT"),
        (["--slice", "1:1"], "on what? give one of --cards A10=4,L4=8"),
        (["--slice", "1:1", "--cards", "A10=1", "--node", "name=a"], "on what? give one of"),
        (["--slice", "4096", "--cards", "A10=1"], "'' is no percentage, 1 to 100; write MIB:PERCENT"),
        (["--slice", "a=4096:101", "--cards", "A10=1"], "'101' is no percentage"),
        (["--slice", "A_b=1:1", "--cards", "A10=1"], "'A_b' is no name; write lower-case letters, digits and '-'"),
        (["--slice", "a=1:1", "--slice", "a=2:1", "--cards", "A10=1"], "two slices are named a"),
        (["--slice", "x:1", "--cards", "A10=1"], "--slice 'x:1': "),
        (["--slice", "1:1", "--cards", "A10"], "'A10' is no kind of card with its number; write MODEL=COUNT"),
        (["--slice", "1:1", "--cards", "NEW=2"], "the memory of 'NEW' is not known; write NEW:24576=2, with the"),
        (["--slice", "1:1", "--cards", "A100=4"], "write A100:40960=4, with the MiB of yours, or A100-40GB or"),
        (["--slice", "1:1", "--cards", "H1000=4"], "or H100"),
        (["--slice", "1:1", "--cards", "A10=0"], "0 cards; write 1 to 20000"),
        (["--slice", "1:1", "--cards", "A10=20000,L4=1"], "20,001 cards in all; write at most 20,000"),
        (["--slice", "1:1", "--cards", "A10=x"], "'A10=x'"),
        (["--slice", "1:1", "--cards", "A10=1", "--card-memory", "A10=1"], "with --cards write MODEL:MIB=COUNT"),
        (["--slice", "1:1", "--cards", "A10=1", "--policy", "densee"], "no policy is called 'densee'"),
        (["--slice", "1:1", "--node", "name=a", "--node", "name=a"], "two nodes are named a"),
    ],
)
def test_what_cannot_be_used_is_told_with_what_to_write(args, told):
    assert told in refused(*args)


def test_manifests_without_a_pod_are_told(tmp_path):
    (tmp_path / "m.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
    assert "make no pods that could be counted" in refused("-f", tmp_path / "m.yaml", "--cards", "A10=1")
