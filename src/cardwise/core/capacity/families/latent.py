"""DeepSeek V2 and V3, R1 and Kimi K2: latent attention, many small experts, some shared.

Source: transformers 5.24, ``models/deepseek_v3/modeling_deepseek_v3.py``; DeepSeek-V3, arXiv:2412.19437. Weights that
predict further tokens (``num_nextn_predict_layers``) are in the checkpoint but loaded only if asked for: not counted.
"""

from __future__ import annotations

from cardwise.core.capacity.families import common
from cardwise.core.capacity.families.blocks import (
    GATED,
    embedding,
    expert_parts,
    latent_parts,
    mlp_parts,
    mlp_width,
    norm,
)
from cardwise.core.capacity.families.fields import Fields
from cardwise.core.capacity.shape import Attention, Kind, Latent, Layer, ModelShape, Part

ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")


def shape(fields: Fields) -> ModelShape:
    """The whole model."""
    hidden, count = fields.whole("hidden_size"), fields.whole("num_hidden_layers")
    heads, vocab = fields.whole("num_attention_heads"), fields.whole("vocab_size")
    fields.whole("num_key_value_heads", otherwise=heads)  # what the class inherits; all heads share one latent vector
    of = _latent(fields)
    key_dim = fields.whole("qk_head_dim", otherwise=of.nope_dim + of.rope_dim)
    if key_dim != of.nope_dim + of.rope_dim:
        raise fields.error("qk_head_dim", f"is {key_dim}, not the sum of qk_nope_head_dim and qk_rope_head_dim")
    attention = Attention(heads, heads, key_dim, latent=of)
    bias = fields.flag("attention_bias", otherwise=False)
    shared = (*latent_parts(hidden, heads, of, bias=bias), norm(2 * hidden))
    layers = [Layer(attention, (*shared, *parts), width) for parts, width in _mlps(fields, hidden, count)]
    head = () if fields.flag("tie_word_embeddings", otherwise=False) else (embedding(vocab, hidden, "output"),)
    parts = (embedding(vocab, hidden), *head, norm(hidden))
    made = common.make(fields, Kind.GENERATOR, hidden, layers, parts, vocab=vocab, context=common.context_of(fields))
    fields.finish("routed_scaling_factor", "num_nextn_predict_layers", "moe_layer_freq", "head_dim")
    return made


def _latent(fields: Fields) -> Latent:
    fields.stated("q_lora_rank")
    return Latent(
        kv_rank=fields.whole("kv_lora_rank"),
        rope_dim=fields.whole("qk_rope_head_dim"),
        nope_dim=fields.whole("qk_nope_head_dim"),
        value_dim=fields.whole("v_head_dim"),
        query_rank=fields.whole_or_none("q_lora_rank"),
    )


def _mlps(fields: Fields, hidden: int, count: int) -> list[tuple[tuple[Part, ...], int]]:
    dense_inner, inner = fields.whole("intermediate_size"), fields.whole("moe_intermediate_size")
    experts, used = fields.whole("n_routed_experts"), fields.whole("num_experts_per_tok")
    always, first = (
        fields.whole("n_shared_experts", otherwise=0, least=0),
        fields.whole("first_k_dense_replace", least=0),
    )
    if (every := fields.whole("moe_layer_freq", otherwise=1)) != 1:
        raise fields.error("moe_layer_freq", f"is {every}; only 1 is known here")
    dense = (mlp_parts(hidden, dense_inner, GATED), mlp_width(dense_inner, GATED))
    shared = mlp_parts(hidden, inner * always, GATED) if always else ()
    sparse = ((*expert_parts(hidden, inner, experts), *shared), (used + always) * mlp_width(inner, GATED))
    return [dense if i < first else sparse for i in range(count)]
