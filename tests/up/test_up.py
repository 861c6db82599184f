"""`cardwise up` end to end: manifests in, the state out, decided by the scheduler's own code."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cardwise.adapters import wire
from cardwise.adapters.manifests import read_manifests
from cardwise.errors import UserError
from cardwise.up.compare import everywhere, settled
from cardwise.up.hardware import parse_node, uniform
from cardwise.up.sources import Sources
from tests.conftest import ROOT

ONE_CARD = uniform(1, 1, "A10", 24576)
FOUR_NODES = uniform(4, 4, "A10", 24576)
SLICE = {"nvidia.com/gpu": 1, "nvidia.com/gpu.memory": 4096, "nvidia.com/gpu.cuda-cores": 20}
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def up(*options, stdin=None):
    """The command as a person types it."""
    command = [sys.executable, "-m", "cardwise", "up", *map(str, options)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=120)


def state(*manifests, nodes=FOUR_NODES, policy=()):
    """What the command's JSON says, made in this process."""
    return asyncio.run(
        settled(read_manifests({"f.yaml": files(*manifests)}), nodes, dict(policy), lambda: 0.0, lambda: NOW)
    )


def manifest(name, limits, replicas=1, kind="Deployment", **spec):
    annotations = spec.pop("annotations", {})
    container = {"name": "main", "resources": {"limits": limits, "requests": spec.pop("requests", {})}}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container], **spec}}
    told = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {"template": template}}
    if kind == "Deployment":
        told["spec"]["replicas"] = replicas
    return told


def files(*manifests):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})


def cards(told):
    return [card for node in told["nodes"] for card in node["cards"]]


def places(told):
    """Nodes by service."""
    return {
        each["service"]: node["name"] for node in told["nodes"] for card in node["cards"] for each in card["slices"]
    }


# ---------------------------------------------------------------- slices and reasons


def test_a_24_gib_card_takes_five_slices_of_4096_mib_and_the_sixth_waits_with_a_reason():
    told = state(manifest("resnet", SLICE, 6), nodes=ONE_CARD)
    (card,) = cards(told)
    assert [(each["memory_mib"], each["compute_pct"]) for each in card["slices"]] == [(4096, 20)] * 5
    (pending,) = told["pending"]
    assert pending["why"] == "0/1 nodes are available: 1 too little card compute"
    assert "0.0 % of the card's compute is free, the pod asks for 20.0 %" in pending["detail"]
    assert told["summary"] | {"cards_used": 1, "slices": 5, "pods_placed": 5, "pods_pending": 1} == told["summary"]


def test_a_manifest_written_for_hami_runs_unchanged():
    hami = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 20}
    (card,) = cards(state(manifest("speech", hami, 5), nodes=ONE_CARD))
    assert [(each["memory_mib"], each["compute_pct"]) for each in card["slices"]] == [(4096, 20)] * 5


def test_an_ask_larger_than_every_card_says_how_much_a_card_has():
    large = {"nvidia.com/gpu.memory": 40960}
    (pending,) = state(manifest("large", large))["pending"]
    assert pending["why"] == "0/4 nodes are available: 4 too little card memory"
    assert "24576 of 24576 MiB are free on the card, the pod asks for 40960 on one card" in pending["detail"]


def test_the_numbers_are_of_the_reason_that_was_counted_even_if_others_came_to_it_since():
    """The large pod is refused for compute; then a small one takes the memory too."""
    first = manifest("first", {"nvidia.com/gpu.memory": 12288, "nvidia.com/gpu.cuda-cores": 80})
    large = manifest("large", {"nvidia.com/gpu.memory": 12288, "nvidia.com/gpu.cuda-cores": 40})
    small = manifest("small", {"nvidia.com/gpu.memory": 4096, "nvidia.com/gpu.cuda-cores": 20})
    (pending,) = state(first, large, small, nodes=ONE_CARD)["pending"]
    assert pending["why"] == "0/1 nodes are available: 1 too little card compute"
    assert pending["detail"] == (
        "card 0 of gpu-1, the closest: 0.0 % of the card's compute is free, the pod asks for 40.0 %"
    )
    assert pending["advice"] == "ask for a smaller percentage"


