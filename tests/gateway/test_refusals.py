"""Whatever the gateway answers by itself: its status, and the word that says why."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from structlog.testing import capture_logs

from cardwise.adapters.http1 import connection
from cardwise.adapters.http1.faults import Fault
from cardwise.adapters.http1.server import Server
from cardwise.core.queue.backlog import Reason
from cardwise.gateway.refusals import MEANINGS, Why
from tests.gateway.world import INFER, Upstream, echo, gateway, number, oip, service, until, upstream

GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
HELD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
ASK = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}


async def held(asked):
    await asyncio.Event().wait()


def resets(replica):
    async def reset(asked):
        asked.reset()

    replica.serve = reset


def says(status):
    def change(replica):
        async def say(asked):
            asked.answer(status, b"{}")

        replica.serve = say

    return change


def dies(replica):
    replica.die()


def is_silent(replica):
    replica.serve = held


@contextlib.asynccontextmanager
async def one_busy_and_one_that(change, **more):
    """Two replicas of one place each: one is taken for good, the other fails as the test has it."""
    first, second = Upstream(held), Upstream(held)
    async with contextlib.AsyncExitStack() as stack:
        for each in (first, second):
            await each.listen()
            stack.callback(each.close)
        world = await stack.enter_async_context(
            gateway(service(first.url, second.url, limit=1, idempotent=True, fail_after=100, **more))
        )
        client = await stack.enter_async_context(world.client())
        busy = asyncio.create_task(client.get("/"))
        await until(lambda: first.asked or second.asked)
        change(second if first.asked else first)
        yield client
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


@pytest.mark.parametrize(
    ("change", "more", "status", "why"),
    [
        pytest.param(dies, {}, 503, "unreachable", id="refused"),
        pytest.param(resets, {}, 502, "lost", id="broken"),
        pytest.param(is_silent, {"timeout_ms": 50}, 504, "timeout", id="silent"),
        pytest.param(says(503), {}, 503, "status", id="said 503"),
        pytest.param(says(429), {}, 429, "status", id="said 429"),
        pytest.param(says(502), {}, 502, "status", id="said 502"),
    ],
)
async def test_when_the_time_for_another_try_runs_out_the_status_says_how_the_last_one_failed(
    change, more, status, why
):
    async with one_busy_and_one_that(change, target_p99_ms=400, **more) as client:
        answer = await client.get("/")
        assert (answer.status_code, answer.headers["x-cardwise-reason"]) == (status, why)
        assert ("retry-after" in answer.headers) == (status in {429, 503})


async def test_a_deadline_that_passes_before_another_try_is_told_as_the_failure_of_the_last_also_in_a_batch():
    async with contextlib.AsyncExitStack() as stack:
        first, second = Upstream(held), Upstream(held)
        for each in (first, second):
            await each.listen()
            stack.callback(each.close)
        world = await stack.enter_async_context(gateway(oip(first.url, second.url, probe_path="/ready", batch=True)))
        client = await stack.enter_async_context(world.client())
        busy = asyncio.create_task(client.post(INFER, json=ASK))
        await until(lambda: first.asked or second.asked)
        (second if first.asked else first).die()
        answer = await client.post(INFER, json=ASK, headers={"x-cardwise-deadline-ms": "300"})
        assert (answer.status_code, answer.headers["x-cardwise-reason"]) == (503, "unreachable")
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


async def without_rows(asked):
    asked.answer(200, b'{"outputs": [{"name": "y", "shape": [7, 1], "datatype": "FP32", "data": [1]}]}')


async def breaks(asked):
    asked.reset()


@pytest.mark.parametrize(
    ("serve", "status", "why"),
    [
        pytest.param(without_rows, 502, "shape", id="shape"),
        pytest.param(breaks, 502, "lost", id="lost"),
        pytest.param(held, 504, "timeout", id="timeout"),
    ],
)
@pytest.mark.parametrize("batch", [True, False])
async def test_an_answer_that_no_replica_gave_says_why(serve, status, why, batch):
    made = {"probe_path": "/ready", "batch": batch, "fail_after": 100}
    if why == "timeout":
        made["timeout_ms"] = 100
    async with upstream(serve) as replica, gateway(oip(replica.url, **made)) as world, world.client() as client:
        answer = await client.post(INFER, json=ASK)
        if batch or why != "shape":  # what is not batched is passed on as it came
            assert (answer.status_code, answer.headers["x-cardwise-reason"]) == (status, why)
            assert answer.headers["x-cardwise-attempts"] == "1"
        else:
            assert (answer.status_code, "x-cardwise-reason" in answer.headers) == (200, False)


async def test_an_error_of_the_replicas_own_is_passed_on_without_a_reason():
    async def fail(asked):
        asked.answer(500, b'{"error": "mine"}')

    async with upstream(fail) as replica, gateway(service(replica.url)) as world, world.client() as client:
        answer = await client.get("/")
        assert (answer.status_code, answer.content) == (500, b'{"error": "mine"}')
        assert "x-cardwise-reason" not in answer.headers


HTTP = [
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", {}, "malformed", 400, id="no host"),
    pytest.param(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", {}, "unsupported", 501, id="CONNECT"),
    pytest.param(GET + b"X: y\r\n" * 200 + b"\r\n", {}, "many-headers", 431, id="many headers"),
    pytest.param(GET + b"X: " + b"y" * 300_000, {}, "long-head", 431, id="endless header"),
    pytest.param(POST + b"Content-Length: 99999999\r\n\r\n", {}, "large-body", 413, id="body"),
    pytest.param(b"GET / HT", {"head_s": 0.2}, "slow-head", 408, id="slow head"),
    pytest.param(POST + b"Content-Length: 9\r\n\r\na", {"body_s": 0.2}, "slow-body", 408, id="slow body"),
    pytest.param(HELD + bytes(2_000_000), {"max_buffered_mib": 1}, "memory", 503, id="memory"),
    pytest.param(b"", {"max_connections": 1}, "connections", 503, id="connections"),
]


@pytest.mark.parametrize(("data", "settings", "why", "status"), HTTP)
async def test_what_http_refuses_says_why_and_is_counted(data, settings, why, status):
    async with upstream(echo) as replica, gateway(service(replica.url), **settings) as world:
        others = [await world.connect()] if why == "connections" else []
        await until(lambda: len(world.gateway.server.connections) == len(others))
        reader, writer = await world.connect()
        writer.write(data)
        async with asyncio.timeout(40):
            got = await reader.read()
        assert got.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nx-cardwise-reason: %b\r\n" % why.encode() in got
        assert (b"\r\nretry-after: " in got) == (status == 503)
        for _, each in [*others, (reader, writer)]:
            each.close()
        label = f'cardwise_gateway_unserved_total{{reason="{why}",status="{status}"}}'
        assert number((await world.admin("/metrics")).text, label) == 1


async def test_a_client_that_reads_nothing_is_counted_though_it_is_not_answered():
    async def flood(asked):
        asked.answer(200, bytes(2**25))

    async with upstream(flood) as replica, gateway(service(replica.url), write_s=0.2) as world:
        _, writer = await world.connect()
        writer.transport.pause_reading()
        writer.write(GET + b"\r\n")
        await until(lambda: world.gateway.server.faults[Fault.UNREAD])
        assert number((await world.admin("/metrics")).text, 'cardwise_gateway_unserved_total{reason="unread"') == 1
        writer.transport.abort()


async def test_a_path_of_no_service_says_so_and_is_counted():
    async with upstream(echo) as replica, gateway(oip(replica.url, probe_path="/ready")) as world:
        async with world.client() as client:
            answer = await client.get("/nothing")
        assert (answer.status_code, answer.headers["x-cardwise-reason"]) == (404, "no-service")
        text = (await world.admin("/metrics")).text
        assert number(text, 'cardwise_gateway_unserved_total{reason="no-service",status="404"}') == 1
        for path in ("/nothing", "/readyz", "/healthz"):
            answer = await world.admin(path)
            assert ("x-cardwise-reason" in answer.headers) == (answer.status_code >= 400)


def test_every_word_has_a_meaning_and_only_one():
    words = [each.value for kind in (Reason, Why) for each in kind] + [each.word for each in Fault]
    assert set(words) == MEANINGS.keys()
    assert sorted(set(words) - {"draining"}) == sorted(word for word in words if word != "draining")
    told = {each.word: str(each.status) for each in Fault if each.status}
    assert {word: MEANINGS[word].statuses for word in told} == told


# ---------------------------------------------------------------- health


@contextlib.asynccontextmanager
async def some_dead(*alive, **more):
    """Services of the inference protocol, named as their models, each with one replica, alive or not; and one more."""
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(upstream(echo)) for _ in alive]
        services = []
        for n, (replica, is_alive) in enumerate(zip(replicas, alive, strict=True)):
            replica.ready = is_alive
            services.append(oip(replica.url, name=f"m{n}", model=f"m{n}", probe_path="/ready", warm_up=WARM, **more))
        other = await stack.enter_async_context(upstream(echo))
        services.append(service(other.url, name="chat", kind="openai"))
        world = await stack.enter_async_context(gateway(*services, ready=False))
        by_name = {each.settings.name: each for each in world.gateway.services}
        await until(lambda: [by_name[f"m{n}"].is_ready for n in range(len(alive))] == list(alive))
        await until(lambda: by_name["chat"].is_ready)
        yield world, replicas


WARM = {"path": "/ready"}


async def test_one_dead_service_leaves_the_gateway_ready_and_is_seen():
    async with some_dead(True, False) as (world, replicas), world.client() as client:
        assert (await client.get("/v2/health/ready")).status_code == 200
        ready = await world.admin("/readyz")
        assert (ready.status_code, ready.text) == (200, "ok, but no replica is ready of m1\n")
        assert 'cardwise_gateway_replicas_ready{service="m1"} 0.0' in (await world.admin("/metrics")).text
        assert (await client.get("/v2/models/m0/ready")).status_code == 200
        answer = await client.get("/v2/models/m1/ready")
        assert (answer.status_code, answer.headers["x-cardwise-reason"]) == (503, "no-replica")
        assert [asked.path for asked in replicas[0].asked] == ["/v2/models/m0/ready"]


async def test_the_protocols_health_is_of_the_services_that_speak_it():
    async with some_dead(False) as (world, _), world.client() as client:
        answer = await client.get("/v2/health/ready")
        assert (answer.status_code, answer.json()) == (503, {"ready": False})
        assert answer.headers["x-cardwise-reason"] == "no-replica"
        assert (await client.get("/v2/health/live")).status_code == 200
        assert (await world.admin("/readyz")).status_code == 200  # for the sake of the other service


async def test_the_protocols_health_is_of_the_host_that_was_asked():
    async with some_dead(True, hosts=["a"]) as (world, _), world.client() as client:
        assert (await client.get("/v2/health/ready", headers={"host": "a"})).status_code == 200
        assert (await client.get("/v2/health/ready", headers={"host": "b"})).status_code == 404


async def test_where_no_service_speaks_the_protocol_its_health_is_a_path_as_any():
    async with upstream(echo) as replica, gateway(service(replica.url)) as world, world.client() as client:
        assert (await client.get("/v2/health/ready")).content == b"-"
        assert [asked.path for asked in replica.asked] == ["/v2/health/ready"]


async def test_a_service_that_loses_its_last_replica_is_told_in_the_log():
    with capture_logs() as told:

        def has(event):
            return lambda: any(each["event"] == event and each["service"] == "s" for each in told if "service" in each)

        async with upstream(echo) as replica, gateway(service(replica.url, fail_after=1, probe_every_ms=50)):
            await until(has("the service has a replica"))
            replica.ready = False
            await until(has("no replica of the service is ready"))


# ---------------------------------------------------------------- those who do not listen


DEAF_N = 3


class Sending:
    """Sends all away for a while, but for those who ask for ``/in``."""

    def __init__(self, while_s):
        self.while_s = while_s

    def on_head(self, exchange):
        if exchange.path == "/in":
            exchange.answer(200, b"no")
            return
        exchange.come_again_in(self.while_s)
        exchange.answer(429, b"no")

    def on_request(self, exchange):
        raise NotImplementedError


@contextlib.asynccontextmanager
async def sending_away(*, storm, while_s=0.2):
    server = Server(Sending(while_s))
    port = await server.listen("127.0.0.1", 0)
    if storm:
        server._sweeping.cancel()  # which would find that it is over
    server.is_storm = storm
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def ask(path=b"/"):
        """How long it takes to hear."""
        start_s = time.monotonic()
        writer.write(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path)
        await reader.readuntil(b"no")
        return time.monotonic() - start_s

    yield server, ask
    writer.close()
    server.close()


@pytest.fixture
def long_s(monkeypatch):
    """For how long who is sent away rests: longer than a busy machine takes over the asking."""
    monkeypatch.setattr(connection, "_REST_MOST_S", 2.0)
    return 2.0


async def test_who_asks_again_at_once_is_not_read_while_very_many_do(long_s):
    async with sending_away(storm=True, while_s=long_s) as (server, ask):
        for _ in range(1 + DEAF_N):  # the first was not told to wait
            assert not next(iter(server.connections))._is_resting
            await ask()
        assert next(iter(server.connections))._is_resting
        assert await ask() > 0.1


async def test_who_waits_as_told_is_read_at_once():
    async with sending_away(storm=True) as (server, ask):
        for _ in range(3):
            await ask()
            assert not next(iter(server.connections))._is_resting
            await asyncio.sleep(0.21)


async def test_a_connection_on_which_others_are_let_in_does_not_rest():
    async with sending_away(storm=True) as (server, ask):
        for turn in range(4 * DEAF_N):
            await ask(b"/in" if turn % DEAF_N == 0 else b"/")
            assert not next(iter(server.connections))._is_resting


async def test_nobody_rests_while_few_are_sent_away():
    async with sending_away(storm=False) as (server, ask):
        for _ in range(20):
            await ask()
        assert not next(iter(server.connections))._is_resting


async def test_a_storm_is_told_by_how_many_are_sent_away_and_passes():
    async with sending_away(storm=False) as (server, _):
        for sent_away, is_storm in ((2499, False), (2501, True), (626, True), (624, False), (626, False)):
            server.sent_away = sent_away  # within the half second of a sweep
            await until(lambda: not server.sent_away)
            assert server.is_storm == is_storm


async def test_a_client_that_leaves_while_it_rests_is_forgotten(long_s):
    async with sending_away(storm=True, while_s=long_s) as (server, ask):
        for _ in range(1 + DEAF_N):
            await ask()
        (one,) = server.connections
        assert one._is_resting
    await until(lambda: not server.connections)


async def test_what_was_sent_together_is_answered_together_before_it_rests():
    async with sending_away(storm=True) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server._server.sockets[0].getsockname()[1])
        writer.write(40 * (GET + b"\r\n"))
        got = b""
        async with asyncio.timeout(40):
            while got.count(b"HTTP/1.1 429") < 40:
                got += await reader.read(2**16)
        writer.close()
