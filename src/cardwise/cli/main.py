"""``cardwise``: the command and how its errors end. Only wires."""

from __future__ import annotations

import sys

import click

import cardwise
from cardwise.cli.explain import explain_command
from cardwise.cli.replay import replay_command
from cardwise.cli.scheduler import scheduler_command
from cardwise.cli.synth import synth_command
from cardwise.cli.tune import tune_command
from cardwise.errors import CardwiseError, UserError

EXIT_USER, EXIT_SYSTEM = 2, 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(cardwise.__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Share GPU cards between inference services on Kubernetes, safely and densely."""


cli.add_command(replay_command)
cli.add_command(tune_command)
cli.add_command(synth_command)
cli.add_command(scheduler_command)
cli.add_command(explain_command)


def main() -> None:
    """Run the command. A user's mistake ends with exit code 2 and one line; a bug of ours keeps its traceback."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(EXIT_SYSTEM)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_USER)
    except CardwiseError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_SYSTEM)
