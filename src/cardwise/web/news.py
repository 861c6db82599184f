"""Server-sent events: each change of the state once to everyone who looks. Builds nothing while nobody does.

Refuses to wait for a slow reader: who is too far behind is told to fetch the whole state again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from cardwise.web.changes import changes

PERIOD_S = 0.5
"""How often it is looked whether there is a new state."""
BREATH_S = 15.0
"""So often something is said, so that each side notices when the other is gone (the script waits three times as long);
proxies cut what is silent for a minute."""
MOST_BEHIND = 16
"""Changes that a reader may have before it."""
Reader = asyncio.Queue[bytes | None]


@dataclass(slots=True)
class News:
    """latest: the state now; its ``version`` is another one whenever it changed."""

    latest: Callable[[], Mapping[str, Any]]
    _readers: set[Reader] = field(default_factory=set)
    _told: Mapping[str, Any] | None = None

    async def run(self) -> None:
        """Look and tell, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.look()

    def look(self) -> None:
        """Tell everyone what has changed since the last look."""
        if not self._readers:
            self._told = None
            return
        now, before = self.latest(), self._told
        self._told = now
        if before is not None and before["version"] != now["version"]:
            event = as_event("change", changes(before, now))
            for reader in self._readers:
                _put(reader, event)

    def shown(self) -> Mapping[str, Any]:
        """The state that the next change will be from; the latest one while nobody reads."""
        return self.latest() if self._told is None else self._told

    def join(self) -> Reader:
        """A new reader; the first thing it hears is which version is shown."""
        self._told = self.shown()
        reader: Reader = asyncio.Queue(MOST_BEHIND)
        reader.put_nowait(as_event("hello", {"version": self._told["version"]}))
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        """It is gone."""
        self._readers.discard(reader)

    def close(self) -> None:
        """End all streams."""
        for reader in self._readers:
            _clear(reader)
            reader.put_nowait(None)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One reader, until it leaves or the stream is closed."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        await response.prepare(request)
        reader = self.join()
        try:
            while (event := await _next(reader)) is not None:
                await response.write(event)
        except ConnectionError:
            pass  # it left while we wrote
        finally:
            self.leave(reader)
        return response


def as_event(name: str, content: Mapping[str, Any]) -> bytes:
    """One event. Source: HTML Living Standard, 9.2 "Server-sent events"; JSON has no raw line breaks."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(content))


async def _next(reader: Reader) -> bytes | None:
    try:
        async with asyncio.timeout(BREATH_S):
            return await reader.get()
    except TimeoutError:
        return as_event("still", {})  # no comment: a script does not hear those


def _put(reader: Reader, event: bytes) -> None:
    if reader.full():
        _clear(reader)
        event = as_event("again", {})
    reader.put_nowait(event)


def _clear(reader: Reader) -> None:
    while not reader.empty():
        reader.get_nowait()
