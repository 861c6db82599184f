"""Our components beside what engines said that they took: rows of public logs, and what we count for the same.

Refuses to leave out a row because it is off: such a row says so, and why.
"""

from __future__ import annotations

import tomllib

import msgspec

from cardwise.core.capacity.memory import (
    ACTIVATIONS,
    CONTEXT,
    KV_CACHE,
    NCCL,
    WEIGHTS,
    WORKSPACE,
    Load,
    Memory,
    memory_of,
)
from cardwise.plan.catalogue import find_model
from cardwise.plan.tables import DATA, Tables

GIB = 2**30
WITHIN = 0.1
"""A component that is closer than this to what was measured is right."""
_PARTS = {
    "weights": (WEIGHTS,),
    "KV cache": (KV_CACHE,),
    "activations": (ACTIVATIONS,),
    "context, workspace and NCCL": (CONTEXT, WORKSPACE, NCCL),
    "all but KV cache and graphs": (WEIGHTS, ACTIVATIONS, CONTEXT, WORKSPACE, NCCL),
}


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reading. gib: of one card."""

    model: str
    format: str
    engine: str
    quantity: str
    gib: float
    seen: str
    source: str
    context: int = 4096
    sequences: int = 1
    step_tokens: int | None = None
    tp: int = 1
    kv_bits: int = 16
    generation: str = "hopper"
    misses: str = ""


class _File(msgspec.Struct):
    row: list[Row]


def rows() -> list[Row]:
    """All readings."""
    return msgspec.convert(tomllib.loads((DATA / "measured.toml").read_text(encoding="utf-8")), _File).row


def ours_gib(row: Row, tables: Tables) -> float:
    """What we count for the same."""
    load = Load(
        context=row.context,
        sequences=row.sequences,
        step_tokens=row.step_tokens,
        tp=row.tp,
        kv_bits=row.kv_bits,
        generation=row.generation,
    )
    shape = find_model(row.model).shape
    memory = memory_of(shape, tables.formats[row.format], tables.engines[row.engine], load, tables.overheads)
    return _sum(memory, _PARTS[row.quantity]) / GIB


def _sum(memory: Memory, names: tuple[str, ...]) -> int:
    return sum(memory.of(name) for name in names)


def off(row: Row, tables: Tables) -> float:
    """By which share ours is above what was measured; below 0 if it is less."""
    return ours_gib(row, tables) / row.gib - 1
