"""Every "no" has its words, and they read well with whatever they are filled with."""

from __future__ import annotations

import re

import pytest

from cardwise.core.placement.filter import card_reason
from cardwise.core.reasons import WORDINGS, Code
from cardwise.core.request import PodRequest, Shape
from tests.builders import card, cluster, node


def test_every_code_has_words():
    assert WORDINGS.keys() == set(Code)


@pytest.mark.parametrize("code", Code, ids=lambda code: code.value)
def test_no_article_stands_before_what_is_filled_in(code):
    """It would have to know how the word is spoken: a T4, an H100, an A10."""
    words = WORDINGS[code]
    assert not re.search(r"\ban? \{", f"{words.short} {words.long} {words.advice}")


@pytest.mark.parametrize(
    ("allowed", "told"),
    [
        ({"models": frozenset({"A10", "L4"})}, "the pod allows only A10, L4"),
        ({"unwanted_models": frozenset({"H100"})}, "the pod allows none of H100"),
        (
            {"models": frozenset({"A10"}), "unwanted_models": frozenset({"T4"})},
            "the pod allows only A10 and none of T4",
        ),
    ],
)
def test_a_card_of_another_model_says_its_model_and_those_that_will_do(allowed, told):
    state = cluster(node("n0", cards=[card(model="H100")]))
    reason = card_reason(state, PodRequest("p", Shape(1, memory_mib=1, **allowed)), 0, 0)
    assert reason.code is Code.CARD_MODEL
    assert reason.long == f"the card's model is H100, {told}"


@pytest.mark.parametrize(
    ("unwanted", "model", "takes"),
    [
        ("A100", "A100", False),
        ("A100", "A100-SXM4-80GB", False),
        ("A10", "A100", True),
        ("A100-SXM4-80GB", "A100", True),
        ("A100-SXM4-40GB", "A100-SXM4-80GB", True),
    ],
)
def test_a_model_that_is_not_wanted_is_not_wanted_in_any_variant(unwanted, model, takes):
    assert Shape(1, whole=True, unwanted_models=frozenset({unwanted})).takes(model) is takes


@pytest.mark.parametrize(
    ("wanted", "model", "takes"),
    [
        ("A100", "A100", True),
        ("A100", "A100-SXM4-80GB", True),
        ("A10", "A100", False),
        ("A100-SXM4-80GB", "A100", False),
        ("A100-SXM4-40GB", "A100-SXM4-80GB", False),
    ],
)
def test_a_model_that_is_wanted_is_wanted_in_every_variant(wanted, model, takes):
    """As HAMi's manifests have it, which say A100 and mean A100-SXM4-80GB too."""
    assert Shape(1, whole=True, models=frozenset({wanted})).takes(model) is takes
