"""Bytes of a card that serving a model takes, component by component, each with its formula and where it comes from.

Weights and the KV cache are arithmetic and exact. What an engine and the driver take beside them is measured, differs
between versions, and stands in one table of ranges (:class:`Overheads`, ``plan/data/overheads.toml``): every component
has a likely value, a low and a high one. Refuses to hide which is which: ``exact`` says it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cardwise.core.capacity.shape import Attention, Kind, Layer, ModelShape, Part

MIB = 2**20
LOGIT_BYTES = 4
"""Engines sample from 32-bit logits. Source: vllm/v1/sample/sampler.py, ``logits.to(torch.float32)``."""
LORA_BYTES = 2
OPEN_IMAGE_TOKENS = 16_384
"""Patches of an image where its size is open: what vLLM plans its encoder's cache for (v0.18 to v0.33, its log)."""
WEIGHTS, KV_CACHE, ACTIVATIONS = "weights", "kv-cache", "activations"
CONTEXT, GRAPHS, WORKSPACE, NCCL, LORA = "cuda-context", "cuda-graphs", "workspace", "nccl", "lora"


@dataclass(frozen=True, slots=True)
class Range:
    """A measured amount: what is likely, least and most, and where that was seen."""

    likely: float
    low: float
    high: float
    source: str

    def times(self, factor: float) -> Range:
        """As much for each of ``factor`` things."""
        return Range(self.likely * factor, self.low * factor, self.high * factor, self.source)


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored. bits: per weight that is quantized, its scales included; ``only``: the parts it touches.

    kept_bits: of all other weights.
    """

    name: str
    bits: float
    kept_bits: float
    source: str
    only: str = ""
    engine_name: str | None = None


@dataclass(frozen=True, slots=True)
class Engine:
    """What an inference engine does that memory follows from.

    block_tokens: a sequence's KV cache is rounded up to so many; 0 for an engine that keeps none. windowed: layers with
    a window keep only that. graphs: it captures CUDA graphs. samples: it samples itself. fused: its attention never
    holds all scores at once. casts: 32-bit checkpoints are loaded in 16 bits. step_tokens: of all sequences together
    that it computes in one step, unless told. step_flag: what tells it.
    """

    name: str
    block_tokens: int
    windowed: bool
    graphs: bool
    samples: bool
    fused: bool
    casts: bool
    step_tokens: int
    step_flag: str
    source: str


@dataclass(frozen=True, slots=True)
class Overheads:
    """The table. context_mib: by card generation. graph_mib: per captured size and layer. logits: copies in sampling.

    Under MPS a client's context takes ``mps_context_share`` of one of its own. margin: what to multiply by.
    """

    context_mib: Mapping[str, Range]
    workspace_mib: Mapping[str, Range]
    mps_context_share: Range
    graph_mib: Range
    nccl_mib: Range
    logits: Range
    activations: Range
    margin: Range

    @property
    def generations(self) -> tuple[str, ...]:
        """Of cards that the table knows, oldest first."""
        return tuple(self.context_mib)


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters that are loaded at a time."""

    rank: int
    count: int


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be served. context: tokens of the longest sequence; sequences: at a time; both at least 1.

    live_tokens: of one sequence at a time, at the 95th percentile; None: as many as ``context``. step_tokens: None for
    the engine's own. tp: cards that share the model. kv_bits: of one number in the KV cache.
    """

    context: int
    sequences: int
    live_tokens: int | None = None
    step_tokens: int | None = None
    tp: int = 1
    kv_bits: int = 16
    lora: Lora | None = None
    mps: bool = False
    eager: bool = False
    generation: str = "hopper"


@dataclass(frozen=True, slots=True)
class Component:
    """Bytes of each card. low, high: the range; the same as ``likely`` where ``exact``. formula: with its numbers."""

    name: str
    likely: int
    low: int
    high: int
    formula: str
    source: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """All components of one card."""

    components: tuple[Component, ...]

    def of(self, name: str) -> int:
        """Likely bytes of a component; 0 if there is none."""
        return sum(each.likely for each in self.components if each.name == name)

    @property
    def likely(self) -> int:
        """Bytes in all."""
        return sum(each.likely for each in self.components)

    @property
    def low(self) -> int:
        """If everything were at its least."""
        return sum(each.low for each in self.components)

    @property
    def high(self) -> int:
        """If everything were at its most."""
        return sum(each.high for each in self.components)


def memory_of(
    shape: ModelShape, form: Format, engine: Engine, load: Load, table: Overheads, *, weights_bytes: int | None = None
) -> Memory:
    """What one of the load's cards holds. weights_bytes: of the whole model, as its files say; None to count them.

    Raises ValueError if the load cannot be: zero sequences, more cards than heads, a generation that is not known.
    """
    _check(shape, load, table)
    parts = (
        _weights(shape, form, load.tp, weights_bytes),
        _kv_cache(shape, engine, load),
        _activations(shape, engine, load, table),
        _graphs(shape, engine, load, table),
        _context(load, table),
        _workspace(load, table),
        _nccl(load, table),
        _lora(shape, load),
    )
    return Memory(tuple(part for part in parts if part is not None))


def _check(shape: ModelShape, load: Load, table: Overheads) -> None:
    amounts = {
        "context": load.context,
        "sequences": load.sequences,
        "tp": load.tp,
        "live_tokens": load.live_tokens or 1,
    }
    for name, value in amounts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}, must be 1 or more")
    if shape.heads % load.tp:
        raise ValueError(f"tp is {load.tp}, which does not divide the model's {shape.heads} attention heads")
    for kv_heads in sorted({each.attention.kv_heads for each in shape.layers if each.attention.latent is None}):
        if kv_heads % load.tp and load.tp % kv_heads:
            raise ValueError(
                f"tp is {load.tp}, and {kv_heads} heads of keys and values can neither be divided "
                f"by it nor copied evenly"
            )
    if load.live_tokens is not None and load.live_tokens > load.context:
        raise ValueError(f"live tokens are {load.live_tokens}, more than the context of {load.context}")
    if load.generation not in table.context_mib:
        raise ValueError(f"no generation {load.generation!r} is known; write one of {', '.join(table.generations)}")


# ---------------------------------------------------------------- weights


def weight_bytes(shape: ModelShape, form: Format, tp: int = 1) -> int:
    """Bytes of the weights on one of ``tp`` cards."""
    bits = 0.0
    for part in shape.all_parts:
        bits += part.per_card(tp) * (form.bits if _touches(form, part) else form.kept_bits)
    return math.ceil(bits / 8)


def _touches(form: Format, part: Part) -> bool:
    return part.quantized and form.only in {"", part.name}


def _weights(shape: ModelShape, form: Format, tp: int, stated: int | None) -> Component:
    counted = weight_bytes(shape, form, tp)
    if stated is not None:
        share = counted / weight_bytes(shape, form)
        amount = math.ceil(stated * share)
        formula = f"{stated:,} bytes in the model's files" + (f" × {share:.4f} of it on a card" if tp > 1 else "")
        return Component(WEIGHTS, amount, amount, amount, formula, "safetensors headers", exact=True)
    few = sum(part.per_card(tp) for part in shape.all_parts if _touches(form, part))
    rest = shape.parameters_per_card(tp) - few
    formula = f"{few:,} × {form.bits:g} bits + {rest:,} × {form.kept_bits:g} bits"
    return Component(WEIGHTS, counted, counted, counted, formula, f"configuration; {form.source}", exact=True)


# ---------------------------------------------------------------- KV cache


def kv_bytes_per_token(shape: ModelShape, kv_bits: int = 16, tp: int = 1) -> int:
    """Bytes that one more token takes in all layers that look back without a window's end, on one of ``tp`` cards.

    2 · kv_heads · head_dim per layer, or rank + rope_dim with latent attention. Source: SPEC I1; DeepSeek-V2,
    arXiv:2405.04434, section 2.1.4.
    """
    return sum(_layer_bits(each.attention, kv_bits, tp) for each in shape.layers) // 8


def _layer_bits(attention: Attention, kv_bits: int, tp: int) -> int:
    if not attention.cached:
        return 0
    if attention.latent is not None:  # one vector for all heads: on every card
        return (attention.latent.kv_rank + attention.latent.rope_dim) * kv_bits
    return 2 * -(-attention.kv_heads // tp) * attention.head_dim * kv_bits  # fewer heads than cards: copies


def kv_bytes(shape: ModelShape, engine: Engine, load: Load, tokens: int | None = None) -> int:
    """KV cache of all sequences on one card. tokens: of each sequence; None: the live ones, or the context.

    Whole blocks per sequence. A layer with a window keeps only that, and once what one step computes; in an engine that
    does not know windows it keeps all.
    """
    of_each = load.context if tokens is None else tokens
    bits = 0
    for layer in shape.layers:
        per_token = _layer_bits(layer.attention, load.kv_bits, load.tp)
        held = load.sequences * _blocks(of_each, engine)
        if engine.windowed and layer.attention.window is not None and layer.attention.window < of_each:
            windows = load.sequences * _blocks(layer.attention.window + engine.block_tokens, engine)
            held = min(held, windows + _blocks(step_tokens(shape, engine, load), engine))
        bits += per_token * (held + load.sequences * _blocks(layer.attention.fixed_tokens, engine))
    return -(-bits // 8)


def _blocks(tokens: int, engine: Engine) -> int:
    block = engine.block_tokens or 1
    return -(-tokens // block) * block


def _kv_cache(shape: ModelShape, engine: Engine, load: Load) -> Component | None:
    if shape.kind is Kind.ENCODER:
        return None
    amount = kv_needed(shape, engine, load)
    tokens = load.live_tokens or load.context
    per_token = kv_bytes_per_token(shape, load.kv_bits, load.tp)
    formula = f"{load.sequences} sequences × {tokens:,} tokens × {per_token:,} bytes, {shape.attends}"
    if any(each.attention.fixed_tokens for each in shape.layers):
        formula += f", and {shape.layers[0].attention.fixed_tokens:,} positions of sound each"
    return Component(KV_CACHE, amount, amount, amount, formula, "2 · layers · kv_heads · head_dim · bytes", exact=True)


def kv_needed(shape: ModelShape, engine: Engine, load: Load) -> int:
    """KV cache to ask for: of the live tokens, and never less than one longest sequence: no engine starts with less."""
    if load.live_tokens is None:
        return kv_bytes(shape, engine, load)
    longest = kv_bytes(shape, engine, replace(load, sequences=1))
    return max(longest, kv_bytes(shape, engine, load, load.live_tokens))


def kv_tokens(shape: ModelShape, engine: Engine, load: Load, room_bytes: int) -> int:
    """How many tokens fit a KV cache of so many bytes, in whole blocks; windows left aside, so never too many."""
    per_token = kv_bytes_per_token(shape, load.kv_bits, load.tp)
    if per_token == 0 or room_bytes <= 0:
        return 0
    block = engine.block_tokens or 1
    return room_bytes // (per_token * block) * block


# ---------------------------------------------------------------- what computing takes


def _activations(shape: ModelShape, engine: Engine, load: Load, table: Overheads) -> Component:
    """The larger of a step through a layer, and of sampling: they are not there at the same time."""
    tokens = step_tokens(shape, engine, load)
    step = tokens * 2 * max(_width(shape.hidden, each, load.tp) for each in shape.layers)
    formula = f"{tokens:,} tokens a step × {step // max(1, tokens):,} bytes"
    if shape.tower is not None:
        seen = shape.tower.tokens or OPEN_IMAGE_TOKENS
        widest = max(_width(shape.tower.hidden, each, 1) for each in shape.tower.layers)
        tower = 2 * seen * widest * (load.sequences if shape.kind is not Kind.GENERATOR else 1)
        formula += f"; {seen:,} of an image or sound × {2 * widest:,} bytes"
        step = max(step, tower)
    if not engine.fused:
        scores = 2 * load.sequences * shape.heads * min(load.context, tokens) ** 2
        formula += f"; attention scores {scores:,} bytes"
        step += scores
    if shape.kind is Kind.ENCODER and shape.vocab:
        step += tokens * shape.vocab * LOGIT_BYTES
        formula += f"; {tokens:,} × {shape.vocab:,} logits"
    of_step = table.activations.times(step)
    likely, low, high = of_step.likely, of_step.low, of_step.high
    if engine.samples and shape.kind is not Kind.ENCODER:
        kept = tokens * 2 * shape.hidden
        logits = table.logits.times(load.sequences * shape.vocab * LOGIT_BYTES)
        likely, low, high = (
            max(likely, kept + logits.likely),
            max(low, kept + logits.low),
            max(high, kept + logits.high),
        )
        formula += f"; or {load.sequences} × {shape.vocab:,} logits × {table.logits.likely:g} copies of 4 bytes"
    source = f"{table.activations.source}; {table.logits.source}"
    return _ranged(ACTIVATIONS, Range(likely, low, high, source), formula)


def step_tokens(shape: ModelShape, engine: Engine, load: Load) -> int:
    """Tokens that are computed at a time. What reads a text whole reads all of its longest at once."""
    most = load.sequences * load.context
    if shape.kind is not Kind.GENERATOR:
        return most if shape.kind is Kind.ENCODER else min(most, load.sequences * 4)
    return min(most, load.step_tokens or max(engine.step_tokens, load.sequences))


def _width(hidden: int, layer: Layer, tp: int) -> int:
    """Values per token in a layer's widest step: residual and input stay, then attention's or the feed-forward's."""
    of = layer.attention
    queries = of.heads * of.head_dim
    keys = 2 * of.kv_heads * of.head_dim if of.latent is None else of.latent.kv_rank + of.latent.rope_dim
    attention = (2 * queries + keys) / tp + hidden
    feed_forward = layer.mlp_width / tp + hidden
    return math.ceil(2 * hidden + max(attention, feed_forward))


