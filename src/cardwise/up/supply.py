"""Cards to fill, as one has them in the head or in a dump: ``A10=4,L4=8``, or the nodes of a cluster.

Refuses to guess a card's memory: of a model that is not known it must be told. What is assumed of a node's CPU and
memory is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cardwise.adapters import wire
from cardwise.adapters.inventory import KNOWN_CARD_MEMORY_MIB, Inventory, known_card_mib, near_cards
from cardwise.adapters.kube_objects import Node
from cardwise.adapters.kubectl_list import WANT, read_listing
from cardwise.adapters.node_cards import encode_cards, node_spec
from cardwise.adapters.notes import Notes
from cardwise.adapters.quantity import parse_card_mib, parse_count
from cardwise.core.inventory import NodeSpec
from cardwise.errors import InputError, UserError
from cardwise.files import plain, seen
from cardwise.up.hardware import CARD_MIB, LABEL_HOSTNAME, HollowNode, SomeNode, raw_node

PER_NODE = 8
"""Cards of one node where only cards are told: the size of most servers."""
CPU_PER_CARD, HOST_MIB_PER_CARD = 16, 65536
MOST_CARDS = 20_000
"""More than any cluster has; one digit too many would run for hours."""
_FORM = "write MODEL=COUNT, or MODEL:MIB=COUNT, such as A10=4,L4:23034=8"


def parse_cards(text: str) -> tuple[HollowNode, ...]:
    """Nodes for cards told as ``A10=4,L4:23034=8``. Raises UserError with the part that is wrong."""
    nodes = [node for place, part in enumerate(text.split(",")) for node in _of_part(text, part.strip(), place)]
    if (count := sum(node.cards for node in nodes)) > MOST_CARDS:
        raise UserError(f"--cards {seen(text)}: {count:,} cards in all; write at most {MOST_CARDS:,}")
    assumed = f"CPU and memory of nodes assumed: {PER_NODE} cards, {CPU_PER_CARD} CPUs and 64 GiB per card"
    return (replace(nodes[0], notes=(assumed,)), *nodes[1:])


def _of_part(text: str, part: str, place: int) -> Iterator[HollowNode]:
    product, equals, told = part.rpartition("=")
    model, colon, memory = product.partition(":")
    if not (model and equals):
        raise UserError(f"--cards {seen(text)}: {seen(part)} is no kind of card with its number; {_FORM}")
    try:
        count = parse_count(told)
        memory_mib = parse_card_mib(memory) if colon else known_card_mib(model)
    except ValueError as exc:
        raise UserError(f"--cards {seen(text)}: {seen(part)}: {exc}; {_FORM}") from exc
    if not memory_mib:
        raise UserError(
            f"--cards {seen(text)}: the memory of {seen(model)} is not known; {_instead(plain(model), told)}"
        )
    if not 1 <= count <= MOST_CARDS:
        raise UserError(f"--cards {seen(text)}: {count} cards; write 1 to {MOST_CARDS}")
    for i, first in enumerate(range(0, count, PER_NODE)):
        cards = min(PER_NODE, count - first)
        yield HollowNode(
            f"gpu-{place + 1}-{i + 1}", model, memory_mib, cards, CPU_PER_CARD * cards, HOST_MIB_PER_CARD * cards
        )


def _instead(model: str, told: str) -> str:
    """What to write for a card of unknown memory: a number to put right, and the names that may be meant."""
    near = near_cards(model)
    mib = KNOWN_CARD_MEMORY_MIB[near[0]] if near else CARD_MIB
    names = f", or {' or '.join(near)}" if near else ""
    return f"write {model}:{mib}={told}, with the MiB of yours{names}"


@dataclass(frozen=True, slots=True)
class DumpedNode:
    """A node of a dump, with nobody on it."""

    spec: NodeSpec
    labels: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    def raw(self) -> dict[str, Any]:
        """The node as the API server would tell it, with the agent's inventory."""
        annotations = {wire.ANNOTATION_CARDS: encode_cards(self.spec.cards)} if self.spec.cards else {}
        raw = raw_node(self, annotations, f"{self.spec.cpu_milli}m", self.spec.memory_mib)
        return raw | {"spec": {"unschedulable": not self.spec.schedulable}}


def read_nodes(path: Path, card_memory: Mapping[str, int]) -> tuple[SomeNode, ...]:
    """The nodes of a dump, empty. Raises InputError if it cannot be used, or has no card."""
    listing, notes = read_listing(path), Notes()
    inventory = Inventory(card_memory, notes)
    found = []
    for each in listing.nodes:
        node: Node = each.object
        try:
            told = node_spec(node) if wire.ANNOTATION_CARDS in node.metadata.annotations else inventory.read(each)
        except ValueError as exc:
            raise each.error("metadata.annotations", str(exc)) from exc
        found.append(DumpedNode(told, {LABEL_HOSTNAME: node.metadata.name, **node.metadata.labels}))
    if not any(node.spec.cards for node in found):
        raise InputError(str(path), f"no node has a card; give a dump of a cluster with GPU nodes: {WANT}")
    for pod in listing.pods:
        notes.add("Pods of the dump were left out: its cards are filled from empty", pod.object.name)
    return (replace(found[0], notes=notes.lines()), *found[1:])
