"""``cardwise quota``: what each team is guaranteed, as Kueue's objects: plan, diff, apply; and why a pod waits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cardwise.cli.cluster import ClusterInput, cluster_options
from cardwise.cli.inputs import FilePath, HistoryInput, history_options, load_history
from cardwise.cli.terminal import console
from cardwise.errors import ClusterError, UserError
from cardwise.files import plain

if TYPE_CHECKING:
    from cardwise.adapters.kube.client import KubeClient
    from cardwise.adapters.kueue import Change, Kueue, Raw
    from cardwise.adapters.quota_file import QuotaFile
    from cardwise.adapters.quota_history import Asked
    from cardwise.core.fleet.quota import QuotaPlan, Shortfall

SLOTS_PER_CARD = 16
"""As the agent's settings have it where nothing is told."""
NOW, BASE = "now", "none"

_cluster = cluster_options(FilePath())
_file = click.option("-f", "--file", "file", type=FilePath(), required=True, help="The quota file.")
_window = click.option(
    "--window",
    default=NOW,
    show_default=True,
    metavar="now|none|NAME",
    help="What holds now by the file's schedule, outside of all windows, or in the window of that name.",
)
_prune = click.option("--prune", is_flag=True, help="Delete objects that cardwise made and the file no longer has.")
_force = click.option("--force", is_flag=True, help="Take over objects and fields that are somebody else's.")


@click.group("quota")
def quota_command() -> None:
    """Plan quotas from history, and keep Kueue's queues as planned."""


# ---------------------------------------------------------------- plan


@quota_command.command("plan", short_help="Say what each team shall be guaranteed, and may borrow.")
@history_options
@click.option(
    "--prometheus", type=FilePath(), help="With --dump: what was asked for, an answer of /api/v1/query_range (docs)."
)
@click.option("--current", type=FilePath(), help="The quota file in force: its teams, windows and rule stay.")
@click.option(
    "--slots-per-card",
    type=click.IntRange(1, 48),
    default=SLOTS_PER_CARD,
    show_default=True,
    help="As in the agent's settings.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "toml", "yaml", "configuration"]),
    default="table",
    show_default=True,
    help="toml: the quota file. yaml: Kueue's objects. configuration: what Kueue's own Configuration needs for them.",
)
@_window
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
def plan_command(
    *,
    history_input: HistoryInput,
    prometheus: Path | None,
    current: Path | None,
    slots_per_card: int,
    output: str,
    window: str,
    as_json: bool,
) -> None:
    """Say what each team shall be guaranteed and may borrow: what it asked for so far × 1.2.

    A review with --current changes a number only if it is off by more than a tenth. What is short is named on stderr.
    """
    from cardwise.adapters.quota_file import QuotaFile, faults_of, read_quota_file, with_limits  # noqa: PLC0415
    from cardwise.core.fleet.quota import plan  # noqa: PLC0415

    told = read_quota_file(current) if current else QuotaFile()
    asked = _asked(history_input, prometheus, slots_per_card, told)
    import msgspec  # noqa: PLC0415 - other commands start without it

    told = msgspec.structs.replace(told, cards=list(asked.cards), teams=list(asked.teams))
    in_force = told.limits_in(None) if current else {}
    made = plan(asked.demands, [team.team for team in told.teams], told.capacity, told.rule, in_force)
    told = with_limits(told, made.limits)
    for key, fault in faults_of(told):
        raise UserError(f"the planned file would not do: {key}: {fault}")
    notes = [*asked.notes, *_notes(told, made)]
    if as_json:
        click.echo(json.dumps(_as_json(told, made, notes)))
        return
    for note in notes:
        click.echo(plain(f"note: {note}"), err=True)
    _tell_plan(told, made, output, window)


def _asked(given: HistoryInput, prometheus: Path | None, slots_per_card: int, told: QuotaFile) -> Asked:
    from cardwise.adapters.quota_history import asked_by_prometheus, asked_in  # noqa: PLC0415

    if prometheus is not None and given.dump is None:
        raise UserError("--prometheus tells no cards: give the nodes besides, with --dump FILE")
    if given.dump is None and given.nodes is None and given.pods is None:
        raise UserError(
            "a quota of what nobody here asked for does not help: give your cluster with --dump FILE "
            "(kubectl get nodes,pods -A -o json), or a history with --nodes and --pods"
        )
    history = load_history(given)
    if prometheus is None:
        return asked_in(history, slots_per_card, told.cards, told.teams)
    return asked_by_prometheus(prometheus, history.nodes, slots_per_card, told.cards, told.teams)


