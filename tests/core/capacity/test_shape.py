"""Shapes: every weight of a model counted from its configuration, and what is not understood refused by name."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.core.capacity.families import ARCHITECTURES, ConfigError, shape_of
from cardwise.core.capacity.shape import Kind
from cardwise.plan.catalogue import entry, names
from tests.core.capacity.shapes import known, llama, shape

COUNTED = json.loads((Path(__file__).parent / "transformers_counts.json").read_text())


def test_llama_3_8b_by_hand():
    """Of a layer: queries and output 2 · 4096², keys and values 2 · 4096 · 1024, feed-forward 3 · 4096 · 14336."""
    layer = 2 * 4096**2 + 2 * 4096 * 8 * 128 + 3 * 4096 * 14336
    counted = known("llama-3-8b")
    assert counted.quantizable == 32 * layer == 6_979_321_856
    assert counted.parameters == 32 * (layer + 2 * 4096) + 4096 + 2 * 128256 * 4096 == 8_030_261_248


@pytest.mark.parametrize("name", COUNTED["catalogue"])
def test_a_known_model_has_as_many_weights_as_transformers_makes_for_it(name):
    assert known(name).parameters == COUNTED["catalogue"][name]


@pytest.mark.parametrize("name", COUNTED["others"])
def test_other_architectures_have_as_many_too(name):
    case = COUNTED["others"][name]
    assert shape_of(case["config"]).parameters == case["parameters"]


def test_every_architecture_is_held_against_transformers():
    configs = [case["config"] for case in COUNTED["others"].values()]
    configs += [entry(name).config for name in names() if name in COUNTED["catalogue"]]
    assert {config["architectures"][0] for config in configs} == set(ARCHITECTURES)


def test_tied_weights_are_there_once():
    assert shape(tie_word_embeddings=False).parameters - shape(tie_word_embeddings=True).parameters == 1000 * 64


def test_what_a_card_holds_is_never_less_than_its_part_and_norms_are_on_all():
    whole = shape()
    halves = whole.parameters_per_card(2)
    norms = 2 * 2 * 64 + 64
    assert 2 * halves == whole.parameters + norms


def test_keys_and_values_are_copied_where_there_are_fewer_heads_than_cards():
    one = shape(num_key_value_heads=1)
    keys = 2 * 2 * 64 * 8
    assert 8 * one.parameters_per_card(8) == one.parameters + 7 * (keys + 2 * 2 * 64 + 64)


@pytest.mark.parametrize(
    ("name", "kind", "attends"),
    [
        ("llama-3-8b", Kind.GENERATOR, "grouped-query, 8 of 32"),
        ("gemma-2b", Kind.GENERATOR, "multi-query"),
        ("gemma-3-27b", Kind.GENERATOR, "grouped-query, 16 of 32, window 1024 in 52 of 62 layers"),
        ("deepseek-v3", Kind.GENERATOR, "latent, rank 512"),
        ("bge-m3", Kind.ENCODER, "multi-head"),
        ("whisper-large-v3", Kind.TRANSCRIBER, "multi-head"),
    ],
)
def test_a_shape_says_how_it_attends(name, kind, attends):
    assert (known(name).kind, known(name).attends) == (kind, attends)


# ---------------------------------------------------------------- context


@pytest.mark.parametrize(
    ("config", "context"),
    [
        pytest.param(llama(max_position_embeddings=8192), 8192, id="as told"),
        pytest.param(
            llama(max_position_embeddings=4096, rope_scaling={"type": "linear", "factor": 4.0}), 16384, id="linear"
        ),
        pytest.param(
            llama(
                max_position_embeddings=32768,
                rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            ),
            131072,
            id="yarn",
        ),
        pytest.param(
            llama(
                max_position_embeddings=131072,
                rope_scaling={"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            ),
            131072,
            id="llama3, counted already",
        ),
    ],
)
def test_the_longest_context_follows_rope_scaling(config, context):
    assert shape_of(config).context == context


def test_configurations_of_transformers_5_are_read_alike():
    """There ``rope_parameters`` holds the scaling, ``dtype`` the format, and ``layer_types`` stands in every one."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 8192}
    newer = llama(
        architectures=["Qwen2ForCausalLM"],
        torch_dtype="absent",
        dtype="bfloat16",
        max_position_embeddings=8192,
        rope_parameters=yarn,
        layer_types=["full_attention"] * 2,
        use_sliding_window=False,
        sliding_window=None,
    )
    older = llama(architectures=["Qwen2ForCausalLM"], max_position_embeddings=8192, rope_scaling=yarn)
    assert shape_of(newer) == shape_of(older)