# ---------------------------------------------------------------- what driver and libraries take


def capture_sizes(sequences: int) -> int:
    """How many CUDA graphs vLLM captures: mixed steps up to twice the sequences, and pure decoding up to them.

    1, 2, 4, then every 8 to 256, then every 16 to 512. Source: vllm/config/vllm.py (v0.33),
    ``_set_cudagraph_sizes``.
    """
    return _sizes(min(2 * sequences, 512)) + _sizes(min(sequences, 512))


def _sizes(most: int) -> int:
    small = sum(1 for size in (1, 2, 4) if size <= most)
    return small + min(most, 255) // 8 + (max(0, most - 240) // 16 if most >= 256 else 0)


def _graphs(shape: ModelShape, engine: Engine, load: Load, table: Overheads) -> Component | None:
    if not engine.graphs or load.eager or shape.kind is not Kind.GENERATOR:
        return None
    sizes, layers = capture_sizes(load.sequences), len(shape.layers)
    amount = table.graph_mib.times(MIB * sizes * layers)
    formula = f"{sizes} captured sizes × {layers} layers × {table.graph_mib.likely:g} MiB"
    return _ranged(GRAPHS, amount, formula)


def _context(load: Load, table: Overheads) -> Component:
    one = table.context_mib[load.generation].times(MIB)
    formula = f"{table.context_mib[load.generation].likely:g} MiB on {load.generation}"
    if load.mps:
        share = table.mps_context_share
        one = Range(
            one.likely * share.likely, one.low * share.low, one.high * share.high, f"{one.source}; {share.source}"
        )
        formula += f" × {share.likely:g} as a client of MPS"
    return _ranged(CONTEXT, one, formula)


