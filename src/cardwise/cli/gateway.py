"""``cardwise gateway``: what lets requests into the replicas of a service. Runs until it is told to stop."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cardwise.errors import UserError

if TYPE_CHECKING:
    from cardwise.gateway.settings import Settings


@click.command("gateway")
@click.option("--config", "config", type=click.Path(path_type=Path), required=True, help="Settings in TOML.")
@click.option("--check", is_flag=True, help="Only check the settings, and print what follows from them.")
@click.option("--openapi", is_flag=True, help="Only print, as OpenAPI 3.1, what a gateway of these settings takes.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Where replicas are a cluster's. Default: in-cluster account, else $KUBECONFIG.",
)
@click.option("--context", help="Context of the kubeconfig.")
def gateway_command(config: Path, kubeconfig: Path | None, context: str | None, *, check: bool, openapi: bool) -> None:
    """Queue, batch and limit what enters the replicas of services, and tell the rest at once when to come again."""
    from cardwise.gateway.settings import read_settings  # noqa: PLC0415 - other commands start without it

    if check and openapi:
        raise UserError("--check and --openapi print two things: give one of them")
    settings = read_settings(config)
    if check:
        _tell_what_follows(config, settings)
        return
    if openapi:
        from cardwise.gateway.openapi import document  # noqa: PLC0415

        click.echo(json.dumps(document(settings), indent=1))
        return
    from cardwise.adapters.http1.loop import loop_factory  # noqa: PLC0415
    from cardwise.gateway.main import run  # noqa: PLC0415
    from cardwise.process import log_as_json  # noqa: PLC0415

    log_as_json()

    async def main() -> None:
        if not settings.needs_cluster:
            await run(settings, _tell)
            return
        from cardwise.adapters.kube.client import connect  # noqa: PLC0415 - a gateway of a file starts without it

        async with connect(kubeconfig, context) as client:
            await run(settings, _tell, client)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


def _tell_what_follows(config: Path, settings: Settings) -> None:
    from cardwise.gateway.checking import lines_of, warnings_of  # noqa: PLC0415

    for line in lines_of(settings):
        click.echo(line)
    warnings = list(warnings_of(settings))
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{config}: {len(settings.services)} service(s), {'with warnings' if warnings else 'fine'}")


def _tell(where: str) -> None:
    """On stdout at once: a script that starts us waits for this line."""
    click.echo(where)
