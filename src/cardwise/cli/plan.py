"""``cardwise plan``: what to ask for to serve a model, from its configuration alone. Needs no card and no network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
from rich import box
from rich.table import Table

from cardwise.cli.inputs import FilePath, NumberRange
from cardwise.cli.terminal import console
from cardwise.core.capacity.engines import ENGINES
from cardwise.core.capacity.memory import Lora
from cardwise.core.capacity.replicas import HEADROOM, Measured
from cardwise.errors import UserError
from cardwise.files import check_output, plain, write_text
from cardwise.loadtest.carried import carried
from cardwise.loadtest.curve import Curve, read_curve
from cardwise.plan.catalogue import entry, find_model, names
from cardwise.plan.manifest import manifest, refusal_of
from cardwise.plan.planner import KV_DTYPES, SEQUENCES, Plan, Wish, make_plan
from cardwise.plan.report import render, told
from cardwise.plan.tables import tables

EXIT_REFUSED = 1
FACT_CORES = "compute-pct"
"""What a load test was told of the compute that its service held: ``cardwise loadtest --facts compute-pct=40``."""
TOKENS = click.IntRange(1, 100_000_000)


class _Lora(click.ParamType[Lora]):
    """``RANKxCOUNT``."""

    name = "RANKxCOUNT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Lora:  # noqa: ANN401
        """Both at least 1."""
        if isinstance(value, Lora):
            return value
        found = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", str(value))
        if not found:
            self.fail(f"{value!r} is no rank and number of adapters; write such as 16x4.", param, ctx)
        return Lora(int(found[1]), int(found[2]))


@click.command("plan")
@click.argument("model", required=False)
@click.option("--list", "listed", is_flag=True, help="Show the models that are known by name.")
@click.option("--engine", type=click.Choice(ENGINES), help="[default: vllm; onnxruntime for what does not generate]")
@click.option(
    "--dtype",
    metavar="NAME",
    help="Of the weights: float32, float16, bfloat16, or fp8, int8, int4.  [default: the checkpoint's]",
)
@click.option(
    "--quantization", metavar="NAME", help="fp8, int8, awq, gptq, mxfp4 or none.  [default: as the checkpoint is]"
)
@click.option(
    "--kv-dtype", type=click.Choice(list(KV_DTYPES)), default="auto", show_default=True, help="Of the KV cache."
)
@click.option(
    "--context", type=TOKENS, help="Tokens of the longest sequence.  [default: 4096, or what the model reaches]"
)
@click.option(
    "--concurrency",
    "--batch",
    "sequences",
    type=click.IntRange(1, 100_000),
    default=SEQUENCES,
    show_default=True,
    help="Sequences, or inputs, at a time.",
)
@click.option(
    "--live-tokens",
    type=TOKENS,
    metavar="P95",
    help="Tokens that a sequence holds at a time, 95th percentile: the KV cache is sized for them, not for --context.",
)
@click.option(
    "--batch-tokens", type=TOKENS, help="Tokens that the engine computes in one step.  [default: the engine's]"
)
@click.option("--tp", type=click.IntRange(1, 1024), default=1, show_default=True, help="Cards that share the model.")
@click.option(
    "--lora", type=_Lora(), metavar=_Lora.name, help="Adapters that are loaded at a time: 16x4 are four of rank 16."
)
@click.option(
    "--qps", type=NumberRange(min=0, min_open=True, max=1e9), help="Requests per second that all replicas carry."
)
@click.option("--curve", type=FilePath(), help="What a replica carries: a file of `cardwise loadtest`.")
@click.option("--headroom", type=NumberRange(1, 100), default=HEADROOM, show_default=True, help="Factor on --qps.")
@click.option("--cores", type=click.IntRange(1, 100), help="Percent of a card's compute.  [default: from --curve]")
@click.option("--margin", type=NumberRange(1, 10), help="Factor on the sum of all components.  [default: 1.2]")
@click.option(
    "--card", metavar="NAME", help="The card it shall run on, such as L4.  [default: the smallest that holds it]"
)
@click.option("--slice-mib", type=click.IntRange(1, 10_000_000), help="Check this slice: what does it hold?")
@click.option("--isolation", type=click.Choice(["mps", "mig", "time-slicing", "whole"]), help="How the card is shared.")
@click.option("--mps", is_flag=True, help="The same as --isolation mps.")
@click.option("--eager", is_flag=True, help="Without CUDA graphs.")
@click.option("--overheads", type=FilePath(), help="A TOML file whose rows replace ours: measured overheads.")
@click.option("--cards", type=FilePath(), help="A TOML file with more cards.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "yaml"]),
    default="table",
    show_default=True,
    help="yaml: a Deployment and a Service.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
@click.option("--plot", type=FilePath(), help="Also draw it, as an SVG file.")
def plan_command(
    *,
    model: str | None,
    listed: bool,
    engine: str | None,
    dtype: str | None,
    quantization: str | None,
    kv_dtype: str,
    context: int | None,
    sequences: int,
    live_tokens: int | None,
    batch_tokens: int | None,
    tp: int,
    lora: Lora | None,
    qps: float | None,
    curve: Path | None,
    headroom: float,
    cores: int | None,
    margin: float | None,
    card: str | None,
    slice_mib: int | None,
    isolation: str | None,
    mps: bool,
    eager: bool,
    overheads: Path | None,
    cards: Path | None,
    output: str,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Say what a model needs: MiB and percent of a card, replicas, and flags that keep the engine inside its slice.

    MODEL is a folder with config.json (and safetensors files, whose headers are read), a config.json, or a name of
    --list.

    Exit code 1: the slice of --slice-mib does not hold it, or the card of --card does not hold the slice. With -o yaml
    nothing is then written to stdout.
    """
    if listed:
        _show_list()
        return
    if model is None:
        raise UserError("give a model: a folder with config.json, a config.json, or a name of --list")
    if as_json and output != "table":
        raise UserError("--json and -o yaml are two forms: give one of them")
    if mps and isolation not in {None, "mps"}:
        raise UserError(f"--mps and --isolation {isolation} are two modes: give one of them")
    if plot is not None:
        check_output(plot, [each for each in (curve, overheads, cards) if each is not None])
    wish = Wish(
        engine=engine,
        dtype=dtype,
        quantization=quantization,
        kv_dtype=kv_dtype,
        context=context,
        sequences=sequences,
        live_tokens=live_tokens,
        step_tokens=batch_tokens,
        tp=tp,
        lora=lora,
        margin=margin,
        card=card,
        isolation="mps" if mps else isolation,
        eager=eager,
        slice_mib=slice_mib,
        cores_pct=cores,
        rate_per_s=qps,
        headroom=headroom,
        measured=None if curve is None else _measured(read_curve(curve), curve),
    )
    plan = make_plan(find_model(model), wish, tables(overheads, cards))
    _show(plan, output, plot, as_json=as_json)
    if plan.refused:
        sys.exit(EXIT_REFUSED)


