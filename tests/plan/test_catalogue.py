"""The built-in models: counts as their makers publish them, from the configuration alone; and what engines measured."""

from __future__ import annotations

import pytest

from cardwise.errors import UserError
from cardwise.plan.catalogue import entry, find_model, names
from cardwise.plan.measured import WITHIN, off, rows
from cardwise.plan.tables import tables


def test_there_are_enough_of_them():
    assert len(names()) >= 25


@pytest.mark.parametrize("name", names())
def test_a_model_has_as_many_weights_as_is_published(name):
    known = entry(name)
    assert known.name == name
    assert find_model(name).shape.parameters == pytest.approx(known.published_parameters, rel=0.01)


@pytest.mark.parametrize("name", names())
def test_a_model_says_where_it_is_from(name):
    known = entry(name)
    assert known.published_in.startswith("https://")
    assert known.config_from.startswith("https://")
    assert known.repository.count("/") == 1


def test_a_name_that_is_near_is_offered():
    with pytest.raises(UserError, match="no known model; did you mean llama-3-8b"):
        find_model("lama-3-8b")


def test_a_repository_is_told_under_which_name_it_is_known():
    with pytest.raises(UserError, match=r"did you mean bge-m3\?"):
        find_model("BAAI/bge-m3")


MEASURED = [pytest.param(row, id=f"{row.model} {row.quantity} tp {row.tp} {row.engine}") for row in rows()]


@pytest.mark.parametrize("row", MEASURED)
def test_a_component_is_within_a_tenth_of_what_was_measured_or_is_said_to_miss(row):
    assert (abs(off(row, tables())) <= WITHIN) is (not row.misses)


def test_enough_of_what_was_measured_is_met():
    met = [row for row in rows() if not row.misses]
    assert len({(row.model, row.engine, row.seen) for row in met}) >= 8


def test_a_name_that_no_file_system_has_is_no_model_and_is_shown_cut():
    with pytest.raises(UserError, match="x…: no such folder or file"):
        find_model("x" * 5000)