def _notes(told: QuotaFile, made: QuotaPlan) -> list[str]:
    short = [_short(each) for each in made.shortfalls]
    idle = [team.name for team in told.teams if not team.limits]
    if idle:
        short.append(f"no history, so nothing is guaranteed and no pod is admitted; write limits: {', '.join(idle)}.")
    return short


def _short(each: Shortfall) -> str:
    rank = each.rank.name.lower().replace("_", "-")
    what = each.dimension.replace("_", "-")
    return (
        f"{each.card} is short of {what}: {rank} teams ({', '.join(each.teams)}) want {each.wanted:,} and "
        f"{each.has:,} are left; each gets the same part, {100 * each.has // max(1, each.wanted)} %."
    )


def _as_json(told: QuotaFile, made: QuotaPlan, notes: Sequence[str]) -> dict[str, Any]:
    """The documented object: docs/howto/quota.md."""
    return {
        "cards": {card: has._asdict() for card, has in told.capacity.items()},
        "teams": {
            team: {
                card: {
                    "guaranteed": limits.guaranteed._asdict(),
                    "borrowable": limits.borrowable._asdict(),
                    "lent": limits.lent._asdict(),
                }
                for card, limits in cards.items()
            }
            for team, cards in made.limits.items()
        },
        "shared": {card: each._asdict() for card, each in made.shared.items()},
        "shortfalls": [{**each._asdict(), "rank": each.rank.name.lower()} for each in made.shortfalls],
        "moved": made.moved,
        "notes": list(notes),
    }


def _tell_plan(told: QuotaFile, made: QuotaPlan, output: str, window: str) -> None:
    from cardwise.adapters.kueue import configuration, objects  # noqa: PLC0415
    from cardwise.adapters.quota_file import quota_file_text  # noqa: PLC0415

    if output == "table":
        console().print(_table(told, made))
    elif output == "toml":
        click.echo(quota_file_text(told, [f"planned {datetime.now(UTC):%Y-%m-%d} by `cardwise quota plan`"]), nl=False)
    else:
        raws = [configuration(told)] if output == "configuration" else objects(told, _window_of(told, window))
        click.echo(_yaml(raws), nl=False)


def _yaml(raws: Sequence[Raw]) -> str:
    import yaml  # noqa: PLC0415

    return yaml.safe_dump_all(raws, sort_keys=False, explicit_start=True, width=120)


def _table(told: QuotaFile, made: QuotaPlan) -> Any:  # noqa: ANN401 - rich is loaded late
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("team", "card"):
        table.add_column(name)
    for name in ("MiB guaranteed", "and borrowable", "% guaranteed", "and borrowable", "slots"):
        table.add_column(name, justify="right")
    for team, cards in made.limits.items():
        for card, limits in cards.items():
            sure, more = limits.guaranteed, limits.borrowable
            numbers = (sure.memory_mib, more.memory_mib, sure.compute_pct, more.compute_pct, sure.slots)
            table.add_row(Text(team), Text(card), *(f"{number:,}" for number in numbers))
    for card, rest in made.shared.items():
        total = told.capacity[card]
        shown = f"{rest.memory_mib:,} of {total.memory_mib:,}", "", f"{rest.compute_pct:,} of {total.compute_pct:,}", ""
        table.add_row(Text("(shared)"), Text(card), *shown, f"{rest.slots:,}", style="dim")
    return table


# ---------------------------------------------------------------- diff, apply


@quota_command.command("diff")
@_file
@_window
@_prune
@_force
@_cluster
def diff_command(*, file: Path, window: str, prune: bool, force: bool, cluster: ClusterInput) -> None:
    """Say what `apply` would change. Nothing is written. Exit code 1 if something is refused."""
    _, changes = _changes(file, window, cluster, prune=prune, force=force)
    _tell_changes(changes)
    _end_if_refused(changes)


@quota_command.command("apply")
@_file
@_window
@_prune
@_force
@click.option("--yes", is_flag=True, help="Write it. Without, what would change is told and nothing is written.")
@_cluster
def apply_command(*, file: Path, window: str, prune: bool, force: bool, yes: bool, cluster: ClusterInput) -> None:
    """Make Kueue's objects as the file says. Writes all or, if anything is refused, nothing."""
    from cardwise.adapters.kueue import Kueue  # noqa: PLC0415

    wanted, changes = _changes(file, window, cluster, prune=prune, force=force)
    _tell_changes(changes)
    _end_if_refused(changes)
    if not yes:
        click.echo("nothing was written; pass --yes to write it")
        return
    cluster.ask(lambda client: _write(Kueue(client), wanted, changes, force=force))


