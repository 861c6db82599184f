"""Components of memory: weights and KV cache to the byte, the rest within its range, and more never costs less."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.core.capacity.memory import (
    ACTIVATIONS,
    CONTEXT,
    GRAPHS,
    KV_CACHE,
    LORA,
    NCCL,
    WEIGHTS,
    Load,
    Lora,
    capture_sizes,
    kv_bytes,
    kv_bytes_per_token,
    kv_tokens,
    memory_of,
    weight_bytes,
)
from tests.core.capacity.shapes import SGLANG, TABLES, VLLM, known, load, shape

GIB, KIB = 2**30, 2**10
FORMATS = TABLES.formats


def memory(model, form="bfloat16", engine=VLLM, **more):
    found = known(model) if isinstance(model, str) else model
    return memory_of(found, FORMATS[form], engine, load(**more), TABLES.overheads)


# ---------------------------------------------------------------- by hand


def test_llama_3_8b_in_int8_at_4096_times_32_by_hand():
    """The case of SPEC I1. KV: 2 · 32 layers · 8 heads · 128 · 2 bytes = 128 KiB a token, × 4096 × 32 = 16 GiB.

    Weights: 6,979,321,856 in linear layers at 8.008 bits, the other 1,050,939,392 at 16. Source: its config.json.
    """
    found = memory("llama-3-8b", "int8")
    assert found.of(KV_CACHE) == 2 * 32 * 8 * 128 * 2 * 4096 * 32 == 16 * GIB
    assert found.of(WEIGHTS) == pytest.approx(6_979_321_856 * 1.001 + 1_050_939_392 * 2, abs=1)


@pytest.mark.parametrize(
    ("model", "bits", "per_token"),
    [
        pytest.param("llama-3-8b", 16, 128 * KIB, id="grouped-query, 128 KiB"),
        pytest.param("llama-3-8b", 8, 64 * KIB, id="in fp8 half of it"),
        pytest.param("deepseek-v3", 16, 61 * 576 * 2, id="latent: 61 layers · (512 + 64) · 2"),
        pytest.param("gemma-2b", 16, 18 * 2 * 256 * 2, id="multi-query: one head of 256"),
        pytest.param("gpt2", 16, 12 * 2 * 768 * 2, id="multi-head"),
        pytest.param("bge-m3", 16, 0, id="an encoder keeps none"),
    ],
)
def test_bytes_per_token_by_hand(model, bits, per_token):
    assert kv_bytes_per_token(known(model), bits) == per_token


def test_layers_with_a_window_keep_only_that_and_one_step():
    """Gemma 3 1B: 26 layers of 1024 bytes a token, 4 of them look at all, 22 at 512 tokens."""
    whole, window, step = 8192, 512 + 16, 2048
    assert kv_bytes(known("gemma-3-1b"), VLLM, load(8192, 1)) == 1024 * (4 * whole + 22 * (window + step))


def test_an_engine_that_knows_no_windows_keeps_all():
    plain = replace(VLLM, windowed=False)
    assert kv_bytes(known("gemma-3-1b"), plain, load(8192, 1)) == 1024 * 26 * 8192


def test_a_window_beyond_the_context_changes_nothing():
    assert kv_bytes(known("gemma-3-1b"), VLLM, load(512, 3)) == 1024 * 26 * 512 * 3


def test_sequences_are_rounded_up_to_blocks():
    per_token = kv_bytes_per_token(known("llama-3-8b"))
    assert kv_bytes(known("llama-3-8b"), VLLM, load(1001, 2)) == per_token * 1008 * 2
    assert kv_bytes(known("llama-3-8b"), SGLANG, load(1001, 2)) == per_token * 1001 * 2


def test_a_decoder_that_listens_also_keeps_the_sound():
    """Whisper large v3: 32 layers · 2 · 1280 · 2 bytes; 448 tokens of text and 1500 positions, in whole blocks."""
    assert kv_bytes(known("whisper-large-v3"), VLLM, load(448, 4)) == 32 * 2 * 1280 * 2 * 4 * (448 + 1504)


@pytest.mark.parametrize(("tp", "share"), [(1, 1), (2, 2), (4, 4), (8, 8), (16, 8), (32, 8)], ids=str)
def test_kv_heads_are_divided_and_beyond_their_number_copied(tp, share):
    assert kv_bytes_per_token(known("llama-3-8b"), tp=tp) == 128 * KIB // share


def test_latent_attention_is_on_every_card():
    assert kv_bytes_per_token(known("deepseek-v3"), tp=8) == kv_bytes_per_token(known("deepseek-v3"))


@pytest.mark.parametrize(
    ("form", "gib"),
    [("float32", 29.92), ("bfloat16", 14.96), ("fp8", 8.46), ("int8", 8.46), ("awq", 5.33), ("gptq", 5.33)],
)
def test_weights_of_llama_3_8b_by_format(form, gib):
    assert weight_bytes(known("llama-3-8b"), FORMATS[form]) / GIB == pytest.approx(gib, rel=0.002)


def test_experts_alone_are_in_four_bits_where_the_format_says_so():
    """gpt-oss-20b: 12.8 GiB, arXiv:2508.10925, table 1."""
    assert weight_bytes(known("gpt-oss-20b"), FORMATS["mxfp4"]) / GIB == pytest.approx(12.8, rel=0.01)


def test_what_the_files_weigh_comes_before_what_is_counted():
    found = memory_of(
        known("llama-3-8b"), FORMATS["bfloat16"], VLLM, load(tp=2), TABLES.overheads, weights_bytes=10**10
    )
    assert found.of(WEIGHTS) == pytest.approx(5 * 10**9, rel=0.001)


def test_adapters_take_rank_times_inputs_and_outputs():
    """Of the small Llama: a layer's queries and output 64 + 64 each, keys and values 64 + 32 each, 3 · (64 + 128)."""
    sides = 2 * (2 * 128 + 2 * 96 + 3 * 192)
    found = memory_of(shape(), FORMATS["bfloat16"], VLLM, load(lora=Lora(16, 4)), TABLES.overheads)
    assert found.of(LORA) == 16 * 4 * sides * 2


