"""``cardwise agent``: the program of each GPU node. Runs until it is told to stop."""

from __future__ import annotations

from pathlib import Path

import click

from cardwise.cli.cluster import ClusterInput, cluster_options

END_WITHIN_S = 4.5
"""After SIGTERM, whatever hangs: less than the five seconds that are promised."""


@click.command("agent")
@click.option("--config", "config", type=click.Path(path_type=Path), help="Settings in TOML; defaults without it.")
@click.option("--node", required=True, envvar="NODE_NAME", help="This node's name; default: $NODE_NAME.")
@cluster_options()
def agent_command(*, config: Path | None, node: str, cluster: ClusterInput) -> None:
    """Hand cards to containers on this node, hold their limits, watch the cards (device plugin)."""
    from cardwise.agent.main import run  # noqa: PLC0415 - other commands start without gRPC and HTTP
    from cardwise.agent.settings import check_node_name, read_settings  # noqa: PLC0415
    from cardwise.process import log_as_json  # noqa: PLC0415

    check_node_name(node)
    settings = read_settings(config)
    log_as_json()
    cluster.ask(lambda client: run(client, settings, node, end_within_s=END_WITHIN_S))
