"""``cardwise up``: a cluster that is not there, and the scheduler's own code placing your manifests on its cards."""

from __future__ import annotations

import asyncio

import click

from cardwise.errors import UserError

NODES, CARDS, CARD_MODEL, CARD_MEMORY_MIB = 4, 4, "A10", 24576
PORT = 8265
files_option = click.option(
    "-f", "--file", "files", multiple=True, metavar="FILE", help="Manifests: file, folder or -. Repeatable."
)
policies_option = click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="[CLASS=]NAME",
    help="A policy by name or file, for all pods or for one class (latency-sensitive, best-effort). Repeatable. "
    "Default: the scheduler's own.",
)


@click.command("up")
@files_option
@click.option(
    "--nodes", type=click.IntRange(1, 5000), help=f"Nodes of one kind. Default: {NODES}, or none with --node."
)
@click.option("--cards", type=click.IntRange(1, 64), default=CARDS, show_default=True, help="Cards of each of --nodes.")
@click.option("--card-model", default=CARD_MODEL, show_default=True, help="Their model.")
@click.option(
    "--card-memory",
    type=click.IntRange(1, 2**20),
    default=CARD_MEMORY_MIB,
    show_default=True,
    help="MiB of each card.",
)
@click.option(
    "--node",
    "single",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="One node: name=gpu-a,model=A100,memory=81920,cards=8,cpu=64[,host-memory=MIB][,zone=NAME]. Repeatable.",
)
@policies_option
@click.option("--whole-card", is_flag=True, help="As Kubernetes does by default: every GPU pod holds whole cards.")
@click.option(
    "--compare", "comparing", is_flag=True, help="Place the manifests with and without sharing, side by side."
)
@click.option("--once", is_flag=True, help="Print the state once nothing moves any more, and end.")
@click.option("--json", "as_json", is_flag=True, help="With --once or --compare: one JSON object on stdout.")
@click.option("--page/--no-page", default=True, show_default=True, help="Also show it on a page on this machine.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="The page's; 0: any.")
def up_command(
    *,
    files: tuple[str, ...],
    nodes: int | None,
    cards: int,
    card_model: str,
    card_memory: int,
    single: tuple[str, ...],
    policies: tuple[str, ...],
    whole_card: bool,
    comparing: bool,
    once: bool,
    as_json: bool,
    page: bool,
    port: int,
) -> None:
    """Try cardwise on this machine: no cluster, no GPU.

    Places your manifests on simulated cards with the code that decides in a real cluster, and shows cards, slices and
    the pods that wait, with the reason. Follows the files as you edit them, until Ctrl-C. Without -f it shows an
    example of six services.
    """
    if as_json and not (once or comparing):
        raise UserError("--json goes with --once or --compare: a view that goes on is no single object")
    if whole_card and (policies or comparing):
        raise UserError("--whole-card goes without --policy and --compare: it is a policy, and compared anyway")
    from cardwise.up import main as up  # noqa: PLC0415 - numpy, SciPy and the server come with it
    from cardwise.up.hardware import parse_node, uniform  # noqa: PLC0415
    from cardwise.web.page import serve_page  # noqa: PLC0415

    count = NODES if nodes is None and not single else nodes or 0
    hardware = [*uniform(count, cards, card_model, card_memory), *map(parse_node, single)]
    wish = up.Wish.of(files, hardware, (up.WHOLE_CARD,) if whole_card else policies)
    up.log_errors_only()
    if comparing:
        up.compare_once(wish, as_json=as_json)
    elif once:
        up.show_once(wish, as_json=as_json)
    else:
        remedy = "give another --port, or --no-page"
        asyncio.run(up.stay(wish, (lambda session: serve_page(session, port, remedy=remedy)) if page else None))
