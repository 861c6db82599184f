"""The command line as a process: what it prints where, and how it ends."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import fields, replace

import msgspec
import pytest

from cardwise.adapters.nominations import Nomination, Victim, encode_nomination
from cardwise.core.allocation import Allocation, Share
from cardwise.core.placement.policies import DenseWeights
from cardwise.replay.outcome import Run
from tests.conftest import ROOT

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,T4\nn1,64000,262144,4,A10\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"p{i},2000,4096,1,{milli},\n" for i, milli in enumerate([500, 250, 1000, 800, 200, 300] * 5)
)


def cardwise(*args, cwd=None, env=None):
    return subprocess.run(
        [sys.executable, "-c", "from cardwise.cli.main import main; main()", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env=env,
        check=False,
    )


@pytest.fixture
def files(tmp_path):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["--nodes", tmp_path / "nodes.csv", "--pods", tmp_path / "pods.csv", "--workers", "1"]


def test_json_is_one_documented_object_and_nothing_else_on_stdout(files):
    done = cardwise("replay", *files, "--policy", "dense", "--policy", "fgd", "--seed", "1", "--seed", "2", "--json")
    told = json.loads(done.stdout)
    assert list(told) == ["runs"]
    runs = [msgspec.convert(run, Run) for run in told["runs"]]  # raises on a missing or misnamed field
    assert [(run.policy, run.seed) for run in runs] == [("dense", 1), ("dense", 2), ("fgd", 1), ("fgd", 2)]


def test_the_table_names_every_policy_and_the_best(files):
    done = cardwise("replay", *files, "--policy", "best-fit", "--policy", "whole-card")
    assert done.returncode == 0
    assert "best-fit leaves" in done.stdout
    assert "whole-card" in done.stdout


def test_the_same_seed_prints_the_same_figures(files):
    first, second = (
        [
            {key: value for key, value in run.items() if key not in {"decision_us_p50", "decision_us_p99", "wall_s"}}
            for run in json.loads(cardwise("replay", *files, "--policy", "dense", "--json").stdout)["runs"]
        ]
        for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param(["--policy", "densee"], "no policy is called 'densee'; write one of whole-card", id="policy"),
        pytest.param(["--policy", "no.toml"], "no.toml: no such file; give a policy file", id="policy file"),
        pytest.param(["--load", "0"], "0.0 is not in the range 0<x<=10", id="load 0"),
        pytest.param(["--load", "nan"], "nan is not a number", id="load NaN"),
        pytest.param(["--seed", "-1"], "-1 is not in the range 0<=x<=2147483647", id="seed"),
        pytest.param(["--regime", "filll"], "'filll' is not one of 'fill', 'churn', 'trace'", id="regime"),
        pytest.param(["--regime", "trace"], "pod p0 has no creation time, which the trace regime needs", id="no times"),
        pytest.param(["--html", "/no/such/folder/r.html"], "there is no folder /no/such/folder", id="html"),
        pytest.param(["--html", ""], "'--html': is empty; write a path", id="html empty"),
        pytest.param(["--seed", str(2**63)], f"{2**63} is not in the range 0<=x<=2147483647", id="seed 2**63"),
        pytest.param(
            ["--regime", "churn", "--arrivals", str(10**24)], "is not in the range 2<=x<=10000000", id="arrivals"
        ),
        pytest.param(["--arrivals", "100"], "--arrivals goes with --regime churn, not fill", id="arrivals with fill"),
        pytest.param(
            ["--regime", "trace", "--load", "1"], "--load does not go with --regime trace", id="load with trace"
        ),
        pytest.param(
            ["--load", "1e-9"], "at load 1e-09 of 6 cards no pod that asks for a card arrives", id="load 1e-9"
        ),
        pytest.param(["--policy", "[/x].toml"], "[/x].toml: no such file", id="markup in a path"),
        pytest.param(["--policy", "\x1b[31m.toml"], r"\x1b[31m.toml: no such file", id="escape in a path"),
        pytest.param(["--\x1b[31m"], r"No such option '--\x1b[31m'", id="escape in an option"),
        pytest.param(["--slice", "a/b=1:1"], "--slice and --card-memory only go with --dump", id="slice without dump"),
    ],
)
def test_a_wrong_option_ends_with_2_and_one_clear_line(files, args, message):
    done = cardwise("replay", *files, *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param(["--seed", str(2**32)], f"{2**32} is not in the range", id="seed"),
        pytest.param(["--arrivals", str(10**24)], "is not in the range 100<=x<=10000000", id="arrivals"),
        pytest.param(
            ["--arrivals", "100", "--case", "fill:1", "--case", "fill:1.3"],
            "--arrivals goes with a churn case, and every --case is fill: leave it out, or add one",
            id="arrivals with fill",
        ),
        pytest.param(["--case", "fill:1e-9"], "at load 1e-09 of 6 cards no pod", id="load"),
        pytest.param(["--policy", "none.toml"], "policy none: all weights are 0", id="weights"),
        pytest.param(["--out", "no/p.toml"], "no/p.toml: cannot be written (there is no folder", id="out"),
        pytest.param(["--out", "pods.csv"], "pods.csv: is read by this command", id="out is an input"),
        pytest.param(["--policy", "none.toml", "--out", "./none.toml"], "is read by this command", id="out is policy"),
    ],
)
def test_a_wrong_option_of_tune_ends_with_2_and_one_clear_line(tmp_path, files, args, message):
    zeros = "".join(f"{each.name} = 0\n" for each in fields(DenseWeights))
    (tmp_path / "none.toml").write_text(f'policy = "dense"\n[weights]\n{zeros}')
    rows = PODS.partition("\n")[2]
    (tmp_path / "pods.csv").write_text(PODS + rows.replace("p", "q") + rows.replace("p", "r"))
    done = cardwise("tune", *files, *args, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_nodes_without_pods_is_told(tmp_path, files):
    done = cardwise("replay", *files[:2])
    assert (done.returncode, done.stderr) == (
        2,
        "error: --nodes and --pods go together: give both, or neither for the built-in choice\n",
    )


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        pytest.param(PODS.replace("p3,2000", "p3,-2000"), "pods.csv:5: cpu_milli", id="negative"),
        pytest.param(PODS.replace("gpu_milli,gpu_spec", "milli,gpu_spec"), "gpu_milli", id="missing column"),
        pytest.param("", "pods.csv: is empty", id="empty"),
    ],
)
def test_a_bad_trace_names_file_line_and_field(tmp_path, files, pods, message):
    (tmp_path / "pods.csv").write_text(pods)
    done = cardwise("replay", *files)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


UNREADABLE = {
    "kind": "List",
    "items": [
        {"kind": "Node", "metadata": {"name": "n0", "annotations": {"cardwise.dev/cards": "[{"}}, "status": {}},
        {
            "kind": "Pod",
            "metadata": {"name": "b", "namespace": "ns", "uid": "b", "annotations": {"cardwise.dev/alloc": "{"}},
            "spec": {"containers": [{"name": "c"}], "nodeName": "n0"},
            "status": {},
        },
        {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "p"}, "spec": {}, "status": {}},
    ],
}


def test_explain_tells_what_it_could_not_read_beside_the_json_not_in_it(tmp_path):
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps(UNREADABLE))
    done = cardwise("explain", "ns/p", "--dump", dump, "--json")
    assert json.loads(done.stdout)["pod"] == "ns/p"
    for told in ("inventory is unreadable", "allocation is unreadable"):
        assert told in done.stderr


def test_explain_says_why_a_pod_on_a_fenced_card_stays(tmp_path):
    why = "its card is fenced, and it stays: no other node has room for it"
    limits = {"nvidia.com/gpu.memory": "4096"}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "uid": "p", "annotations": {"cardwise.dev/stays": why}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}], "nodeName": "n0"},
    }
    dump = tmp_path / "dump.json"
    node = {"kind": "Node", "metadata": {"name": "n0"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi"}}}
    dump.write_text(json.dumps({"kind": "List", "items": [node, pod]}))
    assert f"  {why}\n" in cardwise("explain", "ns/p", "--dump", dump).stdout
    assert json.loads(cardwise("explain", "ns/p", "--dump", dump, "--json").stdout)["stays"] == why


def test_explain_says_what_is_kept_for_a_pod_that_waits_and_who_makes_room(tmp_path):
    victims = (Victim("u", "ns/batch"),)
    kept = Nomination(Allocation("n7", (("c", (Share("card", 4096, 10),)),)), victims, 0.0, 60.0)
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "uid": "p"},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu.memory": "4096"}}}]},
    }
    node = {"kind": "Node", "metadata": {"name": "n0"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi"}}}
    dump = tmp_path / "dump.json"
    for moves, how in ((False, "have gone"), (True, "move, each once its successor is ready")):
        told = encode_nomination(replace(kept, moves=moves))
        pod["metadata"]["annotations"] = {"cardwise.dev/nominated": told}
        dump.write_text(json.dumps({"kind": "List", "items": [node, pod]}))
        line = f"a place on n7 is kept for it until these {how}: ns/batch"
        assert f"  {line}\n" in cardwise("explain", "ns/p", "--dump", dump).stdout
        assert json.loads(cardwise("explain", "ns/p", "--dump", dump, "--json").stdout)["kept"] == line


def test_explain_of_a_cluster_without_agents_says_that_nobody_reports_cards():
    pod, dump = "serving/resnet-50-5d9c7b6f4-00000", ROOT / "examples/dump/dump.json"
    done = cardwise("explain", pod, "--dump", dump)
    assert "0 of 6 nodes fit: 6 no cards reported" in done.stdout
    assert "gpu-0: no: no agent reports cards of gpu-0" in done.stdout
    assert done.stdout.count("see that the cardwise agent runs on the node") == 1
    (told,) = json.loads(cardwise("explain", pod, "--dump", dump, "--json").stdout)["refusals"]
    assert (told["code"], told["nodes"]) == ("node-unknown", 6)


def test_pods_that_hold_whole_cards_are_said_to_need_a_size_and_not_eight_times_that_nothing_differs():
    done = cardwise("replay", "--dump", ROOT / "examples/dump/dump.json", "--workers", "1")
    said = " ".join(done.stdout.split())
    assert "All policies leave 0 of 24 cards unusable." in said
    assert "need: 21 cards by every policy. They hold whole cards: say what they really need with --slice." in said
    assert "the next" not in said


def test_a_dump_that_is_gzip_compressed_says_so(tmp_path):
    (tmp_path / "dump.json").write_bytes(gzip.compress(b"{}"))
    done = cardwise("replay", "--dump", tmp_path / "dump.json")
    assert done.returncode == 2
    assert "dump.json: is gzip-compressed; run gunzip first" in done.stderr


def test_the_report_does_not_replace_an_input(tmp_path, files):
    (tmp_path / "link.html").symlink_to(tmp_path / "pods.csv")
    done = cardwise("replay", *files, "--html", tmp_path / "link.html")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is read by this command" in done.stderr
    assert (tmp_path / "pods.csv").read_text() == PODS


def test_the_table_is_printed_even_if_the_report_cannot_be_written_any_more(tmp_path, files):
    command = [sys.executable, "-m", "cardwise", "replay", *map(str, files), "--policy", "dense"]
    done = subprocess.run(  # no real device as a target: a fault of ours, run by root, would replace it
        ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *command, "--html", str(tmp_path / "r.html")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "r.html: cannot be written (File too large)" in done.stderr
    assert "dense" in done.stdout
    assert not list(tmp_path.glob("*r.html*"))


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["--help"], id="help"),
        pytest.param(["--version"], id="version"),
        pytest.param(["replay"], id="table"),
        pytest.param(["replay", "--json"], id="json"),
    ],
)
@pytest.mark.parametrize(
    ("to", "why"),
    [
        pytest.param(">/dev/full", "No space left on device", id="full"),
        pytest.param(">&-", "it is closed", id="closed"),
    ],
)
def test_a_stdout_that_takes_nothing_ends_with_1_and_one_line(files, args, to, why):
    more = [*map(str, files), "--policy", "dense"] if args[0] == "replay" else []
    command = [sys.executable, "-m", "cardwise", *args, *more]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {to}', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: cannot write to stdout: {why}")
    assert "Traceback" not in done.stderr


def test_brackets_colons_and_escapes_in_names_are_printed_and_do_nothing(tmp_path, files):
    folder = tmp_path / "[red]x[" / "x]"
    folder.mkdir(parents=True)
    (folder / ":bug:\x1b[31m.toml").write_text('policy = "dense"\n')
    (tmp_path / "nodes.csv").write_text(NODES.replace("\n", ",\n").replace("model,", "model,[/x]"))
    done = cardwise("replay", *files, "--policy", folder / ":bug:\x1b[31m.toml", "--html", folder / "[red].html")
    assert (done.returncode, "\x1b" in done.stdout + done.stderr) == (0, False)
    assert r":bug:\x1b[31m leaves" in done.stdout
    told = "".join(done.stderr.split())
    assert "cardwisedoesnotknowwerenotread:[/x]." in told
    assert told.endswith("[red]x[/x]/[red].html")


def test_policy_files_of_one_stem_are_rows_of_their_own(tmp_path, files):
    paths = [tmp_path / name / "mine.toml" for name in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_text('policy = "dense"\n')
    done = cardwise("replay", *files, "--policy", paths[0], "--policy", paths[1], "--json")
    assert [run["policy"] for run in json.loads(done.stdout)["runs"]] == [str(path) for path in paths]


def test_a_failed_run_leaves_no_report_behind(tmp_path, files):
    (tmp_path / "pods.csv").write_text("name\n")
    assert cardwise("replay", *files, "--html", tmp_path / "r.html").returncode == 2
    assert not list(tmp_path.glob("*r.html*"))


def test_a_wrong_trace_folder_is_not_passed_over(tmp_path):
    done = cardwise("replay", env={"CARDWISE_OPENB": str(tmp_path), "PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    assert done.returncode == 2
    assert "CARDWISE_OPENB is" in done.stderr


def test_synth_writes_what_replay_reads(tmp_path):
    assert cardwise("synth", tmp_path / "c", "--nodes", "5", "--seed", "3").returncode == 0
    files = ["--nodes", tmp_path / "c/nodes.csv", "--pods", tmp_path / "c/pods.csv"]
    assert cardwise("replay", *files, "--policy", "dense").returncode == 0


def test_synth_keeps_files_that_differ_unless_forced(tmp_path):
    synth = ["synth", tmp_path, "--nodes", "2"]
    assert cardwise(*synth).returncode == 0
    assert cardwise(*synth).returncode == 0  # the same files again
    (tmp_path / "pods.csv").write_text("mine")
    done = cardwise(*synth)
    assert (done.returncode, (tmp_path / "pods.csv").read_text()) == (2, "mine")
    assert "pods.csv: is there already and differs; pass --force to replace it" in done.stderr
    assert cardwise(*synth, "--force").returncode == 0


def test_tune_writes_nothing_and_ends_with_3_where_the_held_out_part_shows_nothing(tmp_path, files):
    same = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(f"p{i},1000,1024,1,500\n" for i in range(80))
    (tmp_path / "pods.csv").write_text(same)
    args = ["--case", "fill:1.3", "--evaluations", "2", "--policy", "balanced", "--out", tmp_path / "p.toml"]
    done = cardwise("tune", *files, *args)
    assert done.returncode == 3
    assert "shows no improvement" in done.stderr
    assert not (tmp_path / "p.toml").exists()


def test_a_policy_file_is_used_under_its_own_name(tmp_path, files):
    (tmp_path / "mine.toml").write_text('policy = "dense"\n[weights]\nsliver = 2\n')
    done = cardwise("replay", *files, "--policy", tmp_path / "mine.toml", "--json")
    assert json.loads(done.stdout)["runs"][0]["policy"] == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            'policy = "dense"\n[weights]\nslivers = 2\n', "weights.slivers: is not a weight of dense", id="typo"
        ),
        pytest.param(
            'policy = "dense"\n[weights]\nsliver = -1\n', "weights.sliver: is -1; write a number", id="below 0"
        ),
        pytest.param('policy = "dense"\n[weights]\nsliver = nan\n', "weights.sliver: is nan; write a number", id="NaN"),
        pytest.param('policy = "x"\n', "policy: is 'x'; write one of", id="unknown policy"),
        pytest.param("policy = ", "is not TOML", id="not TOML"),
        pytest.param('policy = "fgd"\n[weights]\na = 1\n', "policy fgd takes no weights", id="no weights to set"),
    ],
)
def test_a_wrong_policy_file_names_the_key(tmp_path, files, content, message):
    (tmp_path / "mine.toml").write_text(content)
    done = cardwise("replay", *files, "--policy", tmp_path / "mine.toml")
    assert done.returncode == 2
    assert message in done.stderr


def test_help_tells_of_every_command():
    told = cardwise("--help").stdout
    assert all(command in told for command in ("replay", "tune", "synth"))
