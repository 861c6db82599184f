"""The health of this node's cards: samples and events in, what the rest of the agent and the cluster are told out.

The rules are :mod:`cardwise.core.card.health`'s. Fences and strikes are in the journal too: a restarted agent fences
what was fenced. Refuses to touch a card: it fences, and says what should be done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from cardwise.adapters.journal import Fenced, Journal
from cardwise.agent.inventory import Inventory
from cardwise.agent.telling import Teller
from cardwise.core.card.facts import CardEvent
from cardwise.core.card.health import clear, lasting, observe, of_the_day, rebooted
from cardwise.core.card.health_record import CardHealth, HealthPolicy, Notice, Seen, State
from cardwise.errors import ClusterError
from cardwise.said import Said

log = structlog.get_logger()

SOURCE = "health"
WRITE_AGAIN_S = 10.0
"""After a write that failed: each waits a moment for whoever has the journal locked, and the agent with it."""


@dataclass(slots=True)
class Wellness:
    """renewed: called when a card begins or ceases to take slices. xids: how many of each were seen.

    wall_s: seconds since 1970, for what is written down. boot: names the node's boot, empty if it is not known.
    """

    inventory: Inventory
    journal: Journal
    teller: Teller
    now_s: Callable[[], float]
    renewed: Callable[[], None]
    wall_s: Callable[[], float] = time.time
    boot: str = ""
    policy: HealthPolicy = field(default_factory=HealthPolicy)
    healths: dict[str, CardHealth] = field(default_factory=dict)
    xids: dict[tuple[str, int], int] = field(default_factory=dict)
    _written: dict[str, CardHealth] = field(default_factory=dict)
    _cleared: set[str] = field(default_factory=set)
    _write_s: float = float("-inf")

    _said: Said = field(default_factory=Said)

    def restore(self) -> None:
        """After a start, before a slice is offered: what was fenced is fenced still."""
        for text in self.journal.unread:
            log.error("a fence was not understood; the card waits for cardwise fence clear", why=text)
        now_s = self.now_s()
        by_s = now_s - self.wall_s()
        here = {card.uuid for card in self.inventory.facts.cards}
        for uuid, told in sorted(self.journal.fenced.items()):
            self._written[uuid] = lasting(told.health, by_s)
            health = of_the_day(lasting(told.health, by_s, now_s), now_s, self.policy)
            another = self.boot and told.boot and self.boot != told.boot and uuid in here
            health, notices = rebooted(health) if another else (health, ())
            if health.fence is not None:
                log.warning("a card is fenced, as it was", card=uuid, why=health.fence.what)
            self._now(health, notices)

    def hear(self, uuid: str, seen: Seen) -> None:
        """One observation of a card."""
        if isinstance(seen, CardEvent) and seen.xid is not None:
            self.xids[uuid, seen.xid] = self.xids.get((uuid, seen.xid), 0) + 1
        before = self.healths.get(uuid, CardHealth(uuid))
        pods = self._pods_on(uuid) if isinstance(seen, CardEvent) else ()  # nothing else is laid at a pod's door
        self._now(*observe(before, self.now_s(), seen, pods, self.policy))

    def clear_asked(self) -> None:
        """Clear the cards that an operator has named, by ``cardwise fence clear``.

        It is told as done one look later, when the card itself has had its say.
        """
        if self.now_s() < self._write_s:
            return
        try:
            for uuid, by in self.journal.clearing().items():
                if uuid in self._cleared:
                    self.journal.drop_clearing(uuid)
                    self._cleared.discard(uuid)
                else:
                    self._now(*clear(self.healths.get(uuid, CardHealth(uuid)), by))
                    self._cleared.add(uuid)
        except ClusterError as exc:
            self._write_s = self.now_s() + WRITE_AGAIN_S
            if self._said.is_news("clear", str(exc)):
                log.warning("it is not known which cards shall be cleared", why=str(exc))

    def _now(self, health: CardHealth, notices: Sequence[Notice]) -> None:
        """What a card's health is from now on; notices: what is to be told of it."""
        uuid, fence = health.uuid, health.fence
        self.healths[uuid] = health
        self._write_down(health)
        for notice in notices:
            self._tell(uuid, notice)
        why, leave = (fence.what, not fence.action.keeps_pods) if fence is not None else ("", False)
        if self.inventory.report(SOURCE, uuid, why, leave=leave):
            self.renewed()

    def _write_down(self, health: CardHealth) -> None:
        """If it has changed; what could not be written is tried again with a later sample."""
        kept = lasting(health)
        if kept == self._written.get(health.uuid, CardHealth(health.uuid)) or self.now_s() < self._write_s:
            return
        try:
            if kept == CardHealth(health.uuid):
                self.journal.drop_fenced(health.uuid)
            else:
                told = lasting(health, self.wall_s() - self.now_s())
                self.journal.put_fenced(Fenced(told, self.boot))
        except ClusterError as exc:
            self._write_s = self.now_s() + WRITE_AGAIN_S
            if self._said.is_news("fence", str(exc)):
                log.error("a fence could not be written down: a restarted agent will not know it", why=str(exc))
            return
        self._written[health.uuid] = kept

    def _tell(self, uuid: str, notice: Notice) -> None:
        (log.warning if notice.warning else log.info)("card", reason=notice.reason, text=notice.text)
        self.teller.of_node(notice.reason, notice.text, warning=notice.warning, card=uuid)

    def _pods_on(self, uuid: str) -> Sequence[str]:
        handed_out = self.inventory.all_of(uuid)
        return sorted(
            {f"{row.namespace}/{row.pod}" for row in self.journal.rows if any(g.uuid in handed_out for g in row.grants)}
        )

    def state(self, uuid: str) -> State:
        """Of one card, or of an instance's card; healthy until something else was seen."""
        return self.healths.get(self.inventory.whole_of(uuid), CardHealth(uuid)).state
