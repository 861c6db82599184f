"""``cardwise controller``: the program that changes what must change as things run. Runs until it is told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click


@click.command("controller")
@click.option("--config", "config", type=click.Path(path_type=Path), help="Settings in TOML; defaults without it.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: in-cluster account, else $KUBECONFIG.")
@click.option("--context", help="Context of the kubeconfig.")
@click.option("--identity", default="", help="Name in the lease; default: host name and process number.")
def controller_command(config: Path | None, kubeconfig: Path | None, context: str | None, identity: str) -> None:
    """Change what must change while things run: replicas by the hours of the day, who gives way to whom."""
    from cardwise.adapters.kube.client import connect  # noqa: PLC0415 - other commands start without HTTP libraries
    from cardwise.controller.main import run  # noqa: PLC0415
    from cardwise.controller.settings import read_settings  # noqa: PLC0415
    from cardwise.process import log_as_json  # noqa: PLC0415

    settings = read_settings(config)
    log_as_json()

    async def main() -> None:
        async with connect(kubeconfig, context) as client:
            await run(client, settings, identity)

    asyncio.run(main())
