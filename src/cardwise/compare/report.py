"""A comparison in the terminal: the four groups, and what it comes to. Refuses to say what the JSON does not."""

from __future__ import annotations

from rich import box
from rich.console import Group as Together
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cardwise.core.comparison.verdict import Comparison, Group
from cardwise.core.comparison.words import overall_sentence


def render_comparison(comparison: Comparison) -> RenderableType:
    """The four groups, and what it comes to."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_lines=False)
    for name in ("group", "after is", "because"):
        table.add_column(name, no_wrap=name != "because")
    for each in comparison.groups:
        table.add_row(each.name, Text(each.verdict.value, style=_style(each)), _told(each))
    notes = [Text(f"note: {note}", style="dim") for note in comparison.notes]
    return Together(table, Text(legend_of(comparison), style="dim"), Text(overall_sentence(comparison)), *notes)


def legend_of(comparison: Comparison) -> str:
    """What the intervals are."""
    drawn = f"{comparison.resamples:,} redraws of parts of the time, seed {comparison.seed}"
    sure = f"{100 * comparison.confidence:g} % confidence"
    return f"in brackets: the change, and where the true one lies, with {sure} for all figures together ({drawn})"


def _told(group: Group) -> RenderableType:
    """A mark before each figure, so that one that takes two lines is seen to be one."""
    lines = Table.grid(padding=(0, 1, 0, 0))
    for line in group.told:
        lines.add_row("·", Text(line))
    return lines


def _style(group: Group) -> str:
    return {"worse": "bold red", "better": "bold green"}.get(group.verdict.value, "")
