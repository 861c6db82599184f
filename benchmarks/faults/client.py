"""A client of a few lines that hides nothing: how a connection ended is part of the answer.

Refuses to try again and to follow: libraries that do would hide a lost answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

PATIENCE_S = 30.0
"""Longer than everything the gateway waits for: who hears nothing by then never will."""


class UnansweredError(Exception):
    """The connection ended, or nothing came in time, before the first byte of an answer."""


class CutError(Exception):
    """The connection ended within an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete one. headers: names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """One connection; requests one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Open."""
        self.reader, self.writer = reader, writer
        self.is_kept = True

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Raises OSError where nobody listens."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**22))

    async def ask(
        self, method: str, path: str, host: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        """Send a request and read its answer. Raises UnansweredError or CutError."""
        self.send(head(method, path, host, len(body), headers) + body)
        return await self.answer()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)

    async def answer(self) -> Answer:
        """Read one answer."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, headers = await self._head()
        except (asyncio.IncompleteReadError, OSError, TimeoutError) as exc:
            begun = isinstance(exc, asyncio.IncompleteReadError) and exc.partial
            raise (CutError if begun else UnansweredError)(repr(exc)) from exc
        self.is_kept = headers.get("connection", "").lower() != "close"
        try:
            async with asyncio.timeout(PATIENCE_S):
                return Answer(status, headers, await self._body(headers))
        except (asyncio.IncompleteReadError, OSError, TimeoutError) as exc:
            raise CutError(repr(exc)) from exc

    async def has_surplus(self) -> bool:
        """Whether more has come than was asked for."""
        try:
            async with asyncio.timeout(0.02):
                return bool(await self.reader.read(1))
        except (OSError, TimeoutError):
            return False

    def abort(self) -> None:
        """Reset or close, at once."""
        self.writer.transport.abort()

    async def _head(self) -> tuple[int, dict[str, str]]:
        while True:
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
            status = int(first.split(" ")[1])
            if status >= 200:
                pairs = (line.partition(": ") for line in lines)
                return status, {name.lower(): value for name, _, value in pairs}

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.readexactly(int(headers.get("content-length", 0)))
        parts = []
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            parts.append((await self.reader.readexactly(size + 2))[:-2])
        await self.reader.readexactly(2)
        return b"".join(parts)


def head(method: str, path: str, host: str, length: int, headers: dict[str, str] | None = None) -> bytes:
    """A request up to its body."""
    told = {"Host": host, "Content-Length": str(length), **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join([*lines, "", ""]).encode()
