"""``cardwise synth``: write a synthetic cluster and its pods, to try things on without a trace."""

from __future__ import annotations

from pathlib import Path

import click

from cardwise.adapters.openb import write_openb
from cardwise.errors import UserError
from cardwise.replay.synth import synthesize


@click.command("synth")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--nodes", type=click.IntRange(min=1, max=100_000), default=100, show_default=True, help="How many nodes."
)
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed, the same files.")
def synth_command(*, folder: Path, nodes: int, seed: int) -> None:
    """Write FOLDER/nodes.csv and FOLDER/pods.csv in the openb format, ready for `cardwise replay`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error
    write_openb(synthesize(nodes, seed), folder / "nodes.csv", folder / "pods.csv")
    click.echo(f"wrote {folder / 'nodes.csv'} and {folder / 'pods.csv'}", err=True)
