"""Where the agent's journal is: the option that ``mig`` and ``fence`` share, for they run in the agent's container."""

from __future__ import annotations

from pathlib import Path

import click

state_folder_option = click.option(
    "--state-folder", type=click.Path(path_type=Path), help="The agent's state-folder.  [default: as the agent's]"
)


def journal_in(state_folder: Path | None) -> Path:
    """The journal's file, in the agent's usual folder if none is given."""
    from cardwise.agent.settings import Settings  # noqa: PLC0415 - --help starts without it

    return (Settings() if state_folder is None else Settings(state_folder=str(state_folder))).journal
