"""What an agent tells of its node: read back without loss, or refused with what is wrong."""

from __future__ import annotations

import json
import re

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from cardwise.adapters.kube_objects import Node
from cardwise.adapters.node_cards import (
    decode_cards,
    encode_cards,
    encode_lending,
    encode_load,
    node_load,
    node_spec,
)
from cardwise.core.inventory import CardSpec
from cardwise.core.request import Isolation
from tests.adapters.kubectl_builders import node as raw_node
from tests.builders import card

MODELS = st.sampled_from(["A10", "A100-SXM4-80GB", "T4", "H200"])


@st.composite
def nodes_cards(draw):
    uuids = draw(st.lists(st.text(min_size=1, max_size=40), max_size=8, unique=True))
    linked = draw(st.booleans())
    links = st.lists(st.integers(0, 4), min_size=len(uuids), max_size=len(uuids)).map(tuple)
    return tuple(
        CardSpec(
            uuid,
            draw(MODELS),
            draw(st.integers(1, 2**20)),
            draw(st.sampled_from(Isolation)),
            draw(st.booleans()),
            draw(links) if linked else (),
            draw(st.booleans()),
            stays=draw(st.booleans()),
        )
        for uuid in uuids
    )


def node(annotations=None, **more):
    return msgspec.convert(raw_node("n0", annotations=annotations, **more), Node)


def told(*cards):
    return json.dumps([{"uuid": f"U{i}", "model": "A10", "mib": 24576, **each} for i, each in enumerate(cards)])


@given(nodes_cards())
def test_cards_are_read_back_without_loss(cards):
    assert decode_cards(encode_cards(cards)) == cards


@pytest.mark.parametrize("text", ["", "{}", "[{}]", "null", "[1]", '[{"uuid": "U", "model": "A10", "mib": "24576"}]'])
def test_text_that_is_no_inventory_is_refused(text):
    with pytest.raises(ValueError, match=r"^cardwise\.dev/cards is not readable: "):
        decode_cards(text)


@pytest.mark.parametrize("closed", [False, True])
def test_an_inventory_of_lists_in_lists_is_refused(closed):
    deep = "[" * 1200 + "]" * 1200 * closed
    with pytest.raises(ValueError, match=r"^node n0: cardwise\.dev/cards is not readable: "):
        node_spec(node({"cardwise.dev/cards": f'[{{"uuid": "g0", "model": "A", "mib": 1, "x": {deep}'}))


@pytest.mark.parametrize(
    "wrong",
    [{"uuid": ""}, {"mib": 0}, {"mib": -5}, {"mib": 2**20 + 1}, {"mode": "telepathy"}],
    ids=["no uuid", "no memory", "negative", "bytes for MiB", "unknown mode"],
)
def test_a_card_that_cannot_be_is_refused_and_shown(wrong):
    ((key, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"^cardwise\.dev/cards: impossible card .*{key}={re.escape(repr(value))}"):
        decode_cards(told(wrong))


def test_a_card_that_is_named_twice_is_refused():
    with pytest.raises(ValueError, match="names a card twice"):
        decode_cards(told({}, {"uuid": "U0"}))


@pytest.mark.parametrize("count", [1, 3])
def test_a_card_links_to_every_card_of_its_node_or_to_none(count):
    with pytest.raises(ValueError, match=f"card U0 has {count} links, not 2"):
        decode_cards(told({"links": [0] * count}, {}))


def test_of_an_agent_that_does_not_say_whether_pods_may_stay_they_may_not():
    """An older one, which fenced cards for grounds of both kinds."""
    assert not decode_cards(told({"healthy": False}))[0].stays


def test_a_card_model_becomes_an_exact_token():
    assert decode_cards(told({"model": "NVIDIA Tesla T4"}))[0].model == "T4"


def test_a_node_offers_what_is_allocatable_rounded_down():
    spec = node_spec(node({"cardwise.dev/cards": encode_cards([card("U0")])}))
    assert (spec.cpu_milli, spec.memory_mib, spec.cards) == (64000, 263856652 // 1024, (card("U0"),))


def test_a_node_whose_agent_tells_nothing_has_no_cards_whatever_another_plugin_counts():
    """Case C14."""
    assert node_spec(node()).cards == ()


def test_a_cordoned_node_takes_nothing():
    assert not node_spec(node(unschedulable=True)).schedulable


@pytest.mark.parametrize("label", ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"])
def test_a_nodes_zone_is_its_failure_domain(label):
    assert node_spec(node(labels={label: "z1"})).domain == "z1"


def test_weights_on_disk_are_a_list_with_commas():
    assert node_spec(node({"cardwise.dev/cached-models": "a,b,"})).cached_models == {"a", "b"}


def test_an_unreadable_inventory_names_the_node():
    with pytest.raises(ValueError, match=r"^node n0: cardwise\.dev/cards is not readable"):
        node_spec(node({"cardwise.dev/cards": "[["}))


@given(st.dictionaries(st.text(max_size=40), st.integers(0, 100).map(lambda pct: pct / 100), max_size=8))
def test_load_is_read_back_to_the_percent(used_share):
    assert node_load(node({"cardwise.dev/load": encode_load(used_share)})) == used_share


def test_a_node_that_tells_no_load_has_none():
    assert node_load(node()) == {}


@pytest.mark.parametrize(
    "text",
    ["[]", '{"U0": "much"}', '{"U0": 1e999}', "{", "[" * 1200],
    ids=["a list", "a word", "beyond floats", "cut", "deep"],
)
def test_an_unreadable_load_names_the_node(text):
    with pytest.raises(ValueError, match=r"^node n0: cardwise\.dev/load is not readable"):
        node_load(node({"cardwise.dev/load": text}))


# ---------------------------------------------------------------- lending


def lending_node(cards, **notes):
    raw = raw_node("n0")
    raw["metadata"]["annotations"] = {"cardwise.dev/cards": encode_cards(cards), **notes}
    return msgspec.convert(raw, Node)


def test_what_may_be_lent_and_who_keeps_away_is_read_back_by_card():
    notes = encode_lending({"a": 2400}, {"b": {"ns/t", "ns/s"}, "c": set()})
    assert notes["cardwise.dev/evicted"] == '{"b":["ns/s","ns/t"]}'
    first, second = node_spec(lending_node([card("a"), card("b")], **notes)).cards
    assert (first.lendable_mib, first.evicted) == (2400, frozenset())
    assert (second.lendable_mib, second.evicted) == (0, frozenset({"ns/s", "ns/t"}))


def test_a_node_whose_agent_says_nothing_of_lending_lends_nothing():
    (only,) = node_spec(lending_node([card("a")])).cards
    assert (only.lendable_mib, only.evicted) == (0, frozenset())


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("lendable", '{"a":12289}', "12289 MiB cannot be lent of card a, which has 24576"),
        ("lendable", '{"a":-1}', "-1 MiB cannot be lent"),
        ("lendable", '{"a":1.5}', "lendable is not readable"),
        ("evicted", '{"a":"ns/s"}', "evicted is not readable"),
        ("evicted", "", "evicted is not readable"),
    ],
)
def test_nonsense_about_lending_is_refused_with_the_nodes_name(key, text, told):
    with pytest.raises(ValueError, match=r"^node n0: ") as refused:
        node_spec(lending_node([card("a")], **{f"cardwise.dev/{key}": text}))
    assert told in str(refused.value)
