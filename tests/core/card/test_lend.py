"""How much of a card may be lent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.card.lend import STEP_SHARE, Borrower, lendable_mib

TOTAL, LOW = 64_000, 0.85


def test_of_an_idle_card_the_share_that_the_watermark_allows():
    assert lendable_mib(0.10, 20_000, TOTAL, LOW, []) == 6000


def test_of_a_card_that_is_nearly_used_only_what_is_idle_below_the_low_mark():
    assert lendable_mib(0.50, 51_000, TOTAL, LOW, []) == 3000


def test_what_a_borrower_was_given_of_the_card_counts_as_used_though_it_is_not_yet():
    assert lendable_mib(0.50, 40_000, TOTAL, LOW, [Borrower(used_mib=0, physical_mib=10_000)]) == 4000


def test_what_a_borrower_uses_already_is_not_counted_twice():
    before = lendable_mib(0.50, 30_000, TOTAL, LOW, [])
    assert lendable_mib(0.50, 36_000, TOTAL, LOW, [Borrower(used_mib=6000, physical_mib=0)]) == before


def test_nothing_when_the_curve_is_not_calm():
    assert lendable_mib(0.0, 100, TOTAL, LOW, []) == 0


def test_what_is_no_card_is_refused():
    with pytest.raises(ValueError, match="0 MiB is no card"):
        lendable_mib(0.1, 0, 0, LOW, [])


@given(
    st.floats(0, 0.5),
    st.integers(0, 80_000),
    st.integers(1, 80_000),
    st.lists(st.builds(Borrower, st.integers(0, 40_000), st.integers(0, 40_000)), max_size=5),
)
def test_laws_of_lending(share, others_mib, total_mib, borrowers):
    used = others_mib + sum(each.used_mib for each in borrowers)
    found = lendable_mib(share, used, total_mib, LOW, borrowers)
    assert 0 <= found <= share * total_mib
    assert found % max(int(STEP_SHARE * total_mib), 1) == 0
    if found:  # though all that was given is used, the card stays below the low mark
        assert others_mib + sum(each.physical_mib for each in borrowers) + found <= LOW * total_mib
    assert lendable_mib(share, used + 1000, total_mib, LOW, borrowers) <= found
