"""The page's server, asked by what is no browser: other names, other methods, everyone at once."""

from __future__ import annotations

import asyncio
import json
import zlib

import aiohttp
import pytest

from cardwise.web.page import serve_page
from cardwise.web.whole import SMALLEST_PACKED, Whole

DEADLINE_S = 20


class Shown:
    """A source of one state."""

    def __init__(self, **more):
        self.latest = {"version": 1, "nodes": [], **more}

    def explain(self, _name):
        return None


async def head_of_answer(url, request):
    """The first line of the answer to a request as it is typed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))
    try:
        async with asyncio.timeout(DEADLINE_S):
            writer.write(request.encode("latin-1"))
            return (await reader.readline()).decode().strip()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "name",
    ["", "127.0.0.1:99999999", "localhost:http", "[::1", "127.0.0.1.evil.example", "me@127.0.0.1", "evil\xff.example"],
)
async def test_what_is_no_name_of_this_page_is_refused_and_is_no_fault_of_ours(name, caplog):
    async with serve_page(Shown(), 0) as url:
        told = await head_of_answer(url, f"GET /state HTTP/1.1\r\nHost: {name}\r\n\r\n")
    assert told == "HTTP/1.1 403 Forbidden"
    assert caplog.records == []


async def test_a_name_counts_in_the_header_whatever_the_request_line_says():
    async with serve_page(Shown(), 0) as url:
        told = await head_of_answer(url, f"GET {url}state HTTP/1.1\r\nHost: evil.example\r\n\r\n")
    assert told == "HTTP/1.1 403 Forbidden"


async def test_a_name_of_this_page_is_one_in_any_case():
    async with serve_page(Shown(), 0) as url:
        assert await head_of_answer(url, "GET /state HTTP/1.1\r\nHost: LocalHost:8266\r\n\r\n") == "HTTP/1.1 200 OK"


async def test_asking_for_the_head_of_the_stream_keeps_nothing_open():
    async with serve_page(Shown(), 0) as url, aiohttp.ClientSession() as http:
        async with http.head(f"{url}events") as answer:
            assert answer.status == 405
        async with http.head(f"{url}state") as answer:
            assert answer.status == 200


async def test_everyone_at_once_gets_one_packed_state():
    large = Shown(notes=["x" * SMALLEST_PACKED])
    whole = Whole(lambda: large.latest)
    (one, *others) = await asyncio.gather(*(whole.made() for _ in range(50)))
    assert all(plain is one[0] and packed is one[1] for plain, packed in others)
    assert json.loads(zlib.decompress(one[1])) == large.latest
    large.latest = {**large.latest, "version": 2}
    plain, packed = await whole.made()
    assert json.loads(plain)["version"] == json.loads(zlib.decompress(packed))["version"] == 2


@pytest.mark.parametrize(("accepted", "packed"), [("gzip, deflate", True), ("identity", False)])
async def test_a_large_state_is_packed_for_those_who_can_unpack_it(accepted, packed):
    large = Shown(notes=["x" * SMALLEST_PACKED])
    async with serve_page(large, 0) as url, aiohttp.ClientSession(auto_decompress=False) as http:
        async with http.get(f"{url}state", headers={"Accept-Encoding": accepted}) as answer:
            body = await answer.read()
            assert (answer.headers.get("Content-Encoding") == "deflate") is packed
        assert json.loads(zlib.decompress(body) if packed else body) == large.latest
