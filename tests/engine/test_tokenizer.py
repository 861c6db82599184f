"""The step before the card: its CPU time is burnt, and nothing but CPU."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cardwise.engine.faults import Script
from cardwise.engine.replica import Replica
from cardwise.engine.settings import OverMemory, Settings
from cardwise.engine.tokenizer import Tokenizer, burn
from tests.engine.asked import INFER, batch, completion, engine_and_client

MOST_S = 60.0


@contextmanager
def replica(**settings):
    """A process without its doors, whose card takes 10 ms."""
    made = Replica(Settings(t0_ms=10.0, t1_ms=0.0, **settings), Script(), lambda _: None)
    try:
        yield made
    finally:
        made.close()


@hypothesis_settings(max_examples=20, deadline=None)
@given(st.floats(0, 0.004))
def test_so_much_cpu_is_burnt_as_was_told(cpu_s):
    before_s = time.thread_time()
    burn(cpu_s)
    assert time.thread_time() - before_s >= cpu_s


@pytest.mark.parametrize(
    ("path", "body", "items"),
    [(INFER, batch([1, 2, 3]), 3), ("/predict", [1, 2], 2), ("/v1/completions", completion(2), 1)],
)
async def test_each_row_and_each_prompt_burns_its_cpu_and_no_time_of_the_card(path, body, items):
    async with engine_and_client(tokenize_cpu_ms=20.0) as (engine, client):
        before_s = time.process_time()
        assert (await client.post(path, json=body)).status_code == 200
        assert time.process_time() - before_s >= 0.020 * items
        assert engine.replica.device.busy_s == 0


async def test_what_is_being_tokenized_is_in_no_gauge_and_has_no_card():
    with replica(tokenize_cpu_ms=20.0) as made:
        asked = asyncio.ensure_future(made.execute(1, (), None))
        await asyncio.sleep(0)
        assert (made.tally.waiting, made.tally.running, made.device.busy_s) == (0, 0, 0.0)
        await asked
        assert made.device.busy_s == pytest.approx(0.01)


async def test_the_engine_tells_how_long_its_card_worked():
    async with engine_and_client(t0_ms=4.0, t1_ms=1.0) as (_, client):
        for _ in range(2):
            await client.post(INFER, json=batch([1]))
        assert 'cardwise_engine_work_seconds_total{model_name="emulated"} 0.01\n' in (await client.get("/metrics")).text


async def test_work_of_a_client_that_left_is_not_tokenized():
    tokenizer = Tokenizer(0.05)
    first, second, third = (asyncio.ensure_future(tokenizer.take(items)) for items in (1, 10_000, 1))
    await asyncio.sleep(0)
    second.cancel()  # else the third waited for ten minutes
    async with asyncio.timeout(MOST_S):
        await asyncio.gather(first, third)
    tokenizer.close()


async def test_what_is_being_tokenized_is_lost_when_another_request_ends_the_process():
    with replica(tokenize_cpu_ms=1.0, kv_tokens=3, tokens_per_row=1, over_memory=OverMemory.RESTART) as made:
        asked = [asyncio.ensure_future(made.execute(rows, (), None)) for rows in (4, 1)]  # the first does not fit
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [each.status for each in answers] == [500, 500]
        assert made.starts == 2
        await made.execute(1, (), None)
