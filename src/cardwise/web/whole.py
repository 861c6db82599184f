"""The whole state as bytes: encoded and packed once, for all who fetch the same one.

Everyone who looks fetches it at once when a port forward ends and comes back. Refuses to pack in the way of others:
that is done in a thread, for the state of a large cluster takes a second.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

SMALLEST_PACKED = 65536
"""Bytes; a thousand nodes are some megabytes, and a port forward is slow."""
PACKING = "deflate"


@dataclass(slots=True)
class Whole:
    """shown: the state that the next change will be from."""

    shown: Callable[[], Mapping[str, Any]]
    _of: Mapping[str, Any] | None = None
    _plain: bytes = b""
    _packed: bytes = b""
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, request: web.Request) -> web.Response:
        """The state as JSON, packed if it is large and the reader can unpack it."""
        plain, packed = await self.made()
        if packed and PACKING in request.headers.get("Accept-Encoding", ""):
            headers = {"Content-Encoding": PACKING, "Vary": "Accept-Encoding"}
            return web.Response(body=packed, content_type="application/json", headers=headers)
        return web.Response(body=plain, content_type="application/json")

    async def made(self) -> tuple[bytes, bytes]:
        """Plain and packed; packed is empty where that is not worth it."""
        async with self._making:
            state = self.shown()
            if state is not self._of:
                self._of, self._plain = state, msgspec.json.encode(state)
                large = len(self._plain) >= SMALLEST_PACKED
                self._packed = await asyncio.to_thread(zlib.compress, self._plain) if large else b""
            return self._plain, self._packed
