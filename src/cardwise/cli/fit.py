"""``cardwise fit``: how many of these services go onto these cards, by the code that decides in a cluster."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from cardwise.cli.inputs import FilePath
from cardwise.cli.up import files_option, policies_option
from cardwise.errors import UserError

MOST = 1000
TOO_FEW = 1
"""Exit code where fewer sets fit than were wanted."""


@click.command("fit")
@files_option
@click.option(
    "--slice",
    "slices",
    multiple=True,
    metavar="[NAME=]MIB:PCT",
    help="Instead of manifests: a pod of one slice, such as resnet=4096:20. Repeatable; together they are the set.",
)
@click.option("--cards", metavar="MODEL[:MIB]=COUNT,...", help="The cards, such as A10=4,L4=8 or A100:81920=2.")
@click.option(
    "--node",
    "single",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="One node, as with `cardwise up`: name=gpu-a,model=A100,memory=81920,cards=8,cpu=64. Repeatable.",
)
@click.option("--dump", type=FilePath(), help="The nodes of `kubectl get nodes,pods -A -o json`, with nobody on them.")
@click.option(
    "--card-memory",
    multiple=True,
    metavar="PRODUCT=MIB",
    help="With --dump: memory per card of a product whose nodes have no nvidia.com/gpu.memory label.",
)
@policies_option
@click.option(
    "--at-least", type=click.IntRange(0, 100_000), default=1, show_default=True, help="Exit 1 if fewer sets fit."
)
@click.option(
    "--most", type=click.IntRange(1, 100_000), default=MOST, show_default=True, help="End the search at so many sets."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
def fit_command(
    *,
    files: tuple[str, ...],
    slices: tuple[str, ...],
    cards: str | None,
    single: tuple[str, ...],
    dump: Path | None,
    card_memory: tuple[str, ...],
    policies: tuple[str, ...],
    at_least: int,
    most: int,
    as_json: bool,
) -> None:
    """Say how often a set of services goes onto some cards, and what the next set fails for.

    Places the whole set again and again with the code that decides in a real cluster, until a pod finds no place. Exit
    code 1 if fewer than --at-least sets fit.
    """
    if bool(files) == bool(slices):
        raise UserError("what shall be placed? give either manifests with -f FILE, or --slice MIB:PERCENT")
    if sum(map(bool, (cards, single, dump))) != 1:
        raise UserError("on what? give one of --cards A10=4,L4=8, --node name=...,cards=8 and --dump FILE")
    if card_memory and not dump:
        raise UserError("--card-memory goes with --dump; with --cards write MODEL:MIB=COUNT")
    import msgspec  # noqa: PLC0415 - other commands start without what comes next

    from cardwise.adapters.sizes import parse_card_memory  # noqa: PLC0415
    from cardwise.cli.terminal import console  # noqa: PLC0415
    from cardwise.up import main as up  # noqa: PLC0415
    from cardwise.up.fit import fit, parse_slices, render  # noqa: PLC0415
    from cardwise.up.hardware import check_names, parse_node  # noqa: PLC0415
    from cardwise.up.sources import Sources  # noqa: PLC0415
    from cardwise.up.supply import parse_cards, read_nodes  # noqa: PLC0415

    invented = parse_cards(cards) if cards else tuple(map(parse_node, single))
    check_names(invented)
    nodes = read_nodes(dump, parse_card_memory(card_memory)) if dump else invented
    manifests = parse_slices(slices) if slices else Sources(files).read()
    up.log_errors_only()
    found = asyncio.run(fit(manifests, nodes, up.policy_of(policies), most, time.monotonic, lambda: datetime.now(UTC)))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(asdict(found))).decode())
    else:
        console().print(render(found), soft_wrap=True)
    if found.sets < at_least:
        sys.exit(TOO_FEW)
