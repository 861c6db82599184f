"""How many times a set of services goes onto some cards, and what the next one fails for.

The cluster of ``cardwise up``, so what decides is what runs: one whole set after the other is placed, and stays, until
a pod of one finds no place. Refuses to count halves: a set of which one pod waits is none. DaemonSets are placed once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cardwise.adapters import wire
from cardwise.adapters.manifests import Manifests, Workload
from cardwise.adapters.quantity import parse_card_mib
from cardwise.errors import UserError
from cardwise.files import plain, seen
from cardwise.up.hardware import SomeNode
from cardwise.up.state import State, state_of
from cardwise.up.world import World

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,39}[a-z0-9])?")
_FORM = "write MIB:PERCENT, or NAME=MIB:PERCENT, such as resnet=4096:20"


def parse_slices(texts: Sequence[str]) -> Manifests:
    """A set of one pod per slice, told as ``[NAME=]MIB:PERCENT``. Raises UserError with the slice that is wrong."""
    workloads = tuple(_slice(text, i) for i, text in enumerate(texts, 1))
    names = [each.name for each in workloads]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--slice: two slices are named {name}; give each a name of its own")
    return Manifests(workloads, ())


def _slice(text: str, number: int) -> Workload:
    name, _, size = text.rpartition("=")
    memory, colon, cores = size.partition(":")
    if name and not _NAME.fullmatch(name):
        raise UserError(f"--slice {seen(text)}: {seen(name)} is no name; write lower-case letters, digits and '-'")
    try:
        memory_mib = parse_card_mib(memory)
    except ValueError as exc:
        raise UserError(f"--slice {seen(text)}: {exc}; {_FORM}") from exc
    if not (colon and cores.isascii() and cores.isdecimal() and 1 <= int(cores[:4]) <= 100):
        raise UserError(f"--slice {seen(text)}: {seen(cores)} is no percentage, 1 to 100; {_FORM}")
    limits = {wire.GPU: "1", wire.USER_MEMORY: str(memory_mib), wire.USER_CORES: str(int(cores))}
    template = {"metadata": {}, "spec": {"containers": [{"name": "app", "resources": {"limits": limits}}]}}
    return Workload("Pod", "default", name or f"slice-{number}", 1, template, f"--slice {plain(text)}")


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of it. sets: that fit whole. capped: no set failed, the search ended.

    stopped_by, denied: the pods of the next set that found no place, and workloads that the webhook refuses, with why.
    cards: by model, what the sets take. notes: what was assumed.
    """

    sets: int
    pods_per_set: int
    policy: Mapping[str, str]
    cards: Sequence[Mapping[str, Any]]
    stopped_by: Sequence[Mapping[str, Any]] = ()
    denied: Sequence[Mapping[str, Any]] = ()
    capped: bool = False
    notes: Sequence[str] = ()


async def fit(
    manifests: Manifests,
    nodes: Sequence[SomeNode],
    policy: Mapping[str, str],
    most: int,
    now_s: Callable[[], float],
    now: Callable[[], datetime],
) -> Fit:
    """Place set after set. most: sets, at which the search ends. Raises UserError if a set has no pod."""
    daemons = [each for each in manifests.workloads if each.pods is None]
    wanted = [each for each in manifests.workloads if each.pods]
    if not wanted:
        raise UserError("the manifests make no pods that could be counted; give a Deployment, or --slice MIB:PERCENT")
    world = World.build(nodes, policy, now_s, now)
    notes = (*(note for node in nodes for note in node.notes), *manifests.notes)
    sets, failed = 0, State()
    async with world.running():
        fits = await world.add(daemons)
        if not fits:
            failed = state_of(world)
        while fits and sets < most:
            copy = _copy(wanted, sets + 1)
            fits = await world.add(copy)
            if fits:
                sets += 1
                continue
            failed = state_of(world)
            await world.remove(copy)
        done = state_of(world)
    return Fit(
        sets,
        sum(each.pods or 0 for each in wanted),
        world.policy,
        _by_model(done),
        failed.get("pending", ()),
        failed.get("denied", ()),
        capped=fits,
        notes=notes,
    )


def _copy(workloads: Sequence[Workload], number: int) -> list[Workload]:
    """The set once more: the first keeps its names."""
    return [replace(each, name=f"{each.name}-set-{number}") if number > 1 else each for each in workloads]


def _by_model(state: State) -> list[dict[str, Any]]:
    models: dict[str, dict[str, Any]] = {}
    for node in state["nodes"]:
        for card in node["cards"]:
            sums = models.setdefault(
                card["model"],
                {
                    "model": card["model"],
                    "cards": 0,
                    "used": 0,
                    "memory_total_mib": 0,
                    "memory_allocated_mib": 0,
                    "compute_allocated_pct": 0.0,
                },
            )
            sums["cards"] += 1
            sums["used"] += bool(card["slices"])
            sums["memory_total_mib"] += card["memory_total_mib"]
            sums["memory_allocated_mib"] += card["memory_total_mib"] - card["memory_free_mib"]
            sums["compute_allocated_pct"] += 100 - card["compute_free_pct"]
    return [models[model] for model in sorted(models)]


# ---------------------------------------------------------------- shown


def render(found: Fit) -> RenderableType:
    """A line per card model, what stopped the next set, and the answer last."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("cards", no_wrap=True)
    for name in ("there", "used", "memory allocated", "compute allocated"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found.cards:
        memory = 100 * each["memory_allocated_mib"] / max(each["memory_total_mib"], 1)
        compute = each["compute_allocated_pct"] / max(each["cards"], 1)
        table.add_row(
            Text(plain(each["model"])), f"{each['cards']:,}", f"{each['used']:,}", f"{memory:.1f} %", f"{compute:.1f} %"
        )
    lines = [Text(plain(f"note: {note}"), style="dim") for note in found.notes]
    lines += [Text(plain(f"{each['workload']} is denied: {each['why']}")) for each in found.denied]
    for each in found.stopped_by:
        lines.append(Text(plain(f"{each['pod']} ({each['asks']}): {each['why']}")))
        lines += [Text(plain(f"  {each[key]}")) for key in ("detail", "advice") if each[key]]
    return Group(table, *lines, Text(sentence(found), style="bold"))


def sentence(found: Fit) -> str:
    """The answer in one line."""
    pods = f"{found.pods_per_set} pod{'' if found.pods_per_set == 1 else 's'}"
    sets = f"{found.sets:,} set{'' if found.sets == 1 else 's'} of {pods} fit"
    policies = ", ".join(f"{latency} by {policy}" for latency, policy in found.policy.items())
    if found.capped:
        return f"At least {sets}; --most ended the search. {policies}."
    which = "; the next does not" if found.sets else ": not even one"
    return f"{sets}{which}. {policies}."
