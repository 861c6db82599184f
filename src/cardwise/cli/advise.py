"""``cardwise advise``: which isolation mode suits a workload, why, and what that mode does not hold.

Asks nothing but its options: no cluster, no card. Refuses to choose silently: what was not told is named as assumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from cardwise.cli.inputs import NumberRange
from cardwise.core.card.advice import Advice, Workload, advise
from cardwise.core.card.isolation import Hold
from cardwise.core.claim import LatencyClass

_MEANING = {
    Hold.BINDS: "also against a container that tries to get around it",
    Hold.ASKS: "as long as no container tries to get around it",
    Hold.NONE: "not isolated",
}
_FAULTS_MEANING = {
    Hold.BINDS: "a fault stays in the slice that had it",
    Hold.ASKS: "a fault mostly stays in the slice that had it; NVIDIA promises nothing",
    Hold.NONE: "not isolated: a fault can end every container on the card",
}


def _branch(_ctx: click.Context, _param: click.Parameter, version: str | None) -> int:
    head = (version or "0").partition(".")[0]
    if not (head.isascii() and head.isdecimal() and len(head) <= 5):
        raise click.BadParameter(f"{version!r} is no driver version; write one such as 570 or 570.124.06")
    return int(head)


@click.command("advise")
@click.option(
    "--latency",
    type=click.Choice([each.value for each in LatencyClass]),
    default=LatencyClass.SENSITIVE.value,
    show_default=True,
    help="Whether anyone waits for the answers.",
)
@click.option(
    "--services", type=click.IntRange(1, 1000), default=2, show_default=True, help="How many are to share one card."
)
@click.option("--memory", type=click.IntRange(1, 10_000_000), help="MiB of card memory that each of them takes.")
@click.option("--peak-mean", type=NumberRange(1, 1_000_000), help="Peak load over mean load, such as 1.2 or 10.")
@click.option("--contained", is_flag=True, help="A fault of one service must not reach the others.")
@click.option("--tenants", is_flag=True, help="The code is not your own: limits must hold against it.")
@click.option("--card", default="", help="The card, as `nvidia-smi -L` names it.")
@click.option("--card-memory", type=click.IntRange(1, 10_000_000), help="MiB of memory of the card.")
@click.option("--mig/--no-mig", default=None, help="Whether the card knows MIG.  [default: by the card's name]")
@click.option("--driver", callback=_branch, help="The driver's version, such as 570 or 570.124.06.")
@click.option("--no-host-paths", is_flag=True, help="Pods cannot mount paths of the host (Pod Security: baseline).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
def advise_command(
    *,
    latency: str,
    services: int,
    memory: int | None,
    peak_mean: float | None,
    contained: bool,
    tenants: bool,
    card: str,
    card_memory: int | None,
    mig: bool | None,
    driver: int,
    no_host_paths: bool,
    as_json: bool,
) -> None:
    """Say how services should share a card: whole, mps, mig or time-slicing; why, and what it does not isolate."""
    advice = advise(
        Workload(
            latency=LatencyClass(latency),
            services=services,
            memory_mib=memory or 0,
            peak_over_mean=peak_mean,
            contained=contained,
            tenants=tenants,
            model=card,
            card_memory_mib=card_memory or 0,
            mig=mig,
            driver_branch=driver,
            host_paths_refused=no_host_paths,
        )
    )
    told = _told(advice)
    if as_json:
        click.echo(json.dumps(told))
        return
    _show(Console(markup=False, emoji=False, highlight=False, soft_wrap=True), advice, told)


def _told(advice: Advice) -> dict[str, Any]:
    held = advice.guarantee
    return {
        "mode": advice.mode.name.lower().replace("_", "-"),
        "step": advice.step.value,
        "services_per_card": advice.services,
        "isolates": {"memory": held.memory.value, "compute": held.compute.value, "faults": held.faults.value},
        "grounds": list(advice.grounds),
        "warnings": list(advice.warnings),
    }


def _show(console: Console, advice: Advice, told: Mapping[str, Any]) -> None:
    each = f"{advice.services} service{'s' if advice.services > 1 else ''} per card"
    step = "" if told["step"] == told["mode"] else f", step {told['step']}"
    console.print(f"{told['mode']}{step}: {each}")
    held = advice.guarantee
    console.print(f"  memory   {held.memory.value:5}  {_MEANING[held.memory]}")
    console.print(f"  compute  {held.compute.value:5}  {_MEANING[held.compute]}")
    console.print(f"  faults   {held.faults.value:5}  {_FAULTS_MEANING[held.faults]}")
    for title in ("grounds", "warnings"):
        if told[title]:
            console.print({"grounds": "because", "warnings": "mind"}[title])
        for line in told[title]:
            console.print(f"  {line}")
