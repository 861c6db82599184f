"""Where a history comes from: options that ``replay`` and ``tune`` share, and the trace they fall back to."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from cardwise.adapters.dump import parse_card_memory, parse_size_rule, read_dump
from cardwise.adapters.openb import read_openb
from cardwise.core.history import History
from cardwise.errors import UserError
from cardwise.replay.synth import synthesize

TRACE_PLACES = ("data/openb", "../shared/data/openb")
"""Where the openb trace is looked for if ``CARDWISE_OPENB`` does not name its folder."""
TRACE_NODES, TRACE_PODS = "openb_node_list_gpu_node.csv", "openb_pod_list_default.csv"
SYNTHETIC_NODES, SYNTHETIC_SEED = 200, 1
MADE_UP = (
    "No history was given, so one is made up: --dump FILE reads your cluster, CARDWISE_OPENB=FOLDER the trace of a "
    "production cluster (README)."
)
SEED = click.IntRange(0, 2**31 - 1)
"""Every generator of random numbers takes these, and a search starts some thousand above."""
F = TypeVar("F", bound=Callable[..., Any])


class NumberRange(click.FloatRange):
    """A range that "nan" is not in: click's own lets it pass, for it compares with nothing."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """As click does, and refuse what is not a number."""
        number = float(super().convert(value, param, ctx))
        if number != number:  # noqa: PLR0124 - only NaN differs from itself
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class FilePath(click.Path):
    """A path that "" is not: pathlib takes that for the current folder."""

    def __init__(self, *, file_okay: bool = True) -> None:
        super().__init__(path_type=Path, file_okay=file_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """As click does, and refuse what is empty."""
        if not os.fspath(value):
            self.fail("is empty; write a path.", param, ctx)
        return super().convert(value, param, ctx)


@dataclass(frozen=True, slots=True)
class HistoryInput:
    """What the user said of the history to use."""

    nodes: Path | None
    pods: Path | None
    dump: Path | None
    slices: tuple[str, ...]
    card_memory: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """What will be read: the files given, else the trace if it is found."""
        given = tuple(each for each in (self.nodes, self.pods, self.dump) if each is not None)
        trace = None if given else find_trace()
        return given if trace is None else (trace / TRACE_NODES, trace / TRACE_PODS)


def history_options(command: F) -> F:
    """Add the options and pass them to the command as one ``history_input``."""
    options = [
        click.option("--nodes", type=FilePath(), help="Nodes, a CSV file in the openb format."),
        click.option("--pods", type=FilePath(), help="Pods, a CSV file in the openb format."),
        click.option(
            "--dump",
            type=FilePath(),
            help="Your own cluster: the output of `kubectl get nodes,pods -A -o json`.",
        ),
        click.option(
            "--slice",
            "slices",
            multiple=True,
            metavar="PATTERN=MIB:PCT",
            help="With --dump: what pods that hold whole cards today really need, per card, by shell pattern on "
            "namespace/name or namespace/service. The first that matches counts. Example: 'prod/resnet-*=4096:20'.",
        ),
        click.option(
            "--card-memory",
            multiple=True,
            metavar="PRODUCT=MIB",
            help="With --dump: memory per card of a product whose nodes have no nvidia.com/gpu.memory label.",
        ),
    ]

    @functools.wraps(command)
    def wrapped(
        nodes: Path | None,
        pods: Path | None,
        dump: Path | None,
        slices: tuple[str, ...],
        card_memory: tuple[str, ...],
        **rest: object,
    ) -> object:
        return command(history_input=HistoryInput(nodes, pods, dump, slices, card_memory), **rest)

    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def load_history(given: HistoryInput) -> History:
    """Read what was given, else the openb trace where it is found, else a synthetic cluster of ours."""
    if given.dump is not None:
        if given.nodes or given.pods:
            raise UserError("--dump holds nodes and pods: give either --dump, or --nodes and --pods")
        rules = [parse_size_rule(rule) for rule in given.slices]
        return read_dump(given.dump, rules, parse_card_memory(given.card_memory))
    if given.slices or given.card_memory:
        raise UserError("--slice and --card-memory only go with --dump: a CSV trace knows its pods' slices")
    if given.nodes and given.pods:
        return read_openb(given.nodes, given.pods)
    if given.nodes or given.pods:
        raise UserError("--nodes and --pods go together: give both, or neither for the built-in choice")
    trace = find_trace()
    if trace is None:
        made = synthesize(SYNTHETIC_NODES, SYNTHETIC_SEED)
        return replace(made, notes=(MADE_UP, *made.notes))
    return read_openb(trace / TRACE_NODES, trace / TRACE_PODS)


def find_trace() -> Path | None:
    """The folder of the openb trace, if it is here. ``CARDWISE_OPENB`` names it; a wrong name is an error."""
    named = os.environ.get("CARDWISE_OPENB")
    if named:
        if not (Path(named) / TRACE_NODES).is_file():
            raise UserError(f"CARDWISE_OPENB is {named!r}, which holds no {TRACE_NODES}; correct or unset it")
        return Path(named)
    return next((Path(place) for place in TRACE_PLACES if (Path(place) / TRACE_NODES).is_file()), None)
