"""``cardwise synth``: write a synthetic cluster and its pods, to try things on without a trace."""

from __future__ import annotations

from pathlib import Path

import click

from cardwise.adapters.openb import openb_texts
from cardwise.cli.inputs import SEED, FilePath
from cardwise.errors import UserError
from cardwise.files import plain, write_texts
from cardwise.replay.synth import synthesize


@click.command("synth")
@click.argument("folder", type=FilePath(file_okay=False))
@click.option(
    "--nodes", type=click.IntRange(min=1, max=100_000), default=100, show_default=True, help="How many nodes."
)
@click.option("--seed", type=SEED, default=1, show_default=True, help="The same seed, the same files.")
@click.option("--force", is_flag=True, help="Replace files that are there already and differ.")
def synth_command(*, folder: Path, nodes: int, seed: int, force: bool) -> None:
    """Write FOLDER/nodes.csv and FOLDER/pods.csv in the openb format, ready for `cardwise replay`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {folder}: {error.strerror}") from error
    texts = openb_texts(synthesize(nodes, seed), folder / "nodes.csv", folder / "pods.csv")
    for path, text in texts.items():
        if not force and path.is_file() and path.read_bytes() != text.encode():
            raise UserError(f"{path}: is there already and differs; pass --force to replace it, or give another folder")
    write_texts(texts)
    click.echo(plain(f"wrote {' and '.join(map(str, texts))}"), err=True)
