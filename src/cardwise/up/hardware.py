"""Nodes that are not there: what the user wants them to be, as objects that an agent would have written."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cardwise.adapters import wire
from cardwise.adapters.inventory import known_card_mib
from cardwise.adapters.node_cards import encode_cards
from cardwise.adapters.quantity import parse_card_mib, parse_count
from cardwise.core.inventory import CardSpec
from cardwise.errors import UserError
from cardwise.files import plain, seen

LABEL_HOSTNAME = "kubernetes.io/hostname"
MOST_CARDS, MOST_CPU, MOST_PODS = 64, 4096, 110
"""Per node; 110 pods are the kubelet's own limit."""
CARD_MIB = 24576
"""Of cards whose memory is neither given nor known."""
WRITE = "write name=gpu-a,model=A100,memory=81920,cards=8,cpu=64; host-memory (MiB) and zone may follow"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_UUIDS = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")


class SomeNode(Protocol):
    """What a world needs of a node, whether it was invented or read from a dump. notes: what had to be assumed."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """What kubelet and GPU feature discovery would say."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What had to be assumed."""
        ...

    def raw(self) -> dict[str, Any]:
        """The node as the API server would tell it, with the agent's inventory."""
        ...


@dataclass(frozen=True, slots=True)
class HollowNode:
    """A node with cards of one model. ``memory_mib`` is each card's, ``host_memory_mib`` the node's own.

    notes: what had to be assumed about it.
    """

    name: str
    model: str = "A10"
    memory_mib: int = CARD_MIB
    cards: int = 4
    cpu: int = 64
    host_memory_mib: int = 262144
    zone: str = ""
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """What kubelet and GPU feature discovery would say."""
        told = {
            LABEL_HOSTNAME: self.name,
            wire.LABEL_PRODUCT: self.model,
            wire.LABEL_COUNT: str(self.cards),
            wire.LABEL_MEMORY: str(self.memory_mib),
        }
        return told | ({wire.LABEL_ZONES[0]: self.zone} if self.zone else {})

    def raw(self) -> dict[str, Any]:
        """The node as the API server would tell it, with the agent's inventory."""
        token = wire.model_token(self.model)
        cards = [
            CardSpec(f"GPU-{uuid.uuid5(_UUIDS, f'{self.name}/{place}')}", token, self.memory_mib)
            for place in range(self.cards)
        ]
        return raw_node(self, {wire.ANNOTATION_CARDS: encode_cards(cards)}, str(self.cpu), self.host_memory_mib)


def raw_node(node: SomeNode, annotations: Mapping[str, str], cpu: str, memory_mib: int) -> dict[str, Any]:
    """A ready node as the API server would tell it. cpu: as Kubernetes writes it; memory_mib: the node's own."""
    amounts = {"cpu": cpu, "memory": f"{memory_mib}Mi", "pods": str(MOST_PODS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": dict(node.labels), "annotations": annotations},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def uniform(count: int, cards: int, model: str, memory_mib: int) -> tuple[HollowNode, ...]:
    """So many nodes of one kind; their names sort in their order."""
    width = len(str(count))
    return tuple(HollowNode(f"gpu-{i:0{width}}", model, memory_mib, cards) for i in range(1, count + 1))


def parse_node(text: str) -> HollowNode:
    """A node from ``name=gpu-a,model=A100,...``. Raises UserError with the part that is wrong."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not (equals and value) or key not in _KEYS:
            raise UserError(f"--node {seen(text)}: {seen(part)} is not one of {', '.join(_KEYS)} with a value; {WRITE}")
        if key in given:
            raise UserError(f"--node {seen(text)}: {key} stands twice; {WRITE}")
        given[key] = value
    if "name" not in given:
        raise UserError(f"--node {seen(text)}: has no name; {WRITE}")
    try:
        node = HollowNode(**{_KEYS[key][0]: _KEYS[key][1](value) for key, value in given.items()})
        return node if "memory" in given or not node.cards else _with_memory(node)
    except ValueError as exc:
        raise UserError(f"--node {seen(text)}: {exc}; {WRITE}") from exc


def _with_memory(node: HollowNode) -> HollowNode:
    """What a card of the model has, where it is known; else what is assumed, with a note."""
    if mib := known_card_mib(node.model):
        return replace(node, memory_mib=mib)
    assumed = f"node {node.name}: memory not given, and {plain(node.model)} is not known: {CARD_MIB} MiB assumed"
    return replace(node, notes=(assumed,))


def check_names(nodes: Sequence[HollowNode]) -> None:
    """Raises UserError if two nodes have one name."""
    names = [node.name for node in nodes]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two nodes are named {name}; give each --node a name of its own")


def _within(key: str, least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        count = parse_count(text)
        if not least <= count <= most:
            raise ValueError(f"{key} is {count}, must be {least} to {most}")
        return count

    return parse


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{seen(text)} is no name; write at most 63 lower-case letters, digits and '-'")
    return text


_KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "name": ("name", _name),
    "model": ("model", str),
    "memory": ("memory_mib", parse_card_mib),
    "cards": ("cards", _within("cards", 0, MOST_CARDS)),
    "cpu": ("cpu", _within("cpu", 1, MOST_CPU)),
    "host-memory": ("host_memory_mib", _within("host-memory", 1, 2**26)),
    "zone": ("zone", str),
}
