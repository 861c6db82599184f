"""What each protocol says, asked by a real client."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.engine.asked import INFER, batch, completion, engine_and_client, outputs_of, tensor

# ---------------------------------------------------------------- Open Inference Protocol


async def test_each_row_is_answered_by_its_own_sum_ends_and_id():
    async with engine_and_client() as (_, client):
        answer = await client.post(INFER, json=batch([1, 2, 7], id="abc"))
        assert answer.json()["id"] == "abc"
        assert outputs_of(answer) == {"sum": [33, 63, 213], "ends": [10, 12, 20, 22, 70, 72], "row_id": [1, 2, 7]}
        assert [each["shape"] for each in answer.json()["outputs"]] == [[3], [3, 2], [3]]


async def test_a_row_is_answered_alike_alone_and_in_a_batch():
    async with engine_and_client() as (_, client):
        together = outputs_of(await client.post(INFER, json=batch([3, 4])))["sum"]
        alone = [outputs_of(await client.post(INFER, json=batch([each])))["sum"][0] for each in (3, 4)]
        assert together == alone


async def test_nested_data_and_several_tensors_are_read():
    request = {
        "inputs": [
            {"name": "a", "shape": [2, 1, 2], "datatype": "INT64", "data": [[[1, 2]], [[3, 4]]]},
            {"name": "b", "shape": [2], "datatype": "BYTES", "data": ["four", ""]},
            {"name": "c", "shape": [2], "datatype": "BOOL", "data": [True, False]},
        ],
        "outputs": [{"name": "sum"}],
    }
    async with engine_and_client() as (_, client):
        assert outputs_of(await client.post(INFER, json=request)) == {"sum": [8, 7]}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "missing required field `inputs`"),
        ({"inputs": []}, "at least one tensor"),
        ({"inputs": [{**tensor([[1, 2]]), "shape": [2, 2]}]}, "2 values for shape [2, 2]"),
        ({"inputs": [{**tensor([[1, 2]]), "shape": [10**9, 0]}]}, "every dimension is at least 1"),
        ({"inputs": [{**tensor([[1, 2]]), "datatype": "FP99"}]}, "no datatype is called 'FP99'"),
        ({"inputs": [tensor([["a"]])]}, "values that are no FP32"),
        ({"inputs": [tensor([[2**70]], datatype="INT64")]}, "more than 64 bits"),
        ({"inputs": [tensor([[1], [2]]), tensor([[1]], "y")]}, "'y' has another first dimension than 'x'"),
        ({"inputs": [{**tensor([[1]]), "parameters": {"binary_data_size": 4}}]}, "send it as JSON"),
        ({"inputs": [tensor([[1]])], "outputs": [{"name": "row_id"}]}, "there is no 'row_id'"),
        ({"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], 3]}]}, "neither flat nor"),
    ],
)
async def test_an_inference_request_that_is_wrong_is_told_why(request_, message):
    async with engine_and_client() as (_, client):
        answer = await client.post(INFER, json=request_)
        assert answer.status_code == 400
        assert message in answer.json()["error"]


@pytest.mark.parametrize("body", [b"{", b"[" * 100_000, b"\xff\xfe", b""], ids=["half", "deep", "bytes", "empty"])
@pytest.mark.parametrize("path", [INFER, "/predict", "/v1/completions", "/v1/chat/completions", "/faults"])
async def test_what_is_no_json_is_refused_and_the_engine_lives(path, body):
    async with engine_and_client() as (_, client):
        assert (await client.post(path, content=body)).status_code == 400
        assert (await client.get("/v2/health/live")).status_code == 200


async def test_a_batch_of_more_rows_than_the_model_takes_is_refused():
    async with engine_and_client(max_batch=2) as (_, client):
        answer = await client.post(INFER, json=batch([1, 2, 3]))
        assert (answer.status_code, answer.json()["error"]) == (400, "a batch of 3 rows; this model takes 2")


async def test_metadata_names_what_the_model_takes_and_gives():
    async with engine_and_client(model="bert") as (_, client):
        told = (await client.get("/v2/models/bert")).json()
        assert told["name"] == "bert"
        assert [each["name"] for each in told["outputs"]] == ["sum", "ends", "row_id"]
        assert (await client.get("/v2")).json()["name"] == "cardwise-engine"
        assert (await client.get("/v2/models/bert/ready")).json() == {"ready": True}


async def test_other_models_paths_and_methods_are_refused_with_what_there_is():
    async with engine_and_client() as (_, client):
        other = await client.post("/v2/models/bert/infer", json={})
        assert (other.status_code, other.json()["error"]) == (404, "no model is called 'bert'; there is 'emulated'")
        assert (await client.get("/nowhere")).status_code == 404
        wrong = await client.get(INFER)
        assert (wrong.status_code, wrong.json()["error"]) == (405, f"{INFER} takes POST")
        assert (await client.head("/v2/health/ready")).status_code == 200


# ---------------------------------------------------------------- a plain list


async def test_a_list_is_answered_by_a_list_in_its_order():
    async with engine_and_client() as (_, client):
        answer = await client.post("/predict", json=[5, [1, 2], {"id": "q", "x": [3, 4]}, "four"])
        assert answer.json() == [
            {"sum": 5.0, "ends": [5.0, 5.0]},
            {"sum": 3.0, "ends": [1.0, 2.0]},
            {"sum": 7.0, "ends": [3.0, 4.0], "id": "q"},
            {"sum": 4.0, "ends": [4.0, 4.0]},
        ]


@pytest.mark.parametrize("items", [{}, [], [None], [[[1]]], [{"y": 1}]])
async def test_what_is_no_list_of_items_is_refused(items):
    async with engine_and_client() as (_, client):
        assert (await client.post("/predict", json=items)).status_code == 400


# ---------------------------------------------------------------- OpenAI


async def events_of(client, path, request):
    async with client.stream("POST", path, json={**request, "stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_stream_brings_the_text_of_the_whole_answer_token_by_token():
    async with engine_and_client() as (_, client):
        whole = (await client.post("/v1/completions", json=completion(5))).json()
        events = await events_of(client, "/v1/completions", completion(5))
        assert "".join(each["choices"][0]["text"] for each in events) == whole["choices"][0]["text"]
        assert [each["choices"][0]["finish_reason"] for each in events] == [None] * 4 + ["length"]
        assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}


async def test_a_chat_is_streamed_with_its_role_first_and_usage_last():
    request = {
        "model": "emulated",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi there"}]}],
        "max_completion_tokens": 2,
        "stream_options": {"include_usage": True},
    }
    async with engine_and_client() as (_, client):
        events = await events_of(client, "/v1/chat/completions", request)
        assert events[0]["choices"][0]["delta"]["role"] == "assistant"
        assert events[-1]["choices"] == []
        assert events[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        del request["stream_options"]
        whole = (await client.post("/v1/chat/completions", json=request)).json()
        assert whole["object"] == "chat.completion"
        said = "".join(each["choices"][0]["delta"]["content"] for each in events[:-1])
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": said}


async def test_different_prompts_give_different_texts():
    async with engine_and_client() as (_, client):
        answers = [await client.post("/v1/completions", json=completion(2, prompt)) for prompt in ("a", "b")]
        assert len({each.json()["choices"][0]["text"] for each in answers}) == 2


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "gpt"}, 404, "no model is called 'gpt'; there is 'emulated'"),
        ({"n": 2}, 400, "one answer at a time"),
        ({"prompt": ["a", "b"]}, 400, "send several as several requests"),
        ({"max_tokens": 0}, 400, ">= 1"),
    ],
)
async def test_a_completion_that_is_refused_says_so_as_openai_does(change, status, message):
    async with engine_and_client() as (_, client):
        answer = await client.post("/v1/completions", json={**completion(), **change})
        assert answer.status_code == status
        assert message in answer.json()["error"]["message"]


async def test_the_model_is_listed():
    async with engine_and_client() as (_, client):
        told = (await client.get("/v1/models")).json()
        assert [each["id"] for each in told["data"]] == ["emulated"]


# ---------------------------------------------------------------- HTTP itself


async def raw(url, data):
    """What comes back for these bytes until the server closes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 40)
    writer.close()
    return answer


