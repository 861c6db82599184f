"""What a pod asks for, by Kubernetes' own rule and in all three families of GPU resource names.

One rule for every resource: init containers run one after the other, sidecars run on beside what follows, app
containers run together; the pod takes the most that any moment takes. Each plugin that wrote its own rule once counted
sidecars or init containers wrong (cases C4, C19, C20). Refuses to guess: an ask that no card can meet raises.
Source: AggregateContainerRequests in k8s.io/component-helpers/resource; KEP-753 for sidecars.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TypeVar

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Amounts, Container, Expression, Pod, PodWish, Resources, Term
from cardwise.adapters.quantity import (
    MAX_CARD_MIB,
    MAX_MILLI,
    MIB,
    NotAQuantityError,
    parse_asked_card_mib,
    parse_count,
    parse_quantity,
)
from cardwise.core.request import Shape
from cardwise.files import seen
from cardwise.units import MILLI_PER_PCT

ADDED = "Slices of several containers were added up, as if on one card"
MIXED = "Whole cards and slices, or unlike slices, in one pod: all were counted as whole cards"
MOST_CARDS = 64
"""Cards of one pod: more than any node has."""

_AmountT = TypeVar("_AmountT")


@dataclass(frozen=True, slots=True)
class GpuAsk:
    """What a container or a pod asks of cards; every amount is per card, 0 if not asked.

    A slice always asks for memory, in MiB or in percent; without either, the cards are asked whole.
    remark: what had to be assumed to make one ask of several containers.
    """

    cards: int = 0
    memory_mib: int = 0
    memory_pct: int = 0
    cores_pct: int = 0
    remark: str = field(default="", compare=False)

    @property
    def whole(self) -> bool:
        """True if the cards are asked whole."""
        return self.cards > 0 and not self.memory_mib and not self.memory_pct

    def beside(self, other: GpuAsk) -> GpuAsk:
        """Both at once: containers that run together."""
        if not (self.cards and other.cards):
            return self if self.cards else other
        cards, remark = self.cards + other.cards, self.remark or other.remark
        if self.whole and other.whole:
            return GpuAsk(cards, remark=remark)
        if not (self.cards == other.cards == 1 and self._is_like(other)):
            return GpuAsk(cards, remark=MIXED)
        both = self._each(operator.add, other)
        if max(both.memory_pct, both.cores_pct) > 100:
            return GpuAsk(cards, remark=MIXED)
        return replace(both, remark=ADDED)

    def after(self, other: GpuAsk) -> GpuAsk:
        """Whichever is more at a time: containers that run one after the other."""
        if not (self.cards and other.cards):
            return self if self.cards else other
        if self.cards == other.cards and self._is_like(other):
            return self._each(max, other)
        cards = max(self.cards, other.cards)
        return GpuAsk(cards, remark=self.remark or other.remark if self.whole and other.whole else MIXED)

    def _is_like(self, other: GpuAsk) -> bool:
        """Both whole, or both slices in the same unit of memory."""
        return bool(self.memory_mib) == bool(other.memory_mib) and bool(self.memory_pct) == bool(other.memory_pct)

    def _each(self, join: Callable[[int, int], int], other: GpuAsk) -> GpuAsk:
        return GpuAsk(
            self.cards,
            join(self.memory_mib, other.memory_mib),
            join(self.memory_pct, other.memory_pct),
            join(self.cores_pct, other.cores_pct),
            self.remark or other.remark,
        )


# ---------------------------------------------------------------- a pod


def pod_shape(pod: Pod, ask: GpuAsk) -> Shape:
    """The shape of a pod whose GPU ask is known. Raises ValueError if no node could ever meet it."""
    cpu_milli = _ceil(requested(pod.spec, "cpu") * 1000)
    if cpu_milli > MAX_MILLI:
        raise ValueError(f"cpu: {cpu_milli} milli are more than any node has")
    return Shape(
        cards=ask.cards,
        memory_mib=ask.memory_mib,
        memory_milli=ask.memory_pct * MILLI_PER_PCT,
        compute_milli=ask.cores_pct * MILLI_PER_PCT,
        whole=ask.whole,
        models=asked_models(pod.spec) if ask.cards else frozenset(),
        cpu_milli=cpu_milli,
        host_memory_mib=_ceil(requested(pod.spec, "memory") / MIB),
    )


def pod_gpu_ask(spec: PodWish) -> GpuAsk:
    """What the pod asks of cards. Raises ValueError that names the resource if no card could ever meet it."""
    return _at_most(spec, lambda container: gpu_ask(container.resources), GpuAsk.beside, GpuAsk.after, GpuAsk())


def requested(spec: PodWish, resource: str) -> Fraction:
    """CPU or memory that the scheduler counts for a pod, in cores or bytes."""

    def of(container: Container) -> Fraction:
        return _amount(container.resources.requests, resource)

    total = _at_most(spec, of, operator.add, max, Fraction(0))
    if resource in spec.resources.requests:  # pod-level resources stand in place of the containers' sum
        total = _amount(spec.resources.requests, resource)
    return total + _amount(spec.overhead, resource)


def _at_most(
    spec: PodWish,
    ask: Callable[[Container], _AmountT],
    beside: Callable[[_AmountT, _AmountT], _AmountT],
    after: Callable[[_AmountT, _AmountT], _AmountT],
    nothing: _AmountT,
) -> _AmountT:
    """The most that the pod takes at any moment of its life."""
    running = most = nothing
    for container in spec.init_containers:
        started = beside(running, ask(container))
        most = after(most, started)
        if container.restart_policy == "Always":
            running = started
    for container in spec.containers:
        running = beside(running, ask(container))
    return after(most, running)


# ---------------------------------------------------------------- card models


def asked_models(spec: PodWish) -> frozenset[str]:
    """Card models that the pod's node selector and required node affinity leave; empty if any will do.

    Raises ValueError if nothing is left.
    """
    selected = [spec.node_selector[label] for label in wire.LABEL_PRODUCTS if label in spec.node_selector]
    rules = [frozenset({wire.model_token(product)}) for product in selected]
    by_affinity = _affinity_models(spec)
    if by_affinity is not None:
        rules.append(by_affinity)
    left = frozenset.intersection(*rules) if rules else frozenset[str]()
    if rules and not left:
        raise ValueError(f"{wire.LABEL_PRODUCT}: selector and affinity leave no card model")
    return left


def _affinity_models(spec: PodWish) -> frozenset[str] | None:
    """Models of any of the terms; None if one of them leaves the model open."""
    models: set[str] = set()
    for term in _terms(spec):
        named = [
            frozenset(map(wire.model_token, expression.values))
            for expression in term.match_expressions
            if _names_models(expression)
        ]
        if not named:
            return None
        models |= frozenset.intersection(*named)
    return frozenset(models) if _terms(spec) else None


def has_unread_selectors(spec: PodWish) -> bool:
    """True if the pod chooses nodes by anything but the card model."""
    expressions = [expression for term in _terms(spec) for expression in term.match_expressions]
    unread = any(not _names_models(expression) for expression in expressions)
    return unread or bool(spec.node_selector.keys() - set(wire.LABEL_PRODUCTS))


def _terms(spec: PodWish) -> list[Term]:
    return spec.affinity.node_affinity.required.node_selector_terms


def _names_models(expression: Expression) -> bool:
    return expression.key in wire.LABEL_PRODUCTS and expression.operator == "In"


# ---------------------------------------------------------------- a container


def gpu_ask(resources: Resources) -> GpuAsk:
    """What one container asks of cards, under any of the names. Raises ValueError that names the resource."""
    asked = {**resources.requests, **resources.limits}  # where both are told, extended resources have them equal
    cards = _cards(asked)
    if not cards:
        return GpuAsk()
    memory_mib, cores_pct = _memory_mib(asked, cards), _cores_pct(asked, cards)
    memory_pct = 0 if memory_mib else _memory_pct(asked, cards)
    if not memory_mib and not memory_pct and cores_pct:
        memory_pct = 100  # HAMi: memory that is not asked is all of the card's
    if memory_pct == cores_pct == 100:
        return GpuAsk(cards)
    return GpuAsk(cards, memory_mib, memory_pct, cores_pct)


def parts_without_a_card(resources: Resources) -> list[str]:
    """Names under which a container that asks for 0 cards asks for a part of one. Raises as :func:`gpu_ask`."""
    asked = {**resources.requests, **resources.limits}
    if _cards(asked):
        return []
    parts = asked.keys() & wire.READ_RESOURCES - set(wire.COUNTS)
    return sorted(name for name in parts if _amount(asked, name))


def contradictions(resources: Resources) -> list[str]:
    """Asks that can be read in two ways, and asks for nothing of a card. Raises as :func:`gpu_ask`."""
    asked = {**resources.requests, **resources.limits}
    names = sorted(asked.keys() & wire.READ_RESOURCES)
    if not names:
        return []
    told = [_unequal(resources, name) for name in names if _is_unequal(resources, name)]
    cards = _cards(asked)
    if not cards:
        return told
    told += [_nothing(asked, name, cards) for name in names if _is_none(asked, name)]
    for what, read in _READERS.items():
        said = {name: amount for name, of in read.items() if name in asked and (amount := of(asked, name, cards))}
        if len(set(said.values())) > 1:
            told.append(f"{' and '.join(said)} {'both' if len(said) == 2 else 'all'} say {what}; write one")
    return told


def _is_unequal(resources: Resources, name: str) -> bool:
    both = name in resources.requests and name in resources.limits
    return both and _amount(resources.requests, name) != _amount(resources.limits, name)


def _unequal(resources: Resources, name: str) -> str:
    requests, limits = seen(resources.requests[name]), seen(resources.limits[name])
    return f"{name}: requests say {requests} and limits {limits}; write one amount"


def _is_none(asked: Amounts, name: str) -> bool:
    """HAMi's compute of 0 is no limit; everywhere else 0 would be read as all."""
    return name not in {*wire.COUNTS, wire.HAMI_CORES} and not _amount(asked, name)


