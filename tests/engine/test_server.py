"""The engine over time: what things cost, what is counted, and everything that can be made to go wrong."""

from __future__ import annotations

import asyncio
import time

import httpx2
import pytest

from cardwise.engine.faults import Fault, FaultKind, Script, When
from cardwise.engine.settings import OverMemory, Settings
from cardwise.errors import UserError
from tests.engine.asked import INFER, batch, completion, engine_and_client, outputs_of


async def seconds(awaitable):
    """How long it took: an answer never comes before its time; how much later is the machine's, and not asserted."""
    start_s = time.monotonic()
    result = await awaitable
    return time.monotonic() - start_s, result


async def until(holds):
    """Wait for what must come. Not for what is there for a moment only: a busy machine may miss it."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.002)


def asks(client, ids_list, path=INFER):
    return [asyncio.create_task(client.post(path, json=batch(ids))) for ids in ids_list]


# ---------------------------------------------------------------- cost


async def test_a_batch_takes_the_time_of_the_cost_model():
    async with engine_and_client(t0_ms=40.0, t1_ms=20.0) as (engine, client):
        took_s, _ = await seconds(client.post(INFER, json=batch([1, 2, 3])))
        assert took_s >= 0.100
        assert engine.replica.device.busy_s == pytest.approx(0.100)


async def test_a_serial_card_does_one_request_at_a_time():
    async with engine_and_client(t0_ms=50.0) as (engine, client):
        took_s, _ = await seconds(asyncio.gather(*asks(client, [[1], [2], [3], [4]])))
        assert took_s >= 0.200
        assert engine.replica.device.busy_s == pytest.approx(0.200)


async def test_requests_on_a_contended_card_slow_each_other_as_the_law_says():
    async with engine_and_client(device="contended", t0_ms=100.0, sigma=0.1, kappa=0.036) as (_, client):
        took_s, _ = await seconds(asyncio.gather(*asks(client, [[each] for each in range(5)])))
        assert took_s >= 0.212  # 500 ms of work, 5 at a time at most: at 5 / 2.12 times the speed of one


async def test_tokens_come_slower_when_more_sequences_run():
    async with engine_and_client(device="contended", t0_ms=10.0, sigma=1.0, kappa=0.0) as (_, client):
        one_s, _ = await seconds(client.post("/v1/completions", json=completion(10)))
        many = (client.post("/v1/completions", json=completion(10)) for _ in range(4))
        four_s, _ = await seconds(asyncio.gather(*many))
        assert one_s >= 0.100
        assert four_s >= 0.300  # 4 times 10 ms a step, but for the first, which some of them miss


async def test_tokens_are_sent_when_they_are_made():
    async with engine_and_client(t0_ms=30.0) as (_, client):
        start_s, times = time.monotonic(), []
        async with client.stream("POST", "/v1/completions", json=completion(4, stream=True)) as answer:
            async for line in answer.aiter_lines():
                times += [time.monotonic() - start_s] if line else []
        assert all(now_s >= 0.030 * number for number, now_s in enumerate(times[:4], 1))


async def test_the_first_token_does_not_wait_for_the_last():
    an_hour = 120_000  # tokens, of 30 ms each
    async with engine_and_client(t0_ms=30.0) as (engine, client):
        async with client.stream("POST", "/v1/completions", json=completion(an_hour, stream=True)) as answer:
            assert '.0"' in await anext(answer.aiter_lines())
        assert engine.replica.executed.requests == 0


# ---------------------------------------------------------------- start


async def test_a_replica_that_loads_is_alive_but_not_ready():
    async with engine_and_client(load_s=3600.0) as (_, client):
        assert (await client.get("/v2/health/live")).status_code == 200
        assert (await client.get("/v2/health/ready")).status_code == 503
        assert (await client.post(INFER, json=batch([1]))).status_code == 503


async def test_a_replica_that_has_loaded_is_ready():
    async with engine_and_client(load_s=0.1) as (engine, client):
        await until(lambda: engine.replica.is_ready)
        assert (await client.get("/v2/models/emulated/ready")).status_code == 200
        assert (await client.post(INFER, json=batch([1]))).status_code == 200


async def test_only_the_first_request_pays_for_a_cold_start():
    async with engine_and_client(first_request_s=0.3) as (engine, client):
        first_s, _ = await seconds(client.post(INFER, json=batch([1])))
        await client.post(INFER, json=batch([1]))
        assert first_s >= 0.3
        assert engine.replica.device.busy_s == pytest.approx(0.3)


async def test_with_warm_up_the_engine_pays_it_before_it_is_ready():
    start_s = time.monotonic()
    async with engine_and_client(first_request_s=0.3, warm_up=True) as (engine, client):
        await until(lambda: engine.replica.is_ready)
        assert time.monotonic() - start_s >= 0.299  # a loop may call 1 ms early
        assert (await client.post(INFER, json=batch([1]))).status_code == 200
        assert engine.replica.device.busy_s == 0


# ---------------------------------------------------------------- what is counted


async def test_what_was_executed_is_told_by_row_else_by_request():
    async with engine_and_client() as (_, client):
        await client.post(INFER, json=batch([1, 2]))
        await client.post(INFER, json=batch([2]))
        await client.post("/predict", json=[{"id": "q", "x": 1}])
        await client.post("/v1/completions", json=completion(), headers={"x-request-id": "abc"})
        told = (await client.get("/executed")).json()
        assert told["ended"] == {"1": 1, "2": 2, "q": 1, "abc": 1}
        assert (told["requests"], told["rows"], told["begun"]) == (4, 5, told["ended"])


async def test_work_of_a_client_that_left_is_done_if_it_had_begun_and_dropped_if_it_waited():
    async with engine_and_client(t0_ms=2000.0) as (engine, client):
        runs, waits = asks(client, [[1], [2]])
        await until(lambda: engine.replica.tally.waiting + engine.replica.tally.running == 2)
        first = next(iter(engine.replica.executed.begun))
        runs.cancel()
        waits.cancel()
        await until(lambda: engine.replica.executed.requests == 1)
        await until(lambda: not engine.listener.connections)
        assert engine.replica.executed.ended == {first: 1}
        assert (engine.replica.tally.waiting, engine.replica.tally.running) == (0, 0)


async def test_a_stream_whose_client_leaves_frees_its_place_and_its_memory():
    async with engine_and_client(t0_ms=5.0, kv_tokens=100) as (engine, client):
        async with client.stream("POST", "/v1/completions", json=completion(90, stream=True)) as answer:
            await anext(answer.aiter_lines())
            assert engine.replica.device.kv_used == 93
        await until(lambda: engine.replica.device.kv_used == 0)
        assert engine.replica.tally.running == 0
        assert (await client.post("/v1/completions", json=completion(2))).status_code == 200


async def test_the_gauges_of_vllm_tell_who_runs_who_waits_and_how_full_memory_is():
    async with engine_and_client(t0_ms=20.0, max_running=1, kv_tokens=100) as (engine, client):
        asked = [asyncio.create_task(client.post("/v1/completions", json=completion(22))) for _ in range(3)]
        await until(lambda: engine.replica.tally.running == 1 and engine.replica.tally.waiting == 2)
        told = (await client.get("/metrics")).text
        assert 'vllm:num_requests_running{model_name="emulated"} 1\n' in told
        assert 'vllm:num_requests_waiting{model_name="emulated"} 2\n' in told
        assert 'vllm:kv_cache_usage_perc{model_name="emulated"} 0.75\n' in told
        for each in asked:
            each.cancel()


# ---------------------------------------------------------------- memory


async def test_a_request_that_does_not_fit_waits_for_memory():
    async with engine_and_client(t0_ms=10.0, kv_tokens=20) as (engine, client):
        asked = [asyncio.create_task(client.post("/v1/completions", json=completion(10))) for _ in range(3)]
        await until(lambda: engine.replica.tally.waiting == 2)
        assert [(await each).status_code for each in asked] == [200, 200, 200]
        assert engine.replica.device.kv_used == 0


async def test_a_request_that_would_never_fit_is_refused():
    async with engine_and_client(kv_tokens=20) as (_, client):
        answer = await client.post("/v1/completions", json=completion(30))
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "needs memory for 33 tokens; the card has it for 20"


async def test_out_of_memory_loses_all_in_flight_and_the_replica_starts_again_cold():
    chosen = {"t0_ms": 1500.0, "kv_tokens": 10, "tokens_per_row": 4, "over_memory": OverMemory.RESTART, "load_s": 1.5}
    async with engine_and_client(**chosen) as (engine, client):
        await until(lambda: engine.replica.is_ready)
        answers = await asyncio.gather(*asks(client, [[1], [2], [3]]))
        assert [each.status_code for each in answers] == [500, 500, 500]
        assert answers[0].json()["error"].startswith("out of memory")
        assert (await client.get("/v2/health/ready")).status_code == 503
        await until(lambda: engine.replica.is_ready)
        assert (await client.post(INFER, json=batch([4]))).status_code == 200
        told = (await client.get("/executed")).json()
        assert (told["starts"], told["ended"]) == (2, {"4": 1})


async def test_out_of_memory_cuts_a_stream_that_had_begun():
    async with (
        engine_and_client(t0_ms=20.0, kv_tokens=50, over_memory=OverMemory.RESTART) as (_, client),
        client.stream("POST", "/v1/completions", json=completion(40, stream=True)) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        assert (await client.post("/v1/completions", json=completion(40))).status_code == 500
        with pytest.raises(httpx2.RemoteProtocolError):
            [line async for line in lines]


async def test_out_of_memory_can_end_the_process():
    async with engine_and_client(kv_tokens=3, tokens_per_row=4, over_memory=OverMemory.EXIT) as (engine, client):
        with pytest.raises(httpx2.TransportError):
            await client.post(INFER, json=batch([1]))
        assert await engine.died == 137


# ---------------------------------------------------------------- faults


def one(kind, **how):
    return Script([Fault(FaultKind(kind), **how)])


async def test_a_status_is_answered_instead_and_nothing_is_executed():
    async with engine_and_client(one("status", status=503, times=1)) as (engine, client):
        assert [(await client.post(INFER, json=batch([1]))).status_code for _ in range(2)] == [503, 200]
        assert engine.replica.executed.ended == {"1": 1}


@pytest.mark.parametrize(
    ("when", "begun", "ended"), [("before", {}, {}), ("during", {"1": 1}, {}), ("after", {"1": 1}, {"1": 1})]
)
async def test_a_reset_comes_before_during_or_after_the_work(when, begun, ended):
    async with engine_and_client(one("reset", when=When(when)), t0_ms=5.0) as (engine, client):
        with pytest.raises(httpx2.TransportError):
            await client.post(INFER, json=batch([1]))
        assert (engine.replica.executed.begun, engine.replica.executed.ended) == (begun, ended)
        assert (engine.replica.tally.waiting, engine.replica.tally.running) == (0, 0)


async def test_a_reset_is_a_reset_and_not_an_end():
    async with engine_and_client(one("reset")) as (engine, _):
        host, port = engine.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n[1]")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def connection(engine):
    host, port = engine.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize(("kind", "notices"), [("hang", True), ("half-open", False)])
async def test_a_hang_notices_that_the_client_leaves_and_a_half_open_connection_does_not(kind, notices):
    async with engine_and_client(one(kind)) as (engine, client):
        reader, writer = await connection(engine)
        writer.write(b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n[1]")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        writer.close()
        await writer.wait_closed()
        assert (await client.get("/v2/health/live")).status_code == 200
        await client.aclose()
        if notices:
            await until(lambda: not engine.listener.connections)
        else:
            await asyncio.sleep(0.05)
            assert len(engine.listener.connections) == 1


async def test_an_answer_of_the_wrong_shape_is_one_row_short():
    async with engine_and_client(one("wrong-shape")) as (_, client):
        assert outputs_of(await client.post(INFER, json=batch([1, 2])))["row_id"] == [1]
        assert len((await client.post("/predict", json=[1, 2, 3])).json()) == 2
        assert (await client.post("/v1/completions", json=completion())).json()["choices"] == []


@pytest.mark.parametrize(("path", "body"), [(INFER, batch([1])), ("/predict", [1]), ("/v1/completions", completion())])
async def test_a_malformed_answer_is_complete_and_no_json(path, body):
    async with engine_and_client(one("malformed")) as (_, client):
        answer = await client.post(path, json=body)
        assert answer.status_code == 200
        with pytest.raises(ValueError, match=r"\w"):
            answer.json()


async def test_a_cut_answer_ends_before_its_length():
    async with engine_and_client(one("cut")) as (_, client):
        with pytest.raises(httpx2.RemoteProtocolError, match="without sending complete message body"):
            await client.post(INFER, json=batch([1]))


async def read_stream(client, lines):
    async with client.stream("POST", "/v1/completions", json=completion(8, stream=True)) as answer:
        async for line in answer.aiter_lines():
            lines.append(line)


@pytest.mark.parametrize("kind", ["reset", "cut", "exit", "status"])
@pytest.mark.parametrize("when", ["during", "after"])
async def test_a_fault_in_a_stream_ends_it_without_its_last_word(kind, when):
    script = one(kind, when=When(when))
    lines = []
    async with engine_and_client(script, t0_ms=2.0) as (_, client):
        with pytest.raises(httpx2.TransportError):
            await read_stream(client, lines)
    assert "data: [DONE]" not in lines


async def test_a_slow_replica_takes_its_factor_longer():
    async with engine_and_client(Script(slow_factor=4.0), t0_ms=50.0) as (_, client):
        took_s, _ = await seconds(client.post(INFER, json=batch([1])))
        assert took_s >= 0.2


async def test_a_replica_dies_after_so_many_requests_with_all_in_flight():
    async with engine_and_client(one("exit", every=3, when=When.DURING), t0_ms=30.0) as (engine, client):
        results = await asyncio.gather(*asks(client, [[1], [2], [3], [4]]), return_exceptions=True)
        assert await engine.died == 137
        assert [isinstance(each, httpx2.TransportError) for each in results].count(True) == 2
        with pytest.raises(httpx2.ConnectError):
            await client.get("/v2/health/live")


async def test_probes_can_fail_while_requests_are_served():
    async with engine_and_client(Script(ready=False, live=False)) as (_, client):
        assert (await client.get("/v2/health/ready")).status_code == 503
        assert (await client.get("/v2/health/live")).status_code == 503
        assert (await client.post(INFER, json=batch([1]))).status_code == 200


# ---------------------------------------------------------------- test doors


async def test_faults_are_changed_while_it_runs():
    async with engine_and_client() as (_, client):
        script = {"faults": [{"kind": "status", "status": 502, "every": 2}], "slow-factor": 2.0}
        told = (await client.post("/faults", json=script)).json()
        assert told["faults"][0]["status"] == 502
        assert (await client.get("/faults")).json() == told
        assert [(await client.post(INFER, json=batch([1]))).status_code for _ in range(4)] == [200, 502, 200, 502]
        await client.post("/faults", json={})
        assert (await client.post(INFER, json=batch([1]))).status_code == 200


async def test_more_contention_is_felt_by_what_already_runs():
    async with engine_and_client(device="contended", t0_ms=200.0, sigma=0.0, kappa=1e4) as (engine, client):
        asked = asks(client, [[1], [2]])  # 200 ms times 20,000: more than an hour
        await until(lambda: len(engine.replica.executed.begun) == 2)
        await client.post("/faults", json={"contention-factor": 0})
        assert [each.status_code for each in await asyncio.gather(*asked)] == [200, 200]


async def test_the_test_doors_are_shut_by_default():
    async with engine_and_client(test_doors=False) as (_, client):
        for path in ("/faults", "/executed"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error"]) == (
                404,
                "the test doors are shut; start the engine with --faults",
            )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])  # noqa: S104 - refused
def test_the_test_doors_open_on_loopback_only(host):
    with pytest.raises(UserError, match="whoever reaches it may break this engine"):
        Settings(host=host, test_doors=True)


def test_all_wrong_settings_are_told_at_once():
    with pytest.raises(UserError) as caught:
        Settings(port=70_000, sigma=-1.0, jitter_cv=float("nan"), stall_share=1.5, model="a b")
    assert str(caught.value).split("; ")[:4] == [
        "port: 70000 is not from 0 to 65535",
        "sigma: -1.0 is not from 0 to 1e+09",
        "jitter-cv: nan is not from 0 to 1e+09",
        "stall-share: 1.5 is not from 0 to 1",
    ]
