"""A day, replayed: the same load on whole cards for the peak, and on half as many cards with cardwise.

First the cluster, in emulated time: the scheduler, preemption, scaling by window and forecast, lending and reclaim are
the code that runs in a cluster; nodes, kubelets and the load are emulated. Then, at some hours of the day, real
requests: emulated engines behind a real gateway on loopback, with the replicas of that hour and slowed by their
neighbours. The page that is written says what was assumed.

Run: ``python -m benchmarks.day [--quick] [--out day.html]``. Exit code 1 if a latency-sensitive slice was harmed, a
replica had no place, or an eviction had no reason; how many cards and which P99 is reported, not asserted.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import structlog

from benchmarks.day import asking
from benchmarks.day.asking import Cell
from benchmarks.day.cluster import Arm
from benchmarks.day.findings import Day, faults, headline
from benchmarks.day.load import SERVICES, Load, with_same_peak
from benchmarks.day.play import Pace, Played, play
from benchmarks.day.policies import Fits
from benchmarks.day.sizing import Sized, sized
from benchmarks.serving import machine, table
from benchmarks.serving.procs import StartError
from cardwise.errors import UserError

HOURS, QUICK_HOURS = (3.0, 8.0, 10.5, 12.5, 16.0, 20.5), (3.0, 12.5)
"""Of the local day: the deepest night, and the highest hour of each service, among others."""
SECONDS, QUICK_SECONDS = 8.0, 2.5
QUICK = Pace(tick_s=120.0, refit_h=24.0, batch=24)
INTERFERENCE = 0.2
WHOLE_FILL_PCT, FILL_PCT = 80, 65
"""Slices are small, so that a service can have more of them for the same cards, and less to do for each."""
EXIT_INTERRUPTED = 130


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="Coarser, and rougher: two hours of requests, a look every two minutes.")
@click.option("--seed", default=42, show_default=True, help="Of load and requests.")
@click.option("--cards", type=click.IntRange(1), help="Of cardwise's cluster.  [default: half of the others']")
@click.option("--same-peak", is_flag=True, help="All services have their highest hour at once.")
@click.option(
    "--interference",
    default=INTERFERENCE,
    show_default=True,
    type=click.FloatRange(0, 10),
    help="By so much a replica's times grow beside others that use the whole card.",
)
@click.option(
    "--fill",
    default=FILL_PCT,
    show_default=True,
    type=click.IntRange(10, 100),
    help="Percent of what a slice carries that it is given; whole cards have 80.",
)
@click.option("--out", default="day.html", show_default=True, type=click.Path(path_type=Path), help="The report.")
def main(
    *, quick: bool, seed: int, cards: int | None, same_peak: bool, interference: float, fill: int, out: Path
) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    from benchmarks.day import report  # noqa: PLC0415 - it needs the optional tools, and says so

    began = time.monotonic()
    table.CONSOLE.print(f"== a day: {machine.said()}", style="bold")
    pace, hours = (QUICK, QUICK_HOURS) if quick else (Pace(), HOURS)
    seconds = QUICK_SECONDS if quick else SECONDS
    load = Load.made(with_same_peak(SERVICES) if same_peak else SERVICES, seed)
    sizes = sized(load, WHOLE_FILL_PCT, 0.0), sized(load, fill, interference)
    days = _played(_arms(sizes[0], cards, quick=quick), load, sizes, hours, pace)
    base, ours = days[0], days[-1]
    cells = _asked((base, ours), interference, seconds, seed)
    day = Day(load.services, days, cells, base, ours, pace.tick_s, seed, interference, seconds)
    report.show(day)
    report.write(out, day, load)
    broken = list(faults(day))
    print("\n".join(["NOT HELD:", *broken]) if broken else f"{headline(day)}. Every claim of correctness holds.")
    print(f"{out} written; it took {time.monotonic() - began:.0f} s")
    sys.exit(1 if broken else 0)


def _arms(sizes: Sequence[Sized], cards: int | None, *, quick: bool) -> list[Arm]:
    """Whole cards first, cardwise last; in between what scaling alone would do."""
    whole = sum(each.for_peak for each in sizes)
    arms = [
        Arm("whole cards", whole=True, scales=False, cards=whole),
        Arm("whole cards, scaled", whole=True, scales=True, cards=whole),
        Arm("cardwise", whole=False, scales=True, cards=cards or whole // 2),
    ]
    return [arms[0], arms[2]] if quick else arms


def _played(
    arms: Sequence[Arm],
    load: Load,
    sizes: tuple[tuple[Sized, ...], tuple[Sized, ...]],
    hours: Sequence[float],
    pace: Pace,
) -> tuple[Played, ...]:
    """All days. sizes: on whole cards, and of slices."""
    fits, days = Fits(), []
    for arm in arms:
        began = time.monotonic()
        days.append(asyncio.run(play(arm, load, sizes[not arm.whole], fits, hours, pace)))
        table.doing(f"{arm.name}: a day on {arm.cards} cards took {time.monotonic() - began:.0f} s")
    return tuple(days)


def _asked(days: Sequence[Played], interference: float, seconds: float, seed: int) -> tuple[Cell, ...]:
    """Both ways at each hour, one right after the other; which comes first alternates."""
    most = [max(each.for_peak for each in some) for some in zip(*(played.sizes for played in days), strict=True)]
    cells = []
    with asking.stage([each.service for each in days[0].sizes], most) as stage:
        for i, moments in enumerate(zip(*(each.moments for each in days), strict=True)):
            pairs = list(zip(days, moments, strict=True))
            for played, moment in pairs if i % 2 else reversed(pairs):
                table.doing(f"requests at {moment.hour:g} h: {played.arm.name}")
                cells.append(stage.measure(played.arm.name, moment, interference, seconds, seed + 100 * i))
    return tuple(cells)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: all that was started ends
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except (UserError, StartError) as error:
        sys.exit(f"benchmarks.day: {error}")
