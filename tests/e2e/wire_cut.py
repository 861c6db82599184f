"""A TCP forwarder on loopback that tests can cut, stall or point elsewhere: how networks and Services misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Self

STALLED_S = 60
"""Longer than a busy machine holds up a thread."""


class Forwarder:
    """Forwards to ``target()``, asked for each connection. ``cut``: refuse and drop; ``mute``: withhold all replies."""

    def __init__(self, target: Callable[[], int | None]) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut = self.mute = False
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(STALLED_S)
        return self

    def __exit__(self, *_exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(STALLED_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def drop(self) -> None:
        """End every connection there is."""
        asyncio.run_coroutine_threadsafe(self._drop(), self._loop).result(STALLED_S)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        await self._drop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close their sockets in the next turn of the loop

    async def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        port = None if self.cut else self._target()
        try:
            if port is None:
                return
            with contextlib.suppress(OSError):
                up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
                self._writers.add(up_writer)
                try:
                    async with asyncio.TaskGroup() as both:
                        both.create_task(self._pump(reader, up_writer, replies=False))
                        both.create_task(self._pump(up_reader, writer, replies=True))
                finally:
                    self._writers.discard(up_writer)
                    up_writer.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                while replies and self.mute:
                    await asyncio.sleep(0.02)
                writer.write(chunk)
                await writer.drain()
        writer.transport.abort()
