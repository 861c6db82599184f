"""What a check finds, and what a check is. Refuses a finding without evidence, or without something to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cardwise.doctor.facts import Facts

CERTAIN, LIKELY, POSSIBLE = 0.95, 0.75, 0.5
"""How sure a check is: it saw the cause itself; all that is seen fits it; it fits, and so may something else."""
EVERYWHERE = "cluster"
"""The place of what concerns all pods and nodes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause. code: stable, of the check. likelihood: in [0, 1].

    subject: whom it is about, for people; places: the same for the machine, such as ``pod:serving/a`` or ``node:g1``:
    a cause and what follows from it share one. evidence: what was seen, with values. action: what to type or change.
    later: it does no harm yet; what does is told before it.
    """

    code: str
    subject: str
    places: frozenset[str]
    cause: str
    evidence: tuple[str, ...]
    action: str
    likelihood: float = LIKELY
    later: bool = False

    def __post_init__(self) -> None:
        if not (self.evidence and self.action and self.places and 0 < self.likelihood <= 1):
            raise ValueError(f"{self.code}: a finding needs places, evidence, something to do, and a likelihood")


@dataclass(frozen=True, slots=True)
class Check:
    """One check. title: the cause, in a line, as the page of its code has it.

    explains: codes of checks whose findings at the same place follow from this one.
    needs: what it looks at, for the page: ``objects``, ``metrics``, ``node``.
    """

    code: str
    title: str
    find: Callable[[Facts], Iterable[Finding]]
    explains: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset({"objects"})
