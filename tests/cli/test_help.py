"""What ``cardwise --help`` tells a newcomer: which commands there are, whole, and which one was meant."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from cardwise.cli.main import COMMANDS, cli

NARROW = {"terminal_width": 80}


def test_the_list_of_commands_tells_each_on_one_whole_line_of_a_narrow_terminal():
    told = CliRunner().invoke(cli, ["--help"], **NARROW).output
    lines = {line.split()[0]: line for line in told.splitlines() if line.startswith("  ") and len(line.split()) > 1}
    assert set(COMMANDS) <= set(lines)
    for name in COMMANDS:
        assert len(lines[name].split()) > 3
        assert lines[name].endswith(".")
        assert not lines[name].endswith("...")


@pytest.mark.parametrize("group", ["mig", "quota", "fence"])
def test_a_group_tells_its_commands_whole(group):
    told = CliRunner().invoke(cli, [group, "--help"], **NARROW).output
    _, found, commands = told.partition("Commands:")
    assert found
    assert "..." not in commands


def test_a_mistyped_command_is_told_the_one_that_was_meant():
    done = CliRunner().invoke(cli, ["expalin"])
    assert done.exit_code == 2
    assert "explain" in done.output


def test_help_loads_no_command():
    script = (
        "import sys; from cardwise.cli.main import cli\n"
        "try: cli(['--help'])\n"
        "finally: print([name for name in sys.modules if name == 'cardwise.cli.replay'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