async def _write(kueue: Kueue, wanted: Sequence[Raw], changes: Sequence[Change], *, force: bool) -> None:
    from cardwise.adapters import wire  # noqa: PLC0415
    from cardwise.adapters.kueue import called  # noqa: PLC0415

    todo = {(each.kind, each.name): each.action for each in changes if each.action in {"create", "change"}}
    for raw in wanted:
        if (raw["kind"], called(raw)) in todo:
            await kueue.apply(raw, force=force)
            click.echo(plain(f"written: {raw['kind']} {called(raw)}"))
    gone = {(each.kind, each.name) for each in changes if each.action == "delete"}
    if gone:
        for found in reversed(await kueue.ours(wanted[0]["metadata"]["labels"][wire.LABEL_COHORT])):
            if (found["kind"], called(found)) in gone:
                await kueue.delete(found)
                click.echo(plain(f"deleted: {found['kind']} {called(found)}"))


def _changes(
    file: Path, window: str, cluster: ClusterInput, *, prune: bool, force: bool
) -> tuple[list[Raw], list[Change]]:
    from cardwise.adapters.kueue import Kueue, objects  # noqa: PLC0415
    from cardwise.adapters.quota_file import read_quota_file  # noqa: PLC0415

    told = read_quota_file(file)
    wanted = objects(told, _window_of(told, window))
    changes = cluster.ask(lambda client: Kueue(client).changes(wanted, told.cohort, prune=prune, force=force))
    return wanted, changes


def _window_of(told: QuotaFile, window: str) -> int | None:
    """Number of a window. Raises UserError with the names there are."""
    from cardwise.core.fleet.windows import holds_at  # noqa: PLC0415

    if window == BASE:
        return None
    if window == NOW:
        return holds_at(told.schedule, datetime.now(UTC))
    names = [each.name for each in told.windows]
    if window not in names:
        raise UserError(f"--window: the file has no window {window!r}; write one of {', '.join([NOW, BASE, *names])}")
    return names.index(window)


_VERBS = {"create": "+", "change": "~", "delete": "-", "refused": "!", "same": " "}


def _tell_changes(changes: Sequence[Change]) -> None:
    for each in changes:
        if each.action == "same":
            continue
        click.echo(plain(f"{_VERBS[each.action]} {each.kind} {each.name}{': ' + each.why if each.why else ''}"))
        for line in each.lines if each.action == "change" else ():
            click.echo(plain(f"    {line}"))
    same = sum(each.action == "same" for each in changes)
    told = [
        f"{sum(each.action == action for each in changes)} to {action}" for action in ("create", "change", "delete")
    ]
    click.echo(f"{', '.join(told)}, {same} as they shall be")


def _end_if_refused(changes: Sequence[Change]) -> None:
    refused = [f"{each.kind} {each.name}" for each in changes if each.action == "refused"]
    if refused:
        raise ClusterError(f"refused, so nothing was written: {', '.join(refused)}", retry=False)


# ---------------------------------------------------------------- why


@quota_command.command("why", short_help="Say why a pod waits for quota.")
@click.argument("pod")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
@_cluster
def why_command(*, pod: str, namespace: str, as_json: bool, cluster: ClusterInput) -> None:
    """Say why POD waits for quota: its queue, its place there, and Kueue's own words.

    POD is NAMESPACE/POD, or a name in the namespace of -n.
    """
    from cardwise.adapters.kueue_pending import QueueState, queue_state  # noqa: PLC0415
    from cardwise.errors import NotFoundError  # noqa: PLC0415

    where, _, name = (pod if "/" in pod else f"{namespace}/{pod}").partition("/")

    async def ask(client: KubeClient) -> QueueState | None:
        try:
            return await queue_state(client, await client.get_pod(where, name))
        except NotFoundError as exc:
            raise UserError(f"no pod is called {where}/{name}; write NAMESPACE/POD or pass -n NAMESPACE") from exc

    state = cluster.ask(ask)
    if as_json:
        import msgspec  # noqa: PLC0415

        click.echo(msgspec.json.encode(state).decode())
        return
    lines = state.lines() if state else (f"{where}/{name} is in no queue of Kueue's: quota has no part in it",)
    for line in lines:
        click.echo(plain(line))
