"""``cardwise scheduler``: the program that decides for kube-scheduler. Runs until it is told to stop."""

from __future__ import annotations

from pathlib import Path

import click

from cardwise.cli.cluster import ClusterInput, replica_options


@click.command("scheduler")
@replica_options
def scheduler_command(config: Path | None, cluster: ClusterInput, identity: str) -> None:
    """Decide for kube-scheduler which card a pod gets (extender and admission webhook)."""
    from cardwise.process import log_as_json  # noqa: PLC0415 - other commands start without HTTP libraries
    from cardwise.scheduler.main import run  # noqa: PLC0415
    from cardwise.scheduler.settings import read_settings  # noqa: PLC0415

    settings = read_settings(config)
    log_as_json()
    cluster.ask(lambda client: run(client, settings, identity))
