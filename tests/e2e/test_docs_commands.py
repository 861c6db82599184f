"""The commands that README and docs show, run as a user types them: an example that fails is a lie.

A fenced block marked ``console`` is run line by line (lines that begin with ``$ ``) in a copy of the checkout's example
files. Blocks that need what a test cannot have are marked ``text``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
SETS_UP = re.compile(r"^\$ make\b")
"""What sets this environment up, or runs these very tests, is run by a person and by CI, not from inside a test."""


def commands():
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            for line in block.splitlines():
                if line.startswith("$ ") and not SETS_UP.match(line):
                    yield pytest.param(line[2:], id=f"{page.relative_to(ROOT)}: {line[2:]}")


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
