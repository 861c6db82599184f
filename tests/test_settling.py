"""What a program has at its start is no work for the garbage collector afterwards."""

from __future__ import annotations

import gc

import pytest

from cardwise.process import settle


@pytest.fixture
def _as_before():
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_as_before")
def test_a_full_collection_looks_at_nothing_that_was_there_before():
    there = [[i] for i in range(1000)]
    settle()
    assert gc.get_freeze_count() > len(there)
    assert not any(each is there[0] for each in gc.get_objects())


@pytest.mark.usefixtures("_as_before")
def test_what_comes_later_is_still_collected():
    settle()
    ring = []
    ring.append(ring)
    del ring
    assert gc.collect() >= 1
