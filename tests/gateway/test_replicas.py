"""Who gets traffic: nobody before a warm-up is answered, nobody who fails, and again who has come back."""

from __future__ import annotations

import asyncio
import time

import pytest

from cardwise.adapters.http1.client import Pool
from cardwise.gateway.settings import WarmUp
from tests.gateway.world import echo, gateway, service, until, upstream


async def test_a_replica_gets_no_traffic_before_it_has_answered_its_warm_up():
    warm = asyncio.Event()

    async def cold(asked):
        asked.answer(200 if warm.is_set() or asked.path != "/warm" else 500, asked.body)

    warm_up = WarmUp("/warm", "POST", '{"x": 1}')
    async with upstream(cold) as replica:
        settings = service(replica.url, warm_up=warm_up)
        async with gateway(settings, ready=False) as world, world.client() as client:
            await until(lambda: replica.asked)
            refused = await client.get("/x")
            assert (refused.status_code, refused.headers["x-cardwise-reason"]) == (503, "no-replica")
            assert refused.headers["retry-after"] == "1"
            assert (await world.admin("/readyz")).status_code == 503
            assert (await world.admin("/healthz")).status_code == 200
            assert {(asked.method, asked.path, asked.body) for asked in replica.asked} == {
                ("POST", "/warm", b'{"x": 1}')
            }
            warm.set()
            await until(lambda: world.replica.ready)
            assert (await client.get("/x")).status_code == 200
            assert (await world.admin("/readyz")).status_code == 200


async def test_a_replica_whose_probe_fails_leaves_and_returns():
    async with upstream(echo) as replica, gateway(service(replica.url, probe_every_ms=20)) as world:
        replica.ready = False
        await until(lambda: not world.replica.ready)
        replica.ready = True
        await until(lambda: world.replica.ready)


async def test_a_replica_that_refuses_connections_leaves_at_once_and_the_request_is_answered_elsewhere():
    async with upstream(echo) as one, upstream(echo) as other:
        async with gateway(service(one.url, other.url, probe_every_ms=60_000)) as world, world.client() as client:
            one.die()
            answers = [await client.post("/", content=b"x") for _ in range(20)]
            assert {answer.status_code for answer in answers} == {200}
            assert sum(answer.headers["x-cardwise-attempts"] == "2" for answer in answers) <= 1
            ports = {asked.number for asked in other.asked}
            assert len(ports) == 20
        async with upstream(echo, one.port), gateway(service(one.url)) as world, world.client() as client:
            assert (await client.get("/")).status_code == 200


async def test_a_replica_returns_when_it_listens_again():
    async with upstream(echo) as one, gateway(service(one.url, probe_every_ms=50, fail_after=1)) as world:
        one.die()
        await until(lambda: not world.replica.ready)
        async with upstream(echo, one.port), world.client() as client:
            await until(lambda: world.replica.ready)
            assert (await client.get("/")).status_code == 200


async def test_a_gateway_that_stood_still_while_it_connected_does_not_hold_that_against_the_replica(monkeypatch):
    """What the replica sent meanwhile takes some turns of the loop, of which the timer has the first."""
    usual, stalls = Pool._dial, [0.7]

    async def dial(pool):
        if stalls:
            time.sleep(stalls.pop())  # all of the process
            for _ in range(3):
                await asyncio.sleep(0)
        return await usual(pool)

    made = {"connect_ms": 200, "keep_alive_s": 0.0, "probe_every_ms": 60_000}
    async with upstream(echo) as replica, gateway(service(replica.url, **made)) as world, world.client() as client:
        monkeypatch.setattr(Pool, "_dial", dial)
        answer = await client.get("/")
        assert (answer.status_code, answer.headers["x-cardwise-attempts"]) == (200, "1")  # it never left
        assert not stalls


