"""What tests of several rooms need from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OPENB_PLACES = (ROOT / "data" / "openb", ROOT.parent / "shared" / "data" / "openb")


@pytest.fixture(scope="session")
def openb_dir() -> Path:
    """Folder of the real openb trace: where CARDWISE_OPENB says, else the usual places; without it the test skips."""
    told = os.environ.get("CARDWISE_OPENB")
    for folder in (Path(told),) if told else OPENB_PLACES:
        if (folder / "openb_node_list_gpu_node.csv").is_file():
            return folder
    if told:
        pytest.fail(f"CARDWISE_OPENB={told}: no openb_node_list_gpu_node.csv there")
    pytest.skip("the openb trace is absent: put it into data/openb, or set CARDWISE_OPENB to its folder")