def test_roberta_has_two_positions_less_than_it_says():
    assert known("bge-m3").context == 8192
    assert known("roberta-base").context == 512


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("config", "field", "message"),
    [
        pytest.param({}, "architectures", "write the one class of the model", id="empty"),
        pytest.param(llama(architectures=["MambaForCausalLM"]), "architectures", "not known here", id="unknown"),
        pytest.param(llama(hidden_size="absent"), "hidden_size", "is missing", id="missing"),
        pytest.param(llama(hidden_size=0), "hidden_size", "is 0; write a whole number of 1 or more", id="zero"),
        pytest.param(llama(num_hidden_layers=-4), "num_hidden_layers", "is -4", id="negative"),
        pytest.param(llama(vocab_size="many"), "vocab_size", "is 'many'", id="text"),
        pytest.param(llama(vocab_size=True), "vocab_size", "is True", id="flag"),
        pytest.param(llama(num_key_value_heads=3), "num_key_value_heads", "does not divide 8", id="kv heads"),
        pytest.param(llama(num_attention_heads=7, num_key_value_heads=7), "num_attention_heads", "64", id="heads"),
        pytest.param(llama(attention_chunk_size=8192), "attention_chunk_size", "no rule here knows", id="attention"),
        pytest.param(llama(index_topk=2048), "index_topk", "no rule here knows", id="sparse attention"),
        pytest.param(llama(mamba_d_state=128), "mamba_d_state", "no rule here knows", id="recurrence"),
        pytest.param(llama(rope_scaling={"type": "new", "factor": 2}), "rope_scaling.rope_type", "'new'", id="rope"),
        pytest.param(
            llama(rope_scaling={"type": "linear", "factor": 1e-9}), "rope_scaling.factor", "leaves nothing", id="factor"
        ),
        pytest.param(llama(architectures=["x"] * 10_000), "architectures", "…; write the one class", id="many classes"),
        pytest.param(
            llama(quantization_config={"quant_method": "bitsandbytes"}),
            "quantization_config.quant_method",
            "'bitsandbytes'",
            id="quantization",
        ),
        pytest.param(
            llama(architectures=["MistralForCausalLM"]), "sliding_window", "or null for none", id="window not stated"
        ),
        pytest.param(
            llama(
                architectures=["GptOssForCausalLM"],
                layer_types=["full_attention", "linear_attention"],
                sliding_window=128,
                num_local_experts=4,
                num_experts_per_tok=2,
            ),
            "layer_types[1]",
            "'linear_attention'",
            id="kind of layer",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_its_field(config, field, message):
    with pytest.raises(ConfigError) as refused:
        shape_of(config)
    assert refused.value.field == field
    assert message in str(refused.value)


def test_fields_that_change_nothing_are_passed_over():
    with_more = llama(
        attention_dropout=0.1, attn_implementation="eager", my_note="hello", mlp_bias=False, use_mrope=False
    )
    assert shape_of(with_more).parameters == shape().parameters


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=400)
@given(st.sampled_from(names()), st.data())
def test_a_configuration_with_anything_in_a_field_is_counted_or_refused_by_name(name, data):
    """Never another error, never hours: what users edit by hand is wrong in any way there is."""
    config = dict(entry(name).config)
    changed = data.draw(st.sampled_from(sorted(config)))
    config[changed] = data.draw(JSON)
    with contextlib.suppress(ConfigError):
        assert shape_of(config).parameters > 0
