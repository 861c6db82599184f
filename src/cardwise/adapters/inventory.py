"""Kubernetes nodes as inventory: which cards are really there, of which model, with how much memory.

``nvidia.com/gpu`` counts what may be handed out, which is cards only where nobody shares them. So the truth is taken
where it is told best: HAMi's list of cards first, then the labels of GPU feature discovery, then the plain number.
Refuses to average: a node's memory is never divided by its cards, and a card of unknown memory is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Amounts, Node
from cardwise.adapters.kubectl_list import Found
from cardwise.adapters.notes import Notes
from cardwise.adapters.quantity import MAX_CARD_MIB, parse_card_mib, parse_count, parse_mib, parse_milli
from cardwise.core.inventory import CardSpec, NodeSpec
from cardwise.core.request import Isolation
from cardwise.errors import UserError
from cardwise.files import decode_json, seen

UNKNOWN_MODEL = "UNKNOWN"
"""The model of cards on a node without a product label."""
MOST_CARDS = 64
"""Cards of one node. Servers hold 16 at most; a larger number counts shares, not cards."""

KNOWN_CARD_MEMORY_MIB: Mapping[str, int] = MappingProxyType(
    {
        "A10": 23028,
        "A100-40GB": 40960,
        "A100-80GB": 81920,
        "A100-80GB-PCIE": 81920,
        "A100-PCIE-40GB": 40960,
        "A100-SXM4-40GB": 40960,
        "A100-SXM4-80GB": 81920,
        "A10G": 23028,
        "A16": 15356,
        "A2": 15356,
        "A30": 24576,
        "A40": 46068,
        "B200": 183359,
        "GEFORCE-RTX-3090": 24576,
        "GEFORCE-RTX-4090": 24564,
        "H100": 81559,
        "H100-80GB": 81559,
        "H100-80GB-HBM3": 81559,
        "H100-NVL": 95830,
        "H100-PCIE": 81559,
        "H20": 97871,
        "H200": 143771,
        "L4": 23034,
        "L40": 46068,
        "L40S": 46068,
        "P100-PCIE-16GB": 16384,
        "P4": 7680,
        "P40": 24576,
        "RTX-3090": 24576,
        "RTX-4090": 24564,
        "RTX-6000-ADA": 49140,
        "RTX-A6000": 49140,
        "T4": 15360,
        "V100-32GB": 32768,
        "V100-PCIE-16GB": 16384,
        "V100-PCIE-32GB": 32768,
        "V100-SXM2-16GB": 16384,
        "V100-SXM2-32GB": 32768,
    }
)
"""MiB of well-known cards as ``nvidia-smi`` totals them, by token (:func:`wire.model_token`), for nodes without the
label, and for commands that are told cards by name (``fit``, ``up``, ``plan``): the one place that says it. Some are
less than the data sheet's size: ECC and firmware are off. The history's notes say when it was used."""

_MOST_NEAR = 4
_SOME_MIB = 24576
"""In a message, of a card of which nothing is known: a number of the right kind."""
_MODES = {"mig": Isolation.MIG, "mps": Isolation.MPS}
_HAMI_REMEDY = "restart HAMi's device plugin, or remove the annotation"
_AmountT = TypeVar("_AmountT")


class _HamiCard(msgspec.Struct):
    """One entry of HAMi's list. HAMi leaves out what is zero or false: no ``health`` means sick."""

    id: str = ""
    index: int = 0
    devmem: int = 0
    type: str = ""
    mode: str = ""
    health: bool = False


def known_card_mib(model: str) -> int:
    """Memory of a card that is known by name, however it is spelt; 0 if it is not."""
    return KNOWN_CARD_MEMORY_MIB.get(wire.model_token(model), 0)


def near_cards(model: str, known: Iterable[str] = KNOWN_CARD_MEMORY_MIB) -> list[str]:
    """Names of known cards that this one may mean, the nearest first: those that it begins, then those spelt alike."""
    token = wire.model_token(model)
    tokens = {wire.model_token(name): name for name in known}
    begun = [name for other, name in tokens.items() if token and other.startswith(f"{token}-")]
    alike = [tokens[other] for other in difflib.get_close_matches(token, tokens, _MOST_NEAR, cutoff=0.7)]
    return (begun or alike)[:_MOST_NEAR]


