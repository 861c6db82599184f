"""CW208: cards that could take the pod are out: fenced, unhealthy, cordoned, or reported by nobody."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding
from cardwise.doctor.room import SICK, Cause, cause_of


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod, with what each node says."""
    for each in facts.waiting:
        if cause_of(facts, each) is not Cause.OUT:
            continue
        out = [code for code in each.refused if code in SICK]
        nodes = sorted({name for code in out for name in each.refused[code]})
        silent = nodes or sorted(node.metadata.name for node in facts.gpu_nodes)
        seen = [each.told(code) for code in out] or [
            f"no node tells of cards; {len(facts.gpu_nodes)} nodes offer GPUs by other names"
        ]
        action = next((each.advice[code] for code in out if code in each.advice), "") or (
            "hand a node over to cardwise: kubectl label node NODE cardwise.dev/agent=true, and see its agent"
        )
        yield Finding(
            "CW208",
            f"pod {each.name}",
            frozenset({each.place, *(f"node:{name}" for name in silent)}),
            f"pod {each.name}: the cards that could take it are out",
            tuple(seen),
            action,
            CERTAIN if not each.refused.keys() - SICK else LIKELY,
        )


CHECK = Check("CW208", "Cards that could take the pod are out", find)
