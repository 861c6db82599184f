"""Clients that are slow, wrong or hostile, on raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.adapters.http1.connection import Connection
from cardwise.adapters.http1.limits import Limits
from cardwise.adapters.http1.server import Server
from tests.gateway.conversation import Wire
from tests.gateway.world import echo, gateway, service, until, upstream


class Handler:
    """Answers with what came; a path of ``/no`` is refused at its head, ``/later`` waits for the test."""

    def __init__(self):
        self.heads = []
        self.later = []
        self.gone = []

    def on_head(self, exchange):
        self.heads.append(exchange)
        if exchange.path == "/no":
            exchange.answer(429, b"no")
        if exchange.path == "/bug":
            raise RuntimeError("a bug")

    def on_request(self, exchange):
        exchange.on_gone = lambda: self.gone.append(exchange)
        if exchange.path == "/later":
            self.later.append(exchange)
        else:
            exchange.answer(200, exchange.path.encode() + b":" + exchange.body)


@contextlib.asynccontextmanager
async def serving(**limits):
    handler = Handler()
    server = Server(handler, Limits(**limits))
    port = await server.listen("127.0.0.1", 0)
    try:
        yield handler, server, port
    finally:
        server.close()
        await asyncio.sleep(0)


async def talk(port, data, *, end=False):
    """All that comes back until the connection closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if end:
        writer.write_eof()
    async with asyncio.timeout(40):
        got = await reader.read()
    writer.close()
    return got


def post(path, body, *more):
    head = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*head, "", ""]).encode() + body


CLOSE = "Connection: close"
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
LARGE = b"8000\r\n" + b"x" * 2**15 + b"\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        pytest.param(
            POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, id="both lengths"
        ),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400, id="both, reversed"
        ),
        pytest.param(POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400, id="two lengths"),
        pytest.param(POST + b"Content-Length: 5, 5\r\n\r\nhello", 400, id="list of lengths"),
        pytest.param(POST + b"Content-Length: +5\r\n\r\nhello", 400, id="signed length"),
        pytest.param(POST + b"Content-Length: 0x5\r\n\r\nhello", 400, id="hexadecimal length"),
        pytest.param(POST + b"Content-Length : 5\r\n\r\nhello", 400, id="space after name"),
        pytest.param(GET + b"X: a\r\n b\r\n\r\n", 400, id="folded header"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\n\n", 400, id="bare line feeds"),
        pytest.param(POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501, id="unknown coding"),
        pytest.param(POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, id="two codings"),
        pytest.param(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501, id="chunked in 1.0"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(GET + b"Host: b\r\n\r\n", 400, id="two hosts"),
        pytest.param(GET + b"X: a\x00b\r\n\r\n", 400, id="null byte"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="HTTP/2"),
        pytest.param(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 501, id="CONNECT"),
        pytest.param(GET + b"" + b"X: y\r\n" * 200 + b"\r\n", 431, id="many headers"),
        pytest.param(GET + b"X: " + b"y" * 300_000, 431, id="endless header"),
        pytest.param(b"GET /" + b"y" * 300_000, 431, id="endless target"),
        pytest.param(POST + b"Content-Length: 99999999\r\n\r\n", 413, id="body announced too large"),
        pytest.param(CHUNKED + LARGE * 2 + b"1\r\nx\r\n", 413, id="chunks too large"),
        pytest.param(CHUNKED + b"zz\r\n", 400, id="bad chunk size"),
        pytest.param(CHUNKED + b"0\r\nX: " + b"y" * 300_000, 431, id="endless trailer"),
    ],
)
async def test_what_can_be_read_in_two_ways_or_is_too_large_is_refused(data, status):
    async with serving(body=2**16) as (_, server, port):
        got = await talk(port, data)
        assert got.startswith(b"HTTP/1.1 %d " % status)
        assert got.count(b"HTTP/1.1") == 1
        assert b"connection: close" in got
        await until(lambda: not server.connections)


async def test_pipelined_requests_are_answered_in_order_also_when_the_first_takes_longest():
    async with serving() as (handler, _, port):
        asking = asyncio.create_task(
            talk(port, post("/later", b"1") + post("/b", b"2") + post("/no", b"3") + post("/c", b"4", CLOSE))
        )
        await until(lambda: handler.later)
        assert [each.path for each in handler.heads] == ["/later"]
        handler.later[0].answer(200, b"first")
        got = await asking
        places = [got.index(each) for each in (b"first", b"/b:2", b"no", b"/c:4")]
        assert places == sorted(places)


