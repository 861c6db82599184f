"""How results are shown: numbers as short as they are true, tables as the other benchmarks print them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

CONSOLE = Console(width=132, markup=False, emoji=False)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> None:
    """Print a table and what has to be said of it. Columns with a leading ``<`` are words."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column.lstrip("<"), justify="left" if column.startswith("<") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    CONSOLE.print(title, style="bold", soft_wrap=True)  # a table's own title is folded to its width
    CONSOLE.print(table)
    for note in notes:
        CONSOLE.print(f"  {note}", soft_wrap=True)
    CONSOLE.print()


def doing(what: str) -> None:
    """A line about what is measured now, for who waits."""
    CONSOLE.print(f"  … {what}", style="dim")


def number(value: float, digits: int = 0) -> str:
    """Or a dash where there is none."""
    return f"{value:,.{digits}f}" if math.isfinite(value) else "–"


def ms(value: float) -> str:
    """Milliseconds: three figures, and two places at most."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def times(value: float, base: float) -> str:
    """How many times the base."""
    return f"{value / base:.2f} ×" if base > 0 and math.isfinite(value) else "–"


def percent(part: float, whole: float) -> str:
    """A share of a whole that may be nothing."""
    return f"{100 * part / whole:.1f} %" if whole > 0 and math.isfinite(part) else "–"
