"""The tables of docs/concepts/dense.md: every openb variant, filled and churned, by the same code that users run.

Fill: unallocated share beside the saturation bound. Churn: refused share at loads 0.8 to 1.1. Means over the seeds; the
same arrivals go to every policy. Prints Markdown. A full churn table takes hours on two cores; ``--variants`` and
``--seeds`` make it shorter.

Run: ``python -m benchmarks.tables fill`` or ``python -m benchmarks.tables churn [--arrivals 40000]``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import click

from benchmarks.bound import saturation_bound
from cardwise.adapters.openb import read_openb
from cardwise.cli.inputs import TRACE_NODES, find_trace
from cardwise.config import choose_policy
from cardwise.core.history import History
from cardwise.replay.batch import Job, run_jobs
from cardwise.replay.outcome import Replayed
from cardwise.replay.workload import Regime

RIVALS = ("fgd", "best-fit")
LOADS = (0.8, 0.9, 1.0, 1.1)
PREFIX = "openb_pod_list_"
TOLERANCE = 0.001
"""0.1 percentage points, within which two policies count as equal under churn."""


@click.command()
@click.argument("regime", type=click.Choice(["fill", "churn"]))
@click.option("--policy", default="dense", show_default=True, help="What to compare, a name or a policy file.")
@click.option("--variants", default="", help="Comma-separated, like default,cpu250. Default: all that are there.")
@click.option("--seeds", default="42,43,44,45,46", show_default=True)
@click.option("--arrivals", type=int, help="Pods per churn run; default: 8 mean lifetimes.")
def main(regime: str, policy: str, variants: str, seeds: str, arrivals: int | None) -> None:
    """Print one Markdown table."""
    trace = find_trace()
    if trace is None:
        sys.exit("the openb trace is not here: set CARDWISE_OPENB to its folder")
    files = {path.stem.removeprefix(PREFIX): path for path in sorted(trace.glob(f"{PREFIX}*.csv"))}
    chosen = variants.split(",") if variants else list(files)
    numbers = [int(seed) for seed in seeds.split(",")]
    rows = fill_rows if regime == "fill" else churn_rows
    for line in rows(trace, files, chosen, policy, numbers, arrivals):
        print(line, flush=True)


def fill_rows(
    trace: Path, files: dict[str, Path], chosen: list[str], policy: str, seeds: list[int], _arrivals: int | None
) -> Iterator[str]:
    """Allocated share in percent per policy, and the bound."""
    names = (policy, *RIVALS, "whole-card")
    yield f"| variant | {' | '.join(names)} | saturation bound | {policy} over fgd, cards |"
    yield "|---" * (len(names) + 3) + "|"
    for variant in chosen:
        history = read_openb(trace / TRACE_NODES, files[variant])
        means = _means(history, names, Regime.FILL, 1.3, seeds, None)
        shares = " | ".join(f"{100 * fmean(each.run.allocated_share for each in means[name]):.2f}" for name in names)
        gained = _mean_cards(means["fgd"]) - _mean_cards(means[policy])
        yield f"| {variant} | {shares} | {100 * saturation_bound(history):.2f} | {gained:+.0f} |"


def churn_rows(
    trace: Path, files: dict[str, Path], chosen: list[str], policy: str, seeds: list[int], arrivals: int | None
) -> Iterator[str]:
    """Refused share in percent: the policy, and in brackets its rivals; a mark where the better rival refuses less.

    The bound: what must be refused if the mix is placed in proportion up to the saturation bound.
    """
    yield f"| variant | {' | '.join(f'load {load}' for load in LOADS)} | bound at 1.0, 1.1 |"
    yield "|---" * (len(LOADS) + 2) + "|"
    differences: list[float] = []
    for variant in chosen:
        history = read_openb(trace / TRACE_NODES, files[variant])
        cells = []
        for load in LOADS:
            means = _means(history, (policy, *RIVALS), Regime.CHURN, load, seeds, arrivals)
            mine, *theirs = (fmean(each.run.refused_share for each in means[name]) for name in (policy, *RIVALS))
            differences.append(mine - min(theirs))
            worse = " ✗" if differences[-1] > TOLERANCE else ""
            cells.append(f"{100 * mine:.2f} ({', '.join(f'{100 * share:.2f}' for share in theirs)}){worse}")
        bound = saturation_bound(history)
        least = ", ".join(f"{100 * max(0.0, 1 - bound / load):.2f}" for load in LOADS[2:])
        yield f"| {variant} | {' | '.join(cells)} | {least} |"
    mean, most = 100 * fmean(differences), 100 * max(differences)
    yield f"\nAgainst the better of {' and '.join(RIVALS)}: mean {mean:+.2f} points, worst {most:+.2f}."


def _means(
    history: History, names: tuple[str, ...], regime: Regime, load: float, seeds: list[int], arrivals: int | None
) -> dict[str, list[Replayed]]:
    jobs = [Job(choose_policy(name), regime, load, seed, arrivals) for name in names for seed in seeds]
    results = run_jobs(history, jobs)
    return {name: results[i * len(seeds) : (i + 1) * len(seeds)] for i, name in enumerate(names)}


def _mean_cards(runs: list[Replayed]) -> float:
    return fmean(each.run.unallocated_cards for each in runs)


if __name__ == "__main__":
    main()
