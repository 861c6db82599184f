"""From an allocation to the slots of a container: which slot carries which card, and how much of it; or why not.

The scheduler chose; this only checks that what it chose is what is there. Two leaders at once, a forged annotation, a
card that was swapped or is shared otherwise by now: each shows here as a contradiction, and the container does not
start. Refuses to repair.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from cardwise.core.allocation import Allocation, Hold, Share
from cardwise.core.card.watermark import MOST_LENT_SHARE
from cardwise.core.request import Isolation

FULL_PCT = 100
SLOT_NAME = re.compile(r"slot-[0-9]{3,6}")


class Mismatch(Enum):
    """Why a container may not start, for metrics and events."""

    NO_ALLOCATION = "no-allocation"
    OTHER_NODE = "other-node"
    NO_CONTAINER = "no-container"
    CARD_COUNT = "card-count"
    UNKNOWN_CARD = "unknown-card"
    SICK_CARD = "sick-card"
    OTHER_MODE = "other-mode"
    OVERSOLD = "oversold"
    RECLAIMED = "reclaimed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A container that may not start, and why."""

    code: Mismatch
    text: str


@dataclass(frozen=True, slots=True)
class Grant:
    """What one slot carries. memory_mib: of the whole card if ``whole``; lent_mib: of that, lent beyond the card."""

    slot: str
    uuid: str
    memory_mib: int
    compute_pct: int
    whole: bool = False
    lent_mib: int = 0


@dataclass(frozen=True, slots=True)
class Offered:
    """A card that this node offers. why_not: what is wrong with it, if it takes no new slices.

    binds: it holds its slices to their memory in any case.
    """

    uuid: str
    memory_mib: int
    mode: Isolation = Isolation.ANY
    why_not: str = ""
    binds: bool = False