def test_captured_sizes_are_those_that_vllm_lists():
    """1, 2, 4, 8 … 64 for mixed steps of 32 sequences, 1 … 32 for decoding: vllm/config/vllm.py, v0.33."""
    assert capture_sizes(1) == 2 + 1
    assert capture_sizes(32) == (3 + 8) + (3 + 4)
    assert capture_sizes(1024) == 2 * (3 + 31 + 17)


# ---------------------------------------------------------------- what is there when


def names(found):
    return [each.name for each in found.components]


def test_components_are_there_only_where_they_are():
    assert NCCL not in names(memory("llama-3-8b"))
    assert NCCL in names(memory("llama-3-8b", tp=2))
    assert GRAPHS not in names(memory("llama-3-8b", eager=True))
    assert KV_CACHE not in names(memory("bge-m3", "float32", TABLES.engines["onnxruntime"], context=512))
    assert LORA not in names(memory("llama-3-8b"))


def test_a_client_of_mps_has_a_smaller_context():
    assert memory("llama-3-8b", mps=True).of(CONTEXT) < memory("llama-3-8b").of(CONTEXT)


def test_every_component_says_how_and_where_from_and_lies_in_its_range():
    for each in memory("llama-3-8b", tp=2, lora=Lora(8, 1)).components:
        assert each.low <= each.likely <= each.high
        assert each.formula
        assert each.source
        assert not each.exact or each.low == each.high


def test_live_tokens_take_less_but_never_less_than_one_longest_sequence():
    per_token = kv_bytes_per_token(known("llama-3-8b"))
    assert memory("llama-3-8b", live_tokens=1024).of(KV_CACHE) == per_token * 1024 * 32
    assert memory("llama-3-8b", live_tokens=16).of(KV_CACHE) == per_token * 4096


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"context": 0}, "context is 0"),
        ({"sequences": -1}, "sequences is -1"),
        ({"tp": 0}, "tp is 0"),
        ({"tp": 3}, "tp is 3, which does not divide the model's 32 attention heads"),
        ({"live_tokens": 5000}, "live tokens are 5000, more than the context"),
        ({"generation": "kepler"}, "no generation 'kepler' is known; write one of volta"),
    ],
    ids=str,
)
def test_a_load_that_cannot_be_is_refused(more, message):
    with pytest.raises(ValueError, match=message):
        memory("llama-3-8b", **more)