async def test_pipelined_requests_are_answered_in_order_and_the_last_closes():
    one = b"GET /v2 HTTP/1.1\r\nhost: a\r\n\r\n"
    two = b"GET /v2/health/live HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    async with engine_and_client() as (engine, _):
        answer = await raw(engine.url, one * 40 + two)
        assert answer.count(b"HTTP/1.1 200 OK") == 41
        assert answer.endswith(b'{"live": true}')


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"hello\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 100_000 + b"\r\n\r\n", b"HTTP/1.1 431 "),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999\r\n\r\n" + b"a" * (17 << 20), b"HTTP/1.1 413 "),
    ],
    ids=["no-http", "header-bomb", "body-bomb"],
)
async def test_what_is_no_request_of_sane_size_is_refused(data, line):
    async with engine_and_client() as (engine, client):
        assert (await raw(engine.url, data)).startswith(line)
        assert (await client.get("/v2/health/live")).status_code == 200


async def test_an_offer_to_upgrade_is_read_over():
    async with engine_and_client() as (engine, _):
        offer = b"GET /v2 HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade, close\r\n\r\n"
        assert (await raw(engine.url, offer)).startswith(b"HTTP/1.1 200 OK")


async def test_chunked_bodies_and_expectations_are_understood():
    head = b"POST /predict HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n"
    async with engine_and_client() as (engine, _):
        host, port = engine.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + b"connection: close\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()


async def test_http_1_0_gets_a_stream_without_chunks():
    body = json.dumps({**completion(1), "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with engine_and_client() as (engine, _):
        answer = await raw(engine.url, head + body)
        assert b"chunked" not in answer
        assert answer.endswith(b"data: [DONE]\n\n")
