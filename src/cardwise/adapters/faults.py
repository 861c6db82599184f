"""What is wrong with one object, told together: as many faults as somebody reads, and how many more there are.

Who may create a pod writes what stands in it, a hundred thousand wrong names too; whoever reads it answers for others
meanwhile. Refuses to word a fault that is not told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

MOST, LONGEST, LONGEST_IN_ALL = 20, 800, 4000
"""Faults that are told, characters of one, and of all: a message that an event or a terminal can hold."""
_ThingT = TypeVar("_ThingT")


class Faults:
    """Each is told once, in the order in which they were found."""

    def __init__(self) -> None:
        """Nothing is wrong yet."""
        self._told: dict[str, None] = {}
        self._more = 0

    @property
    def full(self) -> bool:
        """True once what is added is only counted."""
        return self._more > 0 or len(self._told) >= MOST

    def add(self, text: str) -> None:
        """Tell one, or count it."""
        text = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
        if text in self._told:
            return
        if self.full or sum(map(len, self._told)) + len(text) > LONGEST_IN_ALL:
            self._more += 1
        else:
            self._told[text] = None

    def add_each(self, things: Sequence[_ThingT], tell: Callable[[_ThingT], str]) -> None:
        """One fault for each; ``tell`` is asked only while there is room."""
        for i, thing in enumerate(things):
            if self.full:
                self._more += len(things) - i
                return
            self.add(tell(thing))

    def lines(self) -> list[str]:
        """What to tell; empty if nothing is wrong."""
        return [*self._told, *([f"and {self._more:,} more"] if self._more else [])]
