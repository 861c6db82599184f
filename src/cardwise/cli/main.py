"""``cardwise``: the command and how its errors end. Only wires."""

from __future__ import annotations

import importlib
import io
import signal
import sys
from types import FrameType

import click

import cardwise
from cardwise.cli.terminal import guard_stdout
from cardwise.errors import CardwiseError, UserError
from cardwise.files import plain

EXIT_USER, EXIT_SYSTEM = 2, 1


COMMANDS = (
    "replay",
    "loadtest",
    "compare",
    "tune",
    "synth",
    "scheduler",
    "controller",
    "complement",
    "agent",
    "mig",
    "quota",
    "up",
    "page",
    "fit",
    "plan",
    "explain",
    "doctor",
    "advise",
    "engine",
    "gateway",
)
"""Each has a module of its name beside this one, and in it ``<name>_command``."""


class _Commands(click.Group):
    """Imports a command when it is asked for: the agent on a node has no use, and no memory, for what replay needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        found: click.Command = getattr(importlib.import_module(f"cardwise.cli.{cmd_name}"), f"{cmd_name}_command")
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(cardwise.__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Share GPU cards between inference services on Kubernetes, safely and densely."""


def main() -> None:
    """Run the command. A user's mistake ends with exit code 2 and one line; a bug of ours keeps its traceback."""
    listen()
    try:
        guard_stdout()
        cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        click.echo(_printable(told.getvalue()), err=True, nl=False)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(EXIT_SYSTEM)
    except CardwiseError as error:
        click.echo(_printable(f"error: {error}"), err=True)
        sys.exit(EXIT_USER if isinstance(error, UserError) else EXIT_SYSTEM)


def listen() -> None:
    """Ctrl-C raises KeyboardInterrupt; SIGTERM and SIGHUP raise SystemExit, so that worker processes end with us."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # else it is ignored, as under nohup
            signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _printable(message: str) -> str:
    return "\n".join(map(plain, message.split("\n")))
