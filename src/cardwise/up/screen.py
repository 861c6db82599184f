"""The terminal's view of the state: cards as bars, who is on them, and the pods that wait, with why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cardwise.files import plain
from cardwise.up.state import State

BAR = 24
"""Cells of a bar: one of them is 1 GiB on a 24 GiB card."""
COLOURS = ("cyan", "magenta", "green", "blue", "yellow", "red", "bright_cyan", "bright_magenta", "bright_green")
FILLS = ("█", "▓")
"""Neighbours on a card differ in their fill, so that slices are told apart without colour."""
MOST_BY_CARD = 64
"""So many cards are shown one by one; beyond that a line is a node."""


def render(state: State, *, most_by_card: int = MOST_BY_CARD) -> RenderableType:
    """All of the state."""
    colours = _colours(state)
    by_card = state["summary"]["cards"] <= most_by_card
    parts: list[RenderableType] = [_cards(state, colours) if by_card else _nodes(state, colours)]
    if state["pending"]:
        parts.append(_pending(state["pending"]))
    parts += [_denied(each) for each in state["denied"]]
    parts += _notes(state["notes"])
    if state.get("problem"):
        problem = plain(f"the files cannot be used, shown is the state before: {state['problem']}")
        parts.append(Text(problem, style="bold red"))
    return Group(*parts, Text(sentence(state["summary"]), style="bold"))


def sentence(summary: Mapping[str, Any]) -> str:
    """The sums in one line."""
    parts = [
        f"{summary['cards_used']} of {_count(summary['cards'], 'card')} used",
        f"{_count(summary['slices'], 'slice')} placed",
        _count(summary["cards_whole"], "whole card"),
        f"{_count(summary['pods_placed'], 'pod')} placed",
        f"{summary['pods_pending']} pending",
    ]
    if summary["pods_denied"]:
        parts.append(f"{summary['pods_denied']} denied")
    return ", ".join(parts)


def render_comparison(rows: Sequence[Mapping[str, Any]], notes: Iterable[str] = ()) -> RenderableType:
    """One line per contender, what was assumed, and what it means."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("cards used", "pods placed", "pods pending", "memory allocated"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        share = row["memory_allocated_mib"] / max(row["memory_total_mib"], 1)
        used = f"{row['cards_used']} of {row['cards']}"
        table.add_row(row["name"], used, str(row["pods_placed"]), str(row["pods_pending"]), f"{share:.0%}")
    legend = [Text(f"{row['name']}: {_policies(row['policy'])}", style="dim") for row in rows]
    return Group(table, *legend, *_notes(notes), Text(meaning(rows), style="bold"))


def meaning(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the comparison says, in a sentence."""
    first, best = rows[0], min(rows[1:], key=lambda row: (-row["pods_placed"], row["cards_used"]))
    return (
        f"{first['name']} places {_count(first['pods_placed'], 'pod')} on {_count(first['cards_used'], 'card')} and "
        f"leaves {first['pods_pending']} pending; {best['name']} places {best['pods_placed']} on "
        f"{best['cards_used']} and leaves {best['pods_pending']}."
    )


# ---------------------------------------------------------------- cards


def _cards(state: State, colours: Mapping[str, str]) -> Table:
    table = _table("node", "card", "model", "memory", "MiB free", "compute", "pods")
    for node in state["nodes"]:
        for place, card in enumerate(node["cards"]):
            first = Text(node["name"] if not place else "")
            if node["fenced"] and not place:
                first.append(" (fenced)", style="red")
            used_pct = f"{100 - card['compute_free_pct']:.0f} %"
            free = f"{card['memory_free_mib']:,}"
            who = _services(card["slices"], colours)
            table.add_row(first, str(place), Text(plain(card["model"])), _bar(card, colours), free, used_pct, who)
        if not node["cards"]:
            table.add_row(node["name"], "–", "", "", "", "", "no cards")
    return table


def _nodes(state: State, colours: Mapping[str, str]) -> Table:
    table = _table("node", "cards", "used", "MiB free", "pods")
    for node in state["nodes"]:
        cards = node["cards"]
        slices = [each for card in cards for each in card["slices"]]
        used = sum(bool(card["slices"]) for card in cards)
        free = f"{sum(card['memory_free_mib'] for card in cards):,}"
        table.add_row(node["name"], str(len(cards)), str(used), free, _services(slices, colours))
    return table


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        right = name in {"card", "cards", "used", "MiB free", "compute"}
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "pods")
    return table


def _bar(card: Mapping[str, Any], colours: Mapping[str, str]) -> Text:
    """Memory as cells; a slice has at least one, and what is left is dots."""
    bar, taken_mib, cells = Text(), 0, 0
    for i, held in enumerate(card["slices"]):
        taken_mib += held["memory_mib"]
        end = min(max(round(BAR * taken_mib / card["memory_total_mib"]), cells + 1), BAR)
        bar.append(FILLS[i % len(FILLS)] * (end - cells), style=colours[held["service"]])
        cells = end
    return bar.append("·" * (BAR - cells), style="dim")


def _services(slices: Iterable[Mapping[str, Any]], colours: Mapping[str, str]) -> Text:
    counts = Counter(each["service"] for each in slices)
    text = Text()
    for service, count in counts.items():
        text.append(", " if text else "")
        text.append(_short(service) + (f" ×{count}" if count > 1 else ""), style=colours[service])
    return text


def _colours(state: State) -> dict[str, str]:
    slices = [each for node in state["nodes"] for card in node["cards"] for each in card["slices"]]
    services = sorted({each["service"] for each in slices})
    return {service: COLOURS[i % len(COLOURS)] for i, service in enumerate(services)}


# ---------------------------------------------------------------- pods that wait


def _pending(pending: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Pods of one service that wait for one reason are told once."""
    groups: dict[tuple[str, ...], int] = {}
    for each in pending:
        key = (each["service"], each["asks"], each["why"], each["detail"], each["advice"])
        groups[key] = groups.get(key, 0) + 1
    lines = [Text("Pending", style="bold yellow")]
    for (service, asks, why, detail, advice), count in groups.items():
        what = plain(f" asks for {asks}: {why}")
        lines.append(Text.assemble("  ", (f"{_short(service)} ×{count}", "yellow"), what))
        lines += [Text(plain(f"    {text}"), style="dim") for text in (detail, advice) if text]
    return Group(*lines, Text())


def _denied(denied: Mapping[str, Any]) -> Text:
    head = f"Denied by the webhook: {denied['workload']} ({denied['where']}): "
    return Text.assemble((plain(head), "bold red"), plain(denied["why"]))


def _notes(notes: Iterable[str]) -> list[Text]:
    return [Text(plain(f"note: {note}"), style="dim") for note in notes]


def _policies(policy: Mapping[str, str]) -> str:
    names = set(policy.values())
    if len(names) == 1:
        return f"policy {names.pop()}"
    return "policy " + ", ".join(f"{name} for {latency}" for latency, name in policy.items())


def _short(service: str) -> str:
    return service.removeprefix("default/")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