@dataclass(frozen=True, slots=True)
class Demands:
    """How the pod wants its cards to be shared. modes: that will do, all if empty; binding: limits must bind."""

    modes: frozenset[Isolation] = frozenset()
    binding: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """A container that is about to start: its slots, and the allocation and demands of its pod.

    again: it ran before. runs: it runs, and only the books are behind: how its cards are shared by now is not asked.
    """

    container: str
    slots: Sequence[str]
    allocation: Allocation | None
    again: bool = False
    runs: bool = False
    demands: Demands = Demands()


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds cards. Names are used again, by the next pod of a StatefulSet: the UID says which it is."""

    uid: str
    name: str


def hand_over(
    start: Start, node: str, cards: Mapping[str, Offered], mine: Sequence[Hold], others: Mapping[Holder, Sequence[Hold]]
) -> tuple[Grant, ...] | Refusal:
    """What each slot carries, in the order of the slots' names; the same question has the same answer.

    cards: by UUID. mine: what the whole pod takes of each card. others: what each other pod takes.
    A card that takes no new slices lets a container start again on it, for its pod was there before. A card that is
    shared otherwise than was demanded or allocated does not: the limits that the pod counts on would not be there.
    """
    allocation = start.allocation
    if allocation is None:
        return Refusal(Mismatch.NO_ALLOCATION, "the pod has no allocation: it was not bound by cardwise's scheduler")
    if allocation.node != node:
        return Refusal(Mismatch.OTHER_NODE, f"the pod's allocation is for node {allocation.node}, this is {node}")
    shares = dict(allocation.containers).get(start.container)
    if shares is None:
        return Refusal(Mismatch.NO_CONTAINER, f"the pod's allocation has nothing for container {start.container}")
    if len(shares) != len(start.slots):
        return Refusal(
            Mismatch.CARD_COUNT,
            f"the kubelet gave container {start.container} {len(start.slots)} slots, its allocation has "
            f"{len(shares)} cards",
        )
    refusal = _card_refusal(start, shares, cards) or _sum_refusal(cards, mine, others)
    if refusal is not None:
        return refusal
    return tuple(
        Grant(slot, share.uuid, share.memory_mib, share.compute_pct, share.whole, share.lent_mib)
        for slot, share in zip(sorted(start.slots), shares, strict=True)
    )


def _card_refusal(start: Start, shares: Iterable[Share], cards: Mapping[str, Offered]) -> Refusal | None:
    for share in shares:
        card = cards.get(share.uuid)
        if card is None:
            return Refusal(
                Mismatch.UNKNOWN_CARD,
                f"card {share.uuid} is not on this node, which has {', '.join(sorted(cards)) or 'none'}",
            )
        if card.why_not and not start.again:
            return Refusal(Mismatch.SICK_CARD, f"card {share.uuid} takes no new slices: {card.why_not}")
        if not start.runs and (text := _otherwise(share, card, start.demands)):
            return Refusal(Mismatch.OTHER_MODE, f"card {share.uuid} {text}")
    return None


def _otherwise(share: Share, card: Offered, demands: Demands) -> str:
    """How the card is shared otherwise than was demanded or allocated; who has it alone may have it in any mode."""
    if demands.modes and card.mode not in demands.modes:
        wanted = " or ".join(sorted(map(_named, demands.modes)))
        return f"is shared by {_named(card.mode)}, and the pod demands {wanted}; delete the pod to have it placed anew"
    if share.whole:
        return ""
    if share.mode is not Isolation.ANY and card.mode is not share.mode:
        told = f"is shared by {_named(card.mode)}, and was allocated as shared by {_named(share.mode)}"
        return f"{told}; delete the pod to have it placed anew"
    if demands.binding and not card.binds:
        return "does not hold slices to their memory in any case, and the pod demands hard limits"
    return ""


def _named(mode: Isolation) -> str:
    return "no mode" if mode is Isolation.ANY else mode.name.lower().replace("_", "-")


def _sum_refusal(
    cards: Mapping[str, Offered], mine: Sequence[Hold], others: Mapping[Holder, Sequence[Hold]]
) -> Refusal | None:
    for uuid in dict.fromkeys(hold.uuid for hold in mine):
        card = cards.get(uuid)
        beside = {holder: held for holder, holds in others.items() if (held := _on(holds, uuid))}
        text = "" if card is None else _oversold(card, _on(mine, uuid), beside.values())
        if text:
            names = ", ".join(sorted(holder.name for holder in beside)) or "nobody"
            return Refusal(Mismatch.OVERSOLD, f"card {uuid}: {text}; held by {names}")
    return None


def most(*ways: Iterable[Hold]) -> tuple[Hold, ...]:
    """Of each card the most that any of several tellings says a pod takes, as one hold."""
    told = [list(way) for way in ways]
    uuids = dict.fromkeys(hold.uuid for way in told for hold in way)
    return tuple(_most(uuid, [_on(way, uuid) for way in told]) for uuid in uuids)


def _most(uuid: str, ways: Sequence[Sequence[Hold]]) -> Hold:
    sums = [_sum(way) for way in ways]
    whole = any(hold.whole for way in ways for hold in way)
    memory, physical = max(each.memory_mib for each in sums), max(each.physical_mib for each in sums)
    return Hold(uuid, memory, max(each.compute_pct for each in sums), whole, memory - physical)


def _on(holds: Iterable[Hold], uuid: str) -> list[Hold]:
    return [hold for hold in holds if hold.uuid == uuid]


def _oversold(card: Offered, mine: Sequence[Hold], others: Iterable[Sequence[Hold]]) -> str:
    """Why the holds do not fit the card together, or nothing."""
    held = [hold for holds in others for hold in holds]
    if held and any(hold.whole for hold in [*mine, *held]):
        return "it is asked whole and others are on it" if any(hold.whole for hold in mine) else "another has all of it"
    if held and card.mode is Isolation.MIG:
        return "it is a MIG instance, which one pod has at a time"
    ours, theirs = _sum(mine), _sum(held)
    free_mib = card.memory_mib - theirs.physical_mib
    if ours.physical_mib > free_mib:
        return f"{ours.physical_mib} MiB are asked, {free_mib} of {card.memory_mib} MiB are free"
    most_mib = int(MOST_LENT_SHARE * card.memory_mib)
    if ours.lent_mib and ours.lent_mib + theirs.lent_mib > most_mib:
        lent = f"{ours.lent_mib} MiB beyond the card are asked beside {theirs.lent_mib} that others were lent"
        return f"{lent}, and at most {most_mib} ever may be"
    if ours.compute_pct + theirs.compute_pct > FULL_PCT:
        return f"{ours.compute_pct} % of compute are asked, {FULL_PCT - theirs.compute_pct} % are free"
    return ""


@dataclass(frozen=True, slots=True)
class _Sum:
    memory_mib: int
    compute_pct: int
    lent_mib: int

    @property
    def physical_mib(self) -> int:
        """What is not lent: the card itself has no more than it has."""
        return self.memory_mib - self.lent_mib


def _sum(holds: Sequence[Hold]) -> _Sum:
    return _Sum(
        sum(hold.memory_mib for hold in holds),
        sum(hold.compute_pct for hold in holds),
        sum(hold.lent_mib for hold in holds),
    )


@dataclass(frozen=True, slots=True)
class Slots:
    """Names for what the kubelet counts, without a card: so many per card, one per MIG instance.

    As many are healthy as containers could start: the last free ones are withdrawn while cards are sick, or while slots
    are in use that there would be no more, for cards were divided otherwise since.
    """

    per_card: int

    def count(self, cards: Iterable[Offered]) -> int:
        """How many containers these cards hold at most."""
        return sum(1 if card.mode is Isolation.MIG else self.per_card for card in cards)

    def names(self, cards: Iterable[Offered], used: Iterable[str] = ()) -> list[str]:
        """All slots of a node with these cards, and those in use."""
        return sorted({f"slot-{number:03d}" for number in range(self.count(cards))} | set(used))

    def unhealthy(self, cards: Collection[Offered], used: Collection[str]) -> set[str]:
        """Slots to be withdrawn: those that nobody has, from the last one."""
        listed = self.names(cards, used)
        well = self.count(card for card in cards if not card.why_not)
        free = [name for name in reversed(listed) if name not in set(used)]
        return set(free[: len(listed) - well])
