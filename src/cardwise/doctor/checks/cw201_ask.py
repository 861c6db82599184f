"""CW201: a pod's ask cannot be read as it is written: a misspelt name, an impossible amount."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, Check, Finding
from cardwise.doctor.room import Cause, cause_of


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod."""
    for each in facts.waiting:
        if cause_of(facts, each) is Cause.ASK:
            yield Finding(
                "CW201",
                f"pod {each.name}",
                frozenset({each.place}),
                f"what pod {each.name} asks for cannot be read",
                each.faults,
                "correct the manifest as it says there, delete the pod and create it again",
                CERTAIN,
            )


CHECK = Check("CW201", "A pod's ask cannot be read", find)