def test_the_numbers_are_of_nodes_that_were_asked():
    selected = manifest("selected", {"nvidia.com/gpu.memory": 40960}, nodeSelector={"kubernetes.io/hostname": "small"})
    nodes = [parse_node("name=big,memory=32768"), parse_node("name=small,memory=16384"), parse_node("name=x,cards=0")]
    (pending,) = state(selected, nodes=nodes)["pending"]
    assert pending["why"].endswith("2 node(s) didn't match Pod's node affinity/selector, 1 too little card memory")
    assert pending["detail"].startswith("card 0 of small, the closest: 16384 of 16384 MiB are free on the card")
    (pending,) = state(selected, nodes=nodes[:1])["pending"]
    assert pending["detail"] == ""  # the selector's refusal has no numbers


def test_too_little_cpu_is_told_with_numbers():
    (pending,) = state(manifest("hungry", SLICE, requests={"cpu": "65"}), nodes=ONE_CARD)["pending"]
    assert pending["detail"] == "gpu-1: 64000 of 64000 milli CPU are free, the pod asks for 65000"


def test_a_pod_that_asks_for_a_slice_is_not_told_to_do_so_where_the_policy_gives_whole_cards():
    pending = state(manifest("resnet", SLICE, 2), nodes=ONE_CARD, policy=everywhere("whole-card"))["pending"]
    assert "policy whole-card gives whole cards, whatever a pod asks for" in pending[0]["detail"]
    assert "leave out --whole-card" in pending[0]["advice"]
    whole = state(manifest("llm", {"nvidia.com/gpu": 1}, 2), nodes=ONE_CARD, policy=everywhere("whole-card"))["pending"]
    assert "ask for a slice" in whole[0]["advice"]


def test_a_misspelt_resource_is_denied_with_what_was_meant():
    told = state(manifest("resnet", {"nvidia.com/gpu.memmory": 4096}, 3))
    (denied,) = told["denied"]
    assert (denied["workload"], denied["pods"]) == ("Deployment default/resnet", 3)
    assert denied["where"] == "f.yaml:1"
    assert "no resource is called nvidia.com/gpu.memmory; write nvidia.com/gpu.memory" in denied["why"]
    assert told["summary"]["pods_placed"] == 0


def test_best_effort_pods_are_placed_by_the_policy_of_their_class():
    best = manifest("batch", SLICE, 3, annotations={wire.ANNOTATION_CLASS: "best-effort"})
    told = state(best, nodes=FOUR_NODES[:1])
    assert told["policy"] == {"latency-sensitive": "balanced", "best-effort": "dense"}
    assert told["summary"]["cards_used"] == 1
    balanced = state(best, nodes=FOUR_NODES[:1], policy={"best-effort": "balanced"})
    assert balanced["summary"]["cards_used"] == 3


# ---------------------------------------------------------------- the emulated cycle


def test_a_pod_of_higher_priority_goes_first():
    low, high = manifest("low", SLICE, 5), manifest("high", SLICE, 1, priorityClassName="system-node-critical")
    told = state(low, high, nodes=ONE_CARD)
    assert "default/high" in places(told)
    assert [each["service"] for each in told["pending"]] == ["default/low"]


def test_a_node_without_the_asked_cpu_is_left_out_before_the_extender_is_asked():
    hungry = manifest("hungry", SLICE, requests={"cpu": "65"})
    (pending,) = state(hungry)["pending"]
    assert pending["why"] == "0/4 nodes are available: 4 Insufficient cpu"


def test_a_node_selector_is_kept():
    chosen = manifest("chosen", SLICE, nodeSelector={"kubernetes.io/hostname": "gpu-3"})
    assert places(state(chosen)) == {"default/chosen": "gpu-3"}


