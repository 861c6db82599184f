"""The terminal table of a replay: a line per policy, the best first, and a sentence that says what it means."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cardwise.core.reasons import WORDINGS
from cardwise.replay.outcome import Replayed
from cardwise.replay.verdict import (
    Contender,
    Ground,
    allocated,
    common_ground,
    has_winner,
    headline,
    percent,
    rank,
    refused,
    refused_of,
    refused_reasons,
    unallocated,
)


def render(results: Sequence[Replayed]) -> RenderableType:
    """Means over the seeds. Raises ValueError if the runs cannot be compared."""
    ground = common_ground(results)
    contenders = rank(results, ground)
    table = Table(title=_title(ground), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("policy", "allocated", f"cards {ground.idle_word}", "refused", "mostly for", "p50 ms", "p99 ms"):
        words = name in {"policy", "mostly for"}
        longest = max(map(len, name.split()))
        table.add_column(name, justify="left" if words else "right", no_wrap=words, min_width=longest)
    for each in contenders:
        table.add_row(*_row(each), style="bold green" if each.rank == 0 and has_winner(contenders) else "")
    legend = Text("p50, p99: time to choose a node and cards for one pod", style="dim")
    return Group(table, legend, Text(headline(contenders, ground)))


def _row(each: Contender) -> list[RenderableType]:
    reasons = refused_reasons([each])
    return [
        Text(each.name),  # a user's: as str, brackets in it would be markup
        percent(each.mean(allocated)),
        f"{each.mean(unallocated):,.0f}",
        percent(each.mean(refused)),
        WORDINGS[max(reasons, key=lambda code: refused_of(each, code))].short if reasons else "–",
        f"{each.mean(lambda run: run.decision_us_p50) / 1000:.2f}",
        f"{each.mean(lambda run: run.decision_us_p99) / 1000:.2f}",
    ]


def _title(ground: Ground) -> str:
    seeds = ", ".join(map(str, ground.seeds))
    return f"{ground.cards_total:,} cards, regime {ground.regime}, load {ground.load:.2f}, seeds {seeds}"
