"""Requests of the inference protocol as batches, before an emulated engine and before replicas that lie."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter

import httpx2
import pytest

from cardwise.engine.server import running
from cardwise.engine.settings import Settings as EngineSettings
from tests.gateway.world import INFER, gateway, number, oip, service, until, upstream


def engine(**more):
    return running(EngineSettings(test_doors=True, **more))


@contextlib.asynccontextmanager
async def two_engines(**more):
    """Two replicas, the world before them, and a client."""
    async with engine(t0_ms=30) as one, engine(t0_ms=30) as other:
        settings = oip(one.url, other.url, depth=200, **more)
        async with gateway(settings) as world, world.client() as client:
            yield one, other, world, client


def ask(first, rows, name=None):
    """A request whose answer nobody else's looks like."""
    data = [[first + row, 1, first] for row in range(rows)]
    body = {"inputs": [{"name": "x", "shape": [rows, 3], "datatype": "FP32", "data": data}]}
    return body if name is None else {"id": name, **body}


def wanted(first, rows):
    ends = [end for row in range(rows) for end in (float(first + row), float(first))]
    return {"sum": [float(2 * first + row + 1) for row in range(rows)], "ends": ends}


def got(answer):
    assert answer.status_code == 200, answer.text
    return {output["name"]: output["data"] for output in answer.json()["outputs"]}


async def test_many_clients_share_batches_and_each_gets_its_own_rows():
    draw = random.Random(7)  # noqa: S311
    async with engine() as one, gateway(oip(one.url, model="emulated", depth=400)) as world, world.client() as client:

        async def caller(number):
            for turn in range(6):
                first, rows = 1000 * number + 10 * turn, draw.randint(1, 7)
                answer = await client.post(INFER, json=ask(first, rows, f"{number}.{turn}"))
                assert got(answer) == wanted(first, rows)
                assert answer.json()["id"] == f"{number}.{turn}"

        await asyncio.gather(*(caller(number) for number in range(40)))
        executed = one.replica.executed
        assert executed.requests < 240 / 3  # so they did share
        text = (await world.admin("/metrics")).text
        assert number(text, 'cardwise_gateway_requests_total{service="s",status="200"}') == 240
        assert number(text, "cardwise_gateway_batch_size_count") == executed.requests
        assert world.at_rest()


async def test_the_headers_tell_how_large_the_batch_was():
    async with engine(t0_ms=50) as one, gateway(oip(one.url)) as world, world.client() as client:
        tasks = [asyncio.create_task(client.post(INFER, json=ask(n, 2))) for n in range(4)]
        sizes = [answer.headers["x-cardwise-batch-size"] for answer in await asyncio.gather(*tasks)]
        assert sizes[0] in {"2", "8"}
        assert set(sizes[1:]) <= {"6", "8"}


