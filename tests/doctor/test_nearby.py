"""One node from within: real bindings over the fake driver, real CDI files, a scripted MPS, sockets' names."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from cardwise.adapters.capture import Capture
from cardwise.adapters.mps.daemon import ControlDaemon
from cardwise.adapters.mps.v2 import MpsV2
from cardwise.agent.settings import Settings
from cardwise.doctor.facts import facts_of
from cardwise.doctor.measures import Line, Metrics
from cardwise.doctor.nearby import look
from cardwise.doctor.ranking import diagnose
from tests.fakes.mps import FakeMps
from tests.fakes.nvml import Node, load

T4, UNLOADED = "t4", 9
"""A model of the fake; NVML_ERROR_DRIVER_NOT_LOADED."""


class Here:
    """A node that is well: two cards, the toolkit's file, the agent's socket."""

    def __init__(self, folder, monkeypatch):
        load()
        monkeypatch.setenv("FAKE_NVML_STATE", str(folder / "driver"))
        monkeypatch.setenv("TZ", "UTC")
        monkeypatch.setenv("NODE_NAME", "g1")
        self.folder = folder
        self.driver = Node(folder / "driver", "T4", "T4")
        for name in ("kubelet", "cdi", "run"):
            (folder / name).mkdir()
        self.card = folder / "nvidia0"
        self.card.touch()
        self.sockets("kubelet.sock", "cardwise.sock", "kubelet_internal_checkpoint")
        self.cdi([{"name": "0", "containerEdits": {"deviceNodes": [{"path": str(self.card)}]}}])
        self.mps_control = "nvidia-cuda-mps-control"

    def sockets(self, *names):
        for old in (self.folder / "kubelet").iterdir():
            old.unlink()
        for name in names:
            (self.folder / "kubelet" / name).touch()

    def cdi(self, devices):
        told = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices}
        (self.folder / "cdi" / "nvidia.json").write_text(json.dumps(told))

    @property
    def settings(self):
        return Settings(
            kubelet_folder=str(self.folder / "kubelet"),
            cdi_read_folders=(str(self.folder / "cdi"),),
            run_folder=str(self.folder / "run"),
            mps_control=self.mps_control,
        )

    def diagnose(self):
        return [each.finding for each in diagnose(facts_of(Capture(()), look(self.settings)))]


@pytest.fixture
def here(tmp_path, monkeypatch):
    return Here(tmp_path, monkeypatch)


def test_a_node_that_is_well_has_no_finding(here):
    assert here.diagnose() == []


def test_a_driver_that_cannot_be_asked_is_the_cause_and_nothing_else_is_blamed(here):
    here.driver.init_fails(UNLOADED)
    first = here.diagnose()[0]
    assert (first.code, "g1" in first.cause) == ("CW305", True)


def test_a_card_that_fell_off_the_bus_is_told(here):
    here.driver.lost(1)
    assert here.diagnose()[0].code == "CW305"


def test_no_cdi_file_is_told_with_the_command_that_makes_one(here):
    (here.folder / "cdi" / "nvidia.json").unlink()
    first = here.diagnose()[0]
    assert first.code == "CW301"
    assert "nvidia-ctk cdi generate" in first.action


def test_a_cdi_file_of_another_driver_version_is_told_by_the_paths_that_are_not_there(here):
    here.card.unlink()
    first = here.diagnose()[0]
    assert first.code == "CW301"
    assert str(here.card) in first.evidence[0]


def test_two_plugins_on_one_node_are_both_named(here):
    """Case C14."""
    here.sockets("kubelet.sock", "cardwise.sock", "nvidia-gpu.sock")
    first = here.diagnose()[0]
    assert first.code == "CW104"
    assert "nvidia-gpu.sock" in first.evidence[0]
    assert "cardwise.sock" in first.evidence[0]


def test_who_may_register_our_resource_is_named_by_its_socket(here):
    """Case C14: two sockets, one resource."""
    here.sockets("kubelet.sock", "cardwise.sock", "kubelet_internal_checkpoint", "vendor-gpu.sock")
    lines = (Line({"node": "g1"}, np.array([0.0, 40.0])),)
    facts = replace(facts_of(Capture(()), look(here.settings)), metrics=Metrics({"registrations": lines}))
    first = diagnose(facts)[0].finding
    assert first.code == "CW104"
    assert "cardwise.dev/gpu" in first.cause
    assert any("cardwise.sock" in each and "vendor-gpu.sock" in each for each in first.evidence)


def test_an_agent_that_is_not_registered_is_told(here):
    here.sockets("kubelet.sock")
    assert here.diagnose()[0].code == "CW303"


def test_a_clock_that_is_not_in_utc_is_told(here, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    import time  # noqa: PLC0415

    time.tzset()
    try:
        first = here.diagnose()[0]
    finally:
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
    assert (first.code, "+8 h" in first.cause) == ("CW103", True)


@pytest.fixture
def mps():
    made = FakeMps()
    yield made
    made.close()


async def _start(mps):
    await MpsV2(ControlDaemon(mps.command, mps.pipe_dir, mps.log_dir, ())).start()


def test_an_mps_daemon_that_died_is_told(here, mps, monkeypatch):
    import asyncio  # noqa: PLC0415

    mps.pipe_dir = mps.root / "mps"
    asyncio.run(_start(mps))
    here.mps_control = mps.command
    settings = msgspec.structs.replace(here.settings, run_folder=str(mps.root))
    alive = facts_of(Capture(()), look(settings))
    mps.kill()
    dead = facts_of(Capture(()), look(settings))
    assert [each.finding.code for each in diagnose(alive)] == []
    assert [each.finding.code for each in diagnose(dead)] == ["CW108"]
