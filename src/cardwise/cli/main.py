"""``cardwise``: the command and how its errors end. Only wires."""

from __future__ import annotations

import importlib
import io
import signal
import sys
from difflib import get_close_matches
from types import FrameType

import click

import cardwise
from cardwise.cli.terminal import guard_stdout
from cardwise.errors import CardwiseError, UserError
from cardwise.files import plain

EXIT_USER, EXIT_SYSTEM = 2, 1


SECTIONS = {
    "Before a cluster, on any machine": {
        "up": "Try your manifests on simulated cards, and see them on a page.",
        "replay": "Place a history's pods by each policy; count unusable cards.",
        "plan": "Say what a model needs of a card, and write its manifest.",
        "fit": "Say how many services go onto some cards.",
        "advise": "Say how services should share a card: MPS, MIG, or not at all.",
        "complement": "Find services that peak at different times.",
        "tune": "Find a policy's weights by replaying a history.",
        "synth": "Write a synthetic history, for replay and tune.",
    },
    "Load": {
        "loadtest": "Find what a service can do, and its knee.",
        "compare": "Say what a change did, before and after.",
        "engine": "Serve an emulated model, for tests and demos.",
    },
    "In a cluster, with your kubeconfig": {
        "doctor": "Name the likely cause of what is wrong, and what to do.",
        "explain": "Say per node and card why a pod may or may not go there.",
        "page": "Show cards, slices and pods that wait in a browser.",
        "quota": "Plan quotas, and keep Kueue's queues as planned.",
    },
    "In the cluster's pods: the chart runs all but mig and fence": {
        "scheduler": "Decide for kube-scheduler which card a pod gets.",
        "agent": "Hand a node's cards to containers, and hold their limits.",
        "controller": "Change what must change while things run.",
        "gateway": "Queue, batch and limit what enters replicas.",
        "mig": "Divide a node's cards with MIG; in the agent's container.",
        "fence": "List a node's fenced cards, clear one; in the agent's container.",
    },
}
"""Each command has a module of its name beside this one, and in it ``<name>_command``. ``--help`` tells these lines,
and so needs none of the modules; they fit 80 columns."""
COMMANDS = tuple(name for section in SECTIONS.values() for name in section)


class _Commands(click.Group):
    """Imports a command when it is asked for: the agent on a node has no use, and no memory, for what replay needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        found: click.Command = getattr(importlib.import_module(f"cardwise.cli.{cmd_name}"), f"{cmd_name}_command")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, and names the closest: click's own looks among those that are imported."""
        name = args[0]
        near = get_close_matches(name, COMMANDS, n=1)
        if near and name not in COMMANDS and not name.startswith("-"):
            ctx.fail(f"No such command '{name}'; did you mean '{near[0]}'?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """By when one wants them, instead of all in one list with half of each line cut off."""
        for title, lines in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(lines.items()))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Each says more with -h; docs/quickstart.md is where to begin.",
)
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