@pytest.mark.parametrize(("tp", "fits"), [(2, True), (4, True), (28, True), (7, False), (14, False)])
def test_heads_of_keys_and_values_are_divided_evenly_or_copied_evenly_else_no_engine_starts(tp, fits):
    """Qwen2.5-7B has 28 heads and 4 of keys and values. Source: vllm/model_executor/models/qwen2.py, Qwen2Attention."""
    if fits:
        assert memory("qwen2.5-7b", tp=tp).likely
        return
    with pytest.raises(ValueError, match=f"tp is {tp}, and 4 heads of keys and values can neither"):
        memory("qwen2.5-7b", tp=tp)


# ---------------------------------------------------------------- laws

SHAPES = st.builds(
    lambda layers, kv, window: (
        shape(num_hidden_layers=layers, num_key_value_heads=kv)
        if window is None
        else shape(
            architectures=["MistralForCausalLM"],
            num_hidden_layers=layers,
            num_key_value_heads=kv,
            sliding_window=window,
        )
    ),
    st.integers(1, 6),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([None, 1, 100, 4096]),
)
LOADS = st.builds(
    Load,
    context=st.integers(1, 50_000),
    sequences=st.integers(1, 400),
    tp=st.sampled_from([1, 2, 4]),
    kv_bits=st.sampled_from([8, 16]),
)
ENGINES = st.sampled_from([VLLM, SGLANG, replace(VLLM, windowed=False)])


def of(found, engine, wanted):
    return memory_of(found, FORMATS["bfloat16"], engine, wanted, TABLES.overheads)


@settings(max_examples=150)
@given(SHAPES, LOADS, ENGINES, st.integers(1, 5000), st.integers(1, 100))
def test_more_context_or_more_sequences_never_take_less(found, wanted, engine, longer, more):
    now = of(found, engine, wanted)
    further = of(found, engine, replace(wanted, context=wanted.context + longer))
    wider = of(found, engine, replace(wanted, sequences=wanted.sequences + more))
    for name in (KV_CACHE, ACTIVATIONS, GRAPHS):
        assert further.of(name) >= now.of(name)
        assert wider.of(name) >= now.of(name)


@settings(max_examples=150)
@given(SHAPES, LOADS, ENGINES)
def test_more_cards_never_take_more_of_each_and_never_less_in_all(found, wanted, engine):
    one, two = of(found, engine, replace(wanted, tp=4)), of(found, engine, replace(wanted, tp=8))
    for name in (WEIGHTS, KV_CACHE, ACTIVATIONS):
        assert two.of(name) <= one.of(name)
    for name in (WEIGHTS, KV_CACHE):
        assert 8 * two.of(name) >= 4 * one.of(name) - 8


@settings(max_examples=150)
@given(SHAPES, LOADS, ENGINES)
def test_a_smaller_format_never_takes_more(found, wanted, engine):
    amounts = [
        memory_of(found, FORMATS[form], engine, wanted, TABLES.overheads).of(WEIGHTS)
        for form in ("awq", "fp8", "bfloat16", "float32")
    ]
    assert amounts == sorted(amounts)
    half = replace(wanted, kv_bits=8)
    assert of(found, engine, half).of(KV_CACHE) <= of(found, engine, replace(wanted, kv_bits=16)).of(KV_CACHE)


@settings(max_examples=150)
@given(SHAPES, LOADS, st.integers(0, 10**9))
def test_tokens_that_are_said_to_fit_do(found, wanted, room):
    tokens = kv_tokens(found, VLLM, wanted, room)
    assert tokens % 16 == 0
    assert tokens * kv_bytes_per_token(found, wanted.kv_bits, wanted.tp) <= room
