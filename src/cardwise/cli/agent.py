"""``cardwise agent``: the program of each GPU node. Runs until it is told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

END_WITHIN_S = 4.5
"""After SIGTERM, whatever hangs: less than the five seconds that are promised."""


@click.command("agent")
@click.option("--config", "config", type=click.Path(path_type=Path), help="Settings in TOML; defaults without it.")
@click.option("--node", required=True, envvar="NODE_NAME", help="This node's name; default: $NODE_NAME.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: in-cluster account, else $KUBECONFIG.")
@click.option("--context", help="Context of the kubeconfig.")
def agent_command(config: Path | None, node: str, kubeconfig: Path | None, context: str | None) -> None:
    """Hand cards to containers on this node, hold their limits, watch the cards (device plugin)."""
    from cardwise.adapters.kube.client import connect  # noqa: PLC0415 - other commands start without gRPC and HTTP
    from cardwise.agent.main import run  # noqa: PLC0415
    from cardwise.agent.settings import check_node_name, read_settings  # noqa: PLC0415
    from cardwise.process import log_as_json  # noqa: PLC0415

    check_node_name(node)
    settings = read_settings(config)
    log_as_json()

    async def main() -> None:
        async with connect(kubeconfig, context) as client:
            await run(client, settings, node, end_within_s=END_WITHIN_S)

    asyncio.run(main())
