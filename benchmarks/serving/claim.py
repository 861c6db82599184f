"""``claim``: what batching brings on one engine, as SPEC D2 puts it: batch 1 and no wait, 32 and 20 ms, the default.

``max-wait-ms`` is a cap in the gateway and no window: nobody waits 20 ms unless others keep coming. The reference gain
(220 to 1100 requests/s for 15 ms of P99) compares, by Little's law, some 10 callers with some 66; so do we, and at
equal concurrency and equal load as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.serving import ours, table
from benchmarks.serving.cells import Cell, hold, oip
from cardwise.loadtest.plan import Load

ROOM: Mapping[str, object] = {"name": "emulated", "kind": "oip", "model": "emulated", **ours.ALL_WAIT}
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "1 / 0 ms": {**ROOM, "max-batch": 1},
    "32 / 20 ms": {**ROOM, "max-batch": 32, "max-wait-ms": 20.0},
    "default": {**ROOM, "target-p99-ms": ours.TARGET_MS, "max-batch": 32, **ours.TIMES},
}
LOADS = (
    Load(concurrency=10),
    Load(concurrency=66),
    Load(rate_per_s=160.0),
    Load(rate_per_s=1000.0),
    Load(rate_per_s=1700.0),
)
"""160/s is 70 % of what batches of one can do; 1,000/s is half of what batches of 32 can, 1,700/s four fifths."""
FEW_CALLERS, MANY_CALLERS = 0, 1
"""Their places in LOADS."""
_COLUMNS = (
    "<load",
    "<batch / wait",
    "answers/s",
    "× 1 / 0 ms",
    "p50 ms",
    "p99 ms",
    "batch",
    "not ok",
    "foreign",
    "stall ms",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """All cells of one setting, in the order of LOADS."""

    setting: str
    cells: tuple[Cell, ...]


def run(*, quick: bool) -> None:
    """Measure and print."""
    seconds = 1.5 if quick else 4.0
    with ours.engine() as engine:
        rows = [_measured(name, service, engine.url, seconds) for name, service in SETTINGS.items()]
    title = "one engine, three settings of the gateway; open loops are Poisson"
    table.show(title, _COLUMNS, _lines(rows), _said(rows))


def _measured(name: str, service: Mapping[str, object], engine_url: str, seconds: float) -> Measured:
    table.doing(f"batch / wait {name}")
    with ours.gateway(service, [engine_url]) as gateway:
        target = oip(gateway.url)
        return Measured(name, tuple(hold(target, load, [gateway], seconds=seconds, timeout_s=2.0) for load in LOADS))


def _lines(rows: Sequence[Measured]) -> Iterator[Sequence[str]]:
    for i in range(len(LOADS)):
        base = rows[0].cells[i].step.ok_per_s
        for row in rows:
            cell = row.cells[i]
            yield (
                cell.step.name if row is rows[0] else "",
                row.setting,
                table.number(cell.step.ok_per_s),
                table.times(cell.step.ok_per_s, base),
                table.ms(cell.p50_ms),
                table.ms(cell.p99_ms),
                table.number(mean_batch(cell.step.batch_sizes), 1),
                table.percent(cell.step.offered - cell.step.outcomes.ok, cell.step.offered),
                f"{cell.used.foreign_cores:.2f}",
                table.ms(cell.step.stall_ms),
            )


def mean_batch(answers_by_size: Mapping[str, int]) -> float:
    """Rows per batch that was sent; nan of none. A batch of n rows makes n answers, and is to count once."""
    batches = sum(count / float(size) for size, count in answers_by_size.items())
    return sum(answers_by_size.values()) / batches if batches else float("nan")


def _said(rows: Sequence[Measured]) -> Iterator[str]:
    few = rows[0].cells[FEW_CALLERS]
    for row in rows[1:]:
        many, same = row.cells[MANY_CALLERS], rows[0].cells[MANY_CALLERS]
        gained = table.times(many.step.ok_per_s, few.step.ok_per_s)
        yield (
            f"{row.setting} at {LOADS[MANY_CALLERS].concurrency} callers against 1 / 0 ms at "
            f"{LOADS[FEW_CALLERS].concurrency}: {gained} the throughput, P99 {many.p99_ms - few.p99_ms:+.1f} ms; "
            f"against 1 / 0 ms at as many callers: P99 {many.p99_ms - same.p99_ms:+.1f} ms"
        )
