"""``peers``: throughput and latency of each server at 1 to 128 callers that wait for their answers.

No queue is bounded here, neither theirs nor ours. Ratios are to cardwise at as many callers; a cell on which others
took CPU time (``foreign``) says less, most of all about the peers, which need more of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from benchmarks.serving import ours, table
from benchmarks.serving.cells import Cell, hold
from benchmarks.serving.peers import PEERS, Contestant, Peer, cardwise, peer
from benchmarks.serving.procs import StartError
from benchmarks.serving.venvs import InstallError
from cardwise.errors import UserError
from cardwise.loadtest.plan import Load

CALLERS = (1, 2, 4, 8, 16, 32, 64, 128)
FEW = (1, 8, 64)
WINDOWS_MS = (0.0, 2.0, 5.0, 20.0, 100.0)
GOALS_MS = (100.0, 1000.0, 60_000.0)
"""What is tuned of BentoML, whose batching has no wait but a goal."""
FAULTS = (StartError, InstallError, UserError)
_COLUMNS = (
    "callers",
    "<server",
    "answers/s",
    "× cardwise",
    "p50 ms",
    "p99 ms",
    "× cardwise",
    "cores",
    "foreign",
    "stall ms",
    "not ok",
)


@dataclass(slots=True)
class Row:
    """All cells of one contestant."""

    who: Contestant
    cells: dict[int, Cell]


def run(*, quick: bool) -> None:
    """Measure and print."""
    callers, seconds = (FEW, 1.5) if quick else (CALLERS, 2.0)
    notes: list[str] = []
    mine = _measured(_cardwise(), callers, seconds, notes)
    tuned = [_measured(peer(each, f"{each.tuned_ms:g} ms", each.tuned_ms), callers, seconds, notes) for each in PEERS]
    _show("tuned", callers, [mine, *tuned], notes)
    if quick:
        return
    others = [each for each in PEERS if each.documented_ms != each.tuned_ms]
    given = [
        _measured(peer(each, f"{each.documented_ms:g} ms", each.documented_ms), FEW, seconds, notes) for each in others
    ]
    notes += _best(mine, [*tuned, *given])
    _show("as documented", FEW, [mine, *given], notes)


def _best(mine: Row, others: Sequence[Row]) -> Iterator[str]:
    """Every peer under whichever setting suited it best at that many callers."""
    for count in FEW:
        rates: dict[str, float] = {}
        for row in others:
            if count in row.cells:
                name = row.who.name
                rates[name] = max(rates.get(name, 0.0), row.cells[count].step.ok_per_s)
        if count in mine.cells:
            base = mine.cells[count].step.ok_per_s
            told = ", ".join(f"{name} {table.times(rate, base)}" for name, rate in rates.items())
            yield f"throughput of each under its better setting, of cardwise's, {count} callers: {told}"


def tune() -> None:
    """Print what each peer does under each wait, and the mean by which one is chosen."""
    names = [f"{count} callers" for count in FEW]
    for each in PEERS:
        windows_ms = GOALS_MS if each.name == "BentoML" else WINDOWS_MS
        notes: list[str] = []
        rows = [_tuned(each, window_ms, notes) for window_ms in windows_ms]
        table.show(f"{each.name}, answers/s by wait for a batch", ("ms", *names, "mean", "foreign"), rows, notes)


def _tuned(each: Peer, window_ms: float, notes: list[str]) -> Sequence[str]:
    cells = _measured(peer(each, f"{window_ms:g} ms", window_ms), FEW, 1.5, notes).cells
    rates = [cells[count].step.ok_per_s if count in cells else math.nan for count in FEW]
    mean = geometric_mean(rates) if all(rate > 0 for rate in rates) else math.nan
    foreign = max((cell.used.foreign_cores for cell in cells.values()), default=math.nan)
    return (f"{window_ms:g}", *map(table.number, rates), table.number(mean), table.number(foreign, 2))


def _cardwise() -> Contestant:
    return cardwise("default", **{key.replace("-", "_"): value for key, value in ours.ALL_WAIT.items()})


def _measured(who: Contestant, callers: Sequence[int], seconds: float, notes: list[str]) -> Row:
    """Its cells; what went wrong is noted, and the others go on."""
    row = Row(who, {})
    table.doing(f"{who.name}, {who.setting}: {', '.join(map(str, callers))} callers")
    try:
        with who.start() as up:
            for count in callers:
                row.cells[count] = hold(up.target, Load(concurrency=count), up.servers, seconds=seconds)
    except FAULTS as error:
        notes.append(f"{who.name} ({who.setting}): {error}")
    return row


def _show(what: str, callers: Sequence[int], rows: Sequence[Row], notes: list[str]) -> None:
    title = f"closed loop, batches of {ours.MAX_BATCH} at most, {what}; the card gives {ours.CAPACITY_PER_S:,.0f}/s"
    table.show(title, _COLUMNS, _lines(callers, rows), notes)
    notes.clear()


def _lines(callers: Sequence[int], rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    base: Mapping[int, Cell] = rows[0].cells
    for count in callers:
        for row in rows:
            cell, mine = row.cells.get(count), base.get(count)
            if cell is not None:
                label = str(count) if row is rows[0] else ""
                yield (label, f"{row.who.name}, {row.who.setting}", *_figures(cell, mine))


def _figures(cell: Cell, mine: Cell | None) -> Iterator[str]:
    yield table.number(cell.step.ok_per_s)
    yield table.times(cell.step.ok_per_s, mine.step.ok_per_s if mine else math.nan)
    yield table.ms(cell.p50_ms)
    yield table.ms(cell.p99_ms)
    yield table.times(cell.p99_ms, mine.p99_ms if mine else math.nan)
    yield f"{cell.used.server_cores:.2f}"
    yield f"{cell.used.foreign_cores:.2f}"
    yield table.ms(cell.step.stall_ms)
    yield str(cell.step.issued - cell.step.outcomes.ok)
