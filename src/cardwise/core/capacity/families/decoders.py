"""Decoders of one plan: attention with rotary positions, then a feed-forward block or experts, norms between.

Llama, Mistral, Qwen, Gemma, Phi, StarCoder2, Mixtral and GPT-OSS differ in a handful of traits, which stand in one
table. Source of every trait: the model's own module in transformers 5.24, ``models/<model_type>/modeling_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cardwise.core.capacity.families import common
from cardwise.core.capacity.families.blocks import (
    GATED,
    PLAIN,
    Biases,
    attention_parts,
    embedding,
    expert_parts,
    mlp_parts,
    mlp_width,
    norm,
)
from cardwise.core.capacity.families.fields import Fields
from cardwise.core.capacity.shape import Attention, Kind, Layer, ModelShape, Part, Tower

Windows = Callable[[Fields, int], list[int | None]]


@dataclass(frozen=True, slots=True)
class Traits:
    """How a family differs. bias: of which projections; None: as ``attention_bias`` says.

    head_dim: where it is not written; None: hidden over heads. norms: weights per hidden value in a layer's norms.
    """

    windows: Windows
    bias: Biases | None = None
    matrices: int = GATED
    mlp_bias: str = ""
    """The field that says it; "" for none."""
    norms: int = 2
    final_norms: int = 1
    qk_norm: bool = False
    tied: bool = False
    head_dim: int | None = None
    sinks: bool = False
    context_counted: bool = False


# ---------------------------------------------------------------- which layers look back how far


def _none(fields: Fields, count: int) -> list[int | None]:
    return common.windows(fields, count, None, sliding=())


def _all(fields: Fields, count: int) -> list[int | None]:
    """All layers, if the window is shorter than the context. It must be stated, for its default is not "none"."""
    fields.stated("sliding_window")
    window = fields.whole_or_none("sliding_window")
    longest = fields.whole("max_position_embeddings")
    return common.windows(fields, count, window, sliding=range(count) if window and window < longest else ())


def _qwen(fields: Fields, count: int) -> list[int | None]:
    """From layer ``max_window_layers`` on, and only if ``use_sliding_window``."""
    window = fields.whole_or_none("sliding_window")
    first = fields.whole("max_window_layers", least=0, otherwise=count)
    if not fields.flag("use_sliding_window", otherwise=False):
        return common.windows(fields, count, None, sliding=())
    if window is None:
        raise fields.error("sliding_window", "is missing, and use_sliding_window is true; write a whole number")
    return common.windows(fields, count, window, sliding=range(first, count))


def _every_second(fields: Fields, count: int) -> list[int | None]:
    """Gemma 2: the first layer and every second after it."""
    return common.windows(fields, count, fields.whole("sliding_window"), sliding=range(0, count, 2))


def _five_of_six(fields: Fields, count: int) -> list[int | None]:
    """Gemma 3: all but every sixth."""
    pattern = fields.whole("sliding_window_pattern", otherwise=fields.whole("_sliding_window_pattern", otherwise=6))
    sliding = [i for i in range(count) if (i + 1) % pattern]
    return common.windows(fields, count, fields.whole("sliding_window"), sliding=sliding)


def _by_types(fields: Fields, count: int) -> list[int | None]:
    """GPT-OSS: as ``layer_types`` says, which must be there."""
    if not fields.has("layer_types"):
        raise fields.error("layer_types", "is missing; write a list with a kind for each layer")
    return common.windows(fields, count, fields.whole("sliding_window"), sliding=())


_QKV = Biases(query=True, key=True, value=True)
TRAITS = {
    "LlamaForCausalLM": Traits(_none, mlp_bias="mlp_bias"),
    "MistralForCausalLM": Traits(_all, Biases()),
    "MixtralForCausalLM": Traits(_all, Biases()),
    "Qwen2ForCausalLM": Traits(_qwen, _QKV),
    "Qwen2MoeForCausalLM": Traits(_qwen, _QKV),
    "Qwen3ForCausalLM": Traits(_qwen, qk_norm=True, head_dim=128),
    "Qwen3MoeForCausalLM": Traits(_qwen, qk_norm=True, head_dim=128),
    "Phi3ForCausalLM": Traits(_all, Biases()),
    "GemmaForCausalLM": Traits(_none, head_dim=256, tied=True),
    "Gemma2ForCausalLM": Traits(_every_second, norms=4, head_dim=256, tied=True),
    "Gemma3ForCausalLM": Traits(_five_of_six, norms=4, qk_norm=True, head_dim=256, tied=True, context_counted=True),
    "Starcoder2ForCausalLM": Traits(
        _all, Biases.all(True), matrices=PLAIN, mlp_bias="use_bias", norms=4, final_norms=2, tied=True
    ),
    "GptOssForCausalLM": Traits(_by_types, Biases.all(True), sinks=True, head_dim=64),
}


# ---------------------------------------------------------------- the shape


def shape(fields: Fields) -> ModelShape:
    """A decoder alone."""
    return build(fields, TRAITS[common.architecture_of(fields)])


def build(
    fields: Fields, traits: Traits, *, tower: Tower | None = None, top: Fields | None = None, tied: bool | None = None
) -> ModelShape:
    """A decoder, behind a tower if there is one. tied: as the outer configuration says, where it does."""
    hidden, count = fields.whole("hidden_size"), fields.whole("num_hidden_layers")
    vocab = fields.whole("vocab_size")
    of, bias = _attention(fields, traits)
    mlps = _mlps(fields, traits, hidden, count)
    shared = (
        *attention_parts(hidden, of, bias, norms_dim=2 * of.head_dim if traits.qk_norm else 0),
        norm(traits.norms * hidden + (of.heads if traits.sinks else 0)),
    )
    layers = [
        Layer(replace(of, window=window), (*shared, *parts), width)
        for window, (parts, width) in zip(traits.windows(fields, count), mlps, strict=True)
    ]
    if tied is None:
        tied = fields.flag("tie_word_embeddings", otherwise=traits.tied)
    head = () if tied else (embedding(vocab, hidden, "output"),)
    parts = (embedding(vocab, hidden), *head, norm(traits.final_norms * hidden))
    context = common.context_of(fields, counted=traits.context_counted)
    made = common.make(
        fields, Kind.GENERATOR, hidden, layers, parts, vocab=vocab, context=context, tower=tower, top=top
    )
    fields.finish("lm_head_bias", "pretraining_tp", "full_attn_mod", "shared_expert_gate", "head_dim")
    return made


def _attention(fields: Fields, traits: Traits) -> tuple[Attention, Biases]:
    heads, hidden = fields.whole("num_attention_heads"), fields.whole("hidden_size")
    kv_heads = fields.whole("num_key_value_heads", otherwise=heads)
    if heads % kv_heads:
        raise fields.error("num_key_value_heads", f"is {kv_heads}, which does not divide {heads} num_attention_heads")
    if traits.head_dim is None and not fields.has("head_dim"):
        common.check_heads(fields, hidden, heads)
    head_dim = fields.whole("head_dim", otherwise=traits.head_dim or hidden // heads)
    stated = Biases.all(fields.flag("attention_bias", otherwise=False))
    if traits.mlp_bias == "use_bias":
        return Attention(heads, kv_heads, head_dim), Biases.all(fields.flag("use_bias", otherwise=True))
    return Attention(heads, kv_heads, head_dim), stated if traits.bias is None else traits.bias


def _mlps(fields: Fields, traits: Traits, hidden: int, count: int) -> list[tuple[tuple[Part, ...], int]]:
    """Weights and width of each layer's feed-forward block or experts."""
    experts = fields.whole("num_experts", "num_local_experts", otherwise=0, least=0)
    if not experts:
        inner = fields.whole("intermediate_size")
        bias = bool(traits.mlp_bias) and fields.flag(traits.mlp_bias, otherwise=traits.mlp_bias == "use_bias")
        return [(mlp_parts(hidden, inner, traits.matrices, bias=bias), mlp_width(inner, traits.matrices))] * count
    inner = fields.whole("moe_intermediate_size", "intermediate_size")
    used = fields.whole("num_experts_per_tok", "experts_per_token")
    fields.whole("experts_per_token", otherwise=used)  # GPT-OSS says it under both names
    if used > experts:
        raise fields.error("num_experts_per_tok", f"is {used}, more than the {experts} experts there are")
    sparse = (*expert_parts(hidden, inner, experts, bias=traits.sinks), *_shared(fields, hidden))
    width = used * mlp_width(inner, GATED)
    step, dense_at = fields.whole("decoder_sparse_step", otherwise=1), set(fields.wholes("mlp_only_layers"))
    dense = fields.whole("intermediate_size")
    return [
        (mlp_parts(hidden, dense, GATED), mlp_width(dense, GATED))
        if i in dense_at or (i + 1) % step
        else (sparse, width)
        for i in range(count)
    ]


def _shared(fields: Fields, hidden: int) -> tuple[Part, ...]:
    """Qwen 2 MoE: an expert that all tokens use, and its gate."""
    inner = fields.whole_or_none("shared_expert_intermediate_size")
    return () if inner is None else (*mlp_parts(hidden, inner, GATED), Part("router", hidden, split=1))
