"""The pieces that models are built of, each as weights: attention, feed-forward, experts, norms, embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from cardwise.core.capacity.shape import Attention, Latent, Layer, Part

GATED, PLAIN = 3, 2
"""Matrices of a feed-forward block: gate, up and down; or up and down."""


@dataclass(frozen=True, slots=True)
class Biases:
    """Which projections of an attention have one."""

    query: bool = False
    key: bool = False
    value: bool = False
    output: bool = False

    @classmethod
    def all(cls, wanted: bool) -> Biases:
        """All or none."""
        return cls(wanted, wanted, wanted, wanted)


def attention_parts(hidden: int, of: Attention, biases: Biases, *, norms_dim: int = 0) -> tuple[Part, ...]:
    """Projections of queries, keys, values and output. norms_dim: weights of norms on queries and keys together."""
    queries, keys = of.heads * of.head_dim, of.kv_heads * of.head_dim
    bias = (queries if biases.query else 0, keys * (biases.key + biases.value), hidden if biases.output else 0)
    parts = (
        Part("attention", 2 * hidden * queries, quantized=True, sides=2 * (hidden + queries)),
        Part("keys and values", 2 * hidden * keys, quantized=True, split=of.kv_heads, sides=2 * (hidden + keys)),
        Part("attention", bias[0]),
        Part("keys and values", bias[1], split=of.kv_heads),
        Part("norms", bias[2] + norms_dim, split=1),
    )
    return tuple(part for part in parts if part.count)


def latent_parts(hidden: int, heads: int, of: Latent, *, bias: bool) -> tuple[Part, ...]:
    """Multi-head latent attention: what compresses is on every card, what expands is divided by heads."""
    key = of.nope_dim + of.rope_dim
    down = hidden * (of.kv_rank + of.rope_dim) + (hidden * of.query_rank if of.query_rank else 0)
    up = (of.query_rank or hidden) * heads * key + of.kv_rank * heads * (of.nope_dim + of.value_dim)
    norms = of.kv_rank + (of.query_rank or 0)
    biases = ((of.query_rank or 0) + of.kv_rank + of.rope_dim + hidden) if bias else 0
    down_sides = hidden + of.kv_rank + of.rope_dim + (hidden + of.query_rank if of.query_rank else 0)
    up_sides = (of.query_rank or hidden) + heads * key + of.kv_rank + heads * (of.nope_dim + of.value_dim)
    return (
        Part("attention, compressing", down, quantized=True, split=1, sides=down_sides),
        Part(
            "attention",
            up + heads * of.value_dim * hidden,
            quantized=True,
            sides=up_sides + heads * of.value_dim + hidden,
        ),
        Part("norms", norms + biases, split=1),
    )


def mlp_parts(hidden: int, inner: int, matrices: int, *, bias: bool = False) -> tuple[Part, ...]:
    """A dense feed-forward block."""
    parts = (
        Part("feed-forward", matrices * hidden * inner, quantized=True, sides=matrices * (hidden + inner)),
        Part("feed-forward", (matrices - 1) * inner if bias else 0),
        Part("norms", hidden if bias else 0, split=1),
    )
    return tuple(part for part in parts if part.count)


def expert_parts(hidden: int, inner: int, experts: int, *, bias: bool = False) -> tuple[Part, ...]:
    """Experts and the router that chooses among them; all experts are loaded, whatever few a token uses."""
    parts = (
        Part("experts", experts * GATED * hidden * inner, quantized=True),
        Part("experts", experts * ((GATED - 1) * inner + hidden) if bias else 0),
        Part("router", hidden * experts + (experts if bias else 0), split=1),
    )
    return tuple(part for part in parts if part.count)


def norm(count: int) -> Part:
    """Weights, and biases, of norms: on every card."""
    return Part("norms", count, split=1)


def embedding(rows: int, hidden: int, name: str = "embeddings") -> Part:
    """A table with a row per token or position; divided by rows over cards."""
    return Part(name, rows * hidden)


def mlp_width(inner: int, matrices: int) -> int:
    """Values per token while the widest step runs: the input of the activation and what comes out of it."""
    return matrices * inner


def dense_layer(
    hidden: int, inner: int, attention: Attention, biases: Biases, *, mlp_bias: bool, norms: int, matrices: int = PLAIN
) -> Layer:
    """An attention and a dense feed-forward. norms: weights, and biases, of its norms per hidden value."""
    parts = (
        *attention_parts(hidden, attention, biases),
        *mlp_parts(hidden, inner, matrices, bias=mlp_bias),
        norm(norms * hidden),
    )
    return Layer(attention, parts, mlp_width(inner, matrices))
