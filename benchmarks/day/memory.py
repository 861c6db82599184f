"""The agents' part of the day: memory of each card over time, what of it is lent, and who gives it back.

The rules are ``core/card``'s watermark, lending and reclaim. Emulated are use and time: the day is looked at every some
seconds, where an agent looks every quarter of a second; so a rise is judged over a longer time. Refuses to know pods:
holders in, what to tell and whom to end out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cardwise.agent.marking import RAISE_EVERY_S
from cardwise.core.card.lend import Borrower, lendable_mib
from cardwise.core.card.reclaim import Holder, Victim, reclaim
from cardwise.core.card.watermark import Level, MarkPolicy, Reading, Watermark

KEPT_AWAY_S = 600.0
"""So long a service that gave memory back does not come back to the card; the agent's own default."""


@dataclass(frozen=True, slots=True)
class Held:
    """A slice on a card: as reclaim sees it, its service, and what of it is lent."""

    holder: Holder
    service: str
    lent_mib: int = 0


@dataclass(slots=True)
class _Card:
    mark: Watermark
    reading: Reading | None = None
    offered_mib: int = 0
    raised_s: float = float("-inf")
    evicted: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Cards:
    """All cards of the cluster. looks_s: between two looks, at most. overfull: when more was used than there is."""

    uuids: Sequence[str]
    total_mib: int
    looks_s: float
    overfull: list[tuple[float, str]] = field(default_factory=list)
    _cards: dict[str, _Card] = field(init=False)
    policy: MarkPolicy = field(init=False)

    def __post_init__(self) -> None:
        self.policy = MarkPolicy(gap_s=2 * self.looks_s, look_s=3 * self.looks_s)
        self._cards = {uuid: _Card(Watermark(self.policy)) for uuid in self.uuids}

    @property
    def reclaiming(self) -> bool:
        """Whether a card is above its marks, and is looked at more often."""
        return any(each.reading is not None and each.reading.level is Level.RECLAIM for each in self._cards.values())

    def look(self, now_s: float, held: Mapping[str, Sequence[Held]]) -> list[Victim]:
        """Take a sample of each card; who has to give memory back."""
        victims: list[Victim] = []
        for uuid, card in self._cards.items():
            holders = held.get(uuid, ())
            used_mib = sum(each.holder.used_mib for each in holders)
            if used_mib > self.total_mib:
                self.overfull.append((now_s, uuid))
            card.reading = card.mark.observe(now_s, used_mib, self.total_mib)
            if card.reading.level is Level.RECLAIM:
                found = reclaim((each.holder for each in holders), used_mib, self.total_mib, self.policy.low_share)
                victims += found.victims
                gone = {each.name for each in found.victims}
                card.evicted |= {each.service: now_s for each in holders if each.holder.name in gone}
            self._offer(card, now_s, used_mib, holders)
        return victims

    def _offer(self, card: _Card, now_s: float, used_mib: int, held: Iterable[Held]) -> None:
        reading, mib = card.reading, 0
        if reading is not None and reading.level is Level.CALM:
            lent = [Borrower(each.holder.used_mib, each.holder.granted_mib) for each in held if each.lent_mib]
            mib = lendable_mib(reading.lent_share, used_mib, self.total_mib, self.policy.low_share, lent)
        if mib < card.offered_mib or (mib > card.offered_mib and now_s - card.raised_s >= RAISE_EVERY_S):
            card.offered_mib, card.raised_s = mib, now_s

    def lendable(self, uuids: Iterable[str]) -> dict[str, int]:
        """MiB that may be lent of these."""
        return {uuid: self._cards[uuid].offered_mib for uuid in uuids if self._cards[uuid].offered_mib}

    def kept_away(self, uuids: Iterable[str], now_s: float) -> dict[str, set[str]]:
        """Services that do not come back to these yet."""
        return {
            uuid: {name for name, at_s in self._cards[uuid].evicted.items() if now_s - at_s < KEPT_AWAY_S}
            for uuid in uuids
        }