def _nothing(asked: Amounts, name: str, cards: int) -> str:
    return f"{name}: {seen(str(asked[name]))} is no share of a card; write {_form(name, cards)}"


def _form(name: str, cards: int) -> str:
    if name == wire.OWN_MEMORY:
        return "MiB of all cards together, such as 4096"
    if name in {wire.USER_MEMORY, wire.HAMI_MEMORY}:
        return "4096 (MiB), 4096Mi, 4Gi or 4G"
    most = 100 * cards if name in {wire.OWN_CORES, wire.OWN_MEMORY_PCT} else 100
    return f"a whole number from 1 to {most}"


def unread_resources(pod: Pod) -> set[str]:
    """Resources of our domains in any container that are neither read nor known: other plugins' ones, or misspelt."""
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    return set[str]().union(*(unread_names(container.resources) for container in containers))


def unread_names(resources: Resources) -> set[str]:
    """The same for one container."""
    names = {*resources.requests, *resources.limits} - wire.READ_RESOURCES - wire.IGNORED_RESOURCES
    return {name for name in names if name.startswith(wire.RESOURCE_DOMAINS)}


def _cards(asked: Amounts) -> int:
    counts = [_read(asked, name, parse_count) for name in wire.COUNTS if name in asked]
    if not counts:
        return int(any(name in asked for name in wire.READ_RESOURCES))
    cards = next((count for count in counts if count), 0)
    if cards > MOST_CARDS:
        raise ValueError(f"{wire.GPU}: {cards} cards are more than any node has")
    return cards


