"""The planner's reference page, made from its tables: what engines measured beside ours, overheads, models, cards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cardwise.core.capacity.memory import Overheads, Range
from cardwise.plan.catalogue import entry, find_model, names
from cardwise.plan.measured import off, ours_gib, rows
from cardwise.plan.tables import SINGLE, Tables, tables


def page() -> str:
    """Markdown."""
    found = tables()
    return "\n".join(
        [
            "# Capacity: measured, counted, assumed",
            "",
            "Made from the tables in `src/cardwise/plan/`, so that it cannot differ from them.",
            "",
            "## What engines measured, and what we count",
            "",
            "GiB of one card. A component is right if it is within a tenth; those that are not say why.",
            "",
            *_table(("model", "component", "measured", "ours", "off", "with", "source"), _measured(found)),
            "",
            *(f"- {row.model}, {row.quantity}, {row.seen}: {row.misses}." for row in rows() if row.misses),
            "",
            "## Overheads",
            "",
            "MiB, unless it is a factor. `cardwise plan --overheads FILE` replaces rows.",
            "",
            *_table(("row", "likely", "low", "high", "source"), _overheads(found.overheads)),
            "",
            "## Number formats",
            "",
            *_table(
                ("name", "bits", "of the rest", "source"),
                ((each.name, f"{each.bits:g}", f"{each.kept_bits:g}", each.source) for each in found.formats.values()),
            ),
            "",
            "## Models known by name",
            "",
            "Parameters as counted from the configuration, and as published.",
            "",
            *_table(("name", "counted", "published", "attention", "context", "configuration"), _models()),
            "",
            "## Cards",
            "",
            *_table(("name", "generation", "MiB", "usable MiB", "GB/s"), _cards(found)),
            "",
        ]
    )


def _table(head: Iterable[str], body: Iterable[Iterable[str]]) -> Iterator[str]:
    cells = list(head)
    yield f"| {' | '.join(cells)} |"
    yield f"|{'---|' * len(cells)}"
    for row in body:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def _measured(found: Tables) -> Iterator[tuple[str, ...]]:
    for row in rows():
        ours, share = ours_gib(row, found), off(row, found)
        yield (
            row.model,
            row.quantity,
            f"{row.gib:.2f}",
            f"{ours:.2f}",
            f"{100 * share:+.1f} %{' ✗' if row.misses else ''}",
            row.seen,
            f"<{row.source}>",
        )


def _overheads(found: Overheads) -> Iterator[tuple[str, ...]]:
    for generation, each in found.context_mib.items():
        yield _row(f"context_mib.{generation}", each)
    for generation, each in found.workspace_mib.items():
        yield _row(f"workspace_mib.{generation}", each)
    for name in SINGLE:
        yield _row(name, getattr(found, name))


def _row(name: str, each: Range) -> tuple[str, ...]:
    return (f"`{name}`", f"{each.likely:g}", f"{each.low:g}", f"{each.high:g}", each.source)


def _models() -> Iterator[tuple[str, ...]]:
    for name in names():
        known, shape = entry(name), find_model(name).shape
        context = f"{shape.context:,}" if shape.context is not None else "–"
        published = f"[{known.published_parameters:,}]({known.published_in})"
        yield (f"`{name}`", f"{shape.parameters:,}", published, shape.attends, context, f"[read]({known.config_from})")


def _cards(found: Tables) -> Iterator[tuple[str, ...]]:
    for card in found.cards.values():
        yield (card.name, card.generation, f"{card.memory_mib:,}", f"{card.usable_mib:,}", f"{card.gbs:,.0f}")
