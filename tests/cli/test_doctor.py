"""``cardwise doctor`` as a process: what it prints, and how it ends."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_commands import cardwise
from tests.doctor.faults import FAULTS
from tests.doctor.world import small


def test_a_healthy_cluster_ends_with_0_and_says_how_much_was_looked_at(tmp_path):
    done = cardwise("doctor", "--dump", small().write(tmp_path))
    assert (done.returncode, done.stdout) == (0, "nothing found by 37 checks\n")


def test_a_finding_ends_with_1_and_has_its_evidence_what_to_do_and_its_page(tmp_path):
    world = small()
    FAULTS["CW203", "8 GiB are free on each of four cards, 12 are asked for"](world)
    done = cardwise("doctor", "--dump", world.write(tmp_path))
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0].startswith("CW203 likely: pod serving/waits: ")
    assert lines[1].startswith("  seen: it asks for 16500 MiB")
    assert any(line.startswith("  do: ") for line in lines)
    assert lines[-1] == "1 cause, 0 consequences; pages: docs/troubleshooting/cwNNN.md"


def test_json_is_one_object_and_nothing_else_on_stdout(tmp_path):
    world = small()
    FAULTS["CW404", "the tokenizer is one thread, far from the limit"](world)
    told = json.loads(cardwise("doctor", "--json", "--dump", world.write(tmp_path)).stdout)
    assert list(told) == ["healthy", "findings", "unexplained", "gaps"]
    first = told["findings"][0]
    assert (told["healthy"], first["code"], first["page"]) == (False, "CW404", "docs/troubleshooting/cw404.md")
    assert set(first) == {
        "code", "title", "subject", "places", "likelihood", "cause", "evidence", "action", "follows_from",
        "alike", "page",
    }  # fmt: skip


def test_a_service_that_is_slow_for_no_known_reason_is_said_to_be_so(tmp_path):
    world = small()
    world.service("serving/llm", "llm-a", p99=0.9)
    done = cardwise("doctor", "--dump", world.write(tmp_path))
    assert done.returncode == 1
    assert "unexplained: service serving/llm was slow for 100% of the time" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param(["--dump", "no.json"], "no.json: no such file", id="no file"),
        pytest.param(["--dump", "x", "--save", "y"], "--dump is read instead of a cluster", id="both"),
        pytest.param(["--node-local", "--dump", "x"], "--node-local looks at this node alone", id="node and dump"),
        pytest.param(["--agent-config", "x"], "--agent-config goes with --node-local", id="config alone"),
        pytest.param(["--token-file", "x", "--dump", "y"], "--token-file goes with --prometheus", id="token alone"),
        pytest.param(["--prometheus", "nowhere", "--kubeconfig", "k"], "is no address of a Prometheus", id="address"),
        pytest.param(["--kubeconfig", "no.yaml"], "no way to a cluster", id="no kubeconfig"),
    ],
)
def test_a_wrong_command_ends_with_2_and_no_traceback(tmp_path, args, message):
    done = cardwise("doctor", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_text_of_a_cluster_cannot_write_to_the_terminal(tmp_path):
    world = small()
    world.pod("waits", mib=1024, pct=10)["status"]["conditions"][0]["message"] = "\x1b[31mred"
    done = cardwise("doctor", "--dump", world.write(tmp_path))
    assert "\x1b" not in done.stdout
    assert "\\x1b[31mred" in done.stdout
