"""The planner's tables: overheads, engines, number formats and cards, as TOML that comes along, under the user's rows.

Every amount in them has a source; refuses a row that has none, or whose range is no range.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from cardwise.adapters.inventory import known_card_mib
from cardwise.core.capacity.memory import Engine, Format, Overheads, Range
from cardwise.core.capacity.slices import Card
from cardwise.errors import InputError
from cardwise.files import read_toml

DATA = resources.files("cardwise.plan") / "data"
RESERVED_MIB = 640
"""What a driver keeps of a card where it was not seen: see data/cards.toml."""
OVERHEADS = "a TOML file with rows as src/cardwise/plan/data/overheads.toml has them"
CARDS = "a TOML file with cards: [NAME], and generation, memory_mib and gbs below it (docs/howto/size-a-model.md)"


class _Card(msgspec.Struct, forbid_unknown_fields=True):
    generation: str
    memory_mib: int
    gbs: float
    reserved_mib: int = RESERVED_MIB


@dataclass(frozen=True, slots=True)
class Tables:
    """All of them."""

    overheads: Overheads
    engines: Mapping[str, Engine]
    formats: Mapping[str, Format]
    cards: Mapping[str, Card]


def tables(overheads: Path | None = None, cards: Path | None = None) -> Tables:
    """The tables, with the rows of the user's files over them. Raises InputError that names the row at fault."""
    rows = _merged(_own("overheads.toml"), {} if overheads is None else read_toml(overheads, OVERHEADS))
    more = {} if cards is None else read_toml(cards, CARDS)
    where = str(overheads) if overheads is not None else "overheads.toml"
    known = {**_own("cards.toml"), **more}
    return Tables(
        overheads=_overheads(rows, where),
        engines={name: _engine(name, row) for name, row in _own("engines.toml").items()},
        formats={name: Format(name, **row) for name, row in _own("formats.toml").items()},
        cards={name: _card(name, row, str(cards or "cards.toml")) for name, row in known.items()},
    )


def _own(name: str) -> dict[str, Any]:
    return tomllib.loads((DATA / name).read_text(encoding="utf-8"))


def _engine(name: str, row: Mapping[str, Any]) -> Engine:
    """A row of ours: a key that is none, or that lacks, is a TypeError; a value of another type a ValidationError."""
    return msgspec.convert(asdict(Engine(name, **row)), Engine)


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Rows of the second over those of the first, one by one also within a part."""
    return base | {
        key: _merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in over.items()
    }


SINGLE = ("mps_context_share", "graph_mib", "nccl_mib", "logits", "activations", "margin")
"""Rows that are a range each, not one per generation of cards."""


def _overheads(rows: Mapping[str, Any], where: str) -> Overheads:
    unknown = sorted(set(rows) - {*SINGLE, "context_mib", "workspace_mib"})
    if unknown:
        raise InputError(where, f"is no row of this table; give {OVERHEADS}", field=unknown[0])
    by_generation = {
        key: {name: _range(row, where, f"{key}.{name}") for name, row in rows[key].items()}
        for key in ("context_mib", "workspace_mib")
    }
    lacking = sorted(set(by_generation["context_mib"]) ^ set(by_generation["workspace_mib"]))
    if lacking:
        raise InputError(where, "stands in only one of context_mib and workspace_mib; write both", field=lacking[0])
    return Overheads(
        context_mib=by_generation["context_mib"],
        workspace_mib=by_generation["workspace_mib"],
        **{key: _range(rows[key], where, key) for key in SINGLE},
    )


def _range(row: object, where: str, field: str) -> Range:
    try:
        found = msgspec.convert(row, Range)
    except msgspec.ValidationError as error:
        raise InputError(where, f"{error}; write likely, low, high and source", field=field) from error
    if not 0 <= found.low <= found.likely <= found.high or not found.source.strip():
        raise InputError(where, "must have 0 ≤ low ≤ likely ≤ high, and a source", field=field)
    return found


def _card(name: str, row: object, where: str) -> Card:
    if isinstance(row, dict) and (memory_mib := known_card_mib(name)):
        row = {"memory_mib": memory_mib} | row
    try:
        found = msgspec.convert(row, _Card)
    except msgspec.ValidationError as error:
        raise InputError(where, f"{error}; give {CARDS}", field=name) from error
    usable = found.memory_mib - found.reserved_mib
    if not (usable > 0 and found.reserved_mib >= 0 and found.gbs > 0):
        raise InputError(where, "must have memory_mib above reserved_mib, and gbs above 0", field=name)
    return Card(name, found.generation, found.memory_mib, usable, found.gbs)
