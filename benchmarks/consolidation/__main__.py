"""Consolidation off and on, for the same services in the same hours, under two policies of placement, in one run.

Services that must answer ask for pieces of cards. How many replicas each has walks at random, so that 70 to 92 % of the
cluster are asked for, and all would fit if it were placed anew. Who finds no card with room waits. *On*: the controller
moves replicas so that free pieces join. Time is emulated; decisions are those of ``core/fleet`` and of the loops in
``controller/``.

Run: ``python -m benchmarks.consolidation [--seeds 5] [--hours 6] [--best-effort] [--large] [--workers 2]``. Exit code 1
if a service had fewer ready than before or than without a move, was gathered on one node by one, or a card was
oversold.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from math import isnan
from statistics import fmean, quantiles

import click
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.consolidation.play import Job, Result, play
from cardwise.config import DEFAULT_POLICY
from cardwise.controller.consolidation.settings import OFF, ConsolidationSettings
from cardwise.core.claim import LatencyClass

LONG_S, VERY_LONG_S = 120.0, 300.0
"""A move takes three minutes: one of patience, a model's load and what there is around it."""
SMALL, LARGE = (16, 2), (100, 8)
"""Nodes, and cards of each."""
POLICIES = (DEFAULT_POLICY[LatencyClass.SENSITIVE.value], "dense")
DEFAULT = ConsolidationSettings()

ROWS: dict[str, Callable[[Result], float]] = {
    "replicas that waited > 2 min": lambda each: sum(wait_s > LONG_S for wait_s in each.told.waits_s),
    "replicas that waited > 5 min": lambda each: sum(wait_s > VERY_LONG_S for wait_s in each.told.waits_s),
    "longest wait, min": lambda each: max(each.told.waits_s, default=0.0) / 60,
    "waiting, pod-minutes": lambda each: each.told.waiting_pod_s / 60,
    "compute in use meanwhile, %": lambda each: each.used_pct,
    "pods that others were to move for": lambda each: each.served,
    "moves begun": lambda each: each.begun,
    "moves done": lambda each: each.done,
    "moves in vain": lambda each: each.vain,
    "loads of models for moves": lambda each: each.told.loads,
    "ready replicas lost": lambda each: len(each.told.missed),
    "gone before successors were ready": lambda each: len(each.told.early),
}


@click.command()
@click.option("--seeds", default=5, show_default=True, help="From 42 on.")
@click.option("--hours", default=6.0, show_default=True, help="Emulated, after the first quarter of one.")
@click.option("--large", is_flag=True, help="100 nodes of 8 cards instead of 16 of 2: takes long.")
@click.option("--best-effort", is_flag=True, help="Preemptible jobs fill what is left.")
@click.option("--at-once", default=DEFAULT.at_once, show_default=True, help="As [consolidation] has it.")
@click.option("--rest-s", default=DEFAULT.rest_s, show_default=True, help="The same.")
@click.option("--workers", default=0, help="Processes; 0 for as many as there are processors.")
def main(seeds: int, hours: float, large: bool, best_effort: bool, at_once: int, rest_s: float, workers: int) -> None:
    """Play all arms and print a table: figures as mean over the seeds and range."""
    moving = {"off": OFF, "on": ConsolidationSettings(at_once=at_once, rest_s=rest_s)}
    first = Job("", OFF, 0, hours, LARGE if large else SMALL, best_effort)
    arms = {
        f"{policy}, {name}": [replace(first, policy=policy, moving=each, seed=42 + i) for i in range(seeds)]
        for policy, (name, each) in product(POLICIES, moving.items())
    }
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers or os.cpu_count() or 1, context) as pool:
        begun = {arm: pool.map(play, jobs) for arm, jobs in arms.items()}
        played = {arm: list(results) for arm, results in begun.items()}
    Console(width=120).print(_table(played))
    faults = [
        f"{arm}, seed {job.seed}: {text}"
        for arm, results in played.items()
        for job, result in zip(arms[arm], results, strict=True)
        for text in result.told.faults
    ]
    print("\n".join(["NOT HELD:", *faults]) if faults else "Every claim holds.")
    sys.exit(1 if faults else 0)


def _table(played: Mapping[str, Sequence[Result]]) -> Table:
    table = Table("", box=box.SIMPLE_HEAD)
    for arm in played:
        table.add_column(arm, justify="right")
    for name, figure in ROWS.items():
        table.add_row(name, *(_ranged([figure(each) for each in results]) for results in played.values()))
    turns = [[ms for each in results for ms in each.told.turns_ms] for results in played.values()]
    table.add_row("turn of both loops, P50 ms", *(f"{quantiles(ms, n=100)[49]:.1f}" for ms in turns))
    table.add_row("turn of both loops, P99 ms", *(f"{quantiles(ms, n=100)[98]:.1f}" for ms in turns))
    table.add_row("longest turn, ms", *(f"{max(ms):.0f}" for ms in turns))
    return table


def _ranged(figures: Sequence[float]) -> str:
    """Mean and range, of those that are there."""
    figures = [each for each in figures if not isnan(each)]
    if not figures:
        return "–"
    mean, least, most = fmean(figures), min(figures), max(figures)
    return f"{mean:.1f}" if least == most else f"{mean:.1f} ({least:.0f} – {most:.0f})"


if __name__ == "__main__":
    main()