async def test_who_waits_while_the_last_replica_leaves_is_told():
    async def held(asked):
        await asyncio.Event().wait()

    async with upstream(held) as replica:
        settings = service(replica.url, limit=1, fail_after=1)
        async with gateway(settings) as world, world.client() as client:
            tasks = [asyncio.create_task(client.post("/", content=b"x")) for _ in range(4)]
            await until(lambda: world.service.backlog.queued == 3)
            replica.die()
            answers = sorted(answer.status_code for answer in await asyncio.gather(*tasks))
            assert answers == [502, 503, 503, 503]
            assert world.at_rest()


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_an_error_that_passes_is_tried_elsewhere_if_a_repeat_does_no_harm(status):
    async def failing(asked):
        asked.answer(status, b"no")

    async with upstream(failing) as one, upstream(echo) as other:
        settings = service(one.url, other.url, idempotent=True, fail_after=1000)
        async with gateway(settings) as world, world.client() as client:
            answers = [await client.post("/", content=b"x") for _ in range(30)]
            assert {answer.status_code for answer in answers} == {200}
            assert {answer.headers["x-cardwise-attempts"] for answer in answers} == {"1", "2"}


@pytest.mark.parametrize(("method", "headers", "tries"), [
    pytest.param("POST", {}, 1, id="not safe"),
    pytest.param("POST", {"Idempotency-Key": "k"}, 2, id="the client says so"),
    pytest.param("GET", {}, 2, id="changes nothing"),
])  # fmt: skip
async def test_what_may_have_been_done_is_not_done_again_unless_it_is_safe(method, headers, tries):
    async def lose(asked):
        asked.reset()

    async with upstream(lose) as one, upstream(lose) as other:
        settings = service(one.url, other.url, fail_after=1000)
        async with gateway(settings) as world, world.client() as client:
            answer = await client.request(method, "/", headers=headers)
            assert answer.status_code == 502
            assert len(one.asked) + len(other.asked) == tries
            assert answer.headers["x-cardwise-attempts"] == str(tries)


async def test_retries_stay_within_their_budget_when_all_fails():
    async def failing(asked):
        asked.answer(503)

    async with upstream(failing) as one, upstream(failing) as other:
        settings = service(one.url, other.url, idempotent=True, fail_after=10**6, retries_per_s=0, depth=1000)
        async with gateway(settings) as world, world.client() as client:
            await asyncio.gather(*(client.post("/", content=b"x") for _ in range(200)))
            assert 200 < len(one.asked) + len(other.asked) <= 240


async def test_a_connection_that_the_replica_has_closed_is_not_used():
    async def once(asked):
        asked.answer(200, b"x")
        await asked.writer.drain()
        asked.writer.close()

    async with upstream(once) as replica, gateway(service(replica.url)) as world, world.client() as client:
        for _ in range(10):
            assert (await client.post("/", content=b"x")).status_code == 200
            await asyncio.sleep(0.01)
        assert world.replica.ready


async def test_a_replica_that_says_nothing_is_given_up_in_time_and_leaves():
    async def silent(asked):
        await asyncio.Event().wait()

    settings = {"timeout_ms": 150, "fail_after": 2, "probe_every_ms": 60_000}
    async with (
        upstream(silent) as replica,
        gateway(service(replica.url, **settings)) as world,
        world.client() as client,
    ):
        for _ in range(2):
            assert (await client.post("/", content=b"x")).status_code == 504
        assert not world.replica.ready or replica.ready  # it left; its probe may have brought it back
        assert world.service.tally.failures["timeout"] == 2


async def test_silence_within_an_answer_ends_it():
    async def stalls(asked):
        asked.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        await asyncio.Event().wait()

    async with upstream(stalls) as replica, gateway(service(replica.url, silence_ms=150)) as world:
        reader, writer = await world.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(20):
            assert (await reader.read()).endswith(b"half")
        writer.close()
        await until(world.at_rest)


@pytest.mark.parametrize("answer", [
    pytest.param(b"nonsense\r\n\r\n", id="no HTTP"),
    pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", id="two lengths"),
    pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, id="endless head"),
    pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", id="upgrade"),
])  # fmt: skip
async def test_an_answer_that_is_none_is_told_as_a_failure(answer):
    async def wrong(asked):
        asked.raw(answer)

    async with upstream(wrong) as replica, gateway(service(replica.url)) as world, world.client() as client:
        assert (await client.post("/", content=b"x")).status_code == 502
        assert world.at_rest()


async def test_an_answer_with_too_much_behind_it_is_not_mixed_with_the_next():
    async def more(asked):
        asked.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")

    async with upstream(more) as replica, gateway(service(replica.url)) as world, world.client() as client:
        for _ in range(5):
            assert (await client.get("/")).content == b"ok"
