"""An agent that is silent gets no new slices for its node; one that reports again does, at once."""

from __future__ import annotations

import pytest

from cardwise.core.ledger import Ledger
from cardwise.scheduler.heartbeats import PERIOD_S, SILENT_S, Heartbeats
from cardwise.scheduler.settings import Settings, policies_of
from tests.builders import node


class Look:
    """A ledger of two nodes and a clock that moves when told."""

    def __init__(self):
        self.now_s = 5000.0
        self.ledger = Ledger(policies_of(Settings()))
        self.ledger.reset([node("a"), node("b")], [])
        self.heartbeats = Heartbeats(None, self.ledger, "ns", lambda: self.now_s)

    def see(self, **versions):
        self.now_s += PERIOD_S
        self.heartbeats.judge(versions)

    def fenced(self):
        cluster = self.ledger.cluster
        return {name for name, i in cluster.node_idx.items() if cluster.node_fenced[i]}


@pytest.fixture
def look():
    return Look()


def silent_rounds(look, **others):
    for i in range(int(SILENT_S / PERIOD_S) + 1):
        look.see(a="1", **{name: f"{value}{i}" for name, value in others.items()})


def test_a_node_whose_lease_does_not_change_takes_no_new_slices(look):
    silent_rounds(look, b="x")
    assert look.fenced() == {"a"}
    assert "has not reported" in next(iter(look.ledger.conflicts.values())).text


def test_a_node_that_reports_again_takes_slices_within_one_look(look):
    """Case C15: whatever the clocks say, only a change counts."""
    silent_rounds(look, b="x")
    look.ledger.take_freed()
    look.see(a="2", b="y")
    assert (look.fenced(), look.ledger.take_freed()) == (set(), {"a"})


def test_a_lease_that_vanished_is_one_that_does_not_change(look):
    look.see(a="1", b="1")
    for i in range(6):
        look.see(b=f"x{i}")
    assert look.fenced() == {"a"}


def test_a_node_that_never_had_a_lease_is_not_judged(look):
    for i in range(9):
        look.see(b=f"x{i}")
    assert look.fenced() == set()


def test_who_could_not_look_for_a_while_calls_nobody_silent(look):
    look.see(a="1", b="1")
    look.now_s += 600
    look.see(a="1", b="1")
    assert look.fenced() == set()


def test_a_rebuilt_ledger_still_knows_who_is_silent(look):
    silent_rounds(look, b="x")
    look.ledger.put_node(node("c"))
    look.ledger.rebuild()
    assert look.fenced() == {"a"}


def test_a_silent_node_that_is_gone_is_forgotten(look):
    silent_rounds(look, b="x")
    look.ledger.drop_node("a")
    look.ledger.rebuild()
    look.see(a="1", b="z")
    assert look.ledger.silent == {}
    look.ledger.put_node(node("a"))
    look.ledger.rebuild()
    look.see(a="3", b="zz")
    assert look.fenced() == set()
