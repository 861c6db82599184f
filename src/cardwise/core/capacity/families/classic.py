"""Decoders from before Llama: GPT-2, GPT-BigCode, GPT-NeoX, Falcon and BLOOM.

Source: transformers 5.24, ``models/<model_type>/modeling_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cardwise.core.capacity.families import common
from cardwise.core.capacity.families.blocks import Biases, dense_layer, embedding, norm
from cardwise.core.capacity.families.fields import Fields
from cardwise.core.capacity.shape import Attention, Kind, Layer, ModelShape, Part


def _gpt(fields: Fields, *, shared_keys: bool) -> ModelShape:
    hidden, heads = fields.whole("n_embd", "hidden_size"), fields.whole("n_head", "num_attention_heads")
    positions = fields.whole("n_positions", "max_position_embeddings")
    inner = fields.whole("n_inner", otherwise=4 * hidden)
    fields.whole("n_ctx", otherwise=positions)
    attention = Attention(heads, 1 if shared_keys else heads, _head_dim(fields, hidden, heads))
    layer = dense_layer(hidden, inner, attention, Biases.all(True), mlp_bias=True, norms=4)
    more = (embedding(positions, hidden, "positions"), norm(2 * hidden))
    count = fields.whole("n_layer", "num_hidden_layers")
    return _make(fields, hidden, [layer] * count, more, context=positions, tied=True)


def gpt2(fields: Fields) -> ModelShape:
    """GPT-2: multi-head attention, learned positions."""
    if fields.flag("add_cross_attention", otherwise=False):
        raise fields.error("add_cross_attention", "is true, which no rule here knows")
    return _gpt(fields, shared_keys=False)


def gpt_bigcode(fields: Fields) -> ModelShape:
    """StarCoder's: as GPT-2, with one head of keys and values for all."""
    return _gpt(fields, shared_keys=fields.flag("multi_query", otherwise=True))


def gpt_neox(fields: Fields) -> ModelShape:
    """GPT-NeoX and Pythia."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    bias = Biases.all(fields.flag("attention_bias", otherwise=True))
    attention = Attention(heads, heads, _head_dim(fields, hidden, heads))
    layer = dense_layer(hidden, fields.whole("intermediate_size"), attention, bias, mlp_bias=True, norms=4)
    layers = [layer] * fields.whole("num_hidden_layers")
    return _make(fields, hidden, layers, (norm(2 * hidden),), context=common.context_of(fields), tied=False)


def falcon(fields: Fields) -> ModelShape:
    """Falcon: one head of keys and values (7B), or a few (40B, 180B)."""
    hidden = fields.whole("hidden_size", "n_embed")
    heads = fields.whole("num_attention_heads", "n_head")
    newer = fields.flag("new_decoder_architecture", otherwise=False)
    shared = fields.flag("multi_query", otherwise=True)
    kv_heads = fields.whole("num_kv_heads", "n_head_kv", otherwise=heads) if newer else 1 if shared else heads
    if not newer:
        fields.whole("num_kv_heads", "n_head_kv", otherwise=1)
    parallel = fields.flag("parallel_attn", otherwise=True)
    stated = fields.whole("num_ln_in_parallel_attn", otherwise=2 if newer else 1)
    norms = 2 * (stated if newer or parallel else 2)
    fields.flag("alibi", otherwise=False)
    bias = fields.flag("bias", otherwise=False)
    attention = Attention(heads, kv_heads, _head_dim(fields, hidden, heads))
    inner = fields.whole("ffn_hidden_size", otherwise=4 * hidden)
    layer = dense_layer(hidden, inner, attention, Biases.all(bias), mlp_bias=bias, norms=norms)
    layers = [layer] * fields.whole("num_hidden_layers", "n_layer")
    return _make(fields, hidden, layers, (norm(2 * hidden),), context=common.context_of(fields), tied=True)


def bloom(fields: Fields) -> ModelShape:
    """BLOOM: positions by distance (ALiBi), so its context is only what it was trained with."""
    hidden, heads = fields.whole("hidden_size", "n_embed"), fields.whole("n_head", "num_attention_heads")
    attention = Attention(heads, heads, _head_dim(fields, hidden, heads))
    layer = dense_layer(hidden, 4 * hidden, attention, Biases.all(True), mlp_bias=True, norms=4)
    layers = [layer] * fields.whole("n_layer", "num_hidden_layers")
    context = fields.whole_or_none("seq_length")
    return _make(fields, hidden, layers, (norm(4 * hidden),), context=context, tied=True)


SHAPES: dict[str, Callable[[Fields], ModelShape]] = {
    "GPT2LMHeadModel": gpt2,
    "GPTBigCodeForCausalLM": gpt_bigcode,
    "GPTNeoXForCausalLM": gpt_neox,
    "FalconForCausalLM": falcon,
    "BloomForCausalLM": bloom,
}


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    common.check_heads(fields, hidden, heads)
    return hidden // heads


def _make(
    fields: Fields, hidden: int, layers: Sequence[Layer], more: Sequence[Part], *, context: int | None, tied: bool
) -> ModelShape:
    vocab = fields.whole("vocab_size")
    tied = fields.flag("tie_word_embeddings", otherwise=tied)
    head = () if tied else (embedding(vocab, hidden, "output"),)
    parts = (embedding(vocab, hidden), *head, *more)
    made = common.make(fields, Kind.GENERATOR, hidden, layers, parts, vocab=vocab, context=context)
    fields.finish("head_dim", "num_ln_in_parallel_attn", "attention_bias")
    return made
