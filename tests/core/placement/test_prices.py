"""Prices of free pieces against hand-made cutting-stock cases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.core.placement.prices import piece_values


def test_halves_are_worth_half_and_less_than_a_half_is_worth_nothing():
    values = piece_values((500,), (1.0,))
    assert values[[0, 499, 500, 999, 1000]].tolist() == pytest.approx([0, 0, 0.5, 0.5, 1])


def test_a_size_that_fits_once_makes_its_card_worth_one_and_the_rest_nothing():
    values = piece_values((600,), (3.0,))
    assert values[[399, 400, 599, 600, 1000]].tolist() == pytest.approx([0, 0, 0, 1, 1])


def test_sizes_that_complete_each_other_share_a_card_between_them():
    values = piece_values((400, 600), (1.0, 1.0))
    assert values[400] + values[600] == pytest.approx(1.0)
    assert values[1000] == pytest.approx(1.0)


def test_without_sizes_a_piece_is_worth_its_length():
    assert piece_values((), ())[250] == 0.25


@pytest.mark.parametrize("size", [0, 1000, -5])
def test_sizes_outside_a_card_are_refused(size):
    with pytest.raises(ValueError, match=r"must be in 1-999 thousandths"):
        piece_values((size,), (1.0,))


@given(st.dictionaries(st.integers(1, 99).map(lambda n: 10 * n), st.integers(1, 50), min_size=1, max_size=5))
@settings(max_examples=30)
def test_values_never_fall_and_end_at_one_card(counts):
    sizes = sorted(counts)
    values = piece_values(tuple(sizes), tuple(float(counts[size]) for size in sizes))
    assert np.all(np.diff(values) >= -1e-9)
    assert values[1000] == pytest.approx(1.0, abs=1e-6)
    assert values[0] == 0
