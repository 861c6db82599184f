"""A plan: from a wish and a model to components, slice, share of compute, replicas and the engine's flags.

Only puts the core's answers together. Refuses a wish that cannot be, with the option to change: a context beyond what
the model is made for, more cards than heads, an engine that does not generate.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cardwise.adapters import wire
from cardwise.adapters.inventory import KNOWN_CARD_MEMORY_MIB, near_cards
from cardwise.adapters.models import Model
from cardwise.core.capacity.engines import ENGINES, EngineSettings, SliceShape, flags_for
from cardwise.core.capacity.engines.budget import Needs, Shortage, budget
from cardwise.core.capacity.memory import (
    Engine,
    Format,
    Load,
    Lora,
    Memory,
    Overheads,
    kv_bytes,
    kv_bytes_per_token,
    kv_needed,
    memory_of,
)
from cardwise.core.capacity.replicas import HEADROOM, Measured, Replicas, replicas_for
from cardwise.core.capacity.shape import Kind, ModelShape
from cardwise.core.capacity.slices import (
    Ask,
    Card,
    Cores,
    Fit,
    Held,
    around,
    ask_for,
    check,
    choose_card,
    cores_of,
    fits,
    needs_of,
)
from cardwise.errors import UserError
from cardwise.files import plain
from cardwise.plan.tables import Tables

CONTEXT, SEQUENCES = 4096, 32
"""Unless told: the longest context, if the model reaches it, and sequences at a time."""
ASSUMED_GENERATION = "ampere"
KV_DTYPES = {"auto": 16, "bfloat16": 16, "float16": 16, "fp8": 8}
SEES_SLICE = frozenset({"mig"})
"""Isolation modes in which an engine sees the slice as the whole card. Source: docs/concepts/capacity.md."""
PREPARED = frozenset({"int8", "awq", "gptq"})
"""Formats that an engine only reads; fp8 it makes itself while it loads."""
GENERATES = frozenset({"vllm", "sglang", "tgi", "tensorrt-llm"})
STEP_IN_POOL = frozenset({"tgi"})
"""Engines that end at the start if a step may have more tokens than the KV cache. Source: text-generation-inference v3,
backends/v3/src/main.rs."""
STEP_FOR_ALL = frozenset({"vllm"})
"""Engines that end at the start if a step has fewer tokens than sequences. Source: vllm/config/scheduler.py."""
QUANTIZED = frozenset({"fp8", "int8", "int4", "awq", "gptq"})
"""What --dtype takes beside number formats, as if --quantization had said it."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for. None: what the model, the engine or this page says."""

    engine: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_dtype: str = "auto"
    context: int | None = None
    sequences: int = SEQUENCES
    live_tokens: int | None = None
    step_tokens: int | None = None
    tp: int = 1
    lora: Lora | None = None
    margin: float | None = None
    card: str | None = None
    isolation: str | None = None
    eager: bool = False
    slice_mib: int | None = None
    cores_pct: int | None = None
    rate_per_s: float | None = None
    headroom: float = HEADROOM
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the grid."""

    context: int
    sequences: int
    slice_mib: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All answers. full_kv_bytes, live_kv_bytes: of max context × sequences, and of live tokens where they were told.

    check: what the slice that was given holds; None if none was given.
    """

    model: Model
    wish: Wish
    form: Format
    engine: Engine
    load: Load
    memory: Memory
    kv_per_token: int
    full_kv_bytes: int
    live_kv_bytes: int | None
    ask: Ask
    card: Card | None
    cores: Cores
    replicas: Replicas
    settings: EngineSettings
    fits: tuple[Fit, ...]
    grid: tuple[Cell, ...]
    check: Held | Shortage | None
    notes: tuple[str, ...]

    @property
    def slice_mib(self) -> int:
        """The slice to ask for: the one that was given, if it holds anything, else the one that was found."""
        return self.ask.memory_mib if self.wish.slice_mib is None else self.wish.slice_mib

    @property
    def refusal(self) -> str:
        """Why it cannot run: the slice that was given holds not even one sequence, or no such card holds the slice."""
        return self.check.text if isinstance(self.check, Shortage) else _beyond(self.slice_mib, self.card)

    @property
    def refused(self) -> bool:
        """Whether it cannot run."""
        return bool(self.refusal)


