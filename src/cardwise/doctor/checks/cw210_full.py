"""CW210: the cluster's cards are given away: less is free on all of them together than the pod asks for."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import LIKELY, Check, Finding
from cardwise.doctor.room import Cause, candidates, cause_of, need_of


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod."""
    for each in facts.waiting:
        if cause_of(facts, each) is not Cause.FULL:
            continue
        need, cards = need_of(each), candidates(facts, each)
        asked = "whole" if need.whole else f"with {need.memory_mib or need.memory_milli / 10} {_unit(need.memory_mib)}"
        seen = [
            f"it asks for {need.cards} cards, {asked} and {need.compute_pct:g} % of compute",
            (
                f"free on {len(cards)} cards that may take it: {sum(card.memory_free_mib for card in cards)} MiB, "
                f"{sum(card.compute_free_pct for card in cards):.0f} % of a card's compute"
            ),
        ]
        yield Finding(
            "CW210",
            f"pod {each.name}",
            frozenset({each.place}),
            f"pod {each.name}: the cards that may take it are given away",
            tuple(seen),
            "add cards; ask for less (slices are often larger than what is used: see CW409's figures); or give the "
            "pod a priority above best-effort pods and switch preemption on",
            LIKELY,
        )


def _unit(memory_mib: int) -> str:
    return "MiB" if memory_mib else "% of memory"


CHECK = Check("CW210", "The cluster's cards are given away", find)
