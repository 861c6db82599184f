"""From components to a slice: MiB and percent of a card to ask for, cards that hold it, and what a given slice holds.

Refuses to let a service start and die: a slice too small for its KV cache is told how many tokens are left, and one too
small for a single sequence is refused with the numbers (case C37). The share of compute follows from a measured curve;
without one it is said to be unknown, and a default is named as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from cardwise.core.capacity.engines.budget import (
    MARGIN_LEAST_MIB,
    MARGIN_SHARE,
    Budget,
    Needs,
    Shortage,
    SliceShape,
    budget,
    mib_up,
)
from cardwise.core.capacity.memory import (
    ACTIVATIONS,
    CONTEXT,
    GRAPHS,
    KV_CACHE,
    LORA,
    MIB,
    NCCL,
    WEIGHTS,
    WORKSPACE,
    Engine,
    Load,
    Memory,
    kv_bytes,
    kv_tokens,
)
from cardwise.core.capacity.shape import ModelShape

CORES_STEP_PCT, CORES_LEAST_PCT = 5, 10
"""Shares of compute are asked for in steps, and not below what a card's smallest useful slice is."""


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of card. memory_mib: in all; usable_mib: what CUDA sees of it. gbs: memory bandwidth, GB/s."""

    name: str
    generation: str
    memory_mib: int
    usable_mib: int
    gbs: float


@dataclass(frozen=True, slots=True)
class Ask:
    """The slice of *each* card. margin: all components times it.

    least_mib: the components at their least, without a margin; most_mib: at their most.
    """

    memory_mib: int
    margin: float
    least_mib: int
    most_mib: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A card and the slice. by_memory: so many of it, or 0. step_ms: to read weights and KV cache once."""

    card: Card
    by_memory: int
    step_ms: float


@dataclass(frozen=True, slots=True)
class Cores:
    """The share of compute to ask for. ``known``: from a measured curve; else ``why`` says what stands in for it."""

    pct: int
    known: bool
    why: str


@dataclass(frozen=True, slots=True)
class Held:
    """What a given slice holds. tokens: of KV cache in all; sequences: of the longest at a time; cut: not all."""

    slice_mib: int
    kv_bytes: int
    tokens: int
    sequences: int
    over_mib: int
    cut: bool


def ask_for(memory: Memory, margin: float) -> Ask:
    """The slice for these components: all of them times the margin, and never less than the engine's flags then leave.

    Raises ValueError if the margin is below 1.
    """
    if not 1 <= margin < math.inf:
        raise ValueError(f"margin is {margin:g}, must be 1 or more")
    wanted = max(math.ceil(memory.likely * margin / MIB), _with_engine_margin(memory.likely))
    return Ask(wanted, margin, mib_up(memory.low), mib_up(memory.high))


def _with_engine_margin(used_bytes: int) -> int:
    """The smallest slice that leaves so many bytes beside the margin that engine profiles keep.

    Solved, not searched: w - ⌈w · share⌉ = ⌊w · (1 - share)⌋ is at least ``used`` from w = ⌈used / (1 - share)⌉ on.
    """
    used = mib_up(used_bytes)
    return max(used + MARGIN_LEAST_MIB, math.ceil(used / (1 - MARGIN_SHARE)))


def needs_of(memory: Memory, load: Load, *, kv_dtype: str | None, quantization: str | None) -> Needs:
    """The components as engine profiles take them: what lies outside the engine's own count is the context's."""
    return Needs(
        weights_bytes=memory.of(WEIGHTS) + memory.of(LORA),
        kv_bytes=memory.of(KV_CACHE),
        activation_bytes=memory.of(ACTIVATIONS),
        graph_bytes=memory.of(GRAPHS),
        context_bytes=memory.of(CONTEXT) + memory.of(WORKSPACE) + memory.of(NCCL),
        max_context=load.context,
        max_sequences=load.sequences,
        tp=load.tp,
        kv_dtype=kv_dtype,
        quantization=quantization,
        kv_tokens=None if load.live_tokens is None else max(load.context, load.live_tokens * load.sequences),
    )


