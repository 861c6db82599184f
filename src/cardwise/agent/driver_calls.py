"""Calls into the driver beside the samples: they may not return, and must hold up neither other cards nor the end.

Each runs on a daemon thread of its own; by :class:`DriverCalls`, one at a time per card: while a call has not returned,
the next one on that card waits for it and then fails, so that nothing piles up. Refuses asyncio's own threads: they are
few, all cards would share them, and the process could not end while one of them hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from cardwise.errors import CardError

_ValueT = TypeVar("_ValueT")

WITHIN_S = 10.0
"""For a call and what it waits for: a sick card may take much longer."""


@dataclass(slots=True)
class DriverCalls:
    """Whose calls are under way, by card."""

    within_s: float = WITHIN_S
    _under_way: dict[str, asyncio.Future[None]] = field(default_factory=dict)

    async def call(self, uuid: str, what: Callable[[], None]) -> None:
        """Do it. Raises what it raises, and CardError if it does not return in time; then it goes on by itself."""
        try:
            async with asyncio.timeout(self.within_s):
                while (before := self._under_way.get(uuid)) is not None:
                    await asyncio.wait([before])
                await asyncio.shield(self._start(uuid, what))
        except TimeoutError as exc:
            raise CardError(uuid, f"the driver has not answered for {self.within_s:.0f} s") from exc

    def _start(self, uuid: str, what: Callable[[], None]) -> asyncio.Future[None]:
        done = self._under_way[uuid] = alone(f"driver-{uuid}", what)
        done.add_done_callback(lambda _: self._under_way.pop(uuid))
        return done


def alone(name: str, what: Callable[[], _ValueT]) -> asyncio.Future[_ValueT]:
    """Do it on a daemon thread of its own; what comes of it. Whoever no longer waits for it leaves it to itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_ValueT] = loop.create_future()
    done.add_done_callback(_heard)

    def returned(value: _ValueT) -> None:
        if not done.done():
            done.set_result(value)

    def failed(exc: Exception) -> None:
        if not done.done():
            done.set_exception(exc)

    def work() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            try:
                value = what()
            except Exception as exc:  # noqa: BLE001 - it is raised where it is waited for
                loop.call_soon_threadsafe(failed, exc)
            else:
                loop.call_soon_threadsafe(returned, value)

    threading.Thread(target=work, name=name, daemon=True).start()
    return done


def _heard(done: asyncio.Future[_ValueT]) -> None:
    """That nobody waits any more for what failed is no bug."""
    if not done.cancelled():
        done.exception()
