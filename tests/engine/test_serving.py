"""Requests as tasks on the shared server: bugs that show, and clients that read slowly or leave."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from cardwise.adapters.http1.server import Server
from cardwise.engine.serving import PATIENT, Tasks, send

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


@asynccontextmanager
async def asked(serve):
    """A client that has asked ``serve`` once."""
    server = Server(Tasks(serve), PATIENT)
    reader, writer = await asyncio.open_connection("127.0.0.1", await server.listen("127.0.0.1", 0))
    writer.write(GET)
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()
        await asyncio.sleep(0)


async def test_a_bug_is_answered_with_500_and_the_connection_is_kept():
    async def serve(exchange):
        raise RuntimeError("a bug")

    async with asked(serve) as (reader, writer):
        for _ in range(2):
            assert (await reader.readuntil(b'see its log"}')).startswith(b"HTTP/1.1 500")
            writer.write(GET)


async def test_a_bug_in_an_answer_that_has_begun_cuts_it_after_what_was_sent():
    async def serve(exchange):
        exchange.begin(200, [])
        await send(exchange, b"half")
        raise RuntimeError("a bug")

    async with asked(serve) as (reader, _):
        assert (await reader.read()).endswith(b"4\r\nhalf\r\n")


async def test_a_stream_waits_for_a_client_that_reads_slower():
    sent = 0

    async def serve(exchange):
        nonlocal sent
        exchange.begin(200, [])
        for _ in range(64):
            await send(exchange, bytes(2**20))
            sent += 1
        exchange.end()

    async with asked(serve) as (reader, _):
        before = -1
        while not sent or sent != before:  # until it stands still
            before = sent
            await asyncio.sleep(0.1)
        assert 0 < sent < 60
        got = 0
        while sent < 64:
            got += len(await reader.read(2**20))
        assert got > 2**20


async def test_a_task_is_cancelled_when_its_client_leaves():
    left = asyncio.Event()

    async def serve(_):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            left.set()
            raise

    async with asked(serve) as (_, writer):
        await asyncio.sleep(0)
        writer.close()
        await asyncio.wait_for(left.wait(), 40)
