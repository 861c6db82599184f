"""``cardwise mig``: how this node's cards are divided, and dividing an idle one anew. Runs in the agent's container."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from cardwise.cli.state_folder import journal_in, state_folder_option
from cardwise.errors import CardwiseError, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from cardwise.adapters.journal import Row
    from cardwise.agent.dividing import Dividing, Layout, Steps
    from cardwise.core.card.facts import CardFacts
    from cardwise.core.card.mig import Held

NOTHING = "none"
_SHARED = ", not offered: it shares its memory with another"

_card = click.option("--card", required=True, help="The card's UUID, as `cardwise mig show` tells it.")
_profiles = click.option(
    "--profiles", required=True, help=f"All that shall be on the card, such as 1g.10gb,1g.10gb,3g.40gb; or {NOTHING}."
)


@click.group("mig")
def mig_command() -> None:
    """Divide this node's cards with MIG: show, plan, apply. Nothing in use is touched.

    Runs in the agent's container, where the driver's library and the agent's journal are.
    """


@mig_command.command("show", short_help="List cards, their profiles and instances, and their use.")
@state_folder_option
def show_command(state_folder: Path | None) -> None:
    """List cards, the profiles they offer, their instances, and what uses them."""
    with _opened(state_folder, needed=False) as (dividing, cards):
        for card in cards:
            for line in _shown(dividing.layout(card)):
                click.echo(line)


@mig_command.command("plan")
@_card
@_profiles
@state_folder_option
def plan_command(card: str, profiles: str, state_folder: Path | None) -> None:
    """Say what `apply` would do to a card, or why it refuses. Nothing is changed."""
    with _opened(state_folder) as (dividing, cards):
        _plan(dividing, _found(card, cards), profiles)


@mig_command.command("apply")
@_card
@_profiles
@state_folder_option
@click.option("--yes", is_flag=True, help="Do it.")
def apply_command(card: str, profiles: str, state_folder: Path | None, *, yes: bool) -> None:
    """Divide a card anew: its idle instances may go, those in use stay. Cordon the node first."""
    with _opened(state_folder) as (dividing, cards):
        found = _found(card, cards)
        steps = _plan(dividing, found, profiles, quiet=yes)
        if steps.told and not yes:
            raise UserError("nothing was changed; pass --yes to do this")
        try:
            for line in dividing.apply(found, steps):
                click.echo(line)
        except CardwiseError:
            click.echo("it went only so far; the card has now", err=True)
            with contextlib.suppress(CardwiseError):
                for line in _instances(dividing.layout(found)):
                    click.echo(line, err=True)
            raise


@contextlib.contextmanager
def _opened(state_folder: Path | None, *, needed: bool = True) -> Iterator[tuple[Dividing, tuple[CardFacts, ...]]]:
    """What divides, and the cards. needed: without the agent's journal nothing is done."""
    from cardwise.adapters.journal import read_rows  # noqa: PLC0415 - other commands start without the driver
    from cardwise.adapters.nvml.driver import Driver  # noqa: PLC0415
    from cardwise.agent.dividing import Dividing  # noqa: PLC0415

    rows: Callable[[], list[Row]] = partial(read_rows, journal_in(state_folder))
    try:
        rows()
    except UserError as exc:
        if needed:
            raise
        click.echo(f"note: {exc}", err=True)
        rows = list
    with Driver() as driver:
        facts = driver.facts()
        for lost in facts.lost:
            click.echo(f"note: a card cannot be opened: {lost}", err=True)
        yield Dividing(driver, rows), facts.cards


def _found(uuid: str, cards: tuple[CardFacts, ...]) -> CardFacts:
    for card in cards:
        if card.uuid == uuid:
            return card
    known = ", ".join(card.uuid for card in cards) or "none"
    raise UserError(f"--card: this node has no card {uuid}; it has {known}")


def _plan(dividing: Dividing, card: CardFacts, profiles: str, *, quiet: bool = False) -> Steps:
    """The steps, told unless ``quiet``. Raises UserError with the reason if they may not be."""
    from cardwise.core.card.mig import Refusal  # noqa: PLC0415

    names = [] if profiles == NOTHING else [name.strip() for name in profiles.split(",")]
    steps = dividing.steps(card, names)
    if isinstance(steps, Refusal):
        raise UserError(f"card {card.uuid}: refused: {steps.text}")
    if not steps.told:
        click.echo("nothing to do: the card is divided so")
    for line in () if quiet else steps.told:
        click.echo(line)
    return steps


def _shown(layout: Layout) -> Iterator[str]:
    card = layout.card
    state = {None: "no MIG", False: "MIG is off", True: "MIG is on"}[card.mig]
    yield f"card {card.index}  {card.uuid}  {card.model}  {card.memory_mib} MiB  {state}"
    if card.mig:
        for profile in layout.profiles:
            starts = ", ".join(map(str, profile.starts))
            yield (
                f"  profile   {profile.name}  {profile.memory_mib} MiB  {profile.sms} SMs  at most {profile.most}, "
                f"at {starts}"
            )
        yield from _instances(layout)


def _instances(layout: Layout) -> Iterator[str]:
    offered = {each.uuid for each in layout.card.usable_instances}
    for held in layout.held:
        yield f"  instance  {_named(held)}  {_use(held)}{'' if held.instance.uuid in offered else _SHARED}"
    for half in layout.halves:
        yield f"  instance  {half.profile} at {half.start}  half-made: it takes its place and runs nothing"
    if not (layout.held or layout.halves):
        yield "  no instances"


def _named(held: Held) -> str:
    return f"{held.instance.profile} at {held.instance.start}  {held.instance.uuid}"


def _use(held: Held) -> str:
    return f"in use by {'; '.join(held.by)}" if held.in_use else "idle"
