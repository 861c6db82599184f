"""The queue layer while its replicas, its clients and itself are taken away: the claims of ``benchmarks.faults``.

Real processes and real load, some seconds of each phase. Nothing here is about time.
"""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.faults.__main__ import run
from benchmarks.faults.phases import SHORT
from benchmarks.faults.world import World


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """What each phase showed; played once for all tests of this file."""
    world = World(tmp_path_factory.mktemp("faults"), timeout_ms=700, callers=12)
    return {row.name: row for row in asyncio.run(run(world, SHORT, 0.8, print))}


@pytest.mark.parametrize("name", SHORT)
def test_every_claim_holds(rows, name):
    """All is accounted for, nothing wrong, lost or done twice, retries in budget, all places and files given back."""
    row = rows[name]
    assert row.faults == [], (row.faults, row.count.notes, row.count.told)


@pytest.mark.parametrize("name", SHORT)
def test_there_was_load_and_most_of_it_was_served(rows, name):
    """Otherwise the claims would hold of nothing."""
    assert rows[name].count.ok > 20


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("replica killed", "503 no-replica"),
        ("replica frozen", "504 timeout"),
        ("malformed bodies", "400 to hostile"),
        ("503s, Retry-After", "503"),
        ("resets, cuts", "502 lost"),
        ("spoilt answers", "502 shape"),
    ],
)
def test_what_was_meant_to_go_wrong_did(rows, name, told):
    """A phase in which nothing breaks shows nothing."""
    assert rows[name].count.told[told]


def test_clients_did_leave(rows):
    """At every moment, see the phase."""
    assert rows["clients leave"].count.gone >= 10


def test_failed_tries_were_repeated(rows):
    """Within the budget, which is a claim of each phase."""
    assert rows["503s, Retry-After"].retries
    assert rows["resets, cuts"].retries