class Inventory:
    """Reads nodes one after the other; card UUIDs are unique over all of them."""

    def __init__(self, card_memory: Mapping[str, int], notes: Notes) -> None:
        """card_memory: MiB of each card by product, from the user; it wins over labels and table."""
        for product, mib in card_memory.items():
            if not 0 < mib <= MAX_CARD_MIB:
                raise UserError(
                    f"--card-memory {product}={mib}: {mib} MiB is no card's memory; write the MiB of one card"
                )
        self._card_memory = {wire.model_token(product): mib for product, mib in card_memory.items()}
        self._products = {wire.model_token(product): product for product in card_memory}
        self._notes = notes
        self._uuids: dict[str, str] = {}
        self.shared_nodes: set[str] = set()
        """Nodes that hand one card to several pods by count alone (time slicing, MPS by replicas)."""

    def read(self, found: Found[Node]) -> NodeSpec:
        """One node. Raises InputError that names the node and the field."""
        node = found.object
        name = node.metadata.name
        cards = self._cards(found)
        self._check_uuids(found, cards)
        self._note_limits(node)
        return NodeSpec(
            name=name,
            cpu_milli=_offer(found, "cpu", lambda value: parse_milli(value, up=False)),
            memory_mib=_offer(found, "memory", lambda value: parse_mib(value, up=False)),
            cards=cards,
            domain=_first(node.metadata.labels, wire.LABEL_ZONES) or "",
            schedulable=not node.spec.unschedulable and _is_ready(node),
        )

    def unused_products(self) -> list[str]:
        """Products whose memory the user told and that no node has."""
        return sorted(self._products.values())

    # ---------------------------------------------------------------- cards

    def _cards(self, found: Found[Node]) -> tuple[CardSpec, ...]:
        text = found.object.metadata.annotations.get(wire.ANNOTATION_HAMI_CARDS, "")
        if text.lstrip().startswith("["):
            return self._hami_cards(found, text)
        if text:
            self._notes.add("HAMi's old list of cards is not read, the labels are", found.object.metadata.name)
        return self._labelled_cards(found)

    def _hami_cards(self, found: Found[Node], text: str) -> tuple[CardSpec, ...]:
        field = f"node {found.object.metadata.name}, annotation {wire.ANNOTATION_HAMI_CARDS}"
        try:
            entries = decode_json(text, list[_HamiCard])
        except msgspec.DecodeError as exc:
            raise found.error(field, f"is not HAMi's list of cards ({exc}); restart HAMi's device plugin") from exc
        entries.sort(key=lambda entry: entry.index)
        if len(entries) > MOST_CARDS:
            message = f"{len(entries)} cards in one node, at most {MOST_CARDS} are possible; "
            raise found.error(field, message + _HAMI_REMEDY)
        for entry in entries:
            if not entry.id or not 0 < entry.devmem <= MAX_CARD_MIB:
                message = f"card {seen(entry.index)} has id {seen(entry.id)} and devmem {seen(entry.devmem)}, which is "
                raise found.error(field, f"{message}no card's MiB; {_HAMI_REMEDY}")
        return tuple(self._hami_card(found.object.metadata.name, entry) for entry in entries)

    def _hami_card(self, node: str, entry: _HamiCard) -> CardSpec:
        if not entry.health:
            self._notes.add("Cards that HAMi calls unhealthy take nothing", f"{node} {entry.id}")
        model = wire.model_token(entry.type) or UNKNOWN_MODEL
        self._products.pop(model, None)
        memory_mib = self._card_memory.get(model, entry.devmem)
        return CardSpec(entry.id, model, memory_mib, _MODES.get(entry.mode, Isolation.ANY), entry.health)

    def _labelled_cards(self, found: Found[Node]) -> tuple[CardSpec, ...]:
        name = found.object.metadata.name
        count, usable = self._count(found)
        if not count:
            return ()
        model = self._model(found.object)
        memory_mib = self._memory_mib(found, model)
        if usable < count:
            self._notes.add("The plugin offers fewer cards than there are, the last ones count as sick", name)
        return tuple(CardSpec(f"{name}-{i}", model, memory_mib, healthy=i < usable) for i in range(count))

    def _count(self, found: Found[Node]) -> tuple[int, int]:
        """Physical cards, and how many of them are offered."""
        name = found.object.metadata.name
        offered = _offered_cards(found)
        replicas = _label(found, wire.LABEL_REPLICAS, parse_count) or 1
        count = _label(found, wire.LABEL_COUNT, parse_count)
        if count is None:
            count = -(-(offered or 0) // replicas)
        if offered is None and count:
            self._notes.add(f"No {wire.GPU} is offered, cards are counted by the label {wire.LABEL_COUNT}", name)
        if count > MOST_CARDS:
            field = f"node {name}, {wire.GPU}"
            message = f"{count} cards in one node; if cards are shared, add the label {wire.LABEL_COUNT}=<real cards>"
            raise found.error(field, message)
        if replicas > 1 and count:
            self.shared_nodes.add(name)
        return count, count if offered is None else min(count, -(-offered // replicas))

    def _model(self, node: Node) -> str:
        product = _first(node.metadata.labels, wire.LABEL_PRODUCTS)
        if not product:
            self._notes.add(f"No label {wire.LABEL_PRODUCT}, the card model is unknown", node.metadata.name)
            return UNKNOWN_MODEL
        model = wire.model_token(product)
        if "-MIG-" in model:
            self._notes.add("MIG instances count as cards of their own", node.metadata.name)
        return model

    def _memory_mib(self, found: Found[Node], model: str) -> int:
        """What the user told, else the label, else the table of well-known cards."""
        self._products.pop(model, None)
        if model in self._card_memory:
            return self._card_memory[model]
        labelled = _label(found, wire.LABEL_MEMORY, parse_card_mib)
        if labelled is not None:
            return labelled
        name = found.object.metadata.name
        if model not in KNOWN_CARD_MEMORY_MIB:
            product = _first(found.object.metadata.labels, wire.LABEL_PRODUCTS) or UNKNOWN_MODEL
            near = near_cards(product)
            mib = KNOWN_CARD_MEMORY_MIB[near[0]] if near else _SOME_MIB
            message = f"missing, and {seen(product)} is no card that cardwise knows; add the label with the MiB of one "
            field = f"node {name}, label {wire.LABEL_MEMORY}"
            raise found.error(field, f"{message}card, or pass --card-memory {product}={mib} with the MiB of yours")
        mib = KNOWN_CARD_MEMORY_MIB[model]
        self._notes.add(f"No label {wire.LABEL_MEMORY}, {mib} MiB per {model} were assumed", name)
        return mib

    def _check_uuids(self, found: Found[Node], cards: Iterable[CardSpec]) -> None:
        name = found.object.metadata.name
        for card in cards:
            if card.uuid in self._uuids:
                message = f"{seen(card.uuid)} is already a card of node {self._uuids[card.uuid]}; remove the stale one"
                raise found.error(f"node {name}, card", message)
            self._uuids[card.uuid] = name

    def _note_limits(self, node: Node) -> None:
        name = node.metadata.name
        if node.spec.unschedulable:
            self._notes.add("Cordoned nodes take nothing", name)
        elif not _is_ready(node):
            self._notes.add("Nodes that are not Ready count as cordoned", name)
        if any(taint.effect in {"NoSchedule", "NoExecute"} and taint.key != wire.GPU for taint in node.spec.taints):
            self._notes.add("Taints are not read, these nodes take any pod", name)


# ---------------------------------------------------------------- one node's fields


def _is_ready(node: Node) -> bool:
    """A node that does not tell its state is taken for ready: dumps may be trimmed."""
    return all(condition.status == "True" for condition in node.status.conditions if condition.type == "Ready")


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((labels[name] for name in names if labels.get(name)), None)


def _label(found: Found[Node], label: str, parse: Callable[[str | int], _AmountT]) -> _AmountT | None:
    """A label's amount; None if the node does not have it."""
    value = found.object.metadata.labels.get(label)
    return None if value is None else _parse(found, f"label {label}", value, parse)


def _offer(found: Found[Node], resource: str, parse: Callable[[str | int], _AmountT]) -> _AmountT:
    """What the node can hand out; its capacity where allocatable does not say."""
    status = found.object.status
    for field, amounts in (("allocatable", status.allocatable), ("capacity", status.capacity)):
        if resource in amounts:
            return _parse(found, f"status.{field}.{resource}", amounts[resource], parse)
    field = f"node {found.object.metadata.name}, status.allocatable.{resource}"
    raise found.error(field, "missing; give the dump as kubectl wrote it")


def _offered_cards(found: Found[Node]) -> int | None:
    """Cards, or shares of cards, that the plugin offers under its two names; None if it offers nothing at all."""
    status = found.object.status
    told: list[Amounts] = [amounts for amounts in (status.allocatable, status.capacity) if _tells_cards(amounts)]
    if not told:
        return None
    names = [name for name in (wire.GPU, wire.GPU_SHARED) if name in told[0]]
    return sum(_parse(found, f"status.allocatable.{name}", told[0][name], parse_count) for name in names)


def _tells_cards(amounts: Amounts) -> bool:
    return wire.GPU in amounts or wire.GPU_SHARED in amounts


def _parse(found: Found[Node], field: str, value: str | int, parse: Callable[[str | int], _AmountT]) -> _AmountT:
    try:
        return parse(value)
    except ValueError as exc:
        raise found.error(f"node {found.object.metadata.name}, {field}", str(exc)) from exc
