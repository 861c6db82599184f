"""Preemption without brakes and with them, on the same services in the same minutes, in one run.

Latency-sensitive services swell and ebb; best-effort services of several priorities fill the rest. Whoever finds no
place has others evicted. *Hard* is the same controller with every brake let go: who waits evicts at once, also who is
starting, without budgets, pauses and grace. *Braked* is the default. *Off* evicts nobody. Time is emulated; decisions
are those of ``core/fleet`` and ``controller/preempting.py``.

Run: ``python -m benchmarks.avalanche [--minutes 20] [--nodes 5] [--seed 42]``. Exit code 1 if a claim does not hold.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import click
import structlog
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.avalanche.cluster import Emulation, Told
from benchmarks.avalanche.serving import Service
from cardwise.controller.preemption.settings import PreemptionSettings

WARM_UP_S = 300
"""At first nothing is counted: replicas start."""
HARD = PreemptionSettings(
    wait_s=0, settle_s=0, starting_s=0, grace_s=1, most_per_node=10_000, most=10_000, window_s=0, pause_s=0, turn_s=0
)
VARIANTS = {
    "off": (PreemptionSettings(most=0), 30),
    "hard": (HARD, 1),
    "braked": (PreemptionSettings(), 30),
}
"""Settings, and the grace of victims in seconds."""
POINTS, MOST_POINTS = 10.0, 3.0
"""By so many points, at least, the success rate falls without brakes: the failure that is reproduced; and at most with
them: what a place for who is more important costs the others."""
LITTLE = 0.002
"""Of the sensitive services' success: requests are drawn."""


@dataclass(frozen=True, slots=True)
class Result:
    """Requests served, as shares: of all, of the latency-sensitive, of the best-effort; and what became of victims."""

    success: float
    sensitive: float
    best_effort: float
    told: Told


def services(draw: random.Random) -> list[Service]:
    """Two that must answer and swell by turns, and six priorities of those that need not and swell faster."""
    live = [Service(f"live{i}", 1000, True, 8192, 60.0, 0.7, 1200.0, i / 2) for i in range(2)]
    rest = [Service(f"batch{i}", 10 * i, False, 8192, 45.0, 0.5, 90.0 + 20 * i, draw.random()) for i in range(6)]
    return live + rest


async def play(name: str, minutes: float, nodes: int, seed: int) -> Result:
    """One variant."""
    settings, grace_s = VARIANTS[name]
    draw = random.Random(seed)  # noqa: S311 - load, not secrets
    world = Emulation(services(draw), settings, cold_s=60, grace_s=grace_s)
    async with world.running(nodes):
        for second in range(int(60 * minutes) + WARM_UP_S):
            if second == WARM_UP_S:
                world.told = Told()
                for service in world.services:
                    service.asked = service.served = 0
            await world.second()
            for service in world.services:
                service.second(world.now_s, world.ready(service.name), draw)
    return Result(
        _share(world.services),
        _share([each for each in world.services if each.sensitive]),
        _share([each for each in world.services if not each.sensitive]),
        world.told,
    )


def _share(some: Sequence[Service]) -> float:
    return sum(each.served for each in some) / max(sum(each.asked for each in some), 1)


@click.command()
@click.option("--minutes", default=20.0, show_default=True)
@click.option("--nodes", default=5, show_default=True, help="Of four cards.")
@click.option("--seed", default=42, show_default=True)
def main(minutes: float, nodes: int, seed: int) -> None:
    """Play all variants and print a row for each."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    table = Table("preemption", box=box.SIMPLE_HEAD)
    for column in ("success", "sensitive", "best-effort", "victims", "of them young"):
        table.add_column(column, justify="right")
    results = {}
    for name in VARIANTS:
        results[name] = each = asyncio.run(play(name, minutes, nodes, seed))
        shares = (f"{share:.1%}" for share in (each.success, each.sensitive, each.best_effort))
        table.add_row(name, *shares, str(each.told.victims), str(each.told.young))
    Console(width=120).print(table)
    faults = list(_faults(results))
    print("\n".join(["NOT HELD:", *faults]) if faults else "Every claim holds.")
    sys.exit(1 if faults else 0)


def _faults(results: Mapping[str, Result]) -> Iterator[str]:
    """What was to be shown and is not."""
    off, hard, braked = (results[name] for name in VARIANTS)
    if off.success - hard.success < POINTS / 100:
        yield f"without brakes success falls by {100 * (off.success - hard.success):.1f} points, not {POINTS:g}"
    if hard.told.young <= hard.told.victims / 2:
        yield f"of {hard.told.victims} victims without brakes only {hard.told.young} were cold or young"
    if off.success - braked.success > MOST_POINTS / 100:
        yield f"with brakes success falls by {100 * (off.success - braked.success):.1f} points"
    if braked.told.young or not braked.told.victims:
        yield f"with brakes {braked.told.young} of {braked.told.victims} victims were cold or young"
    if braked.sensitive < off.sensitive - LITTLE:
        yield f"latency-sensitive: {braked.sensitive:.2%} with brakes, {off.sensitive:.2%} where nobody is evicted"


if __name__ == "__main__":
    main()
