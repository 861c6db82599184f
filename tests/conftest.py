"""What tests of several rooms need from outside."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("cardwise", settings.get_profile("search"), derandomize=True)
settings.load_profile("cardwise")
"""Hypothesis times its examples, and fails those that a busy machine makes slow: no test here is one of speed.

The same cases each time, so that who changed a line of text is not told of another's bug; `make search` looks for new
ones.
"""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # as in a shell's background job: what tests start would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two for each core: most tests wait, for sockets and for processes, longer than they compute."""
    return 2 * (os.cpu_count() or 1)


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
