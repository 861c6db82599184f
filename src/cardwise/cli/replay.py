"""``cardwise replay``: how many cards each policy leaves unusable on a cluster's own history."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import click
import msgspec
from rich.console import Console

from cardwise.cli.inputs import SEED, FilePath, HistoryInput, NumberRange, history_options, load_history
from cardwise.cli.progress import shown
from cardwise.cli.terminal import console
from cardwise.config import choose_policies
from cardwise.core.history import History
from cardwise.core.placement.policies import POLICIES
from cardwise.errors import UserError
from cardwise.files import check_output, plain
from cardwise.replay.batch import Job, run_jobs
from cardwise.replay.need import Need, cards_needed
from cardwise.replay.outcome import Replayed, Run
from cardwise.replay.table import render
from cardwise.replay.workload import ARRIVALS_MAX, CHURN_LIFETIMES, Regime

_T = TypeVar("_T")
DEFAULT_LOAD = {Regime.FILL: 1.3, Regime.CHURN: 0.9, Regime.TRACE: 1.0}


@click.command("replay")
@history_options
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME|FILE.toml",
    help=f"A policy by name, or a file of `cardwise tune`; may be repeated. Default: all of {', '.join(POLICIES)}.",
)
@click.option("--seed", "seeds", multiple=True, type=SEED, help="May be repeated. Default: 1.")
@click.option(
    "--regime",
    type=click.Choice([regime.value for regime in Regime]),
    default=Regime.FILL.value,
    show_default=True,
    help="fill: pods arrive until LOAD, none leaves. churn: they come and go at LOAD. trace: the history's own times.",
)
@click.option(
    "--load",
    type=NumberRange(min=0, min_open=True, max=10),
    help="GPU asked for over GPU there is. Default: 1.3 for fill, 0.9 for churn. Not with trace, which has its own.",
)
@click.option(
    "--arrivals",
    type=click.IntRange(2, ARRIVALS_MAX),
    help=f"Pods that arrive under churn; the second half is counted. Default: {CHURN_LIFETIMES} mean lifetimes.",
)
@click.option("--workers", type=click.IntRange(min=0), default=0, help="Processes. Default: one per processor.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout, and nothing else there.")
@click.option("--html", type=FilePath(), help="Also write a self-contained report with plots.")
def replay_command(
    *,
    history_input: HistoryInput,
    policies: tuple[str, ...],
    seeds: tuple[int, ...],
    regime: str,
    load: float | None,
    arrivals: int | None,
    workers: int,
    as_json: bool,
    html: Path | None,
) -> None:
    """Place a history's pods again by each policy, and count the cards that stay unusable.

    Without --nodes, --pods or --dump it replays the openb trace of a production cluster where that is found
    (CARDWISE_OPENB, data/openb), else a synthetic cluster of 200 nodes.
    """
    chosen = choose_policies(policies or tuple(POLICIES))
    kind = Regime(regime)
    _refuse_unused(kind, load, arrivals)
    if html is not None:
        _check_report(html, [*history_input.files, *(Path(each) for each in policies if each.endswith(".toml"))])
    history = load_history(history_input)
    messages = console(stderr=True)
    _introduce(messages, history)
    jobs = [
        Job(policy, kind, load or DEFAULT_LOAD[kind], seed, arrivals)
        for policy in chosen
        for seed in _distinct(seeds or (1,))
    ]
    with shown(messages, "replaying", wanted=not as_json) as on_progress:
        results = run_jobs(history, jobs, workers=workers, on_progress=on_progress)
    need = cards_needed(history, chosen) if history_input.dump else None
    try:
        if html is not None:
            _write_html(results, history, html, need)
            messages.print(plain(f"wrote {html}"))
    finally:  # minutes of work are told even if the report cannot be written any more
        _tell(results, need, as_json=as_json)


def _refuse_unused(regime: Regime, load: float | None, arrivals: int | None) -> None:
    if arrivals is not None and regime is not Regime.CHURN:
        raise UserError(f"--arrivals goes with --regime churn, not {regime.value}: leave it out")
    if load is not None and regime is Regime.TRACE:
        raise UserError("--load does not go with --regime trace, which replays the history's own load: leave it out")


def _tell(results: list[Replayed], need: Need | None, *, as_json: bool) -> None:
    if as_json:
        click.echo(as_json_text(results, need), nl=False)
        return
    console().print(render(results))
    if need is not None:
        console().print(plain(need.sentence))


class Report(msgspec.Struct, omit_defaults=True):
    """The documented object: docs/reference/replay-json.md. need: of a dump only."""

    runs: list[Run]
    need: Need | None = None


def as_json_text(results: list[Replayed], need: Need | None) -> str:
    """What ``--json`` prints."""
    told = Report([each.run for each in results], need)
    return msgspec.json.format(msgspec.json.encode(told)).decode() + "\n"


def _introduce(messages: Console, history: History) -> None:
    cards = sum(len(node.cards) for node in history.nodes)
    messages.print(f"{history.source}: {len(history.nodes):,} nodes, {cards:,} cards, {len(history.pods):,} pods")
    for note in history.notes:
        messages.print(f"  note: {note}", style="dim")


def _check_report(path: Path, inputs: list[Path]) -> None:
    """Fail before minutes of replay, not after, if the report cannot be made."""
    import cardwise.replay.html  # noqa: F401, PLC0415 - its libraries are optional and slow to load

    check_output(path, inputs)


def _write_html(results: list[Replayed], history: History, path: Path, need: Need | None) -> None:
    from cardwise.replay.html import write_report  # noqa: PLC0415 - as above

    write_report(results, history, path, need)


def _distinct(values: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))