def test_a_required_node_affinity_is_kept():
    expression = {"key": wire.LABEL_PRODUCT, "operator": "NotIn", "values": ["A10"]}
    rule = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    }
    apart = manifest("apart", SLICE, affinity={"nodeAffinity": rule})
    told = state(apart, nodes=[*FOUR_NODES, parse_node("name=b,model=L4")])
    assert places(told) == {"default/apart": "b"}


def test_a_daemon_set_runs_once_on_every_node():
    told = state(manifest("probe", SLICE, kind="DaemonSet"), nodes=FOUR_NODES[:3])
    assert [sum(len(card["slices"]) for card in node["cards"]) for node in told["nodes"]] == [1, 1, 1]


def test_a_pod_without_an_ask_for_cards_is_placed_too():
    told = state(manifest("plain", {"cpu": "1"}, 2), nodes=ONE_CARD)
    assert (told["summary"]["pods_placed"], told["summary"]["slices"]) == (2, 0)


def test_a_pod_of_another_scheduler_waits_for_it():
    other = manifest("other", {"cpu": "1"}, schedulerName="volcano")
    (pending,) = state(other)["pending"]
    assert pending["why"] == "waits for the scheduler volcano, which is not emulated here"


def test_an_init_container_holds_its_card_only_until_the_pod_is_initialized():
    pod = manifest("staged", {"nvidia.com/gpu.memory": 4096}, 1)
    init = {"name": "load", "resources": {"limits": {"nvidia.com/gpu.memory": 20480}}}
    pod["spec"]["template"]["spec"]["initContainers"] = [init]
    (card,) = cards(state(pod, nodes=ONE_CARD))
    assert card["memory_free_mib"] == 24576 - 4096


# ---------------------------------------------------------------- nodes, comparison, example


def test_nodes_are_what_the_options_say():
    h100 = manifest("reranker", SLICE, annotations={wire.ANNOTATION_GPU_MODEL: "H100"})
    options = ("--node", "name=big,model=NVIDIA-H100,memory=80Gi,cards=2", "--nodes", 1, "--cards", 3)
    done = up("--once", "--json", "-f", "-", *options, "--card-model", "L4", stdin=files(h100))
    told = json.loads(done.stdout)
    assert [(node["name"], len(node["cards"])) for node in told["nodes"]] == [("big", 2), ("gpu-1", 3)]
    assert (cards(told)[0]["model"], cards(told)[0]["memory_total_mib"]) == ("H100", 81920)
    assert places(told) == {"default/reranker": "big"}


@pytest.mark.parametrize("view", ["--once", "--compare"])
def test_memory_that_is_not_given_of_a_node_is_told(view):
    done = up(
        view,
        "--node",
        "name=a,model=NEW",
        "--node",
        "name=k,model=H100",
        "--node",
        "name=b,memory=81920",
        "--node",
        "name=c,cards=0",
    )
    notes = [line.strip() for line in done.stdout.splitlines() if line.startswith("note: ")]
    assert notes == ["note: node a: memory not given, and NEW is not known: 24576 MiB assumed"]


def test_the_comparison_counts_cards_and_pods_with_and_without_sharing():
    done = up("--compare", "--json", "-f", ROOT / "examples/up/services.yaml")
    rows = {row["name"]: row for row in json.loads(done.stdout)["compared"]}
    counted = {name: (row["cards_used"], row["pods_placed"], row["pods_pending"]) for name, row in rows.items()}
    assert counted == {"whole-card": (16, 16, 11), "cardwise": (16, 26, 1), "cardwise, dense": (9, 26, 1)}


def test_whole_card_gives_every_pod_a_card_of_its_own():
    done = up("--once", "--json", "--whole-card")
    told = json.loads(done.stdout)
    assert told["summary"] | {"cards_used": 16, "slices": 0, "pods_pending": 11} == told["summary"]
    assert all(len(card["slices"]) == 1 for card in cards(told))


