"""A plan as people read it, and as one JSON object: every component with its formula and its source.

Refuses to round away what decides: MiB are whole, ranges stand beside what is likely, and what is unknown says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cardwise.core.capacity.engines.budget import Shortage, mib_up
from cardwise.core.capacity.memory import KV_CACHE, WEIGHTS, Component
from cardwise.core.capacity.slices import Fit, Held
from cardwise.files import plain
from cardwise.plan.planner import Plan


def render(plan: Plan) -> RenderableType:
    """Table of components, the answer in lines, cards, grid, notes."""
    return Group(
        Text(_headline(plan), style="bold"),
        _components(plan),
        *(Text(line) for line in _answer(plan)),
        Text(""),
        _cards(plan.fits),
        _grid(plan),
        *(Text(f"note: {note}", style="dim") for note in (*plan.notes, *plan.settings.notes)),
    )


def _headline(plan: Plan) -> str:
    shape = plan.model.shape
    cards = "one card" if plan.load.tp == 1 else f"each of {plan.load.tp} cards"
    return (
        f"{plain(plan.model.name)}: {_count(shape.parameters)} parameters in {plan.form.name}, {shape.attends}; "
        f"{plan.load.sequences} sequences of {plan.load.context:,} tokens on {plan.engine.name}, {cards}"
    )


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:,.2f} billion" if parameters >= 1e9 else f"{parameters / 1e6:,.1f} million"


def mib(amount_bytes: int) -> str:
    """Whole MiB, up."""
    return f"{mib_up(amount_bytes):,}"


def _components(plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("component", "MiB", "range", "how"):
        table.add_column(name, justify="right" if name in {"MiB", "range"} else "left")
    for each in plan.memory.components:
        table.add_row(each.name, mib(each.likely), _range(each), Text(each.formula, overflow="fold"))
    spread = f"{mib(plan.memory.low)}–{mib(plan.memory.high)}"
    table.add_row("sum", mib(plan.memory.likely), spread, "", style="bold")
    return table


def _range(each: Component) -> str:
    return "exact" if each.exact else f"{mib(each.low)}–{mib(each.high)}"


def _answer(plan: Plan) -> Iterable[str]:
    ask = plan.ask
    yield f"slice        {ask.memory_mib:,} MiB of a card: the sum × {ask.margin:g}, or what the engine's margin needs"
    if plan.check is not None:
        yield f"given        {_check(plan.check)}"
    yield f"compute      {plan.cores.pct} % of a card: {plan.cores.why}"
    yield f"replicas     {plan.replicas.count}: {plan.replicas.why}"
    if plan.kv_per_token:
        yield f"KV cache     {plan.kv_per_token:,} bytes a token; {mib(plan.full_kv_bytes)} MiB for longest × sequences"
        if plan.live_kv_bytes is not None:
            live = f"{mib(plan.live_kv_bytes)} MiB for {plan.load.live_tokens:,} live tokens each"
            yield f"             {live}, which the slice is for"
    if not plan.refused:
        flags = " ".join(plan.settings.args) or "none"
        yield f"{plan.engine.name:12} {flags}"
        if plan.settings.env:
            yield f"             {' '.join(f'{key}={value}' for key, value in plan.settings.env)}"
        yield from (f"             {line}" for line in plan.settings.snippet.splitlines())


def _check(held: Held | Shortage) -> str:
    if isinstance(held, Shortage):
        return f"refused: {held.text}"
    if not held.cut:
        return f"{held.slice_mib:,} MiB hold all of it"
    over = f", {held.over_mib:,} MiB over" if held.over_mib else ""
    return (
        f"{held.slice_mib:,} MiB hold {held.tokens:,} tokens of KV cache, {held.sequences} longest sequences; what was "
        f"asked for does not fit{over}"
    )


def _cards(fits: tuple[Fit, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("card", "usable MiB", "slices by memory", "to read it all once"):
        table.add_column(name, justify="left" if name == "card" else "right")
    for fit in sorted(fits, key=lambda each: each.card.usable_mib):
        holds = str(fit.by_memory) if fit.by_memory else "–"
        style = "" if fit.by_memory else "dim"
        reading = f"{fit.step_ms:.1f} ms" if fit.by_memory else "–"
        table.add_row(fit.card.name, f"{fit.card.usable_mib:,}", holds, reading, style=style)
    return table


def _grid(plan: Plan) -> Table:
    columns = sorted({cell.sequences for cell in plan.grid})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("slice, MiB; context")
    for count in columns:
        table.add_column(f"{count} at a time", justify="right")
    found = {(cell.context, cell.sequences): cell.slice_mib for cell in plan.grid}
    for context in sorted({cell.context for cell in plan.grid}):
        here = context == plan.load.context
        cells = [f"{found[context, count]:,}" for count in columns]
        table.add_row(f"{context:,}", *cells, style="bold" if here else "")
    return table


# ---------------------------------------------------------------- JSON


def told(plan: Plan) -> dict[str, Any]:
    """One object. docs/howto/size-a-model.md says what its fields mean."""
    shape = plan.model.shape
    return {
        "model": plan.model.name,
        "architecture": shape.architecture,
        "parameters": shape.parameters,
        "attention": shape.attends,
        "format": plan.form.name,
        "engine": plan.engine.name,
        "context": plan.load.context,
        "sequences": plan.load.sequences,
        "live_tokens": plan.load.live_tokens,
        "tp": plan.load.tp,
        "weights_bytes": plan.memory.of(WEIGHTS),
        "kv_cache_bytes": plan.memory.of(KV_CACHE),
        "kv_bytes_per_token": plan.kv_per_token,
        "kv_cache_full_bytes": plan.full_kv_bytes,
        "kv_cache_live_bytes": plan.live_kv_bytes,
        "total_bytes": {"likely": plan.memory.likely, "low": plan.memory.low, "high": plan.memory.high},
        "margin": plan.ask.margin,
        "slice_mib": plan.slice_mib,
        "slice_wanted_mib": plan.ask.memory_mib,
        "cores_pct": plan.cores.pct,
        "cores_known": plan.cores.known,
        "cores_why": plan.cores.why,
        "replicas": plan.replicas.count,
        "replicas_known": plan.replicas.known,
        "replicas_why": plan.replicas.why,
        "engine_flags": list(plan.settings.args),
        "engine_env": dict(plan.settings.env),
        "engine_snippet": plan.settings.snippet,
        "components": [_told_component(each) for each in plan.memory.components],
        "given": None if plan.check is None else _told_check(plan.check),
        "cards": [_told_fit(fit) for fit in plan.fits],
        "grid": [
            {"context": cell.context, "sequences": cell.sequences, "slice_mib": cell.slice_mib} for cell in plan.grid
        ],
        "notes": [*plan.notes, *plan.settings.notes],
    }


def _told_component(each: Component) -> dict[str, Any]:
    return {
        "name": each.name,
        "bytes": each.likely,
        "low": each.low,
        "high": each.high,
        "exact": each.exact,
        "formula": each.formula,
        "source": each.source,
    }


def _told_check(held: Held | Shortage) -> dict[str, Any]:
    if isinstance(held, Shortage):
        return {
            "slice_mib": held.slice_mib,
            "holds": False,
            "fixed_mib": held.fixed_mib,
            "kv_room_mib": held.kv_room_mib,
            "kv_least_mib": held.kv_least_mib,
            "margin_mib": held.margin_mib,
            "over_mib": held.over_mib,
            "text": held.text,
        }
    return {
        "slice_mib": held.slice_mib,
        "holds": True,
        "cut": held.cut,
        "kv_cache_bytes": held.kv_bytes,
        "kv_cache_tokens": held.tokens,
        "sequences": held.sequences,
        "over_mib": held.over_mib,
    }


def _told_fit(fit: Fit) -> dict[str, Any]:
    return {
        "card": fit.card.name,
        "generation": fit.card.generation,
        "usable_mib": fit.card.usable_mib,
        "slices": fit.by_memory,
        "step_at_least_ms": round(fit.step_ms, 3) if fit.by_memory else None,
    }
