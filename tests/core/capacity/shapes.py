"""Situations for the capacity core: small configurations, loads, and the tables that come along."""

from __future__ import annotations

from cardwise.core.capacity.families import shape_of
from cardwise.core.capacity.memory import Load
from cardwise.plan.catalogue import find_model
from cardwise.plan.tables import tables

TABLES = tables()
VLLM, SGLANG = TABLES.engines["vllm"], TABLES.engines["sglang"]


def llama(**changed):
    """A configuration of Llama's format, small unless told."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 1000,
    }
    return {key: value for key, value in {**config, **changed}.items() if value != "absent"}


def shape(**changed):
    return shape_of(llama(**changed))


def known(name):
    """The shape of a model in the catalogue."""
    return find_model(name).shape


def load(context=4096, sequences=32, **more):
    return Load(context=context, sequences=sequences, **more)
