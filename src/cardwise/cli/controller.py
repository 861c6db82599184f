"""``cardwise controller``: the program that changes what must change as things run. Runs until it is told to stop."""

from __future__ import annotations

from pathlib import Path

import click

from cardwise.cli.cluster import ClusterInput, replica_options


@click.command("controller")
@replica_options
def controller_command(config: Path | None, cluster: ClusterInput, identity: str) -> None:
    """Change what must change while things run: replicas by the hours of the day, who gives way to whom."""
    from cardwise.controller.main import run  # noqa: PLC0415 - other commands start without HTTP libraries
    from cardwise.controller.settings import read_settings  # noqa: PLC0415
    from cardwise.process import log_as_json  # noqa: PLC0415

    settings = read_settings(config)
    log_as_json()
    cluster.ask(lambda client: run(client, settings, identity))
