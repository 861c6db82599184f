"""What the agent tells of its node, as annotations: cards, their load, what may be lent, weights on disk. Both ways.

The scheduler believes this inventory only, never another plugin's count (case C14).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.claims import MODE_NAMES, NAMED_MODES
from cardwise.adapters.kube_objects import Node
from cardwise.adapters.quantity import MAX_CARD_MIB, parse_mib, parse_milli
from cardwise.core.card.watermark import MOST_LENT_SHARE
from cardwise.core.inventory import CardSpec, NodeSpec
from cardwise.files import decode_json

_ToldT = TypeVar("_ToldT")


class _Card(msgspec.Struct, omit_defaults=True):
    uuid: str
    model: str
    mib: int
    mode: str = "any"
    healthy: bool = True
    stays: bool = False
    links: list[int] = []
    binds: bool = False


def encode_cards(cards: Sequence[CardSpec]) -> str:
    """The inventory annotation's text."""
    told = [
        _Card(c.uuid, c.model, c.memory_mib, MODE_NAMES[c.isolation], c.healthy, c.stays, list(c.links), c.binds)
        for c in cards
    ]
    return msgspec.json.encode(told).decode()


def decode_cards(text: str) -> tuple[CardSpec, ...]:
    """Read an inventory annotation. Raises ValueError if it is none."""
    try:
        told = decode_json(text, list[_Card])
    except msgspec.DecodeError as exc:
        raise ValueError(f"{wire.ANNOTATION_CARDS} is not readable: {exc}") from exc
    for card in told:
        if not card.uuid or card.mode not in NAMED_MODES or not 0 < card.mib <= MAX_CARD_MIB:
            raise ValueError(f"{wire.ANNOTATION_CARDS}: impossible card {card}")
        if card.links and len(card.links) != len(told):
            raise ValueError(f"{wire.ANNOTATION_CARDS}: card {card.uuid} has {len(card.links)} links, not {len(told)}")
    if len({card.uuid for card in told}) < len(told):
        raise ValueError(f"{wire.ANNOTATION_CARDS}: names a card twice")
    return tuple(map(_spec, told))


def _spec(c: _Card) -> CardSpec:
    model, mode = wire.model_token(c.model), NAMED_MODES[c.mode]
    return CardSpec(c.uuid, model, c.mib, mode, c.healthy, tuple(c.links), c.binds, stays=c.stays)


def node_spec(node: Node) -> NodeSpec:
    """A node of the cluster; without cards if its agent tells of none. Raises ValueError that names the node."""
    notes, labels = node.metadata.annotations, node.metadata.labels
    try:
        cards = decode_cards(notes[wire.ANNOTATION_CARDS]) if wire.ANNOTATION_CARDS in notes else ()
        cards = _with_lending(cards, notes) if notes.keys() & _LENDING else cards
        offered = node.status.allocatable or node.status.capacity
        return NodeSpec(
            name=node.metadata.name,
            cpu_milli=parse_milli(offered.get("cpu", "0"), up=False),
            memory_mib=parse_mib(offered.get("memory", "0"), up=False),
            cards=cards,
            domain=next((labels[label] for label in wire.LABEL_ZONES if labels.get(label)), ""),
            schedulable=not node.spec.unschedulable,
            cached_models=frozenset(filter(None, notes.get(wire.ANNOTATION_CACHED_MODELS, "").split(","))),
        )
    except ValueError as exc:
        raise ValueError(f"node {node.metadata.name}: {exc}") from exc


_LENDING = frozenset({wire.ANNOTATION_LENDABLE, wire.ANNOTATION_EVICTED})


def encode_lending(lendable_mib: Mapping[str, int], evicted: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Both annotations about lending: what may be lent of each card, and which services keep away from it."""
    services = {uuid: sorted(names) for uuid, names in sorted(evicted.items()) if names}
    return {
        wire.ANNOTATION_LENDABLE: msgspec.json.encode(dict(sorted(lendable_mib.items()))).decode(),
        wire.ANNOTATION_EVICTED: msgspec.json.encode(services).decode(),
    }


def _with_lending(cards: Sequence[CardSpec], notes: Mapping[str, str]) -> tuple[CardSpec, ...]:
    """The cards with what is told of lending. Raises ValueError if that is not readable."""
    lendable = _told(notes, wire.ANNOTATION_LENDABLE, dict[str, int])
    evicted = _told(notes, wire.ANNOTATION_EVICTED, dict[str, frozenset[str]])
    for card in cards:
        if not 0 <= lendable.get(card.uuid, 0) <= MOST_LENT_SHARE * card.memory_mib:
            raise ValueError(
                f"{wire.ANNOTATION_LENDABLE}: {lendable[card.uuid]} MiB cannot be lent of card {card.uuid}, which has "
                f"{card.memory_mib}"
            )
    return tuple(
        replace(card, lendable_mib=lendable.get(card.uuid, 0), evicted=evicted.get(card.uuid, frozenset()))
        for card in cards
    )


def _told(notes: Mapping[str, str], key: str, kind: type[_ToldT]) -> _ToldT:
    try:
        return decode_json(notes.get(key, "{}"), kind)
    except msgspec.DecodeError as exc:
        raise ValueError(f"{key} is not readable: {exc}") from exc


def encode_load(used_share: Mapping[str, float]) -> str:
    """The load annotation's text: UUID to utilization in [0, 1]."""
    return msgspec.json.encode({uuid: round(share, 2) for uuid, share in used_share.items()}).decode()


def node_load(node: Node) -> dict[str, float]:
    """Utilization by card; empty if none is told. Raises ValueError that names the node."""
    text = node.metadata.annotations.get(wire.ANNOTATION_LOAD, "{}")
    try:
        return decode_json(text, dict[str, float])
    except msgspec.DecodeError as exc:
        raise ValueError(f"node {node.metadata.name}: {wire.ANNOTATION_LOAD} is not readable: {exc}") from exc
