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