def _memory_mib(asked: Amounts, cards: int) -> int:
    return _own_mib(asked, cards) or _memory(asked, wire.USER_MEMORY) or _memory(asked, wire.HAMI_MEMORY)


def _own_mib(asked: Amounts, cards: int) -> int:
    """MiB of each card from a total over all cards."""
    total = _read(asked, wire.OWN_MEMORY, parse_count) if wire.OWN_MEMORY in asked else 0
    if total > cards * MAX_CARD_MIB:
        raise ValueError(f"{wire.OWN_MEMORY}: {total} MiB are more than {cards} cards have; write plain MiB")
    return -(-total // cards)


def _memory(asked: Amounts, name: str) -> int:
    """MiB; 0 if not asked. An ask for 0 is none, as HAMi reads it."""
    return _read(asked, name, parse_asked_card_mib) if _amount(asked, name) else 0


def _memory_pct(asked: Amounts, cards: int) -> int:
    return _own_pct(asked, wire.OWN_MEMORY_PCT, cards) or _pct(asked, wire.HAMI_MEMORY_PCT)


def _cores_pct(asked: Amounts, cards: int) -> int:
    return _own_pct(asked, wire.OWN_CORES, cards) or _pct(asked, wire.USER_CORES) or _pct(asked, wire.HAMI_CORES)


def _own_pct(asked: Amounts, name: str, cards: int) -> int:
    """Percent of each card from a total over all cards."""
    return -(-_percent(asked, name, cards, 100 * cards) // cards)


def _pct(asked: Amounts, name: str, cards: int = 1) -> int:
    """Percent of a card; 0 if not asked."""
    return _percent(asked, name, cards, 100)


def _percent(asked: Amounts, name: str, cards: int, most: int) -> int:
    if name not in asked:
        return 0
    form = f"write {_form(name, cards)}"
    try:
        amount = parse_quantity(asked[name])
    except NotAQuantityError as exc:
        raise NotAQuantityError(f"{name}: {seen(asked[name])} is not a quantity; {form}") from exc
    if amount.denominator != 1:
        raise ValueError(f"{name}: {seen(asked[name])} is no whole number; {form}")
    if amount > most:
        has = "one card has" if most == 100 else f"{cards} cards have"
        raise ValueError(f"{name}: {amount} % is more than {has}; {form}")
    return int(amount)


def _of_all(pct: int) -> str:
    return f"{pct} %" if pct else ""


def _amount(amounts: Amounts, name: str) -> Fraction:
    return _read(amounts, name, parse_quantity) if name in amounts else Fraction(0)


def _read(amounts: Mapping[str, str | int], name: str, parse: Callable[[str | int], _AmountT]) -> _AmountT:
    try:
        return parse(amounts[name])
    except NotAQuantityError as exc:
        raise NotAQuantityError(f"{name}: {exc}") from exc
    except ValueError as exc:
        raise ValueError(f"{name}: {exc}") from exc


def _ceil(amount: Fraction) -> int:
    return -(-amount.numerator // amount.denominator)


_READERS: dict[str, dict[str, Callable[[Amounts, str, int], object]]] = {
    "cards": dict.fromkeys(wire.COUNTS, lambda asked, name, _cards: _amount(asked, name)),
    "memory": {  # MiB and percent of it are never known to be the same
        wire.USER_MEMORY: lambda asked, name, _cards: _memory(asked, name),
        wire.HAMI_MEMORY: lambda asked, name, _cards: _memory(asked, name),
        wire.OWN_MEMORY: lambda asked, _name, cards: _own_mib(asked, cards),
        wire.HAMI_MEMORY_PCT: lambda asked, name, cards: _of_all(_pct(asked, name, cards)),
        wire.OWN_MEMORY_PCT: lambda asked, name, cards: _of_all(_own_pct(asked, name, cards)),
    },
    "cores": {
        wire.USER_CORES: _pct,
        wire.HAMI_CORES: _pct,
        wire.OWN_CORES: _own_pct,
    },
}
"""Names that say the same thing, each with what it says of one card; 0 is nothing said."""
