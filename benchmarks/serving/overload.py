"""``overload``: independent callers ask for twice what a server, or the card, can do, and give up after two seconds.

What is left of the card's capacity then, who hears at once that there is no place, and whether it is told when to come
again. Every server has its own protection on, where it has one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from benchmarks.serving import ours, table
from benchmarks.serving.cells import TARGET_MS, Cell, hold
from benchmarks.serving.closed_loop import FAULTS
from benchmarks.serving.peers import PEERS, Contestant, Up, cardwise, peer
from benchmarks.serving.procs import answers
from cardwise.loadtest.plan import Load

PATIENCE_S = 2.0
CALLERS = 64
SETTLE_S = 15.0
_COLUMNS = (
    "<server",
    "<asked",
    "per s",
    "ok/s",
    "of card",
    f"≤ {TARGET_MS:g} ms",
    "p99 ok ms",
    "refused",
    "p99 ms",
    "Retry-After",
    "errors",
    "gave up",
    "held",
    "foreign",
)
_SAID = (
    f"of card: answered, of what the card can do; ≤ {TARGET_MS:g} ms: of these, within the target",
    "refused with 429 or 503, and the P99 of the time until they heard it; Retry-After: share of them that are told it",
    "held: not sent by the generator, which has 4,000 requests open at most",
)


def run(*, quick: bool) -> None:
    """Measure and print."""
    seconds = 2.0 if quick else 4.0
    contestants = [cardwise("depth by its target (SPEC D1)")]
    contestants += [peer(each, each.protection, each.documented_ms, bounded=True) for each in PEERS]
    rows: list[Sequence[str]] = []
    notes = [*_SAID, *(f"{each.name}: {each.setting}" for each in contestants)]
    for each in contestants:
        table.doing(f"{each.name}: twice its own capacity, twice the card's")
        try:
            rows += _measured(each, seconds, notes)
        except FAULTS as error:
            notes.append(f"{each.name}: {error}")
    title = f"open loop, Poisson; callers give up after {PATIENCE_S:g} s; the card gives {ours.CAPACITY_PER_S:,.0f}/s"
    table.show(title, _COLUMNS, rows, notes)


def _measured(who: Contestant, seconds: float, notes: list[str]) -> Iterator[Sequence[str]]:
    with who.start() as up:
        own = hold(up.target, Load(concurrency=CALLERS), up.servers, seconds=seconds / 2).step.ok_per_s
        yield _line(who, "2 × own", _overloaded(up, 2 * own, seconds))
        if not _settled(up):
            notes.append(f"{who.name}: still busy {SETTLE_S:g} s after the first overload")
        yield _line(who, "2 × card", _overloaded(up, 2 * ours.CAPACITY_PER_S, seconds))


def _overloaded(up: Up, rate_per_s: float, seconds: float) -> Cell:
    load = Load(rate_per_s=max(rate_per_s, 1.0))
    return hold(up.target, load, up.servers, seconds=seconds, timeout_s=PATIENCE_S)


def _settled(up: Up) -> bool:
    """Wait until it answers promptly again: what nobody waits for any more is still in the queues of some."""
    until_s = time.monotonic() + SETTLE_S
    while time.monotonic() < until_s:
        if answers(up.target.url, 1.0, up.target.bodies[0]):
            return True
        time.sleep(0.2)
    return False


def _line(who: Contestant, offered: str, cell: Cell) -> Sequence[str]:
    step, outcomes = cell.step, cell.step.outcomes
    return (
        who.name,
        offered,
        table.number(step.offered / step.seconds),
        table.number(outcomes.ok / step.seconds),
        table.percent(outcomes.ok / step.seconds, ours.CAPACITY_PER_S),
        table.percent(step.good / step.seconds, ours.CAPACITY_PER_S),
        table.ms(cell.p99_ms),
        table.percent(outcomes.rejected, step.offered),
        table.ms(cell.rejection_p99_ms),
        table.percent(step.rejected_with_retry_after, outcomes.rejected),
        table.percent(outcomes.error, step.offered),
        table.percent(outcomes.timeout, step.offered),
        table.percent(step.held_back, step.offered),
        f"{cell.used.foreign_cores:.2f}",
    )
