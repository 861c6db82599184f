"""Keeps what is known of MIG up to date: instances come and go while the agent runs.

The driver tells when a card's instances change, and every minute they are read anyway. Everything else of the facts
stays as it was read at the start: a card that is lost for a moment must not vanish with its pods. Refuses to take over
how cards are shared where that needs another MPS daemon: such a card takes nothing until the agent starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from cardwise.adapters.nvml.driver import Driver
from cardwise.agent.isolating import Isolating
from cardwise.core.card.facts import CardFacts, MigInstance
from cardwise.core.card.isolation import Standing
from cardwise.core.request import Isolation
from cardwise.errors import CardwiseError

log = structlog.get_logger()

PERIOD_S = 60.0
SOON_S = 2.0
"""After an event instances are read at once and once more: a GPU instance and its compute instance are two steps."""
SOURCE = "mig"


@dataclass(slots=True)
class Refreshing:
    """choose: on which step each card stands, by the facts as they are now. renewed: called when instances changed."""

    driver: Driver
    isolating: Isolating
    choose: Callable[[], dict[str, Standing]]
    renewed: Callable[[], None]
    period_s: float = PERIOD_S
    soon_s: float = SOON_S
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Until cancelled."""
        heard = False
        while True:
            heard = await self._heard(self.soon_s if heard else self.period_s)
            self.changed.clear()
            await self.refresh()

    async def _heard(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self.changed.wait()
        except TimeoutError:
            return False
        return True

    async def refresh(self) -> None:
        """Read every card's instances, and take over what changed. A card that does not answer stays as it is."""
        cards = await asyncio.gather(*(self._read(card) for card in self.isolating.inventory.facts.cards))
        self._take(tuple(cards))

    async def _read(self, card: CardFacts) -> CardFacts:
        told: list[tuple[bool | None, tuple[MigInstance, ...]]] = []
        try:
            await self.isolating.calls.call(card.uuid, lambda: told.append(self.driver.mig(card.uuid)))
        except CardwiseError as exc:
            log.info("MIG instances are not known anew", card=card.uuid, why=str(exc))
            return card
        mig, instances = told[0]
        return replace(card, mig=mig, instances=instances)

    def _take(self, cards: tuple[CardFacts, ...]) -> None:
        inventory = self.isolating.inventory
        before = inventory.facts
        inventory.facts = replace(before, cards=cards)  # also when equal: an instance's number may have moved
        if cards == before.cards:
            return
        for old, new in zip(before.cards, cards, strict=True):
            if old != new:
                names = [f"{each.profile} at {each.start} ({each.uuid or 'half-made'})" for each in new.instances]
                log.info("MIG instances changed", card=new.uuid, mig=new.mig, instances=names)
        self.isolating.standings = self.choose()
        self._check_mps()
        self.renewed()

    def _check_mps(self) -> None:
        """The MPS daemon has the cards that it was started with."""
        mps = self.isolating.mps
        served = set(mps.card_uuids) if mps is not None else set()
        for card in self.isolating.inventory.facts.cards:
            standing = self.isolating.standings.get(card.uuid)
            wants = standing is not None and standing.mode is Isolation.MPS
            why = "MIG was switched while the agent ran; restart the agent" if wants != (card.uuid in served) else ""
            self.isolating.inventory.report(SOURCE, card.uuid, why)
