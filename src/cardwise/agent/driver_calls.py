"""Calls into the driver beside the samples: they may not return, and must hold up neither other cards nor the end.

Each runs on a daemon thread of its own, one at a time per card: while a call has not returned, the next one on that
card waits for it and then fails, so that nothing piles up. Refuses asyncio's own threads: they are few, all cards would
share them, and the process could not end while one of them hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cardwise.errors import CardError

WITHIN_S = 10.0
"""For a call and what it waits for: a sick card may take much longer."""


@dataclass(slots=True)
class DriverCalls:
    """Whose calls are under way, by card."""

    within_s: float = WITHIN_S
    _under_way: dict[str, asyncio.Future[Exception | None]] = field(default_factory=dict)

    async def call(self, uuid: str, what: Callable[[], None]) -> None:
        """Do it. Raises what it raises, and CardError if it does not return in time; then it goes on by itself."""
        try:
            async with asyncio.timeout(self.within_s):
                while (before := self._under_way.get(uuid)) is not None:
                    await asyncio.wait([before])
                failed = await asyncio.shield(self._start(uuid, what))
        except TimeoutError as exc:
            raise CardError(uuid, f"the driver has not answered for {self.within_s:.0f} s") from exc
        if failed is not None:
            raise failed

    def _start(self, uuid: str, what: Callable[[], None]) -> asyncio.Future[Exception | None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Exception | None] = loop.create_future()
        self._under_way[uuid] = done

        def finish(failed: Exception | None) -> None:
            del self._under_way[uuid]
            done.set_result(failed)

        def work() -> None:
            failed: Exception | None = None
            try:
                what()
            except Exception as exc:  # noqa: BLE001 - it is raised where it is waited for
                failed = exc
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(finish, failed)

        threading.Thread(target=work, name=f"driver-{uuid}", daemon=True).start()
        return done
