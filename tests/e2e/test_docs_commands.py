"""The commands that README and docs show, run as a user types them: an example that fails is a lie.

The blocks marked ``console`` are run line by line in a copy of the checkout's example files; what takes a cluster is
run by ``test_docs_cluster_commands.py``. The marks stand in ``docs_blocks.py``.
"""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.e2e.docs_blocks import ROOT, blocks

SETS_UP = re.compile(r"^make\b")
"""What sets this environment up, or runs these very tests, is run by a person and by CI, not from inside a test."""


def commands():
    for block in blocks():
        if block.cluster:
            continue
        for command in block.run:
            if not SETS_UP.match(command):
                yield pytest.param(command, id=f"{block.page}: {command}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


@pytest.mark.parametrize("command", list(commands()))
def test_a_shown_command_works(folder, command):
    venv = ROOT / ".venv" / "bin"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={"PATH": f"{venv}:/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_docs_show_commands():
    assert len(list(commands())) >= 5
