"""CW202: no card of the cluster can or may take the pod, however empty: too large, another model, a rule of sharing."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts, Waiting
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding
from cardwise.doctor.room import RULES, Cause, cause_of, is_too_large, need_of
from cardwise.doctor.words import some


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod."""
    for each in facts.waiting:
        if cause_of(facts, each) is Cause.IMPOSSIBLE:
            yield _of_amount(facts, each) or _of_rules(each)


def _of_amount(facts: Facts, waiting: Waiting) -> Finding | None:
    need = need_of(waiting)
    largest = max(facts.card_sizes_mib, default=0)
    if need.cards > facts.most_cards:
        told = (
            f"pod {waiting.name} asks for {need.cards} cards of one node, and no node has more than {facts.most_cards}"
        )
        action = "ask for fewer cards, or add a node that has so many"
    elif is_too_large(facts, need):
        told = f"pod {waiting.name} asks for {need.memory_mib} MiB of one card, and the largest has {largest}"
        action = "ask for less, or for several cards; cardwise plan says what the model needs"
    else:
        return None
    seen = (f"{len(facts.cards)} cards in the cluster: {some(facts.card_kinds)}",)
    return Finding("CW202", f"pod {waiting.name}", frozenset({waiting.place}), told, seen, action, CERTAIN)


def _of_rules(waiting: Waiting) -> Finding:
    codes = sorted((code for code in waiting.refused if code in RULES), key=lambda code: -len(waiting.refused[code]))
    seen = tuple(waiting.told(code) for code in codes)
    return Finding(
        "CW202",
        f"pod {waiting.name}",
        frozenset({waiting.place}),
        f"no card may take pod {waiting.name}: a rule keeps it off all of them",
        seen,
        waiting.advice[codes[0]],
        LIKELY,
    )


CHECK = Check("CW202", "No card can or may take the pod", find)
