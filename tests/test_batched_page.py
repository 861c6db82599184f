"""What the page about in-process batching shows runs, and prints what it says."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

from cardwise.batching import batched
from tests.conftest import ROOT

TEXT = (ROOT / "docs" / "howto" / "batched.md").read_text()
BLOCKS = re.findall(r"^```(python|text)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_what_the_page_shows_prints_what_it_says():
    program = "".join(code for kind, code in BLOCKS if kind == "python")
    said = "".join(text for kind, text in BLOCKS if kind == "text")
    assert [kind for kind, _ in BLOCKS] == ["python", "text"] * 3
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.stdout) == ("", said)


def test_the_page_tells_every_parameter_and_its_default():
    table = TEXT.partition("| parameter |")[2].partition("\n\n")[0]
    told = set(re.findall(r"`([a-z_]+)`(?=[,| ])", "\n".join(row.split("|")[1] for row in table.splitlines()[2:])))
    parameters = dict(inspect.signature(batched).parameters)
    del parameters["now_s"]  # for tests of callers
    assert told == set(parameters)
    for name in ("max_batch", "gap_s", "cap_s"):
        assert f"`{parameters[name].default}`" in table
