"""``cardwise engine``: an emulated inference engine with a documented cost model. Runs until it is told to stop."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
import msgspec


@click.command("engine")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8100, show_default=True, help="0 for any free one; the address is printed.")
@click.option("--model", default="emulated", show_default=True, help="Name of the model.")
@click.option(
    "--device",
    type=click.Choice(["serial", "contended"]),
    default="serial",
    show_default=True,
    help="Requests one after the other, or all at once, each slowed by the others.",
)
@click.option("--t0-ms", type=float, help="Time of a batch of any size.  [default: 4; contended: 20]")
@click.option("--t1-ms", type=float, help="Time of each row in it.  [default: 0.35; contended: 0]")
@click.option("--sigma", default=0.1, show_default=True, help="Contended: share of the work that waits for the others.")
@click.option("--kappa", default=0.036, show_default=True, help="Contended: what each pair costs; moves the knee.")
@click.option("--max-batch", default=0, show_default=True, help="Rows of one request; 0: any number.")
@click.option(
    "--max-running", default=0, show_default=True, help="Sequences, or contended requests, at a time; 0: any."
)
@click.option("--prefill-ms", default=0.0, show_default=True, help="Time per prompt token.")
@click.option(
    "--tokenize-cpu-ms", default=0.0, show_default=True, help="CPU time of each row, or prompt, before the card: burnt."
)
@click.option("--load-s", default=0.0, show_default=True, help="From start to ready.")
@click.option("--first-request-s", default=0.0, show_default=True, help="What the first request takes longer.")
@click.option("--warm-up", is_flag=True, help="Pay --first-request-s before being ready.")
@click.option("--kv-tokens", default=0, show_default=True, help="Tokens that fit into memory at a time; 0: any number.")
@click.option("--tokens-per-row", default=0, show_default=True, help="What a row of a batch takes of them.")
@click.option(
    "--over-memory",
    type=click.Choice(["queue", "restart", "exit"]),
    default="queue",
    show_default=True,
    help="What a request too many does: wait, lose all in flight and load again, or end the process.",
)
@click.option("--jitter-cv", default=0.0, show_default=True, help="Coefficient of variation of every batch's time.")
@click.option("--stall-share", default=0.0, show_default=True, help="Share of batches that stall.")
@click.option("--stall-ms", default=0.0, show_default=True, help="How long a stall takes.")
@click.option("--seed", default=0, show_default=True, help="Of the noise.")
@click.option("--script", type=click.Path(path_type=Path), help="Faults from the start: a JSON file.")
@click.option("--faults", is_flag=True, help="Open POST /faults and GET /executed; on a loopback address only.")
def engine_command(script: Path | None, *, faults: bool, **options: object) -> None:
    """Serve an emulated model with a known cost, for tests, demos and benchmarks.

    Speaks the Open Inference Protocol v2, OpenAI's completions with streaming, and plain lists on /predict.
    """
    from cardwise.adapters.http1.loop import loop_factory  # noqa: PLC0415 - other commands start without it
    from cardwise.engine.faults import Script  # noqa: PLC0415
    from cardwise.engine.server import run  # noqa: PLC0415
    from cardwise.engine.settings import Settings, read_script_file  # noqa: PLC0415
    from cardwise.process import log_as_json  # noqa: PLC0415

    settings = msgspec.convert({**options, "test_doors": faults}, Settings)
    given = Script() if script is None else read_script_file(script)
    log_as_json()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        code = runner.run(run(settings, given, _tell))
    sys.exit(code)


def _tell(url: str) -> None:
    """On stdout at once: a script that starts us waits for this line."""
    click.echo(f"listening on {url}")
