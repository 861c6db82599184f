"""What a reader had to assume, collected while it reads: one sentence per kind of assumption, with whom it concerns.

A dump of 10,000 pods must not end in 10,000 notes, and must not hide one of them either. Refuses to judge: what makes a
history useless is an error, not a note.
"""

from __future__ import annotations

from cardwise.files import plain

NAMED = 3
"""So many names are told; of the others, the number."""


class Notes:
    """Sentences, each with the names of nodes or pods that it concerns, in order of first appearance."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def add(self, text: str, name: str) -> None:
        """Note ``text``, a clause without a full stop, about one node or pod."""
        self._names.setdefault(text, []).append(name)

    def lines(self) -> tuple[str, ...]:
        """One line per sentence, such as ``text: a, b, c and 4 more``."""
        return tuple(plain(f"{text}: {_listed(names)}.") for text, names in self._names.items())


def _listed(names: list[str]) -> str:
    told, more = ", ".join(names[:NAMED]), len(names) - NAMED
    return f"{told} and {more} more" if more > 0 else told