def make_plan(model: Model, wish: Wish, tables: Tables) -> Plan:
    """Raises UserError with the option to change."""
    shape = model.shape
    engine = _engine(shape, wish, tables)
    form, notes = _format(shape, wish, engine, tables)
    stated = model.weights_bytes if wish.quantization is None and wish.dtype is None else None
    load = _load(shape, wish, engine)
    try:
        card, load, memory, ask = _on_a_card(shape, form, engine, load, wish, tables, stated)
    except ValueError as error:
        raise UserError(f"{plain(model.name)}: {error}") from error
    slice_mib = wish.slice_mib or ask.memory_mib
    found = _replicas(wish)
    cores = _cores(slice_mib, card, wish, found)
    needs = needs_of(memory, load, kv_dtype=_kv_flag(wish), quantization=form.engine_name)
    shaped = _slice_shape(slice_mib, card, cores, wish)
    held = None if wish.slice_mib is None else check(shape, engine, load, needs, shaped)
    beyond = _beyond(slice_mib, card)
    nothing = EngineSettings((), (), ())
    settings = nothing if beyond else _settings(engine, shape, load, shaped, needs, held, wish)
    return Plan(
        model=model,
        wish=wish,
        form=form,
        engine=engine,
        load=load,
        memory=memory,
        kv_per_token=kv_bytes_per_token(shape, load.kv_bits, load.tp),
        full_kv_bytes=kv_bytes(shape, engine, load, load.context),
        live_kv_bytes=None if load.live_tokens is None else kv_needed(shape, engine, load),
        ask=ask,
        card=card,
        cores=cores,
        replicas=found,
        settings=settings,
        fits=fits(tables.cards.values(), memory, slice_mib),
        grid=_grid(model, form, engine, load, tables.overheads, ask.margin, stated),
        check=held,
        notes=(
            *model.notes,
            *notes,
            *_notes(shape, form, wish, load, card),
            *(wish.measured.notes if wish.measured is not None else ()),
            *([beyond] if beyond else ()),
        ),
    )


# ---------------------------------------------------------------- what was wished


def _engine(shape: ModelShape, wish: Wish, tables: Tables) -> Engine:
    name = wish.engine or ("vllm" if shape.kind is not Kind.ENCODER else "onnxruntime")
    if name not in tables.engines or name not in ENGINES:
        raise UserError(f"--engine {plain(name)} is not known; write one of {', '.join(sorted(tables.engines))}")
    if shape.kind is Kind.GENERATOR and name not in GENERATES:
        raise UserError(
            f"--engine {name} keeps no KV cache, and {shape.architecture} generates; write one of "
            f"{', '.join(sorted(GENERATES))}"
        )
    return tables.engines[name]


_DTYPES = {"auto": "", "half": "float16", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}


def _format(shape: ModelShape, wish: Wish, engine: Engine, tables: Tables) -> tuple[Format, tuple[str, ...]]:
    """How weights are stored: as told, else as the checkpoint is; and what was assumed."""
    asked = None if wish.quantization in {None, "none"} else wish.quantization
    dtype = _DTYPES.get(wish.dtype or "auto", wish.dtype) or ""
    if wish.quantization is None and not dtype:
        asked = shape.quantization
    if dtype in QUANTIZED:
        if wish.quantization not in {None, dtype}:
            raise UserError(
                f"--dtype {plain(dtype)} and --quantization {plain(str(wish.quantization))} are two formats of the "
                f"same weights; give one of them"
            )
        asked = dtype
    if asked is not None:
        asked = "awq" if asked == "int4" else asked
        if asked not in tables.formats:
            raise UserError(f"--quantization {plain(asked)} is not known; write one of {', '.join(tables.formats)}")
        return tables.formats[asked], ()
    notes = []
    known = dtype or shape.dtype
    if not known:
        known = "float16"
        notes.append("the configuration does not name a number format: 16 bits are assumed; --dtype says another")
    if known not in tables.formats:
        raise UserError(f"--dtype {plain(known)} is not known; write one of {', '.join(tables.formats)}")
    if known == "float32" and not dtype and engine.casts:
        known = "float16"
        notes.append(f"the checkpoint has 32 bits, {engine.name} loads it in 16")
    return tables.formats[known], tuple(notes)


