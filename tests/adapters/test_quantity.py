"""Kubernetes quantities: exact, and nothing that Kubernetes would refuse."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.adapters.quantity import (
    NotAQuantityError,
    parse_asked_card_mib,
    parse_card_mib,
    parse_count,
    parse_mib,
    parse_milli,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("64", 64),
        ("500m", Fraction(1, 2)),
        ("1k", 1000),
        ("2M", 2_000_000),
        ("3G", 3 * 10**9),
        ("1T", 10**12),
        ("1Ki", 1024),
        ("1.5Gi", 1_610_612_736),  # the documentation's own example
        ("1Ti", 2**40),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("5e-3", Fraction(1, 200)),
        ("+5", 5),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("100n", Fraction(1, 10**7)),
    ],
)
def test_a_quantity_is_read_exactly(text, amount):
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    "text", ["", "NaN", "inf", "-1", "1 ", "1K", "1ki", "1 Gi", "e3", "0x10", "1e", "٤", "16Ei", "1e99"]
)
def test_what_kubernetes_would_not_write_is_refused(text):
    with pytest.raises(NotAQuantityError, match=re.escape(f"{text!r} is ")):
        parse_quantity(text)


def test_a_refusal_tells_the_accepted_forms():
    with pytest.raises(NotAQuantityError) as caught:
        parse_quantity("NaN")
    assert str(caught.value) == (
        "'NaN' is not a quantity; write a Kubernetes quantity of 0 or more such as 4, 500m, 8G, 8Gi or 1e3"
    )


@given(st.integers(0, 2**50))
def test_a_plain_number_is_itself(number):
    assert parse_quantity(str(number)) == parse_quantity(number) == number


@pytest.mark.parametrize(("up", "milli", "mib"), [(True, 1, 3815), (False, 0, 3814)], ids=["asked", "on offer"])
def test_what_is_asked_rounds_up_and_what_is_on_offer_rounds_down(up, milli, mib):
    assert (parse_milli("100u", up=up), parse_mib("4G", up=up)) == (milli, mib)


def test_more_cpu_than_could_be_added_up_is_refused():
    with pytest.raises(ValueError, match="'9E' is more than any node has"):
        parse_milli("9E", up=False)


def test_half_a_piece_is_refused():
    with pytest.raises(ValueError, match="'1500m' is not a whole number"):
        parse_count("1500m")


@pytest.mark.parametrize(
    ("text", "mib"), [("5k", 5000), ("5000", 5000), ("4Gi", 4096), ("4G", 3815)], ids=["5k", "5000", "4Gi", "4G"]
)
def test_card_memory_is_read_as_the_api_server_shortens_it(text, mib):
    assert parse_asked_card_mib(text) == mib


def test_a_user_who_types_5k_is_asked_what_was_meant():
    with pytest.raises(ValueError, match="'5k' is not an amount of card memory"):
        parse_card_mib("5k")
