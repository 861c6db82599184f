"""What a cluster is made of, as inventory tells of it: nodes and cards. Refuses what contradicts itself."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cardwise.core.request import Isolation


@dataclass(frozen=True, slots=True)
class CardSpec:
    """A card as inventory tells of it: memory is what may be handed out (the driver's own share is already off).

    binds: its slices are held to their memory in any case, not only as long as they do not try to take more.
    links: distance to each card of the node, in place order, itself included (``placement.links.Link`` values);
        empty if unknown.
    lendable_mib: may be lent beyond ``memory_mib`` at the moment, in all.
    evicted: services whose pods had to give this card's memory back lately, and do not come here again yet.
    stays: where it is not healthy: it takes nothing new, and what runs on it need not go for that.
    """

    uuid: str
    model: str
    memory_mib: int
    isolation: Isolation = Isolation.ANY
    healthy: bool = True
    links: tuple[int, ...] = ()
    binds: bool = False
    lendable_mib: int = 0
    evicted: frozenset[str] = frozenset()
    stays: bool = False


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as inventory tells of it: allocatable amounts, and its failure domain (zone, rack; empty if unknown)."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: tuple[CardSpec, ...] = ()
    domain: str = ""
    schedulable: bool = True
    cached_models: frozenset[str] = frozenset()


class CardKind(NamedTuple):
    """What a card is, whatever lies on it."""

    model: str
    isolation: Isolation
    healthy: bool
    binds: bool


@functools.lru_cache(maxsize=64)
def card_kinds(models: tuple[str, ...]) -> tuple[CardKind, ...]:
    """What each number in ``Cluster.card_kind`` stands for; one more than the last stands for "no card here"."""
    return tuple(itertools.starmap(CardKind, itertools.product(models, Isolation, (False, True), (False, True))))


def link_matrix(node: NodeSpec) -> tuple[tuple[int, ...], ...]:
    """The node's distances card by card, or nothing if any card's are unknown."""
    matrix = tuple(card.links for card in node.cards)
    return matrix if all(matrix) else ()


def check_inventory(nodes: Sequence[NodeSpec], *, doubles: bool = False) -> None:
    """Raises ValueError if names or UUIDs come twice, an amount is impossible, or links are of another node.

    doubles: a UUID may come twice, on two nodes.
    """
    names: set[str] = set()
    uuids: set[str] = set()
    for node in nodes:
        if node.name in names:
            raise ValueError(f"two nodes are named {node.name}")
        names.add(node.name)
        if node.cpu_milli < 0 or node.memory_mib < 0:
            raise ValueError(f"node {node.name}: negative CPU {node.cpu_milli} or memory {node.memory_mib}")
        if doubles:
            uuids = set()
        for card in node.cards:
            if card.uuid in uuids:
                raise ValueError(f"node {node.name}: card {card.uuid} is listed twice")
            uuids.add(card.uuid)
            if card.links and len(card.links) != len(node.cards):
                raise ValueError(
                    f"node {node.name}: card {card.uuid} names {len(card.links)} links, the node has "
                    f"{len(node.cards)} cards"
                )
            if card.memory_mib <= 0:
                raise ValueError(f"node {node.name}: card {card.uuid} has {card.memory_mib} MiB of memory")