async def test_ten_thousand_pipelined_requests_are_all_answered():
    async with serving() as (_, _, port):
        got = await talk(port, b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n" * 9_999 + b"GET /x HTTP/1.0\r\n\r\n")
        assert got.count(b"/x:") == 10_000


async def test_a_request_that_comes_byte_by_byte_is_read():
    async with serving() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for (
            each
        ) in b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nT: 1\r\n\r\n":
            writer.write(bytes([each]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readuntil(b"abc")
        writer.write(post("/b", b"d", CLOSE))
        assert (await reader.read()).endswith(b"/b:d")
        writer.close()


async def test_a_refusal_before_a_small_body_keeps_the_connection():
    async with serving() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 429")
        writer.write(b"x" * 1000 + post("/b", b"", CLOSE))
        assert (await reader.read()).endswith(b"/b:")
        writer.close()


async def test_a_refusal_before_a_large_body_closes_and_can_be_read():
    async with serving() as (_, server, port):
        got = await talk(port, b"POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 5_000_000)
        assert got.startswith(b"HTTP/1.1 429")
        await until(lambda: not server.connections)


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on_or_not():
    async with serving() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        expect = b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
        writer.write(b"POST /a HTTP/1.1\r\nHost: a\r\n" + expect)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert await reader.readuntil(b"/a:abc")
        writer.write(b"POST /no HTTP/1.1\r\nHost: a\r\n" + expect)
        got = await reader.read()
        assert got.startswith(b"HTTP/1.1 429")
        assert b"connection: close" in got
        writer.close()


async def test_an_offer_to_upgrade_is_read_over():
    async with serving() as (_, _, port):
        upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
        got = await talk(port, post("/a", b"body", *upgrade) + post("/b", b"next", CLOSE))
        assert b"/a:body" in got
        assert got.endswith(b"/b:next")


async def test_an_offer_to_upgrade_is_read_over_also_before_a_body_in_chunks():
    """As Java's client asks, whose first request to each server offers h2c."""
    async with serving() as (_, _, port):
        offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n"
        head = b"POST /a HTTP/1.1\r\nHost: a\r\n" + offer
        chunks = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n"
        got = await talk(port, (head + chunks) * 2 + post("/b", b"next", CLOSE))
        assert got.count(b"/a:abcde") == 2
        assert got.endswith(b"/b:next")


async def test_a_body_behind_an_offer_to_upgrade_keeps_to_the_limits():
    offer = ("Connection: Upgrade", "Upgrade: h2c")
    async with serving(buffered=1000) as (_, server, port):
        assert (await talk(port, post("/a", b"x" * 2000, *offer))).startswith(b"HTTP/1.1 503 ")
        assert (await talk(port, post("/a", b"x" * 500, *offer, CLOSE))).startswith(b"HTTP/1.1 200 ")
        await until(lambda: not server.connections)
        assert server.buffered == 0


async def test_a_thousand_pipelined_offers_to_upgrade_are_all_answered():
    async with serving() as (_, _, port):
        offer = b"GET /x HTTP/1.1\r\nHost: a\r\nUpgrade: h\r\nConnection: Upgrade\r\n\r\n"
        got = await talk(port, offer * 2000 + post("/b", b"", CLOSE))
        assert got.count(b"/x:") == 2000
        assert got.endswith(b"/b:")


async def test_an_old_client_is_answered_and_left():
    async with serving() as (_, _, port):
        assert (await talk(port, b"GET /a HTTP/1.0\r\n\r\n")).endswith(b"/a:")
        kept = b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
        assert (await talk(port, kept + b"GET /b HTTP/1.0\r\n\r\n")).count(b"200 OK") == 2


async def test_head_has_no_body():
    async with serving() as (_, _, port):
        got = await talk(port, b"HEAD /abc HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"content-length: 5\r\n" in got
        assert got.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("limits", "data", "told"),
    [
        pytest.param({"head_s": 0.2}, b"GET / HTTP/1.1\r\nHost", b"408", id="head"),
        pytest.param({"body_s": 0.2}, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", b"408", id="body"),
        pytest.param({"idle_s": 0.2}, b"", b"", id="nothing"),
        pytest.param({"idle_s": 0.2}, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"200", id="nothing more"),
    ],
)
async def test_a_slow_client_is_left(limits, data, told):
    async with serving(**limits) as (_, server, port):
        assert told in await talk(port, data)
        await until(lambda: not server.connections)


async def test_a_client_that_reads_nothing_of_its_answer_is_left():
    async with serving(write_s=0.3) as (handler, server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()
        writer.write(post("/later", b""))
        await until(lambda: handler.later)
        handler.later[0].begin(200, [])
        while handler.later[0].write(bytes(2**20)):
            pass
        await until(lambda: not server.connections)
        assert handler.gone
        writer.transport.abort()


async def test_a_client_that_hangs_up_is_noticed_at_once():
    async with serving() as (handler, _, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post("/later", b""))
        await until(lambda: handler.later)
        writer.close()
        await until(lambda: handler.gone)  # no timer of the server's ends it: while it is answered it has none
        handler.later[0].answer(200, b"into the void")


async def test_more_connections_than_allowed_are_refused():
    async with serving(connections=2) as (_, _, port):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert (await talk(port, b"")).startswith(b"HTTP/1.1 503")
        for _, writer in held:
            writer.close()


async def test_a_bug_of_ours_is_answered_with_500():
    async with serving() as (_, _, port):
        assert (await talk(port, post("/bug", b""))).startswith(b"HTTP/1.1 500")


async def test_many_idle_connections_do_not_keep_a_request_waiting():
    async with upstream(echo) as replica, gateway(service(replica.url)) as world, world.client() as client:
        idle = []
        for _ in range(400):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", world.port))
            idle.append(each)
        await until(lambda: len(world.gateway.server.connections) >= 400)
        loop, took_s = asyncio.get_running_loop(), []
        for _ in range(5):  # the best of some: the machine may be busy
            start_s = loop.time()
            assert (await client.get("/")).status_code == 200
            took_s.append(loop.time() - start_s)
        assert min(took_s) < 1
        for each in idle:
            each.close()


async def test_more_bodies_than_memory_is_set_aside_for_are_refused_until_others_are_answered():
    async with serving(buffered=100_000) as (handler, server, port):
        held = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(post("/later", b"x" * 45_000))
            held.append((reader, writer))
        await until(lambda: len(handler.later) == 2)
        assert server.buffered == 90_000
        got = await talk(port, post("/a", b"x" * 20_000))
        assert got.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in got
        handler.later[0].answer(200, b"")
        held[1][1].close()
        await until(lambda: not server.buffered)
        assert (await talk(port, post("/a", b"x" * 20_000, CLOSE))).startswith(b"HTTP/1.1 200")
        held[0][1].close()


PIECES = st.sampled_from(
    [
        GET + b"\r\n",
        POST + b"Content-Length: 3\r\n\r\nabc",
        CHUNKED,
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"\r\n",
        b"\n",
        b"\x00",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"GET /no HTTP/1.1\r\n",
        b"HEAD /h HTTP/1.1\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"Host: a\r\n",
        b"Connection: close\r\n",
        b"Upgrade: h2c\r\nConnection: Upgrade\r\n",
        b"Expect: 100-continue\r\n",
        b"POST /no HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n",
    ]
)


@given(st.lists(PIECES | st.binary(max_size=20), max_size=12), st.integers(1, 60))
def test_whatever_comes_in_whatever_parts_every_answer_is_one_and_nothing_is_kept(pieces, size):
    """Not on a socket: thousands of conversations, and what is cut into other parts must be answered alike."""

    async def talk_to(step):
        handler = Handler()
        server = Server(handler, Limits(head=4096))
        connection, wire = Connection(server), Wire()
        connection.connection_made(wire)
        data = b"".join(pieces)
        for start in range(0, len(data), step):
            if not wire.closed:
                connection.data_received(data[start : start + step])
        connection.flush()
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert not server.buffered
        assert not server.connections
        assert sum(each.is_ended for each in handler.heads) <= wire.written.count(b"HTTP/1.1 ")
        assert b"500 Internal" not in wire.written
        return wire.written.count(b"HTTP/1.1 200 OK")

    assert asyncio.run(talk_to(10**6)) == asyncio.run(talk_to(size))
