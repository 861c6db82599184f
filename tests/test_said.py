"""What lasts is said once, and again when it is another or a while has passed."""

from __future__ import annotations

import pytest

from cardwise.said import AGAIN_S, Said
from tests.clock import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def said(clock):
    made = Said(clock)
    assert made.is_news("n0", "cut off")
    return made


def test_what_has_not_changed_is_no_news_until_a_while_has_passed(said, clock):
    clock.now_s += AGAIN_S - 1
    assert not said.is_news("n0", "cut off")
    clock.now_s += 1
    assert said.is_news("n0", "cut off")
    assert not said.is_news("n0", "cut off")


@pytest.mark.parametrize(("of", "what"), [("n0", "no JSON"), ("n1", "cut off")], ids=["another text", "another thing"])
def test_what_is_another_is_news_at_once(said, of, what):
    assert said.is_news(of, what)


def test_what_is_over_is_news_when_it_comes_back(said):
    said.forget("n0")
    assert said.is_news("n0", "cut off")


def test_things_without_number_cost_no_memory_without_end(clock):
    said = Said(clock, most=3)
    for i in range(100):
        assert said.is_news(i, "cut off")
    assert len(said._said) <= 3


def test_old_things_are_forgotten_and_young_ones_kept(said, clock):
    clock.now_s += AGAIN_S - 1
    said.is_news("n1", "cut off")
    clock.now_s += 1
    said.forget_old()
    assert list(said._said) == ["n1"]
