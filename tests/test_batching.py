"""A function of a list, called by many with one item each."""

from __future__ import annotations

import asyncio
import functools
import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from cardwise.batching import NotServedError, WrongAnswerError, batched
from cardwise.core.queue.backlog import Reason


class Model:
    """Doubles numbers, and remembers its batches. gate: while it is closed, batches wait in it."""

    def __init__(self):
        self.batches, self.gate = [], asyncio.Event()
        self.gate.set()

    async def __call__(self, items):
        self.batches.append(list(items))
        await self.gate.wait()
        return [2 * item for item in items]


def doubling(model, **options):
    @batched(**{"gap_s": 0.0, **options})
    async def double(items):
        return await model(items)

    return double


async def test_each_caller_gets_its_own_answer():
    double = doubling(Model(), max_batch=8)
    assert await asyncio.gather(*(double(i) for i in range(20))) == [2 * i for i in range(20)]


async def test_what_comes_while_a_batch_is_under_way_goes_together():
    model = Model()
    double = doubling(model, max_batch=8)
    model.gate.clear()
    calls = [asyncio.ensure_future(double(0))]
    await asyncio.sleep(0.01)
    calls += [asyncio.ensure_future(double(i)) for i in range(1, 11)]
    await asyncio.sleep(0.01)
    model.gate.set()
    await asyncio.gather(*calls)
    assert model.batches == [[0], list(range(1, 9)), [9, 10]]


async def test_a_caller_alone_does_not_wait_for_others():
    double = doubling(Model(), max_batch=32, gap_s=600.0, cap_s=600.0)
    async with asyncio.timeout(60):
        assert await double(4) == 8


async def test_callers_that_come_back_together_are_waited_for():
    model = Model()
    double = doubling(model, max_batch=32, gap_s=0.05, cap_s=0.5)

    async def caller():
        for i in range(4):
            await double(i)

    await asyncio.gather(*(caller() for _ in range(8)))
    assert [len(batch) for batch in model.batches][1:] == [8, 8, 8]


async def test_beyond_the_depth_callers_hear_at_once_when_to_come_again():
    model = Model()
    double = doubling(model, max_batch=1, depth=2)
    model.gate.clear()
    calls = [asyncio.ensure_future(double(0))]
    await asyncio.sleep(0.01)
    calls += [asyncio.ensure_future(double(i)) for i in (1, 2)]
    await asyncio.sleep(0.01)
    with pytest.raises(NotServedError) as caught:
        await double(3)
    assert caught.value.reason is Reason.FULL
    assert caught.value.retry_after_s > 0
    model.gate.set()
    assert await asyncio.gather(*calls) == [0, 2, 4]


async def test_a_cancelled_call_frees_its_place_and_never_reaches_the_function():
    model = Model()
    double = doubling(model, max_batch=1, depth=1)
    model.gate.clear()
    first = asyncio.ensure_future(double(0))
    await asyncio.sleep(0.01)
    gone = asyncio.ensure_future(double(1))
    await asyncio.sleep(0.01)
    gone.cancel()
    await asyncio.sleep(0)
    assert double.waiting == 0
    last = asyncio.ensure_future(double(2))
    await asyncio.sleep(0.01)
    model.gate.set()
    assert (await first, await last) == (0, 4)
    assert model.batches == [[0], [2]]


async def test_what_the_function_raises_reaches_every_caller_of_that_batch_and_no_other():
    @batched(max_batch=2, gap_s=0.0)
    async def picky(items):
        if 13 in items:
            raise LookupError("thirteen")
        return items

    found = await asyncio.gather(*(picky(i) for i in (1, 13, 5, 6)), return_exceptions=True)
    failed = [isinstance(each, LookupError) for each in found]
    assert failed[1]
    assert found[2:] == [5, 6] or found[3] == 6


async def test_a_wrong_number_of_results_is_never_split():
    @batched(max_batch=4)
    async def lossy(items):
        return items[1:]

    with pytest.raises(WrongAnswerError, match=r"lossy was given 1 items and answered 0 results"):
        await lossy(1)


async def test_a_plain_function_runs_beside_the_loop():
    seen = []

    @batched(max_batch=4)
    def slow(items):
        seen.append(threading.current_thread() is threading.main_thread())
        return items

    assert await slow(3) == 3
    assert seen == [False]


async def test_items_of_different_keys_never_share_a_batch():
    model = Model()
    double = doubling(model, max_batch=8, key=lambda item: item % 2)
    model.gate.clear()
    calls = [asyncio.ensure_future(double(0))]
    await asyncio.sleep(0.01)
    calls += [asyncio.ensure_future(double(i)) for i in range(1, 7)]
    await asyncio.sleep(0.01)
    model.gate.set()
    await asyncio.gather(*calls)
    assert all(len({item % 2 for item in batch}) == 1 for batch in model.batches)


