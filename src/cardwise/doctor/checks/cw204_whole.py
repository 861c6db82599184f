"""CW204: cards are held or asked for whole: memory that nobody uses cannot be given to anybody."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import LIKELY, Check, Finding
from cardwise.doctor.room import Cause, candidates, cause_of, hogs, need_of
from cardwise.doctor.words import some


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod: it asks for a whole card, or pods with whole cards stand in its way."""
    for each in facts.waiting:
        if cause_of(facts, each) is not Cause.WHOLE:
            continue
        found = hogs(facts, each)
        if need_of(each).whole:
            cards = candidates(facts, each)
            free = sum(card.compute_free_pct for card in cards) / 100
            cause = f"pod {each.name} asks for a whole card, and slices lie on all of them"
            seen = [
                f"{free:.1f} cards' compute is free on {len(cards)} cards, none of which is empty",
                f"such as {cards[0].uuid}: {cards[0].slices} slices",
            ]
            action = (
                "ask for a slice (nvidia.com/gpu.memory, nvidia.com/gpu.cuda-cores): cardwise plan says of how much; "
                "or keep cards empty with the policy dense"
            )
        else:
            cause = f"pod {each.name}: cards are held whole by pods that use less than half of them"
            seen = [f"pod {name} holds a card alone and uses {share:.0%} of its memory" for name, share in found[:5]]
            action = f"give {some(sorted({name for name, _ in found}))} a slice of what they use"
        places = frozenset({each.place, *(f"pod:{name}" for name, _ in found)})
        yield Finding("CW204", f"pod {each.name}", places, cause, tuple(seen), action, LIKELY)


CHECK = Check("CW204", "Cards are held, or asked for, whole", find, needs=frozenset({"objects", "metrics"}))
