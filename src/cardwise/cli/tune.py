"""``cardwise tune``: find a policy's weights on a cluster's own history, and write them only if they hold up."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click
import msgspec
from rich.table import Table

from cardwise.cli.inputs import SEED, FilePath, HistoryInput, NumberRange, history_options, load_history
from cardwise.cli.progress import shown
from cardwise.cli.terminal import console
from cardwise.config import choose_policy, policy_file_text
from cardwise.core.placement.policies import Dense
from cardwise.errors import UserError
from cardwise.files import check_output, plain, seen, write_text
from cardwise.replay.workload import ARRIVALS_MAX, Regime

EXIT_NO_IMPROVEMENT = 3
ARRIVALS = 12_000


@click.command("tune")
@history_options
@click.option("--policy", default=Dense.name, show_default=True, metavar="NAME|FILE.toml", help="Where to start from.")
@click.option(
    "--case",
    "cases",
    multiple=True,
    default=("churn:0.9", "churn:1.0", "fill:1.3"),
    show_default=True,
    metavar="REGIME:LOAD",
    help="What to be good at; may be repeated. All count the same.",
)
@click.option("--evaluations", type=click.IntRange(min=2), default=60, show_default=True, help="Weights to try.")
@click.option(
    "--arrivals",
    type=click.IntRange(100, ARRIVALS_MAX),
    help=f"Pods per churn run.  [default: {ARRIVALS}]",
)
@click.option(
    "--held-out",
    type=NumberRange(0, 1, min_open=True, max_open=True),
    default=0.3,
    show_default=True,
    help="Share of the pods that the search never sees and the verdict is made on; the latest, where times are known.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="The same seed, the same result.")
@click.option("--workers", type=click.IntRange(min=0), default=0, help="Processes. Default: one per processor.")
@click.option("--out", type=FilePath(), default=Path("policy.toml"), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout, and nothing else there.")
def tune_command(
    *,
    history_input: HistoryInput,
    policy: str,
    cases: tuple[str, ...],
    evaluations: int,
    arrivals: int | None,
    held_out: float,
    seed: int,
    workers: int,
    out: Path,
    as_json: bool,
) -> None:
    """Find score weights by replaying a history, and write them to a policy file.

    One part of the history is searched, the other decides. The file is written, and the exit code is 0, only if the
    held-out part shows an improvement; if not, the exit code is 3 and nothing is written.
    """
    from cardwise.replay.tune import Case, TunePlan, tune  # noqa: PLC0415 - its libraries are optional and slow to load

    parsed = tuple(Case(*_parsed_case(case)) for case in cases)
    if arrivals is not None and all(case.regime is not Regime.CHURN for case in parsed):
        raise UserError("--arrivals goes with a churn case, and every --case is fill: leave it out, or add one")
    plan = TunePlan(
        start=choose_policy(policy),
        cases=parsed,
        evaluations=evaluations,
        held_out=held_out,
        arrivals=arrivals or ARRIVALS,
        seed=seed,
    )
    check_output(out, [*history_input.files, *([Path(policy)] if policy.endswith(".toml") else [])])
    history = load_history(history_input)
    messages = console(stderr=True)
    with shown(messages, "searching", wanted=not as_json) as on_progress:
        tuned = tune(history, plan, workers=workers, on_progress=on_progress)
    try:
        if tuned.improved:
            write_text(out, policy_file_text(tuned.policy, tuned.weights, _provenance(asdict(tuned), history.source)))
            messages.print(plain(f"wrote {out}"))
    finally:  # a long search is told even if the file cannot be written any more
        _tell(asdict(tuned), as_json=as_json)
    if not tuned.improved:
        messages.print(
            "The held-out part shows no improvement: the weights are not claimed to be better, nothing written."
        )
        sys.exit(EXIT_NO_IMPROVEMENT)


def _tell(tuned: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(tuned)).decode())
    else:
        console().print(_table(tuned))


def _parsed_case(text: str) -> tuple[Regime, float]:
    regime, _, load = text.partition(":")
    try:
        kind, value = Regime(regime), float(load)
    except ValueError:
        kind, value = Regime.TRACE, 0.0
    if kind is Regime.TRACE or not 0 < value <= 10:
        raise UserError(f"--case {seen(text)} is not REGIME:LOAD; write fill or churn and a load in 0-10: churn:0.9")
    return kind, value


def _table(tuned: dict[str, object]) -> Table:
    table = Table(title="held-out part, in percent of GPU; less is better", title_justify="left", header_style="bold")
    table.add_column("case")
    for name in ("before", "after", "difference", "95 % interval"):
        table.add_column(name, justify="right")
    rows = tuned["cases"]
    assert isinstance(rows, tuple)  # noqa: S101 - asdict keeps tuples
    for row in rows:
        between = f"{100 * row['low']:+.2f} … {100 * row['high']:+.2f}"
        before, after = f"{100 * row['before']:.2f}", f"{100 * row['after']:.2f}"
        table.add_row(row["case"], before, after, f"{100 * row['difference']:+.2f}", between)
    return table


def _provenance(tuned: dict[str, object], source: str) -> list[str]:
    return [
        f"Found by `cardwise tune` on {source}.",
        f"Pods searched: {tuned['searched_pods']}, held out: {tuned['held_out_pods']}.",
        f"Held-out difference in lost GPU share: {tuned['difference']:+.4f}.",
        f"Its 95 % interval: {tuned['low']:+.4f} to {tuned['high']:+.4f}.",
    ]