def _card(wish: Wish, tables: Tables) -> Card | None:
    if wish.card is None:
        return None
    found = {wire.model_token(name): card for name, card in tables.cards.items()}
    token = wire.model_token(wish.card)
    if token not in found:
        raise UserError(f"--card {plain(wish.card)} {_no_card(token, tables)}")
    return found[token]


def _no_card(token: str, tables: Tables) -> str:
    if token in KNOWN_CARD_MEMORY_MIB:
        return (
            f"is known by its memory only, {KNOWN_CARD_MEMORY_MIB[token]:,} MiB: give --cards FILE with its generation "
            f"and gbs, or write one of {', '.join(tables.cards)}"
        )
    near = ", ".join(near_cards(token, tables.cards) or tables.cards)
    return f"is not known; write one of {near}, or give others with --cards FILE"


def _load(shape: ModelShape, wish: Wish, engine: Engine) -> Load:
    context = wish.context or min(CONTEXT, shape.context or CONTEXT)
    if shape.context is not None and context > shape.context:
        raise UserError(
            f"--context {context:,} is beyond the {shape.context:,} tokens that {shape.architecture} is made for "
            f"(max_position_embeddings, stretched by rope_scaling); write {shape.context} or less, or a configuration "
            f"with a rope_scaling that reaches further"
        )
    if wish.step_tokens is not None and wish.step_tokens < wish.sequences and engine.name in STEP_FOR_ALL:
        raise UserError(
            f"--batch-tokens {wish.step_tokens:,} are fewer than the {wish.sequences:,} sequences of --concurrency, "
            f"with which {engine.name} does not start; write {wish.sequences} or more"
        )
    live = wish.live_tokens
    if live is not None and live > context:
        raise UserError(f"--live-tokens {live:,} are more than the context of {context:,}; write that or less")
    return Load(
        context=context,
        sequences=wish.sequences,
        live_tokens=live,
        step_tokens=wish.step_tokens,
        tp=wish.tp,
        kv_bits=KV_DTYPES[wish.kv_dtype],
        lora=wish.lora,
        mps=wish.isolation == "mps",
        eager=wish.eager,
        generation=ASSUMED_GENERATION,
    )


NO_BFLOAT16 = frozenset({"volta", "turing"})
"""Generations without it. Source: vllm/platforms/cuda.py, ``check_if_supports_dtype`` (compute capability 8.0)."""


def _able(form: Format, shape: ModelShape, tables: Tables) -> tuple[Card, ...]:
    """Cards that compute in the model's number format."""
    brain = "bfloat16" in {form.name, shape.dtype if form.name not in {"float16", "float32"} else ""}
    return tuple(card for card in tables.cards.values() if not (brain and card.generation in NO_BFLOAT16))


# ---------------------------------------------------------------- the answers


def _on_a_card(
    shape: ModelShape, form: Format, engine: Engine, load: Load, wish: Wish, tables: Tables, stated: int | None
) -> tuple[Card | None, Load, Memory, Ask]:
    """The card, and the memory counted with that card's overheads: the one that was told, else the smallest that holds.

    Which one holds the slice depends on the overheads, and these on the card: so each is asked with its own. Where none
    holds it they are of the generation that is assumed.
    """
    margin = wish.margin if wish.margin is not None else tables.overheads.margin.likely

    @functools.cache
    def counted(generation: str) -> tuple[Load, Memory, Ask]:
        at = replace(load, generation=generation)
        memory = memory_of(shape, form, engine, at, tables.overheads, weights_bytes=stated)
        return at, memory, ask_for(memory, margin)

    told = _card(wish, tables)
    if told is not None:
        return told, *counted(told.generation)
    counts = [each for each in _able(form, shape, tables) if each.generation in tables.overheads.context_mib]
    card = choose_card(counts, lambda each: wish.slice_mib or counted(each.generation)[2].memory_mib)
    return card, *counted(ASSUMED_GENERATION if card is None else card.generation)


