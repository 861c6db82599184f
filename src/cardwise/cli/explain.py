"""``cardwise explain``: why a pod is where it is, or nowhere; from the cluster itself, or from a dump of it.

The truth lies in the pods, so no scheduler is asked: the same ledger is built here, and the same policy answers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console

from cardwise.adapters import wire
from cardwise.adapters.claims import read_claim
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.kubectl_list import read_listing
from cardwise.adapters.nominations import nomination_of
from cardwise.cli.cluster import ClusterInput, cluster_options
from cardwise.errors import UserError

if TYPE_CHECKING:
    from cardwise.adapters.kube.client import KubeClient

SHOWN = 10
"""Nodes that the table shows; ``--json`` and ``--node`` tell of more."""


@click.command("explain")
@click.argument("pod")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option("--node", help="Only this node.")
@click.option("--dump", type=click.Path(path_type=Path), help="A file of `kubectl get nodes,pods -A -o json`.")
@click.option("--config", type=click.Path(path_type=Path), help="The scheduler's settings, for its policies.")
@cluster_options()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
def explain_command(
    pod: str,
    namespace: str,
    node: str | None,
    dump: Path | None,
    config: Path | None,
    cluster: ClusterInput,
    as_json: bool,
) -> None:
    """Say per node and card why POD may or may not go there: rules, then scores, then what was reported.

    POD is NAMESPACE/POD, or a name in the namespace of -n. Give --config what the scheduler has, or its default
    policies are explained.
    """
    from cardwise.adapters.watching import Watching  # noqa: PLC0415
    from cardwise.core.ledger import Ledger  # noqa: PLC0415 - other commands start without HTTP libraries
    from cardwise.scheduler import telling  # noqa: PLC0415
    from cardwise.scheduler.settings import policies_of, read_settings  # noqa: PLC0415

    log_to_stderr()
    nodes, pods = _of_dump(dump) if dump else cluster.ask(_of_cluster)
    watching = Watching(Ledger(policies_of(read_settings(config))))
    watching.hear_all(nodes, pods)
    name = pod if "/" in pod else f"{namespace}/{pod}"
    found = next((each for each in pods if each.name == name), None)
    if found is None:
        raise UserError(f"no pod is called {name}; write NAMESPACE/POD or pass -n NAMESPACE")
    if node is not None and node not in watching.ledger.nodes:
        raise UserError(f"no node is called {node}; the cluster has {len(watching.ledger.nodes)}")
    claim, faults = read_claim(found)
    told = telling.explain(watching.ledger, claim, node)
    told = {**told, "stays": found.metadata.annotations.get(wire.ANNOTATION_STAYS), "kept": _kept_for(found)}
    if not dump and (queue := _queue_of(found, cluster)) is not None:
        told["queue"] = queue
    if as_json:
        click.echo(json.dumps({**told, "faults": faults}))
        return
    _show(Console(markup=False, emoji=False, highlight=False, soft_wrap=True), told, faults)


def log_to_stderr() -> None:
    """What could not be read of a node or a pod, in words: stdout may be one JSON object."""
    import structlog  # noqa: PLC0415 - see above

    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _kept_for(pod: Pod) -> str | None:
    """What is kept for a pod that waits, in words."""
    if pod.spec.node_name:
        return None
    try:
        kept = nomination_of(pod)
    except ValueError as exc:
        return str(exc)
    return None if kept is None or kept.over else kept.words


def _of_dump(path: Path) -> tuple[list[Node], list[Pod]]:
    listing = read_listing(path)
    return [found.object for found in listing.nodes], [found.object for found in listing.pods]


async def _of_cluster(client: KubeClient) -> tuple[list[Node], list[Pod]]:
    return await client.list_nodes(), await client.list_pods()


def _queue_of(pod: Pod, cluster: ClusterInput) -> dict[str, Any] | None:
    """Where it stands with Kueue: a pod without quota is offered to no node."""
    if wire.LABEL_KUEUE_MANAGED not in pod.metadata.labels and wire.LABEL_KUEUE_QUEUE not in pod.metadata.labels:
        return None
    from cardwise.adapters.kueue_pending import queue_state  # noqa: PLC0415

    state = cluster.ask(lambda client: queue_state(client, pod))
    return None if state is None else {**msgspec.to_builtins(state), "lines": list(state.lines())}


def _show(console: Console, told: Mapping[str, Any], faults: list[str]) -> None:
    console.print(f"pod {told['pod']}, policy {told['policy']}")
    for ask in told["asks"]:
        console.print(f"  container {ask['container']} ({ask['stage']}) asks for {_amount(ask)}")
    for fault in faults:
        console.print(f"  wrong: {fault}")
    for line in told["queue"]["lines"] if "queue" in told else ():
        console.print(f"  {line}")
    if not told["asks"]:
        console.print("  asks for no cards: cardwise has no part in where it goes")
        return
    if told["bound_to"]:
        console.print(f"  bound to {told['bound_to']}: {told['allocation'] or 'without an allocation of cardwise'}")
    for line in filter(None, (told["stays"], told["kept"])):
        console.print(f"  {line}")
    why = ", ".join(f"{each['nodes']} {each['short']}" for each in told["refusals"])
    console.print(f"  {told['nodes_fit']} of {told['nodes_total']} nodes fit{': ' + why if why else ''}")
    for node in told["nodes"][:SHOWN]:
        _show_node(console, node)
    for advice in {node["reason"]["advice"]: None for node in told["nodes"] if node["reason"] and not node["cards"]}:
        console.print(f"  {advice}")
    if len(told["nodes"]) > SHOWN:
        console.print(f"{len(told['nodes']) - SHOWN} more nodes with --json, or one with --node NAME")


def _amount(ask: Mapping[str, Any]) -> str:
    cards = f"{ask['cards']} card{'s' if ask['cards'] > 1 else ''}"
    if ask["whole"]:
        return f"{cards}, whole"
    memory = f"{ask['memory_mib']} MiB" if ask["memory_mib"] else f"{ask['memory_pct']} % of memory"
    return f"{cards} with {memory} and {ask['compute_pct']} % of compute{' each' if ask['cards'] > 1 else ''}"


def _show_node(console: Console, node: Mapping[str, Any]) -> None:
    verdict = f"fits, cost {node['cost']:.4g}" if node["fits"] else f"no: {node['reason']['long']}"
    factors = ", ".join(f"{name} {value:.2f}" for name, value in node["factors"].items())
    console.print(f"{node['name']}: {verdict}{' (' + factors + ')' if factors else ''}")
    for card in node["cards"]:
        used = (
            "not measured" if card["compute_used_share"] is None else f"{100 * card['compute_used_share']:.0f} % used"
        )
        free = f"{card['memory_free_mib']} of {card['memory_total_mib']} MiB and {card['compute_free_pct']:g} % free"
        if card["memory_lent_mib"] or card["memory_lent_free_mib"]:
            free += f", {card['memory_lent_mib']} MiB lent and {card['memory_lent_free_mib']} more to lend"
        said = f"no: {card['reason']['long']}" if card["reason"] else "taken" if card["chosen"] else "would do"
        console.print(f"  {card['uuid']}: {free}, {used}, {card['slices']} slices; {said}")
        if card["reason"] and not node["fits"]:
            console.print(f"    {card['reason']['advice']}")
