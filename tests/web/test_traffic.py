"""Traffic, when Prometheus answers otherwise than it should: a note, and the page goes on."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest
from aiohttp import web

from cardwise.adapters.prometheus import Prometheus
from cardwise.web.traffic import Traffic


@contextlib.asynccontextmanager
async def answering(status, body):
    """The address of a server that says the same to every question."""

    async def answer(_request):
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


MATRIX = '{{"status":"success","data":{{"resultType":"matrix","result":[{}]}}}}'


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (400, '{"status":"error","errorType":"bad_data","error":"range too long"}', "range too long"),
        (422, '{"status":"error","errorType":"execution","error":"too many samples"}', "too many samples"),
        (503, "upstream connect error", "503"),
        (200, "<html>sign in</html>", "sign in"),
        (200, MATRIX.format('{"metric":{"service":"chat"},"values":[["now","1"]]}'), "cannot be read"),
    ],
    ids=["refused", "failed", "no backend", "a login page", "not its shape"],
)
async def test_an_answer_that_is_none_is_a_note(status, body, told):
    async with answering(status, body) as url, Prometheus(url) as prometheus:
        traffic = Traffic(prometheus, lambda: datetime.now(UTC), told=[{"service": "chat"}])
        await traffic.ask()
    (note,) = traffic.notes
    assert note.startswith("traffic is not known: ")
    assert told in note
    assert traffic.told == []


async def test_a_prometheus_that_hangs_is_a_note():
    async with answering(200, "") as url, Prometheus(url, timeout_s=0.0) as prometheus:  # nothing comes in no time
        traffic = Traffic(prometheus, lambda: datetime.now(UTC))
        await traffic.ask()
    assert "no answer in 0 s" in traffic.notes[0]


async def test_series_without_a_sample_are_unknown():
    body = MATRIX.format('{"metric":{"service":"chat"},"values":[]}')
    async with answering(200, body) as url, Prometheus(url) as prometheus:
        traffic = Traffic(prometheus, lambda: datetime.now(UTC))
        await traffic.ask()
    (row,) = traffic.told
    assert {value for key, value in row.items() if key != "service"} == {None}
