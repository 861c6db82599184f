"""``cardwise advise`` as a process: the mode, its grounds, and what it does not hold."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_commands import cardwise


def test_the_mode_comes_first_then_what_it_holds_and_why():
    done = cardwise("advise", "--services", 4, "--peak-mean", 10, "--driver", "570.124.06", "--card", "NVIDIA L40S")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "mps, step mps-env: 4 services per card",
        "  memory   asks   as long as no container tries to get around it",
        "  compute  asks   as long as no container tries to get around it",
        "  faults   none   not isolated: a fault can end every container on the card",
    ]
    assert lines[4] == "because"
    assert "  the peak is 10 times the mean: what one leaves idle another can use, unlike with MIG" in lines
    assert "  limits are in the container's environment, and its code can lift them" in lines[lines.index("mind") :]


def test_json_is_one_object_and_nothing_else():
    done = cardwise(
        "advise", "--contained", "--services", 5, "--memory", 9000, "--card", "NVIDIA A100-SXM4-80GB", "--json"
    )
    told = json.loads(done.stdout)
    assert list(told) == ["mode", "step", "services_per_card", "isolates", "grounds", "warnings"]
    assert (told["mode"], told["step"], told["services_per_card"]) == ("mig", "mig", 5)
    assert told["isolates"] == {"memory": "binds", "compute": "binds", "faults": "binds"}


def test_an_own_word_on_mig_comes_before_the_cards_name():
    told = json.loads(cardwise("advise", "--contained", "--card", "NVIDIA H200", "--no-mig", "--json").stdout)
    assert told["mode"] == "whole"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        pytest.param(
            ["--driver", "new"], "'new' is no driver version; write one such as 570 or 570.124.06", id="driver"
        ),
        pytest.param(["--peak-mean", "0.5"], "0.5 is not in the range 1", id="peak below mean"),
        pytest.param(["--peak-mean", "nan"], "nan is not a number", id="NaN"),
        pytest.param(["--services", "0"], "0 is not in the range 1", id="no services"),
        pytest.param(["--latency", "fast"], "'fast' is not one of 'latency-sensitive', 'best-effort'", id="class"),
    ],
)
def test_a_wrong_option_ends_with_one_line_and_exit_code_2(args, message):
    done = cardwise("advise", *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


def test_help_says_what_is_asked_and_what_is_answered():
    told = " ".join(cardwise("advise", "--help").stdout.split())
    assert "how services should share a card: whole, mps, mig or time-slicing" in told
    assert all(option in told for option in ("--latency", "--peak-mean", "--contained", "--tenants", "--driver"))