def _workspace(load: Load, table: Overheads) -> Component:
    one = table.workspace_mib[load.generation]
    return _ranged(WORKSPACE, one.times(MIB), f"{one.likely:g} MiB on {load.generation}")


def _nccl(load: Load, table: Overheads) -> Component | None:
    if load.tp == 1:
        return None
    return _ranged(NCCL, table.nccl_mib.times(MIB), f"{table.nccl_mib.likely:g} MiB for each of {load.tp} ranks")


def _lora(shape: ModelShape, load: Load) -> Component | None:
    if load.lora is None:
        return None
    sides = sum(-(-part.sides // load.tp) for part in shape.all_parts)
    amount = load.lora.rank * load.lora.count * sides * LORA_BYTES
    formula = f"{load.lora.count} adapters × rank {load.lora.rank} × {sides:,} inputs and outputs × {LORA_BYTES} bytes"
    if any(part.name == "experts" for part in shape.all_parts):
        formula += ", none for experts"
    return Component(
        LORA, amount, amount, amount, formula, "two matrices per adapted layer, arXiv:2106.09685", exact=True
    )


def _ranged(name: str, amount: Range, formula: str) -> Component:
    return Component(
        name, math.ceil(amount.likely), math.floor(amount.low), math.ceil(amount.high), formula, amount.source
    )
