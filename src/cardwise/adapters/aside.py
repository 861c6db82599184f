"""Calls that may never return, each on a daemon thread of its own: whoever asks waits for as long as he likes.

Such a call cannot be broken off. Its thread is left to wait, holds up neither other calls nor the end of the process,
and what came of it is there if it returns after all. Refuses to start a call anew while the last one has not returned:
:class:`Asides` remembers by name, so that nothing piles up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_ValueT = TypeVar("_ValueT")
_KeyT = TypeVar("_KeyT", bound=Hashable)


class Aside(Generic[_ValueT]):
    """One call. failed: what it raised; read it and :meth:`value` only once it has :attr:`returned`."""

    def __init__(self, what: Callable[[], _ValueT], name: str) -> None:
        """Start it."""
        self._what, self._values = what, list[_ValueT]()
        self._over = threading.Event()
        self._since_s = time.monotonic()
        self.failed: Exception | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._values.append(self._what())
        except Exception as exc:  # noqa: BLE001 - it is raised where it is waited for
            self.failed = exc
        self._over.set()

    @property
    def returned(self) -> bool:
        """Whether the call is over."""
        return self._over.is_set()

    @property
    def age_s(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self._since_s

    def wait(self, within_s: float) -> bool:
        """Wait until it is over, and no longer than this; whether it is."""
        return self._over.wait(max(0.0, within_s))

    def value(self) -> _ValueT:
        """What it returned. Raises what it raised."""
        if self.failed is not None:
            raise self.failed
        return self._values[0]


@dataclass(slots=True)
class Asides:
    """Calls that had not returned when they were last waited for, by name."""

    _late: dict[Hashable, Aside[Any]] = field(default_factory=dict)

    @property
    def hang(self) -> bool:
        """Whether one of them has still not returned."""
        return any(not each.returned for each in self._late.values())

    def together(self, calls: Mapping[_KeyT, Callable[[], _ValueT]], within_s: float) -> dict[_KeyT, Aside[_ValueT]]:
        """Make all of these calls at once; those that are over in time. Left out: what is late, or was from before."""
        free = {key: what for key, what in calls.items() if key not in self._late or self._late[key].returned}
        made = {key: Aside(what, f"driver-{key}") for key, what in free.items()}
        end_s = time.monotonic() + within_s
        over = {key: each for key, each in made.items() if each.wait(end_s - time.monotonic())}
        for key, each in made.items():
            self._late.pop(key, None)
            if key not in over:
                self._late[key] = each
        return over
