"""Slices: what to ask for is what the engine's flags then accept, and a given slice says what it holds (C37)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.core.capacity.engines import flags_for, margin_mib
from cardwise.core.capacity.engines.budget import Needs, Shortage, SliceShape
from cardwise.core.capacity.memory import KV_CACHE, MIB, Component, Memory, kv_bytes, memory_of
from cardwise.core.capacity.slices import (
    Card,
    around,
    ask_for,
    check,
    choose_card,
    cores_of,
    fits,
    needs_of,
)
from tests.core.capacity.shapes import TABLES, VLLM, known, load, shape
from tests.core.capacity.test_memory import LOADS, SHAPES

A100 = TABLES.cards["A100-80GB"]


def memory(found, wanted, form="bfloat16"):
    return memory_of(found, TABLES.formats[form], VLLM, wanted, TABLES.overheads)


def case_37(**changed):
    """Weights 14000, KV 8000, graphs 1500, context 600, all MiB: 100 over a slice of 24000."""
    amounts = {"weights": 14000, "kv": 8000, "activation": 0, "graph": 1500, "context": 600, **changed}
    return Needs(
        **{f"{name}_bytes": amount * MIB for name, amount in amounts.items()},
        max_context=4000,
        max_sequences=16,
        tp=1,
        kv_dtype=None,
        quantization=None,
    )


def held(needs, slice_mib, sequences=16):
    """A model of 128 KiB a token, so that 8000 MiB are 64000 tokens of 16 sequences."""
    slice_ = SliceShape(slice_mib, 81920, 30, 81920)
    return check(known("llama-3-8b"), VLLM, load(4000, sequences), needs, slice_, reserve_mib=0)


def test_a_slice_that_is_100_over_keeps_7900_of_its_kv_cache():
    found = held(case_37(), 24000)
    assert (found.over_mib, found.cut, found.kv_bytes) == (100, True, 7900 * MIB)
    assert found.tokens == 7900 * MIB // (128 * 1024)
    assert found.sequences == 15


def test_a_slice_that_holds_no_sequence_is_refused_with_the_numbers():
    found = held(case_37(), 16200)
    assert isinstance(found, Shortage)
    assert (found.slice_mib, found.fixed_mib, found.kv_room_mib, found.kv_least_mib) == (16200, 16100, 100, 500)
    assert "16200 MiB do not hold it: 16100 MiB without KV cache, 500 MiB of KV" in found.text


def test_a_slice_that_is_enough_is_not_cut():
    found = held(case_37(), 24100)
    assert (found.over_mib, found.cut, found.sequences) == (0, False, 16)


def test_live_tokens_never_leave_less_than_one_longest_sequence():
    """What is asked for are 16 short sequences, but the engine must be able to start one of 4000 tokens."""
    found = held(case_37(kv=800), 16200, sequences=16)
    assert isinstance(found, Shortage)
    assert found.kv_least_mib == 500


@settings(max_examples=100)
@given(SHAPES, LOADS, st.integers(700, 20_000))
def test_as_many_longest_sequences_fit_as_is_said_and_no_more(found, wanted, slice_mib):
    needs = needs_of(memory(found, wanted), wanted, kv_dtype=None, quantization=None)
    told = check(found, VLLM, wanted, needs, SliceShape(slice_mib, 10**6, 20, 10**6))
    if not isinstance(told, Shortage):
        assert kv_bytes(found, VLLM, replace(wanted, sequences=told.sequences)) <= told.kv_bytes
        if told.sequences < wanted.sequences:
            assert kv_bytes(found, VLLM, replace(wanted, sequences=told.sequences + 1)) > told.kv_bytes


@pytest.mark.parametrize("margin", [1.0, 1.2, 1.3])
def test_the_slice_is_the_sum_times_the_margin(margin):
    found = memory(known("llama-3-8b"), load())
    ask = ask_for(found, margin)
    assert ask.memory_mib >= found.likely * margin / MIB
    assert ask.least_mib <= found.likely / MIB <= ask.most_mib


@pytest.mark.parametrize("margin", [0.99, float("nan"), float("inf")])
def test_a_margin_that_cannot_be_is_refused(margin):
    with pytest.raises(ValueError, match="margin is"):
        ask_for(memory(shape(), load(64, 1)), margin)


@settings(max_examples=200)
@given(SHAPES, LOADS, st.floats(1, 2))
def test_what_is_asked_for_is_what_the_engines_flags_accept(found, wanted, margin):
    """Else the plan would ask for a slice in which the engine gets fewer sequences than were planned."""
    sum_of = memory(found, wanted)
    ask = ask_for(sum_of, margin)
    needs = needs_of(sum_of, wanted, kv_dtype=None, quantization=None)
    told = flags_for("vllm", SliceShape(ask.memory_mib, 10**6, 20, 10**6), needs)
    assert told.refusal is None
    assert (told.kv_bytes, told.sequences) == (sum_of.of(KV_CACHE), wanted.sequences)


@settings(max_examples=200)
@given(st.integers(1, 2**40))
def test_the_slice_is_the_smallest_that_leaves_the_sum_beside_the_engines_margin(used_mib):
    wanted = ask_for(Memory((Component("x", used_mib * MIB, 0, 0, "", ""),)), 1.0).memory_mib
    assert wanted - margin_mib(wanted) >= used_mib > wanted - 1 - margin_mib(wanted - 1)


def test_a_sum_of_any_size_has_its_slice_at_once():
    """It was searched for MiB by MiB: a slip of the pen in --lora or --concurrency took minutes."""
    found = ask_for(Memory((Component("x", 19 * 2**80 * MIB, 0, 0, "", ""),)), 1.0)
    assert found.memory_mib == 20 * 2**80


@settings(max_examples=100)
@given(LOADS, st.integers(1, 60_000))
def test_a_larger_slice_never_holds_less(wanted, slice_mib):
    model = known("llama-3.2-1b")
    at = replace(wanted, context=min(wanted.context, model.context))
    needs = needs_of(memory(model, at), at, kv_dtype=None, quantization=None)
    small, large = (
        check(model, VLLM, at, needs, SliceShape(amount, 10**6, 20, 10**6)) for amount in (slice_mib, slice_mib + 100)
    )
    if not isinstance(small, Shortage):
        assert not isinstance(large, Shortage)
        assert (large.tokens, large.sequences) >= (small.tokens, small.sequences)


# ---------------------------------------------------------------- cards and compute


def test_cards_hold_as_many_slices_as_their_usable_memory_does():
    found = memory(known("llama-3-8b"), load())
    by_name = {fit.card.name: fit for fit in fits(TABLES.cards.values(), found, 40_000)}
    assert by_name["A100-80GB"].by_memory == 2
    assert by_name["L4"].by_memory == 0
    assert by_name["H200"].step_ms < by_name["L4"].step_ms


def test_the_smallest_card_that_holds_it_is_chosen():
    cards = tuple(TABLES.cards.values())
    assert choose_card(cards, lambda _: 15_000).name == "A10"
    assert choose_card(cards, lambda _: 10**6) is None


def test_without_a_curve_the_share_of_compute_is_the_share_of_memory_and_says_so():
    cores = cores_of(20_000, A100, None)
    assert (cores.pct, cores.known) == (25, False)
    assert "unknown without a load test's curve" in cores.why


def test_with_a_curve_it_is_the_curves():
    assert cores_of(20_000, A100, 35).pct == 35


@settings(max_examples=100)
@given(st.integers(1, 200_000), st.integers(1000, 200_000))
def test_a_share_of_compute_can_always_be_asked_for(slice_mib, usable_mib):
    cores = cores_of(slice_mib, Card("X", "ada", usable_mib, usable_mib, 100.0), None)
    assert 10 <= cores.pct <= 100


def test_a_grid_stays_within_the_model():
    assert around(4096, 8192) == (1024, 2048, 4096, 8192)
    assert around(1, None) == (1, 2, 4)