async def test_requests_of_different_shape_do_not_share_a_batch():
    seen = []

    async def look(asked):
        inputs = json.loads(asked.body)["inputs"]
        seen.append(inputs[0]["shape"])
        await asyncio.sleep(0.02)
        rows = inputs[0]["shape"][0]
        asked.answer(
            200,
            json.dumps({"outputs": [{"name": "y", "shape": [rows], "datatype": "FP32", "data": [0] * rows}]}).encode(),
        )

    async with (
        upstream(look) as replica,
        gateway(oip(replica.url, probe_path="/ready")) as world,
        world.client() as client,
    ):

        def body(width):
            return {"inputs": [{"name": "x", "shape": [1, width], "datatype": "FP32", "data": [1] * width}]}

        answers = await asyncio.gather(*(client.post(INFER, json=body(1 + n % 2)) for n in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert len(seen) >= 3
        assert all(shape[1] in {1, 2} for shape in seen)


async def test_one_wrong_request_is_refused_alone_and_the_others_are_answered():
    async with engine() as one, gateway(oip(one.url)) as world, world.client() as client:
        wrong = ask(1, 1)
        wrong["inputs"][0]["data"] = [[1, 2]]
        bad, *good = await asyncio.gather(
            client.post(INFER, json=wrong), *(client.post(INFER, json=ask(n, 1)) for n in range(5))
        )
        assert bad.status_code == 400
        assert "is not FP32 of shape [1, 3]" in bad.json()["error"]
        assert [got(answer) for answer in good] == [wanted(n, 1) for n in range(5)]


async def test_a_request_that_only_the_replica_finds_wrong_spoils_nobody_elses():
    def named(name, first):
        body = ask(first, 1)
        body["inputs"].append({"name": name, "shape": [1], "datatype": "INT64", "data": [10**30 if first == 3 else 7]})
        return body

    async with engine(t0_ms=20) as one, gateway(oip(one.url)) as world, world.client() as client:
        answers = await asyncio.gather(*(client.post(INFER, json=named("z", n)) for n in range(6)))
        assert [answer.status_code for answer in answers] == [200, 200, 200, 400, 200, 200]
        assert world.at_rest()


@pytest.mark.parametrize("kind", ["wrong-shape", "malformed", "cut", "reset", "status"])
async def test_a_spoilt_answer_is_an_error_to_all_in_its_batch_and_to_no_other(kind):
    script = {"faults": [{"kind": kind, "every": 3, "when": "after"}]}
    async with engine() as one, gateway(oip(one.url, fail_after=1000)) as world, world.client() as client:
        async with httpx2.AsyncClient() as direct:
            assert (await direct.post(f"{one.url}/faults", json=script)).status_code == 200
        answers = {}

        async def caller(number):
            for turn in range(5):
                first = 100 * number + turn
                answers[first] = await client.post(INFER, json=ask(first, 2))

        await asyncio.gather(*(caller(number) for number in range(10)))
        statuses = {answer.status_code for answer in answers.values()}
        assert statuses <= {200, 500, 502}
        assert statuses > {200}
        for first, answer in answers.items():
            if answer.status_code == 200:
                assert got(answer) == wanted(first, 2)
        assert len(answers) == 50
        assert world.at_rest()


async def test_a_replica_that_is_killed_in_a_batch_loses_no_answer_and_does_nothing_twice():
    """Not idempotent: what may have been executed is told as lost, not tried again."""
    async with two_engines() as (one, other, world, client):
        statuses = []

        async def caller(number):
            for turn in range(8):
                body = ask(number, 1)
                row_id = {"name": "row_id", "shape": [1], "datatype": "INT64", "data": [100 * number + turn]}
                body["inputs"].append(row_id)
                statuses.append((await client.post(INFER, json=body)).status_code)

        callers = [asyncio.create_task(caller(number)) for number in range(16)]
        await until(lambda: len(statuses) > 30)
        one.replica.die()
        await asyncio.gather(*callers)
        assert len(statuses) == 128
        assert set(statuses) <= {200, 502}
        assert statuses.count(502) <= 16
        begun = Counter(one.replica.executed.begun) + Counter(other.replica.executed.begun)
        assert max(begun.values()) == 1
        assert world.at_rest()


async def test_an_idempotent_batch_of_a_killed_replica_is_tried_elsewhere():
    async with two_engines(idempotent=True) as (one, _, world, client):
        answers = []

        async def caller(number):
            for _ in range(8):
                answers.append(await client.post(INFER, json=ask(number, 1)))
                assert got(answers[-1]) == wanted(number, 1)

        callers = [asyncio.create_task(caller(number)) for number in range(16)]
        await until(lambda: len(answers) > 30)
        one.replica.die()
        await asyncio.gather(*callers)
        assert {answer.headers["x-cardwise-attempts"] for answer in answers} == {"1", "2"}
        assert world.service.tally.retries <= 16
        assert not world.replica.ready


async def test_a_client_that_hangs_up_in_a_batch_takes_nothing_from_the_others():
    async with engine(t0_ms=100) as one, gateway(oip(one.url)) as world, world.client() as client:
        body = json.dumps(ask(5, 1)).encode()
        head = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (INFER.encode(), len(body))
        others = [asyncio.create_task(client.post(INFER, json=ask(n, 1))) for n in range(3)]
        await until(lambda: world.service.backlog.queued)
        _, writer = await world.connect()
        writer.write(head + body)
        await until(lambda: world.replica.in_flight)
        await asyncio.sleep(0.02)
        writer.close()
        assert [got(answer) for answer in await asyncio.gather(*others)] == [wanted(n, 1) for n in range(3)]
        await until(world.at_rest)


class Held:
    """A replica of the inference protocol that answers each batch when the test says so: all its inputs back."""

    def __init__(self):
        self.sizes, self.turns = [], asyncio.Queue()

    async def __call__(self, asked):
        inputs = json.loads(asked.body)["inputs"]
        self.sizes.append(inputs[0]["shape"][0])
        status = await self.turns.get()
        asked.answer(status, json.dumps({"outputs": inputs}).encode())
        await asked.writer.drain()

    def go(self, status=200):
        self.turns.put_nowait(status)


SOON_MS = 2000
"""A deadline that is waited for, and passes only in the batch: a machine may take a second until it is sent."""


@contextlib.asynccontextmanager
async def a_batch_under_way(*deadlines_ms, **more):
    """A request for each, all in one batch that a replica holds; None: without a deadline."""
    held = Held()
    async with (
        upstream(held) as replica,
        gateway(oip(replica.url, probe_path="/ready", **more)) as world,
        world.client() as client,
    ):
        first = asyncio.create_task(client.post(INFER, json=ask(0, 1)))
        await until(lambda: held.sizes)
        tasks = []
        for n, deadline_ms in enumerate(deadlines_ms, start=1):
            headers = {} if deadline_ms is None else {"x-cardwise-deadline-ms": str(deadline_ms)}
            tasks.append(asyncio.create_task(client.post(INFER, json=ask(10 * n, n), headers=headers)))
            await until(lambda n=n: len(world.service.backlog) == n)
        held.go()
        assert (await first).status_code == 200
        await until(lambda: len(held.sizes) == 2)
        yield world, held, tasks


def given_back(n):
    return [value for row in range(n) for value in (10 * n + row, 1, 10 * n)]


def came_back(answer):
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    return [value for row in output["data"] for value in row]


async def test_who_told_a_deadline_hears_at_it_though_the_batch_goes_on_for_the_others():
    async with a_batch_under_way(None, SOON_MS, None) as (world, held, (one, hurried, other)):
        late = await hurried
        assert late.status_code == 504
        assert late.json() == {"error": "the replica did not answer in time"}
        assert (late.headers["x-cardwise-attempts"], one.done(), other.done()) == ("1", False, False)
        held.go()
        assert came_back(await one) == given_back(1)
        assert came_back(await other) == given_back(3)
        assert held.sizes == [1, 6]  # its rows were in it, and nobody else got them
        assert world.service.tally.answers == {200: 3, 504: 1}
        assert world.at_rest()
        assert world.replica.ready  # it was the caller's time that was up


async def test_each_of_a_batch_hears_at_its_own_deadline_and_the_place_comes_back_with_the_answer():
    async with a_batch_under_way(2 * SOON_MS, SOON_MS, 1.5 * SOON_MS) as (world, held, tasks):
        order = []
        for n, task in enumerate(tasks):
            task.add_done_callback(lambda _, n=n: order.append(n))
        assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [504, 504, 504]
        assert order == [1, 2, 0]
        assert world.replica.in_flight == 1
        held.go()
        await until(world.at_rest)
        assert world.service.tally.answers == {200: 1, 504: 3}


async def test_a_batch_is_tried_again_without_those_whose_time_is_up():
    async with a_batch_under_way(SOON_MS, None, idempotent=True) as (world, held, (hurried, other)):
        assert (await hurried).status_code == 504
        held.go(503)
        held.go()
        answer = await other
        assert came_back(answer) == given_back(2)
        assert answer.headers["x-cardwise-attempts"] == "2"
        assert held.sizes == [1, 3, 2]
        assert world.service.tally.retries == 1
        assert world.at_rest()


async def test_a_refused_batch_is_taken_apart_without_those_whose_time_is_up():
    async with a_batch_under_way(SOON_MS, None, None) as (world, held, (hurried, *others)):
        assert (await hurried).status_code == 504
        for status in (400, 200, 200):
            held.go(status)
        assert [came_back(answer) for answer in await asyncio.gather(*others)] == [given_back(2), given_back(3)]
        assert held.sizes[:2] == [1, 6]
        assert sorted(held.sizes[2:]) == [2, 3]
        assert world.service.tally.answers == {200: 3, 504: 1}


async def test_an_answer_in_time_leaves_no_timer_behind():
    """A deadline may be a day: what it holds would be held so long."""
    async with a_batch_under_way(80_000_000, 80_000_000) as (world, held, tasks):
        tickets = [each.context.ticket for connection in world.gateway.server.connections for each in connection._asked]
        timers = [ticket.timer for ticket in tickets]
        assert len(timers) == 2
        assert not any(timer.cancelled() for timer in timers)
        held.go()
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}
        assert all(timer.cancelled() for timer in timers)


async def test_lists_are_batched_by_configuration():
    async with engine(t0_ms=20) as one:
        settings = {"kind": "list", "path": "/predict", "probe_path": "/health"}
        async with gateway(service(one.url, **settings)) as world, world.client() as client:
            answers = await asyncio.gather(*(client.post("/predict", json=[[n, 1], [n, 2]]) for n in range(12)))
            assert [answer.json() for answer in answers] == [
                [{"sum": n + 1.0, "ends": [n, 1.0]}, {"sum": n + 2.0, "ends": [n, 2.0]}] for n in range(12)
            ]
            assert one.replica.executed.requests <= 4
            assert (await client.post("/predict", json=[])).status_code == 400
            assert (await client.post("/predict", content=b"{")).status_code == 400


async def test_what_is_asked_about_a_model_does_not_wait_for_batches():
    async with engine(t0_ms=300) as one, gateway(oip(one.url, model="emulated")) as world, world.client() as client:
        batch = asyncio.create_task(client.post(INFER, json=ask(1, 1)))
        await until(lambda: world.replica.in_flight)
        assert (await client.get("/v2/models/emulated")).json()["name"] == "emulated"
        assert (await client.get("/v2/models/emulated/ready")).status_code == 200
        assert (await client.get("/v2/health/live")).json() == {"live": True}
        assert (await client.get("/v2/health/ready")).json() == {"ready": True}
        assert (await client.get("/v2/models/other")).status_code == 404
        assert not batch.done()
        await batch


async def test_twice_the_load_keeps_the_goodput_and_tells_the_rest_at_once():
    async with engine() as one:
        settings = {"depth": 64, "max_batch": 32, "one_ms": 4.35, "full_batch_ms": 15.2, "target_p99_ms": 250}
        async with gateway(oip(one.url, **settings)) as world, world.client() as client:
            loop, done = asyncio.get_running_loop(), []

            async def caller(n):
                until_s = loop.time() + 1.5
                while loop.time() < until_s:
                    start_s = loop.time()
                    answer = await client.post(INFER, json=ask(n, 1))
                    done.append((answer.status_code, loop.time() - start_s, answer.headers.get("retry-after-ms")))
                    if answer.status_code != 200:
                        await asyncio.sleep(int(answer.headers["retry-after-ms"]) / 1000)

            await asyncio.gather(*(caller(n) for n in range(160)))
            assert {200, 429} <= {status for status, *_ in done} <= {200, 429, 503}
            assert all(after for status, _, after in done if status != 200)
            assert world.at_rest()


async def test_a_full_batch_leaves_a_moment_before_the_replica_is_free_and_no_second_one():
    free, at_once, most, sizes = asyncio.Lock(), 0, 0, []
    all_wait, next_came = asyncio.Event(), asyncio.Event()

    async def serial(asked):
        nonlocal at_once, most
        await all_wait.wait()
        rows = len(json.loads(asked.body))
        at_once += 1
        most = max(most, at_once)
        sizes.append((at_once, rows))
        next_came.set()
        async with free:  # a device does one batch at a time
            if at_once == 1:
                next_came.clear()
            await asyncio.sleep(0.02)
            if len(sizes) == 7:  # its times are known by now; on a busy machine the next would come too late to be seen
                await next_came.wait()
                await asyncio.sleep(0.1)
        at_once -= 1
        asked.answer(200, json.dumps([0] * rows).encode())

    settings = {"kind": "list", "path": "/predict", "max_batch": 4, "depth": 40}
    async with upstream(serial) as one, gateway(service(one.url, **settings)) as world, world.client() as client:
        asking = [asyncio.create_task(client.post("/predict", json=[n])) for n in range(40)]
        await until(lambda: len(one.asked) == 1 and world.service.backlog.queued >= 36)
        all_wait.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        assert most == 2
        assert {rows for at_once, rows in sizes if at_once == 2} == {4}
        await client.post("/predict", json=[1])
        assert world.at_rest()