def _show(plan: Plan, output: str, plot: Path | None, *, as_json: bool) -> None:
    """In the form that was asked for. No manifest is written of what cannot run: why not goes to stderr."""
    if plot is not None:
        from cardwise.plan.plots import plot as draw  # noqa: PLC0415 - matplotlib takes a second, and is an extra

        write_text(plot, draw(plan))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told(plan))).decode() + "\n")
    elif output == "yaml" and plan.refused:
        console(stderr=True).print(
            plain(f"no manifest: {refusal_of(plan)}"), highlight=False, markup=False, soft_wrap=True
        )
    elif output == "yaml":
        sys.stdout.write(manifest(plan))
    else:
        console().print(render(plan), highlight=False)


def _measured(curve: Curve, path: Path) -> Measured:
    """What a replica carries. Raises UserError if the curve does not say."""
    try:
        found = carried(curve)
    except ValueError as error:
        raise UserError(f"--curve {plain(str(path))}: {error}") from error
    replicas = curve.facts.get("cards", 1.0)
    share = curve.facts.get(FACT_CORES, 100.0) / max(replicas, 1.0)
    if not 1 <= share <= 100:
        raise UserError(
            f"--curve {plain(str(path))}: its facts say {share:g} % of a card for a replica; write 1 to 100"
        )
    return Measured(found.rate_per_s / max(replicas, 1.0), round(share), found.at_least, found.notes)


def _show_list() -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("name", "repository", "parameters"):
        table.add_column(name, justify="right" if name == "parameters" else "left")
    for name in names():
        known = entry(name)
        table.add_row(name, known.repository, f"{known.published_parameters / 1e9:,.2f} B")
    console().print(table, highlight=False)