def test_the_packaged_example_is_the_one_in_the_examples_folder():
    packaged = ROOT / "src/cardwise/up/examples/services.yaml"
    assert packaged.read_text() == (ROOT / "examples/up/services.yaml").read_text()


def test_the_same_files_give_the_same_state():
    wanted = (manifest("a", SLICE, 7), manifest("b", {"nvidia.com/gpu": 1}, 2))
    assert state(*wanted) == state(*wanted)


def test_the_view_in_the_terminal_names_services_sums_and_reasons():
    done = up("--once", "--policy", "dense")
    assert done.returncode == 0
    for text in ("gpu-1", "resnet ×5", "reranker ×1", "there are A10", "9 of 16 cards used, 24 slices placed"):
        assert text in " ".join(done.stdout.split())


def test_escape_sequences_from_files_and_options_never_reach_the_terminal():
    wanted = manifest("a", SLICE, annotations={wire.ANNOTATION_GPU_MODEL: "\x1b[2J[red]"})
    other = {"apiVersion": "v1", "kind": "\x1b[2JService", "metadata": {"name": "s"}}
    done = up("--once", "--card-model", "\x1b[2J", "-f", "-", stdin=files(wanted, other))
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "[RED]" in done.stdout


def test_a_folder_stands_for_the_manifests_in_it(tmp_path):
    (tmp_path / "a.yaml").write_text(files(manifest("a", SLICE)))
    (tmp_path / "b.yml").write_text(files(manifest("b", SLICE)))
    (tmp_path / "notes.txt").write_text("kind: [")
    assert [each.name for each in Sources((str(tmp_path),)).read().workloads] == ["a", "b"]


def test_a_folder_that_holds_nothing_any_more_has_changed_once(tmp_path):
    file, sources = tmp_path / "a.yaml", Sources((str(tmp_path),))
    file.write_text(files(manifest("a", SLICE)))
    sources.read()
    file.unlink()
    assert sources.changed()
    with pytest.raises(UserError, match="holds no"):
        sources.read()
    assert not sources.changed()
    file.write_text(files(manifest("a", SLICE)))
    assert sources.changed()


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--json",), "--json goes with --once or --compare"),
        (("--whole-card", "--compare"), "--whole-card goes without --policy and --compare"),
        (("--once", "--policy", "densest"), "no policy is called 'densest'; write one of"),
        (("--once", "--policy", "fast=dense"), "--policy fast=dense: no such class; write latency-sensitive=NAME or"),
        (("--once", "--node", "model=A100"), "--node 'model=A100': has no name; write name=gpu-a"),
        (("--once", "--node", "name=a,memory=5k"), "'5k' is not an amount of card memory"),
        (("--once", "--node", "name=a,cards=65"), "cards is 65, must be 0 to 64"),
        (("--once", "--node", "name=a,gpu=1"), "'gpu=1' is not one of name, model, memory"),
        (("--once", "--node", "name=a,cpu=1,cpu=2"), "cpu stands twice"),
        (("--once", "--node", "name=A_b"), "'A_b' is no name"),
        (("--once", "--node", "name=gpu-1", "--nodes", "1"), "two nodes are named gpu-1"),
        (("--once", "-f", "absent.yaml"), "absent.yaml: no such file; give Kubernetes manifests"),
        (("-f", "absent.yaml", "--port", "0"), "absent.yaml: no such file; give Kubernetes manifests"),
        (("--once", "-f", "-"), "standard input: is empty; give Kubernetes manifests"),
    ],
)
def test_a_mistake_ends_with_exit_code_2_and_what_to_write(options, told):
    done = up(*options, stdin="")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_the_example_needs_no_file_of_the_project():
    done = subprocess.run(
        [sys.executable, "-m", "cardwise", "up", "--once"], cwd=Path("/"), capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0
