"""The table of ``python -m benchmarks.faults``. Exit code 1 if a claim does not hold; no claim is about time."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.faults.phases import ALL, IDLE, OTHER_FILES
from benchmarks.faults.world import Row, World, raise_limit

OVERHEAD_S = 4.0
"""Of a phase, besides its own time: what is in flight ends, kept connections grow old, replicas return."""
COLUMNS = (
    "phase", "issued", "ok", "refused", "failed", "gone", "wrong", "lost", "twice", "retries", "RSS MiB", "files",
    "rest",
)  # fmt: skip


async def run(world: World, names: Sequence[str], seconds: float, told: Callable[[Row], None]) -> list[Row]:
    """Play these phases, each so long. told: hears of each when it is over."""
    rows = []
    try:
        await world.start()
        for name in names:
            rows.append(await world.play(name, ALL[name], seconds))
            told(rows[-1])
    finally:
        await world.end()
    return rows


@click.command()
@click.option("--minutes", default=3.5, show_default=True, help="For all phases together, about.")
@click.option("--only", multiple=True, type=click.Choice(list(ALL)), help="This phase; may be given several times.")
def main(minutes: float, only: tuple[str, ...]) -> None:
    """Play all phases and print a row for each."""
    names = only or tuple(ALL)
    seconds = max(60 * minutes / len(names) - OVERHEAD_S, 3.0)
    files = raise_limit(IDLE + OTHER_FILES)
    print(f"{len(names)} phases of {seconds:.0f} s and their rest; {files:,} open files allowed", flush=True)
    with tempfile.TemporaryDirectory(prefix="cardwise-faults-") as folder:
        rows = asyncio.run(run(World(Path(folder)), names, seconds, _tell))
    Console(width=150).print(_table(rows))
    print(_growth(rows))
    failed = [f"{row.name}: {fault}" for row in rows for fault in row.faults]
    print("\n".join(["", "NOT HELD:", *failed]) if failed else "\nEvery claim holds.")
    sys.exit(1 if failed else 0)


def _tell(row: Row) -> None:
    told = ", ".join(f"{what} ×{number}" for what, number in row.count.told.most_common(7))
    print(f"{row.name} ({row.seconds:.1f} s): {told or 'all 200'}", flush=True)
    for note in (*row.notes, *row.count.notes, *(f"NOT HELD: {fault}" for fault in row.faults)):
        print(f"    {note}", flush=True)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "phase" else "right")
    for row in rows:
        count, (before, after) = row.count, row.rss_mib
        table.add_row(
            row.name,
            *(f"{each:,}" for each in (count.issued, count.ok, count.refused, count.failed, count.gone)),
            str(count.wrong + count.surplus), str(row.lost), str(row.doubles),
            f"{row.retries} ({row.retries / max(count.issued, 1):.1%})",
            f"{before:.1f} → {after:.1f}", str(row.fds),
            "no" if any(fault.startswith("not at rest") for fault in row.faults) else "yes",
        )  # fmt: skip
    return table


def _growth(rows: Sequence[Row]) -> str:
    """Memory from the phase that left most of it on, and the line through the phases' ends."""
    rises = [after - before for before, after in (row.rss_mib for row in rows)]
    since = rises.index(max(rises))
    later = rows[since:]
    ends_min = np.cumsum([row.seconds for row in later]) / 60
    held_mib = np.array([row.rss_mib[1] for row in later])
    slope = np.polyfit(ends_min, held_mib, 1)[0] if len(later) > 2 else 0.0
    minutes, requests = ends_min[-1] - ends_min[0], sum(row.count.issued for row in later[1:])
    return (
        f"The gateway's memory: {rows[0].rss_mib[0]:.1f} MiB at the start, {held_mib[0]:.1f} after {later[0].name!r}, "
        f"{held_mib[-1]:.1f} at the end: {slope:+.2f} MiB a minute over the last {minutes:.1f} minutes and "
        f"{requests:,} requests."
    )


if __name__ == "__main__":
    main()
