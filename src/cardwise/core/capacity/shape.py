"""What a model is made of, exactly: its weights part by part, and the attention whose keys and values an engine keeps.

A shape is counted, not estimated: it holds every parameter that the model has, so that bytes follow from a number
format alone. A rule of thumb such as "8B = 16 GB" has no place here. Refuses to know what a format, an engine or a card
makes of it: that is :mod:`cardwise.core.capacity.memory`. Shapes come from configurations in
:mod:`cardwise.core.capacity.families`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """What a model does, and so which memory grows with what."""

    GENERATOR = "generator"
    """Writes token by token and keeps keys and values of all before."""
    ENCODER = "encoder"
    """Reads a text or an image whole; keeps nothing between requests."""
    TRANSCRIBER = "transcriber"
    """Encoder and decoder: the decoder also keeps keys and values of what the encoder read."""


@dataclass(frozen=True, slots=True)
class Part:
    """Weights that are treated alike.

    count: how many. quantized: whether quantizers touch them; embeddings, heads, norms and routers stay in 16 bits.
    split: over so many cards at most they divide, None for any number; 1: every card holds all of them.
    sides: sum of inputs and outputs of its matrices, what a LoRA adapter of rank 1 adds to them; 0 for none.
    """

    name: str
    count: int
    quantized: bool = False
    split: int | None = None
    sides: int = 0

    def per_card(self, tp: int) -> int:
        """How many of them one of ``tp`` cards holds."""
        return -(-self.count // (tp if self.split is None else min(tp, self.split)))


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one compressed vector per token stands for the keys and values of all heads.

    kv_rank: its size; rope_dim: of the key's part that carries the position and is kept beside it. query_rank: None
    where queries are not compressed. Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """

    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    query_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention.

    kv_heads: as many as heads in multi-head, 1 in multi-query attention. window: it looks back over so many tokens;
    None for all. cached: keys and values are kept from step to step. fixed_tokens: keys and values of so many positions
    are kept beside, whatever the context: what a decoder looks at of its encoder.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    latent: Latent | None = None
    cached: bool = True
    fixed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. mlp_width: values per token that its widest step holds at a time, over all cards."""

    attention: Attention
    parts: tuple[Part, ...]
    mlp_width: int

    @property
    def count(self) -> int:
        """Parameters."""
        return sum(part.count for part in self.parts)


@dataclass(frozen=True, slots=True)
class Tower:
    """What looks at images or sound before the language model. tokens: of one input; None if inputs have any size."""

    hidden: int
    layers: tuple[Layer, ...]
    parts: tuple[Part, ...]
    tokens: int | None

    @property
    def count(self) -> int:
        """Parameters."""
        return sum(layer.count for layer in self.layers) + sum(part.count for part in self.parts)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A whole model.

    layers: of the decoder, or of the only encoder. parts: all that is in no layer and no tower. context: the longest
    input that it is made for, stretched as its configuration says; None if it has no limit. vocab: rows of its output,
    0 where it writes no tokens. dtype: as its configuration says; "" if it does not. quantization: likewise, or None.
    """

    architecture: str
    kind: Kind
    hidden: int
    vocab: int
    context: int | None
    layers: tuple[Layer, ...]
    parts: tuple[Part, ...]
    tower: Tower | None = None
    dtype: str = ""
    quantization: str | None = None

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """Every weight of the model, layer by layer."""
        tower = () if self.tower is None else (*self.tower.parts, *_parts(self.tower.layers))
        return (*self.parts, *_parts(self.layers), *tower)

    @property
    def parameters(self) -> int:
        """How many weights the model has; what is tied is there once."""
        return sum(part.count for part in self.all_parts)

    @property
    def quantizable(self) -> int:
        """How many of them quantizers touch."""
        return sum(part.count for part in self.all_parts if part.quantized)

    def parameters_per_card(self, tp: int) -> int:
        """How many one of ``tp`` cards holds: norms, routers and shared keys and values are on each."""
        return sum(part.per_card(tp) for part in self.all_parts)

    @property
    def heads(self) -> int:
        """Query heads, of the layer with the most."""
        return max(layer.attention.heads for layer in self.layers)

    @property
    def attends(self) -> str:
        """Its attention in a word, for people."""
        first = self.layers[0].attention
        kind = _attention_name(first)
        windows = sorted({each.attention.window for each in self.layers if each.attention.window is not None})
        if not windows:
            return kind
        count = sum(1 for each in self.layers if each.attention.window is not None)
        return f"{kind}, window {'/'.join(map(str, windows))} in {count} of {len(self.layers)} layers"


def _attention_name(attention: Attention) -> str:
    if attention.latent is not None:
        return f"latent, rank {attention.latent.kv_rank}"
    if attention.kv_heads == 1:
        return "multi-query"
    if attention.kv_heads == attention.heads:
        return "multi-head"
    return f"grouped-query, {attention.kv_heads} of {attention.heads}"


def _parts(layers: tuple[Layer, ...]) -> tuple[Part, ...]:
    return tuple(part for layer in layers for part in layer.parts)
