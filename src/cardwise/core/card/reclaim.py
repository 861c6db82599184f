"""Which slices give their memory back when a card is nearly full, in an order that can be explained.

Only best-effort slices go. Of them first the lowest priority, then who is cheapest to start again, then the newest,
then who has taken most beyond what is physically its own; ties by name. As many as it takes until what remains is
expected at the low mark, and no more. Refuses to act, and to end a slice that is latency-sensitive, whatever the card
says.

Source: SPEC E2, case C39.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """A slice on a card, as reclaim sees it.

    used_mib: measured; granted_mib: of the physical card, what it was given (without what was lent).
    restart_s: what starting it again is expected to take; started_s: when it started, on one clock for all.
    best_effort: it may go at all. going: it has been told already, and its memory is on its way back.
    """

    name: str
    best_effort: bool
    used_mib: int
    granted_mib: int
    priority: int = 0
    restart_s: float = 0.0
    started_s: float = 0.0
    going: bool = False

    @property
    def excess_mib(self) -> int:
        """Used beyond what is physically its own."""
        return max(self.used_mib - self.granted_mib, 0)


@dataclass(frozen=True, slots=True)
class Victim:
    """Who goes, why, and what is expected to be used of the card after it."""

    name: str
    used_mib: int
    expected_mib: int
    why: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """What is done about a card. short_mib: what is still above the low mark though all best-effort slices go."""

    victims: tuple[Victim, ...]
    short_mib: int


def reclaim(holders: Iterable[Holder], used_mib: int, total_mib: int, low_share: float) -> Reclaim:
    """Who gives memory back, in order, so that the card comes down to ``low_share`` of ``total_mib``.

    used_mib: of the whole card, by everybody, what is not a slice too. Those that are ``going`` count as gone.
    """
    target_mib = int(low_share * total_mib)
    listed = list(holders)
    expected_mib = used_mib - sum(each.used_mib for each in listed if each.going)
    victims: list[Victim] = []
    for each in sorted((each for each in listed if each.best_effort and not each.going), key=_order):
        if expected_mib <= target_mib:
            break
        if each.used_mib == 0:
            continue  # ending it would free nothing
        expected_mib -= each.used_mib
        victims.append(Victim(each.name, each.used_mib, expected_mib, _why(each, used_mib, total_mib, target_mib)))
    return Reclaim(tuple(victims), max(expected_mib - target_mib, 0))


def _order(holder: Holder) -> tuple[int, float, float, int, str]:
    return holder.priority, holder.restart_s, -holder.started_s, -holder.excess_mib, holder.name


def _why(holder: Holder, used_mib: int, total_mib: int, target_mib: int) -> str:
    return (
        f"{used_mib} of {total_mib} MiB of the card are used; to come down to {target_mib} MiB the best-effort slice "
        f"with priority {holder.priority}, {holder.restart_s:g} s to start again, goes: it uses {holder.used_mib} MiB, "
        f"{holder.excess_mib} of them lent"
    )
