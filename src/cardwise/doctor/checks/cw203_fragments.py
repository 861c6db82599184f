"""CW203: enough memory is free, and in pieces: no single card has as much as the pod asks for."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import LIKELY, Check, Finding
from cardwise.doctor.room import Cause, candidates, cause_of, need_of


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod, with the card that comes closest."""
    for each in facts.waiting:
        if cause_of(facts, each) is not Cause.FRAGMENTS:
            continue
        need, cards = need_of(each), candidates(facts, each)
        best = max(cards, key=lambda card: (card.memory_free_mib, card.compute_free_pct))
        free = sum(card.memory_free_mib for card in cards)
        yield Finding(
            "CW203",
            f"pod {each.name}",
            frozenset({each.place}),
            f"pod {each.name}: {free} MiB are free on {len(cards)} cards together, and no card has what it asks for",
            (
                f"it asks for {need.of(best)} MiB and {need.compute_pct:g} % of one card",
                (
                    f"the most on one card: {best.memory_free_mib} MiB and {best.compute_free_pct:g} % ({best.uuid} on "
                    f"{best.node})"
                ),
            ),
            "let the controller join them (controller.enabled=true: replicas move, successor first; where it runs, the "
            "pod's event CardwiseNotMoving says why none does); place new pods by the policy dense, which leaves fewer "
            f"pieces (cardwise replay shows how many); or move a small pod off {best.node} (kubectl delete pod)",
            LIKELY,
        )


CHECK = Check("CW203", "Memory is free, but in pieces", find)
