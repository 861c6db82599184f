"""``cardwise doctor``: the likely cause of what is wrong, from a cluster, a dump of it, or the node that it runs on."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cardwise.cli.cluster import ClusterInput, cluster_options
from cardwise.cli.explain import log_to_stderr
from cardwise.cli.inputs import FilePath
from cardwise.errors import UserError

if TYPE_CHECKING:
    from cardwise.adapters.capture import Capture
    from cardwise.doctor.nearby import Nearby

FOUND = 1
"""Exit code where there is a finding."""
PROMETHEUS_S = 30.0
"""Of one question: half an hour of some ten thousand slices takes its time."""


@click.command("doctor")
@click.option(
    "--dump",
    type=FilePath(),
    help="Instead of the cluster: what --save wrote, or the output of `kubectl get nodes,pods,events -A -o json`.",
)
@click.option("--prometheus", metavar="URL", help="Where to ask for series of the last half hour.")
@click.option("--token-file", type=FilePath(), help="A bearer token for Prometheus.")
@click.option("--save", type=FilePath(), help="Write all that was looked at to this file, without secrets.")
@click.option(
    "--node-local", is_flag=True, help="Look at this node instead: driver, CDI files, MPS, kubelet's sockets."
)
@click.option("--agent-config", type=FilePath(), help="With --node-local: the agent's settings, for its folders.")
@click.option("--namespace", help="Where cardwise is installed. Default: where its webhook's configuration says.")
@cluster_options(FilePath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
def doctor_command(
    *,
    dump: Path | None,
    prometheus: str | None,
    token_file: Path | None,
    save: Path | None,
    node_local: bool,
    agent_config: Path | None,
    namespace: str | None,
    cluster: ClusterInput,
    as_json: bool,
) -> None:
    """Name the likely cause of what is wrong, with its evidence and what to do.

    Changes nothing. Exit code 0: nothing found; 1: findings, or what was asked for could not be read; 2: the command
    was wrong.
    """
    _check(dump=dump, save=save, elsewhere=bool(prometheus or cluster.kubeconfig or cluster.context), here=node_local)
    if agent_config and not node_local:
        raise UserError("--agent-config goes with --node-local")
    if token_file and not prometheus:
        raise UserError("--token-file goes with --prometheus URL")
    from cardwise.adapters.capture import Capture, encode_capture, read_capture  # noqa: PLC0415
    from cardwise.doctor.facts import facts_of  # noqa: PLC0415 - other commands start without what these import
    from cardwise.doctor.ranking import diagnose, unexplained  # noqa: PLC0415
    from cardwise.doctor.report import as_json as told_json  # noqa: PLC0415
    from cardwise.doctor.report import lines  # noqa: PLC0415
    from cardwise.files import check_output, write_text  # noqa: PLC0415

    log_to_stderr()
    if save:
        check_output(save)
    nearby = _here(agent_config) if node_local else None
    if node_local:
        capture = Capture(())
    elif dump:
        capture = read_capture(dump)
    else:
        capture = asyncio.run(_live(cluster, namespace, prometheus, token_file))
    if save:
        write_text(save, encode_capture(capture))
    facts = facts_of(capture, nearby)
    ranked = diagnose(facts)
    told = ranked, unexplained(facts, ranked), facts.gaps
    blind = prometheus is not None and capture.beside.measured is None
    click.echo(json.dumps(told_json(*told, blind=blind)) if as_json else "\n".join(lines(*told)))
    if ranked or told[1] or blind:
        sys.stdout.flush()
        sys.exit(FOUND)


def _check(*, dump: Path | None, save: Path | None, elsewhere: bool, here: bool) -> None:
    """Only one place can be looked at. elsewhere: options of a live cluster were given. Raises UserError."""
    if dump and (save or elsewhere):
        raise UserError("--dump is read instead of a cluster: leave --save, --prometheus, --kubeconfig, --context out")
    if here and (dump or save or elsewhere):
        raise UserError("--node-local looks at this node alone: give only --agent-config and --json with it")


def _here(agent_config: Path | None) -> Nearby:
    from cardwise.agent.settings import read_settings  # noqa: PLC0415
    from cardwise.doctor.nearby import look  # noqa: PLC0415

    return look(read_settings(agent_config))


async def _live(cluster: ClusterInput, namespace: str | None, url: str | None, token_file: Path | None) -> Capture:
    from cardwise.adapters.kube.client import connect  # noqa: PLC0415
    from cardwise.adapters.prometheus import Prometheus  # noqa: PLC0415
    from cardwise.doctor.gathering import gather  # noqa: PLC0415

    server = Prometheus(url, token_file=token_file, timeout_s=PROMETHEUS_S) if url else None
    try:
        async with connect(cluster.kubeconfig, cluster.context) as client:
            return await gather(client, namespace, server, datetime.now(UTC))
    finally:
        if server is not None:
            await server.close()
