"""Why a pod waits, as one cause: what stands first in the way, so that ten checks do not each blame the same pod. Pure.

The "no" of each node comes from the placement core; here they become one sentence of a person: it cannot be, it is not
asked rightly, there is room but in pieces, there is none. Refuses to blame two things at a time.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, replace

from cardwise.core.reasons import Code
from cardwise.core.request import Shape
from cardwise.doctor.facts import CardNow, Facts, Waiting
from cardwise.units import MILLI_PER_CARD, MILLI_PER_PCT

KUEUE_GATE = "kueue.x-k8s.io/admission"
SICK = frozenset({Code.NODE_FENCED, Code.NODE_CORDONED, Code.NODE_UNKNOWN, Code.CARD_UNHEALTHY})
RULES = frozenset(
    {
        Code.CARD_MODEL,
        Code.CARD_ISOLATION,
        Code.CARD_LIMITS,
        Code.CARD_TENANT,
        Code.CARD_WORKLOAD,
        Code.CARD_EVICTED,
        Code.CARD_INSTANCE,
    }
)
HOST = frozenset({Code.NODE_CPU, Code.NODE_MEMORY})
IDLE_SHARE = 0.5
"""A pod that holds a card whole and uses less of its memory would leave room for another one."""


class Cause(enum.Enum):
    """Why a pod waits; the value is the code of the check that says it."""

    ASK = "CW201"
    IMPOSSIBLE = "CW202"
    FRAGMENTS = "CW203"
    WHOLE = "CW204"
    HOST = "CW205"
    BYPASSED = "CW206"
    QUOTA = "CW207"
    OUT = "CW208"
    KEPT_OFF = "CW209"
    FULL = "CW210"


@dataclass(frozen=True, slots=True)
class Need:
    """What a pod needs of one card. memory_mib of a share depends on the card: the smallest card's here."""

    cards: int
    whole: bool
    memory_mib: int
    memory_milli: int
    compute_pct: float

    def of(self, card: CardNow) -> int:
        """MiB of this card."""
        return self.of_size(card.memory_total_mib)

    def of_size(self, total_mib: int) -> int:
        """MiB of a card of this size."""
        return total_mib if self.whole else self.memory_mib or -(-total_mib * self.memory_milli // MILLI_PER_CARD)

    def fits(self, card: CardNow) -> bool:
        """Whether the card has so much free, whatever rules say."""
        if self.whole:
            return card.slices == 0
        return card.memory_free_mib >= self.of(card) and card.compute_free_pct >= self.compute_pct


def need_of(waiting: Waiting) -> Need:
    """Of the pod's largest ask."""
    shape: Shape = waiting.claim.lead.shape
    return Need(shape.cards, shape.whole, shape.memory_mib, shape.memory_milli, shape.compute_milli / MILLI_PER_PCT)


def cause_of(facts: Facts, waiting: Waiting) -> Cause:
    """What stands first in the way."""
    gates = {gate.name for gate in waiting.pod.spec.scheduling_gates}
    if KUEUE_GATE in gates:
        return Cause.QUOTA
    if waiting.faults:
        return Cause.ASK
    if not waiting.ours:
        return Cause.BYPASSED
    if waiting.fits or gates:
        return Cause.KEPT_OFF
    kind = replace(waiting.claim, uid="", name="")  # replicas of one template wait for the same
    if kind not in facts.memo:
        facts.memo[kind] = _of_cards(facts, waiting)
    found = facts.memo[kind]
    assert isinstance(found, Cause)  # noqa: S101 - it was put there a line above
    return found


def _of_cards(facts: Facts, waiting: Waiting) -> Cause:
    """What of the cards stands in the way."""
    if not waiting.refused.keys() - SICK:
        return Cause.OUT
    if is_impossible(facts, waiting):
        return Cause.IMPOSSIBLE
    if hosts_in_the_way(facts, waiting):
        return Cause.HOST
    return _of_amounts(facts, waiting)


def _of_amounts(facts: Facts, waiting: Waiting) -> Cause:
    """There is not enough in one place: because of whole cards, of pieces, of cards that are out, or at all."""
    if hogs(facts, waiting) or (need_of(waiting).whole and pieces(facts, waiting)):
        return Cause.WHOLE
    if pieces(facts, waiting):
        return Cause.FRAGMENTS
    return Cause.OUT if waiting.refused.keys() & SICK else Cause.FULL


def is_impossible(facts: Facts, waiting: Waiting) -> bool:
    """Whether no card could ever take it, were all of them empty; or all nodes that are well say no by a rule."""
    need = need_of(waiting)
    if is_too_large(facts, need) or need.cards > facts.most_cards:
        return True
    return not waiting.refused.keys() - SICK - RULES


def is_too_large(facts: Facts, need: Need) -> bool:
    """Whether it wants more memory of one card than any has."""
    return not need.whole and all(need.of_size(total_mib) > total_mib for total_mib in facts.card_sizes_mib)


def hosts_in_the_way(facts: Facts, waiting: Waiting) -> tuple[str, ...]:
    """Nodes that lack CPU or host memory for it, and have cards that would do."""
    nodes = {name for code in HOST for name in waiting.refused.get(code, ())}
    need = need_of(waiting)
    would_do = Counter(card.node for card in facts.cards if card.node in nodes and card.healthy and need.fits(card))
    return tuple(sorted(name for name, count in would_do.items() if count >= need.cards))


def candidates(facts: Facts, waiting: Waiting) -> tuple[CardNow, ...]:
    """Cards that are well, on nodes that refuse it for what is free only."""
    out = {name for code in SICK | RULES | HOST for name in waiting.refused.get(code, ())}
    return tuple(card for card in facts.cards if card.healthy and not card.fenced and card.node not in out)


def pieces(facts: Facts, waiting: Waiting) -> bool:
    """Whether as much as it needs of one card is free, spread over several."""
    need, cards = need_of(waiting), candidates(facts, waiting)
    if not cards:
        return False
    memory = sum(card.memory_free_mib for card in cards) / max(need.of(card) for card in cards)
    compute = sum(card.compute_free_pct for card in cards) / max(100.0 if need.whole else need.compute_pct, 1.0)
    return min(memory, compute) >= need.cards


def hogs(facts: Facts, waiting: Waiting) -> tuple[tuple[str, float], ...]:
    """Pods that hold a card whole and use less than half of its memory, with that share; enough room for the ask."""
    need = need_of(waiting)
    if need.whole:
        return ()
    found = []
    for card in candidates(facts, waiting):
        used = facts.metrics.last("card_memory_used_mib", uuid=card.uuid)
        alone = len(card.pods) == 1 and card.memory_free_mib == 0
        if not alone or used is None or used >= IDLE_SHARE * card.memory_total_mib:
            continue
        if card.memory_total_mib - used >= need.of(card):
            found.append((card.pods[0], used / card.memory_total_mib))
    return tuple(found)