def _replicas(wish: Wish) -> Replicas:
    try:
        return replicas_for(wish.rate_per_s, wish.measured, cores_pct=wish.cores_pct, headroom=wish.headroom)
    except ValueError as error:
        raise UserError(str(error)) from error


def _cores(slice_mib: int, card: Card | None, wish: Wish, found: Replicas) -> Cores:
    if wish.isolation == "whole":
        return Cores(100, known=True, why="the card is not shared")
    if wish.cores_pct is not None:
        return Cores(wish.cores_pct, known=True, why="as told")
    return cores_of(slice_mib, card, found.cores_pct if wish.measured is not None else None)


def _beyond(slice_mib: int, card: Card | None) -> str:
    """Why a card does not hold a slice, with what to do; "" if it does."""
    if card is None or slice_mib <= card.usable_mib:
        return ""
    return (
        f"no {card.name} holds a slice of {slice_mib:,} MiB, for it has {card.usable_mib:,}: raise --tp, quantize, "
        f"serve less at a time, or take another --card; --slice-mib {card.usable_mib} says what a whole one holds"
    )


def _slice_shape(slice_mib: int, card: Card | None, cores: Cores, wish: Wish) -> SliceShape:
    """What the engine meets: all of the card, so that its share is rather too small; the slice, if none is known."""
    whole = slice_mib if card is None else card.memory_mib
    return SliceShape(slice_mib, whole, cores.pct, slice_mib if wish.isolation in SEES_SLICE else whole)


def _kv_flag(wish: Wish) -> str | None:
    return None if wish.kv_dtype == "auto" else wish.kv_dtype


def _settings(
    engine: Engine,
    shape: ModelShape,
    load: Load,
    slice_: SliceShape,
    needs: Needs,
    held: Held | Shortage | None,
    wish: Wish,
) -> EngineSettings:
    """The profile's flags, and the one that bounds a step: else activations follow the card, not the slice."""
    if isinstance(held, Shortage):
        return EngineSettings((), (), (), refusal=held)
    told = flags_for(engine.name, slice_, None if shape.kind is Kind.ENCODER else needs)
    if told.refusal is not None or not engine.step_flag or shape.kind is not Kind.GENERATOR:
        return told
    tokens = wish.step_tokens or max(engine.step_tokens, load.sequences)
    divided = budget(slice_, needs)
    if engine.name in STEP_IN_POOL and not isinstance(divided, Shortage):
        tokens = min(tokens, divided.tokens)
    return replace(told, args=(*told.args, f"{engine.step_flag}={tokens}"))


def _grid(
    model: Model, form: Format, engine: Engine, load: Load, table: Overheads, margin: float, stated: int | None
) -> tuple[Cell, ...]:
    """The slice at shorter and longer contexts and at fewer and more sequences."""
    cells = []
    for context in around(load.context, model.shape.context):
        for sequences in around(load.sequences, None):
            at = replace(load, context=context, sequences=sequences, live_tokens=_live(load, context))
            memory = memory_of(model.shape, form, engine, at, table, weights_bytes=stated)
            cells.append(Cell(context, sequences, ask_for(memory, margin).memory_mib))
    return tuple(cells)


def _live(load: Load, context: int) -> int | None:
    return None if load.live_tokens is None else min(load.live_tokens, context)


def _notes(shape: ModelShape, form: Format, wish: Wish, load: Load, card: Card | None) -> Sequence[str]:
    notes = []
    if shape.kind is Kind.GENERATOR and load.live_tokens is None:
        notes.append(
            "the KV cache holds every sequence at its longest; if yours are shorter, --live-tokens says the 95th "
            "percentile of tokens that one holds at a time"
        )
    if wish.card is None:
        which = f", of the smallest card that holds it ({card.name})" if card is not None else ""
        notes.append(f"no --card was given: overheads are those of the generation {load.generation}{which}")
    if form.name in PREPARED and shape.quantization != form.name:
        notes.append(f"{form.name} needs a checkpoint that was prepared so: engines do not make it from other weights")
    if card is None:
        notes.append("no known card holds this slice: raise --tp, quantize, or serve less at a time")
    return notes
