"""What goes through unbatched: passed on, queued, limited, refused, given up."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.gateway.world import echo, gateway, number, service, until, upstream


async def held(asked):
    """Answer nothing until the test says so."""
    await asyncio.Event().wait()


async def test_a_request_is_passed_on_and_its_answer_back_with_what_happened():
    async with upstream(echo) as replica, gateway(service(replica.url)) as world, world.client() as client:
        answer = await client.post("/a/b?c=d", content=b"hello", headers={"X-Own": "1", "Traceparent": "00-1-2-01"})
        assert (answer.status_code, answer.content) == (200, b"hello")
        assert answer.headers["x-cardwise-attempts"] == "1"
        assert answer.headers["x-cardwise-batch-size"] == "1"
        assert float(answer.headers["x-cardwise-queue-ms"]) < 1000
        (asked,) = replica.asked
        assert (asked.method, asked.path) == ("POST", "/a/b?c=d")
        assert (asked.headers["x-own"], asked.headers["traceparent"]) == ("1", "00-1-2-01")
        assert asked.headers["x-forwarded-for"] == "127.0.0.1"
        assert asked.headers["host"] == f"127.0.0.1:{replica.port}"


async def test_usual_answers_are_told_before_the_first_of_them():
    """Else what begins with a burst, as a failure does, is no increase to Prometheus."""
    async with upstream(echo) as replica, gateway(service(replica.url)) as world:
        text = (await world.admin("/metrics")).text
        for status in (200, 429, 502, 503, 504):
            assert f'cardwise_gateway_requests_total{{service="s",status="{status}"}} 0.0' in text


async def test_headers_of_the_connection_are_not_passed_on():
    async with upstream(echo) as replica, gateway(service(replica.url)) as world, world.client() as client:
        headers = {"Connection": "X-Hop", "X-Hop": "1", "TE": "trailers", "X-Forwarded-For": "10.1.1.1"}
        await client.get("/", headers=headers)
        got = replica.asked[0].headers
        assert not {"x-hop", "te", "connection"} & got.keys()
        assert got["x-forwarded-for"] == "10.1.1.1, 127.0.0.1"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_every_method_passes(method):
    async with upstream(echo) as replica, gateway(service(replica.url)) as world, world.client() as client:
        for _ in range(2):
            answer = await client.request(method, "/x")
            assert (answer.status_code, answer.content) == (200, b"" if method == "HEAD" else b"-")


async def test_a_body_of_a_mebibyte_comes_through_both_ways_whole_and_in_chunks():
    body = bytes(range(256)) * 4096

    async def parts():
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async with upstream(echo) as replica, gateway(service(replica.url)) as world, world.client() as client:
        assert (await client.post("/", content=body)).content == body
        assert (await client.post("/", content=parts())).content == body


async def test_a_stream_is_passed_on_as_it_comes():
    go = asyncio.Event()

    async def stream(asked):
        asked.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n")
        asked.raw(b"9\r\ndata: 1\n\n\r\n")
        await go.wait()
        asked.raw(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")

    async with upstream(stream) as replica, gateway(service(replica.url)) as world, world.client() as client:
        async with client.stream("GET", "/v1/x") as answer:
            parts = answer.aiter_raw()
            assert await anext(parts) == b"data: 1\n\n"
            go.set()
            assert await anext(parts) == b"data: 2\n\n"
        await until(world.at_rest)


async def test_an_answer_that_ends_with_its_connection_is_whole():
    async def old(asked):
        asked.raw(b"HTTP/1.0 200 OK\r\n\r\nall of it")
        asked.writer.close()

    async with upstream(old) as replica, gateway(service(replica.url)) as world, world.client() as client:
        assert (await client.get("/")).content == b"all of it"


async def test_an_answer_that_is_cut_is_cut_for_the_client_too():
    async def cut(asked):
        asked.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await asyncio.sleep(0.05)
        asked.reset()

    async with upstream(cut) as replica, gateway(service(replica.url, idempotent=True)) as world:
        reader, writer = await world.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        got = await reader.read()
        assert b"200 OK" in got
        assert got.endswith(b"half")
        assert len(replica.asked) == 1
        writer.close()
        await until(world.at_rest)


async def test_a_client_that_reads_slowly_slows_the_replica_down():
    sent = 0

    async def flood(asked):
        nonlocal sent
        asked.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        part = b"10000\r\n" + bytes(2**16) + b"\r\n"
        for _ in range(2000):
            asked.raw(part)
            await asked.writer.drain()
            sent += len(part)

    async with upstream(flood) as replica, gateway(service(replica.url)) as world:
        _, writer = await world.connect()
        writer.transport.pause_reading()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        at, still = -1, 0
        while still < 20 or not sent:  # turns of the loop, which a busy machine makes late, and not fewer
            still, at = (still + 1 if sent == at else 0), sent
            await asyncio.sleep(0.02)
        assert 0 < sent < 2000 * 2**16
        writer.transport.abort()
        await until(world.at_rest)


async def test_what_the_queue_has_no_place_for_is_refused_at_once_with_a_time_to_return():
    async with (
        upstream(held) as replica,
        gateway(service(replica.url, depth=2, limit=1)) as world,
        world.client() as client,
    ):
        tasks = [asyncio.create_task(client.post("/", content=b"x")) for _ in range(3)]
        await until(lambda: world.service.backlog.queued == 2)
        reader, writer = await world.connect()
        writer.write(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")  # the body never comes
        async with asyncio.timeout(20):
            got = await reader.readuntil(b"\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1\r\n" in got
        assert b"retry-after-ms: 1000\r\n" in got
        assert b"connection: close\r\n" in got
        told = json.loads(await reader.readexactly(int(got.partition(b"content-length: ")[2].split(b"\r\n")[0])))
        assert told["error"] == {"message": "the queue is full", "type": "rate_limit_error", "code": 429}
        writer.close()
        assert number((await world.admin("/metrics")).text, "cardwise_gateway_rejections_total") == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(world.at_rest)


async def test_no_more_than_the_limit_is_in_flight_and_all_are_answered_in_the_end():
    most = now = 0

    async def slow(asked):
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        asked.answer(200, asked.body)

    async with (
        upstream(slow) as replica,
        gateway(service(replica.url, depth=100, limit=3)) as world,
        world.client() as client,
    ):
        answers = await asyncio.gather(*(client.post("/", content=b"%d" % n) for n in range(40)))
        assert [answer.content for answer in answers] == [b"%d" % n for n in range(40)]
        assert most == 3
        assert world.at_rest()


async def test_a_client_that_hangs_up_in_the_queue_frees_its_place():
    async with upstream(held) as replica, gateway(service(replica.url, depth=2, limit=1)) as world:
        writers = []
        for _ in range(3):
            _, writer = await world.connect()
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            writers.append(writer)
            await until(lambda: sum(r.in_flight for r in world.service.replicas) == 1)
        await until(lambda: world.service.backlog.queued == 2)
        writers[1].close()
        await until(lambda: world.service.backlog.queued == 1)
        for writer in writers:
            writer.close()
        await until(world.at_rest)
        assert world.service.tally.gone == 3


async def test_a_client_that_hangs_up_in_flight_frees_the_place_and_stops_the_replica():
    async with upstream(held) as replica, gateway(service(replica.url, limit=1)) as world:
        _, writer = await world.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab")
        await until(lambda: replica.asked)
        writer.close()
        await until(world.at_rest)
        replica.serve = echo
        async with world.client() as client:
            assert (await client.get("/")).status_code == 200


async def test_a_client_that_hangs_up_in_a_stream_ends_it():
    async def endless(asked):
        asked.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            asked.raw(b"2\r\nab\r\n")
            await asked.writer.drain()
            await asyncio.sleep(0.001)

    async with upstream(endless) as replica, gateway(service(replica.url, limit=1)) as world:
        reader, writer = await world.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"ab")
        writer.close()
        await until(world.at_rest)
        await until(lambda: replica.lost)


async def test_a_deadline_that_cannot_be_met_is_told_and_the_replica_is_given_up():
    async with upstream(held) as replica, gateway(service(replica.url, limit=1)) as world, world.client() as client:
        answer = await client.get("/", headers={"x-cardwise-deadline-ms": "100"})
        assert answer.status_code == 504
        assert 0 < int(replica.asked[0].headers["x-cardwise-deadline-ms"]) <= 100
        assert world.at_rest()
        assert world.replica.ready  # it was the caller's time that was up


async def test_who_waits_past_its_deadline_is_told():
    async with upstream(held) as replica, gateway(service(replica.url, limit=1)) as world, world.client() as client:
        first = asyncio.create_task(client.get("/"))
        await until(lambda: replica.asked)
        answer = await client.get("/", headers={"x-cardwise-deadline-ms": "80"})
        assert (answer.status_code, answer.headers["x-cardwise-reason"]) == (503, "expired")
        assert "retry-after" in answer.headers
        first.cancel()


@pytest.mark.parametrize("told", ["0", "-5", "nan", "inf", "soon", "1e99"])
async def test_a_deadline_that_is_none_is_refused(told):
    async with upstream(echo) as replica, gateway(service(replica.url)) as world, world.client() as client:
        answer = await client.get("/", headers={"x-cardwise-deadline-ms": told})
        assert answer.status_code == 400
        assert not replica.asked


async def test_the_more_urgent_goes_first_and_takes_the_place_of_the_less_urgent():
    go = asyncio.Event()

    async def gated(asked):
        await go.wait()
        asked.answer()

    settings = {"depth": 2, "limit": 1, "priority_header": "x-priority"}
    async with upstream(gated) as replica, gateway(service(replica.url, **settings)) as world, world.client() as client:

        async def ask(name, priority):
            answer = await client.get(f"/{name}", headers={"x-priority": priority})
            return name, answer.status_code

        tasks = [asyncio.create_task(ask("first", "normal"))]
        await until(lambda: replica.asked)
        for queued, (name, priority) in enumerate([("bulk-1", "bulk"), ("bulk-2", "bulk")], start=1):
            tasks.append(asyncio.create_task(ask(name, priority)))
            await until(lambda queued=queued: world.service.backlog.queued == queued)
        tasks.append(asyncio.create_task(ask("urgent", "urgent")))
        await until(lambda: world.service.tally.refused["displaced"] == 1)
        go.set()
        done = dict(await asyncio.gather(*tasks))
        assert done == {"first": 200, "bulk-1": 200, "bulk-2": 429, "urgent": 200}
        assert [asked.path for asked in replica.asked] == ["/first", "/urgent", "/bulk-1"]


async def test_a_tenants_burst_does_not_shut_others_out():
    settings = {"depth": 4, "limit": 1, "tenant_header": "x-tenant"}
    async with upstream(held) as replica, gateway(service(replica.url, **settings)) as world, world.client() as client:
        loud = [asyncio.create_task(client.get("/", headers={"x-tenant": "loud"})) for _ in range(5)]
        await until(lambda: world.service.backlog.queued == 4)
        calm = asyncio.create_task(client.get("/", headers={"x-tenant": "calm"}))
        await until(lambda: world.service.tally.refused["displaced"] == 1)
        assert not calm.done()
        assert (await client.get("/", headers={"x-tenant": "loud"})).headers["x-cardwise-reason"] == "share"
        for task in (*loud, calm):
            task.cancel()
        await asyncio.gather(*loud, calm, return_exceptions=True)
        await until(world.at_rest)


async def test_a_path_of_no_service_is_told():
    async with (
        upstream(echo) as replica,
        gateway(service(replica.url, path="/here")) as world,
        world.client() as client,
    ):
        assert (await client.get("/there")).status_code == 404
        assert (await client.get("/hereafter")).status_code == 404
        assert (await client.get("/here/x")).status_code == 200


async def test_a_connection_on_which_a_slow_client_was_waited_for_serves_the_next():
    async def large(asked):
        asked.answer(200, bytes(2**20))

    async with upstream(large) as replica, gateway(service(replica.url)) as world, world.client() as client:
        slow = []
        for _ in range(4):
            reader, writer = await world.connect()
            writer.transport.pause_reading()
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 8)
            slow.append((reader, writer))
        await asyncio.sleep(0.2)
        answers = await asyncio.gather(*(client.get("/") for _ in range(8)))
        assert [len(answer.content) for answer in answers] == [2**20] * 8
        for reader, writer in slow:
            writer.transport.resume_reading()
            async with asyncio.timeout(40):
                await reader.readexactly(8 * 2**20)
            writer.close()
        await until(world.at_rest)
        assert len((await client.get("/")).content) == 2**20


@pytest.mark.parametrize("kind", [{}, {"kind": "oip", "probe_path": "/ready", "batch": False}])
async def test_a_replica_that_was_slow_once_is_asked_again(kind):
    """A time measured in a bad moment is longer than the target: refusing all for it would never measure another."""
    stalls = iter([0.4] * 3)

    async def stalling(asked):
        await asyncio.sleep(next(stalls, 0))
        return await echo(asked)

    path = "/v2/models/m/infer" if kind else "/"
    made = {"target_p99_ms": 200, "timeout_ms": 5000, **kind}
    async with upstream(stalling) as replica, gateway(service(replica.url, **made)) as world, world.client() as client:
        await asyncio.gather(*(client.post(path, content=b"{}") for _ in range(3)))
        answers = [await client.post(path, content=b"{}") for _ in range(20)]
        assert [answer.status_code for answer in answers] == [200] * 20
