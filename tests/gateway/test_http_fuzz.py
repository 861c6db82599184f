"""Any bytes, in any parts: what a server makes of a conversation depends on its bytes, not on how they were cut.

Not on a socket, so that thousands of conversations run; the transport below keeps what is written, and hands on nothing
while reading is paused, as a real one.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cardwise.adapters.http1.connection import Connection
from cardwise.adapters.http1.limits import Limits
from cardwise.adapters.http1.server import Server
from tests.gateway.conversation import Wire

LIMITS = Limits(head=2048, headers=20, body=5000)


class Handler:
    """Answers with what came: /no at its head, /later when the test says so, /parts as a stream, all else at once."""

    def __init__(self):
        self.asked = []
        self.later = deque()

    def on_head(self, exchange):
        self.asked.append(exchange)
        if exchange.path == "/no":
            exchange.answer(429, b"no")

    def on_request(self, exchange):
        if exchange.path == "/later":
            self.later.append(exchange)
        elif exchange.path == "/parts":
            exchange.begin(200, [])
            for at in range(0, len(exchange.body), 3):
                exchange.write(exchange.body[at : at + 3])
            exchange.end()
        else:
            self.answer(exchange)

    def answer(self, exchange):
        exchange.answer(200, b"%b %b:%b" % (exchange.method.encode(), exchange.target.encode("latin-1"), exchange.body))


class Told(NamedTuple):
    """What a client has got. waits: for the rest of a request, or the next."""

    answers: list[tuple[int, bytes, bool]]
    waits: bool


def told(written, methods):
    """The answers, read as a client does: status, body, whether the connection is closed after it."""
    answers, left = [], written
    while left:
        head, found, left = left.partition(b"\r\n\r\n")
        assert found, head
        status = int(re.fullmatch(rb"HTTP/1\.1 (\d{3}) [\w' -]+", head.split(b"\r\n")[0])[1])
        if status == 100:
            continue
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        method = methods[len(answers)] if len(answers) < len(methods) else "GET"
        closes = fields.get(b"connection") == b"close"
        body = b""
        if method != "HEAD" and fields.get(b"transfer-encoding") == b"chunked":
            while (size := int(left.partition(b"\r\n")[0], 16)) > 0:
                part, left = left.partition(b"\r\n")[2][:size], left.partition(b"\r\n")[2][size:]
                assert left.startswith(b"\r\n")
                body, left = body + part, left[2:]
            assert left.startswith(b"0\r\n\r\n")
            left = left[5:]
        elif method != "HEAD" and not (
            closes and not left
        ):  # the head of a HEAD may be refused before its method is told
            size = int(fields.get(b"content-length", len(left)))
            assert len(left) >= size
            body, left = left[:size], left[size:]
        answers.append((status, body, closes))
    return answers


async def talk(parts):
    """Hand on the parts, answer what is held in between, and look at what is left."""
    handler = Handler()
    server = Server(handler, LIMITS)
    connection, wire = Connection(server), Wire()
    wire.connection = connection
    connection.connection_made(wire)
    with capture_logs() as logs:
        for part in parts:
            wire.come(part)
        for _ in range(10_000):
            await asyncio.sleep(0)
            if handler.later:
                handler.answer(handler.later.popleft())
            elif wire.closed or not wire.waiting:
                break
        connection.flush()
    assert logs == []
    is_open = not (wire.closed or connection._is_closing)
    if is_open:
        assert not wire.paused, "nothing is being answered, and nothing more is read"
        assert connection.until_s < float("inf"), "a client is waited for without an end"
        assert not any(each.is_complete and not each.is_ended for each in connection._asked), "complete and unanswered"
        assert len(connection._asked) <= 1
    answers = told(wire.written, [each.method for each in handler.asked])
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert (server.buffered, server.connections) == (0, set())
    assert all(status != 500 for status, *_ in answers)
    assert not any(closes for *_, closes in answers[:-1]), "an answer after the last"
    return Told(answers, is_open)


def cut(data, places):
    ends = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(ends)]


# ---------------------------------------------------------------- what is asked

BODY = st.binary(max_size=40)
PATH = st.sampled_from([b"/", b"/a?b=c", b"/later", b"/parts", b"/no", b"/%2e%2e/x"])
FIELDS = st.lists(
    st.sampled_from(
        [b"X: y", b"Accept: */*", b"Upgrade: h2c\r\nConnection: Upgrade", b"Expect: 100-continue", b"Connection: close"]
    ),
    max_size=2,
    unique=True,
)


@st.composite
def requests(draw):
    """One valid request, as bytes."""
    method = draw(st.sampled_from([b"GET", b"POST", b"HEAD", b"PUT"]))
    body = b"" if method in {b"GET", b"HEAD"} else draw(BODY)
    head = [b"%b %b HTTP/1.1" % (method, draw(PATH)), b"Host: a", *draw(FIELDS)]
    if not body:
        return b"\r\n".join([*head, b"", b""])
    if b" /no " in head[0]:  # so that it is no matter whether its body is there when its head is refused
        head = [field for field in head if not field.startswith(b"Expect")]
        return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])
    if draw(st.booleans()):
        return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])
    parts = [part for part in cut(body, draw(st.lists(st.integers(0, 40), max_size=3))) if part]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"\r\n".join([*head, b"Transfer-Encoding: chunked", b"", chunks + b"0\r\n\r\n"])


@st.composite
def mutated(draw):
    """Valid requests, then spoilt here and there."""
    data = bytearray(b"".join(draw(st.lists(requests(), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        until = at + draw(st.integers(0, 6))
        data[at:until] = draw(
            st.binary(max_size=4)
            | st.sampled_from([b"\r\n", b"\n", b"\r\n\r\n", b"\x00", b" ", b"Content-Length: 3\r\n", b"0", b"f" * 20])
            | st.integers(0, len(data)).map(lambda start: bytes(data[start : start + 30]))
        )
    return bytes(data)


PLACES = st.lists(st.integers(0, 2000), max_size=12)


@given(st.lists(requests(), max_size=6), PLACES)
@settings(max_examples=300)
def test_every_request_is_answered_once_in_order_however_it_was_cut(each, places):
    data = b"".join(each)
    got = asyncio.run(talk(cut(data, places)))
    last = next((n for n, one in enumerate(each) if is_last(one)), len(each))
    assert len(got.answers) == min(len(each), last + 1)
    assert got.waits == (last == len(each))
    for one, (status, body, _) in zip(each, got.answers, strict=False):
        method, path = one.split(b" ", 2)[:2]
        assert status == (429 if path == b"/no" else 200)
        if method != b"HEAD" and status == 200 and path != b"/parts":
            assert body == b"%b %b:%b" % (method, path, body_of(one))
        if method != b"HEAD" and path == b"/parts":
            assert body == body_of(one)


def is_last(request):
    return b"Connection: close" in request.partition(b"\r\n\r\n")[0]


def body_of(request):
    head, _, rest = request.partition(b"\r\n\r\n")
    if b"chunked" not in head:
        return rest
    body = b""
    while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
        rest = rest.partition(b"\r\n")[2]
        body, rest = body + rest[:size], rest[size + 2 :]
    return body


@given(mutated() | st.binary(max_size=200), PLACES, PLACES)
@settings(max_examples=500)
def test_the_same_bytes_get_the_same_answers_however_they_were_cut(data, one, other):
    got, again = asyncio.run(talk(cut(data, one))), asyncio.run(talk(cut(data, other)))
    for (status, body, closes), (its_status, its_body, also_closes) in zip(got.answers, again.answers, strict=False):
        assert (status, body) == (its_status, its_body)
        if closes != also_closes:  # refused at its head: whether its body was there by then is the cutting's
            assert status == 429
            return
    assert (len(got.answers), got.waits) == (len(again.answers), again.waits)
