"""``cardwise fence``: which cards of this node are fenced and why, and clearing one that was mended."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from cardwise.cli.state_folder import journal_in, state_folder_option
from cardwise.errors import ClusterError, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from cardwise.adapters.journal import Fences
    from cardwise.core.card.health_record import CardHealth

WAIT_S, LOOK_S = 10.0, 0.1
"""How long the agent, which looks every second and says it is done a look later, is waited for."""
LONGEST_NAME = 60


@click.group("fence")
def fence_command() -> None:
    """List this node's fenced cards, and clear one that was mended.

    Runs in the agent's container, where the agent's journal is.
    """


@fence_command.command("list", short_help="List fenced cards, why, and strikes of the last day.")
@state_folder_option
def list_command(state_folder: Path | None) -> None:
    """List the cards that are fenced, or were within a day: since when, why, and when they come back."""
    from cardwise.adapters.journal import fences  # noqa: PLC0415 - other commands start without it
    from cardwise.core.card.health import of_the_day  # noqa: PLC0415

    with fences(journal_in(state_folder)) as found:
        told = found.read()
    now_s = time.time()
    recent = [of_the_day(told[uuid].health, now_s) for uuid in sorted(told)]
    lines = [_line(health) for health in recent if health.fence is not None or health.strikes]
    for line in lines or ["no card of this node is fenced, and none was within a day"]:
        click.echo(line)


@fence_command.command("clear", short_help="Say that a card is mended: it takes slices again.")
@click.argument("card")
@click.option("--by", default="an operator", show_default=True, help="Who says so, for the node's event.")
@state_folder_option
def clear_command(card: str, by: str, state_folder: Path | None) -> None:
    """Say that CARD, a UUID of `cardwise fence list`, is mended: it takes slices again, its strikes are forgotten.

    What the driver still says of it fences it again.
    """
    from cardwise.adapters.journal import fences  # noqa: PLC0415

    if not by.strip() or not by.isprintable() or len(by) > LONGEST_NAME:
        raise UserError(f"--by: give a name of 1 to {LONGEST_NAME} printable characters")
    with fences(journal_in(state_folder), ask=True) as found:
        told = found.read()
        if card not in told:
            known = ", ".join(sorted(told)) or "none"
            raise UserError(f"{card}: is not fenced, and was not within a day; those that are: {known}")
        try:
            found.ask_to_clear(card, by)
            done = _is_done(found, card)
        except KeyboardInterrupt:
            found.take_back(card)
            raise
        if not done:
            raise ClusterError(
                f"{card}: the agent has not cleared it within {WAIT_S:g} s; it does so as soon as it runs again",
                retry=True,
            )
        again = found.read().get(card)
    if again is not None and again.health.fence is not None:
        raise UserError(f"{card}: was cleared, and is fenced again at once: {again.health.fence.what}")
    click.echo(f"{card}: takes slices again")


def _is_done(found: Fences, card: str) -> bool:
    end_s = time.monotonic() + WAIT_S
    while found.is_asked(card):
        if time.monotonic() > end_s:
            return False
        time.sleep(LOOK_S)
    return True


def _line(health: CardHealth) -> str:
    fence = health.fence
    if fence is None:
        return f"{health.uuid}  takes slices  strikes within a day: {health.strikes}"
    until = "until it is cleared" if fence.held else f"until {fence.quiet_s / 60:g} min without a fault, or cleared"
    since = datetime.fromtimestamp(fence.since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{health.uuid}  fenced since {since} {until}  strikes within a day: {health.strikes}  {fence.what}"