async def test_a_deadline_that_cannot_be_met_is_said_and_not_served():
    model, clock = Model(), [100.0]
    double = doubling(model, max_batch=1, now_s=lambda: clock[0])
    model.gate.clear()
    first = asyncio.ensure_future(double(0))
    await asyncio.sleep(0.01)
    late = asyncio.ensure_future(double(1, deadline_s=0.02))
    await asyncio.sleep(0.01)
    clock[0] += 0.03
    model.gate.set()
    await first
    with pytest.raises(NotServedError, match="expired"):
        await late
    assert model.batches == [[0]]


@given(st.lists(st.integers(), min_size=1, max_size=60), st.integers(1, 9))
@settings(max_examples=40)
def test_answers_are_never_mixed_up(items, max_batch):
    async def main():
        double = doubling(Model(), max_batch=max_batch, depth=len(items))
        return await asyncio.gather(*(double(item) for item in items))

    assert asyncio.run(main()) == [2 * item for item in items]


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ValueError, match="max_batch is 0"):
        batched(max_batch=0)
    with pytest.raises(ValueError, match="depth is 0"):
        batched(depth=0)
    with pytest.raises(TypeError, match="with parentheses"):
        batched(len)


@pytest.mark.parametrize("kind", ["partial", "object", "async object"])
async def test_whatever_can_be_called_with_a_list_can_be_batched(kind):
    class Doubles:
        def __call__(self, items):
            return [2 * item for item in items]

    class DoublesLater:
        async def __call__(self, items):
            return [2 * item for item in items]

    work = {
        "partial": functools.partial(lambda scale, items: [scale * item for item in items], 2),
        "object": Doubles(),
        "async object": DoublesLater(),
    }[kind]
    double = batched(max_batch=4)(work)
    async with asyncio.timeout(20):
        assert await asyncio.gather(*(double(i) for i in range(6))) == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("later", [False, True])
async def test_a_function_that_runs_out_of_an_iterator_leaves_nobody_waiting(later):
    """StopIteration cannot be handed on through a future: asyncio itself would wait for ever."""

    def exhausted(items):
        return [next(iter(())) for _ in items]

    async def exhausted_later(items):
        return exhausted(items)

    run = batched(max_batch=4)(exhausted_later if later else exhausted)
    async with asyncio.timeout(20):
        found = await asyncio.gather(run(1), run(2), return_exceptions=True)
    assert [type(each) for each in found] == [RuntimeError, RuntimeError]
    assert run.waiting == 0


class Unread:
    """Two results, of which none can be read."""

    def __len__(self):
        return 2

    def __iter__(self):
        raise OSError("the device is gone")


class Fewer(Unread):
    """Says two, and has one."""

    def __iter__(self):
        return iter([1])


@pytest.mark.parametrize(
    ("results", "error"),
    [(Unread(), OSError), (Fewer(), WrongAnswerError), (None, TypeError)],
    ids=["cannot be read", "fewer than it says", "none"],
)
async def test_results_that_cannot_be_read_leave_nobody_waiting(results, error):
    run = batched(max_batch=2)(lambda _items: results)
    async with asyncio.timeout(20):
        found = await asyncio.gather(run(1), run(2), return_exceptions=True)
    assert [type(each) for each in found] == [error, error]


async def test_a_function_whose_own_work_is_cancelled_leaves_nobody_waiting_and_takes_the_next():
    """CancelledError is no Exception: it ended the task that makes batches, and its callers waited for ever."""
    ends = [True, False]

    @batched(max_batch=2)
    async def work(items):
        if ends.pop(0):
            raise asyncio.CancelledError
        return items

    async with asyncio.timeout(20):
        found = await asyncio.gather(work(1), work(2), return_exceptions=True)
        assert [(type(each), str(each)) for each in found] == [(RuntimeError, "work was cancelled")] * 2
        assert await work(3) == 3


async def test_a_call_that_is_cancelled_in_a_batch_takes_nothing_from_the_others():
    model = Model()
    double = doubling(model, max_batch=4)
    model.gate.clear()
    calls = [asyncio.ensure_future(double(i)) for i in range(3)]
    await asyncio.sleep(0.01)
    calls[1].cancel()
    await asyncio.sleep(0)
    model.gate.set()
    assert [await calls[0], await calls[2]] == [0, 4]
    assert model.batches == [[0, 1, 2]]