def check(
    shape: ModelShape, engine: Engine, load: Load, needs: Needs, slice_: SliceShape, reserve_mib: int | None = None
) -> Held | Shortage:
    """What a given slice holds of a load: all, fewer tokens, or a refusal with the numbers.

    reserve_mib: kept free instead of the engine's margin. Source: case C37.
    """
    least = kv_bytes(shape, engine, replace(load, sequences=1))
    divided = budget(slice_, needs, reserve_mib)
    if isinstance(divided, Shortage):
        return divided
    if needs.kv_bytes and divided.kv_bytes < least:
        room = divided.kv_bytes // MIB
        fixed = mib_up(needs.fixed_bytes)
        return Shortage(slice_.memory_mib, divided.margin_mib, fixed, room, mib_up(least), divided.over_mib)
    return _held(shape, engine, load, slice_, divided)


def _held(shape: ModelShape, engine: Engine, load: Load, slice_: SliceShape, divided: Budget) -> Held:
    tokens = kv_tokens(shape, engine, load, divided.kv_bytes)
    sequences = _longest(shape, engine, load, divided.kv_bytes)
    return Held(slice_.memory_mib, divided.kv_bytes, tokens, sequences, divided.over_mib, divided.cut)


def _longest(shape: ModelShape, engine: Engine, load: Load, room_bytes: int) -> int:
    """How many sequences of the longest kind a KV cache holds; no more than are wanted. One is known to fit."""
    fits_already, too_many = 1, load.sequences + 1
    while too_many - fits_already > 1:
        tried = (fits_already + too_many) // 2
        if kv_bytes(shape, engine, replace(load, sequences=tried)) <= room_bytes:
            fits_already = tried
        else:
            too_many = tried
    return fits_already


def fits(cards: Iterable[Card], memory: Memory, slice_mib: int) -> tuple[Fit, ...]:
    """How many such slices each kind of card holds by memory, and what a step of decoding takes at least.

    Each step reads all weights and all KV cache that is used once: bytes over bandwidth. Source: arXiv:2211.05102,
    section 2.
    """
    read = memory.of(WEIGHTS) + memory.of(KV_CACHE)
    return tuple(Fit(card, card.usable_mib // slice_mib, 1000 * read / (card.gbs * 1e9)) for card in cards)


def cores_of(slice_mib: int, card: Card | None, measured_pct: int | None) -> Cores:
    """The share of compute to ask for.

    measured_pct: from a curve, see :mod:`cardwise.core.capacity.replicas`. Without one, as large a share of the compute
    as the slice has of the memory, so that what is left of a card can be used; all of it where the card is unknown.
    """
    if measured_pct is not None:
        return Cores(measured_pct, known=True, why="from the load test's curve")
    if card is None:
        return Cores(100, known=False, why="unknown without a load test's curve; without a card 100 % is written")
    share = 100 * slice_mib / card.usable_mib
    pct = min(100, max(CORES_LEAST_PCT, math.ceil(share / CORES_STEP_PCT) * CORES_STEP_PCT))
    return Cores(
        pct, known=False, why=f"unknown without a load test's curve; its share of the {card.name}'s memory is written"
    )


def around(amount: int, most: int | None) -> tuple[int, ...]:
    """Halves and doubles of an amount, within 1 and the most: the axis of a grid."""
    near = sorted({max(1, amount // 4), max(1, amount // 2), amount, amount * 2, amount * 4})
    return tuple(each for each in near if most is None or each <= most)


def choose_card(cards: Iterable[Card], slice_mib_of: Callable[[Card], int]) -> Card | None:
    """The smallest card that holds the slice: as large as it must be on that card, for overheads differ."""
    holding = (card for card in cards if slice_mib_of(card) <= card.usable_mib)
    return min(holding, key=lambda card: card.usable_mib, default=None)
