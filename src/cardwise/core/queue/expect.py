"""How long a try is expected to take until its answer begins, from those that have been answered.

The estimate decides who is refused for the sake of a deadline, and who is refused measures nothing: an estimate from
one bad moment, believed for good, would refuse all for good. So it is believed only while an answer is awaited that
will correct it; when none is, the next request is let in to find out.
"""

from __future__ import annotations

_NEWEST_SHARE = 0.1
"""Weight of the newest time."""


class Expectation:
    """The time of a try. Each ``begin`` is followed by one ``answered`` or one ``gave_up``."""

    __slots__ = ("_mean_s", "awaited")

    def __init__(self) -> None:
        self._mean_s = 0.0
        self.awaited = 0
        """Tries whose answer has not begun."""

    def begin(self) -> None:
        """A try is on its way."""
        self.awaited += 1

    def answered(self, took_s: float) -> None:
        """Its answer has begun, after so long. Raises ValueError if none is awaited."""
        self.gave_up()
        self._mean_s += (took_s - self._mean_s) * (_NEWEST_SHARE if self._mean_s else 1.0)

    def gave_up(self) -> None:
        """There will be no answer. Raises ValueError if none is awaited."""
        if self.awaited < 1:
            raise ValueError("a try ends that had not begun")
        self.awaited -= 1

    @property
    def time_s(self) -> float:
        """How long the next one will take; 0 if nothing is known, or nothing awaited that would correct it."""
        return self._mean_s if self.awaited else 0.0
