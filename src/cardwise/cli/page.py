"""``cardwise page``: a real cluster's cards, slices and pods that wait, live in a browser. Reads only."""

from __future__ import annotations

from pathlib import Path

import click

from cardwise.cli.cluster import ClusterInput, cluster_options

PORT = 8266


@click.command("page")
@click.option("--config", type=click.Path(path_type=Path), help="The scheduler's settings, for its policies.")
@cluster_options()
@click.option("--prometheus", metavar="URL", help="Where the gateways' metrics are: http://prometheus:9090.")
@click.option("--token-file", type=click.Path(path_type=Path), help="Of a bearer token for Prometheus.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="On this machine; 0: any.")
def page_command(
    *,
    config: Path | None,
    cluster: ClusterInput,
    prometheus: str | None,
    token_file: Path | None,
    port: int,
) -> None:
    """Show a real cluster on a page of this machine, with the rights of your kubeconfig, until Ctrl-C.

    Needs to list and watch nodes and pods; changes nothing.
    """
    from cardwise.process import log_as_json, until_stopped  # noqa: PLC0415 - other commands start without HTTP
    from cardwise.scheduler.settings import policies_of, read_settings  # noqa: PLC0415
    from cardwise.web.main import Wish, showing  # noqa: PLC0415

    make_policies = policies_of(read_settings(config))
    wish = Wish(make_policies, port, prometheus, token_file)
    log_as_json()
    cluster.ask(
        lambda client: until_stopped(showing(client, wish, lambda url: click.echo(f"The cluster on a page: {url}")))
    )
