"""The health of this node's cards: samples and events in, what the rest of the agent and the cluster are told out.

The rules are :mod:`cardwise.core.card.health`'s. Refuses to touch a card: it fences, and says what should be done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from cardwise.adapters.journal import Journal
from cardwise.agent.inventory import Inventory
from cardwise.agent.telling import Teller
from cardwise.core.card.facts import CardEvent
from cardwise.core.card.health import CardHealth, HealthPolicy, Notice, Seen, State, observe

log = structlog.get_logger()

SOURCE = "health"


@dataclass(slots=True)
class Wellness:
    """renewed: called when a card begins or ceases to take slices. xids: how many of each were seen."""

    inventory: Inventory
    journal: Journal
    teller: Teller
    now_s: Callable[[], float]
    renewed: Callable[[], None]
    policy: HealthPolicy = field(default_factory=HealthPolicy)
    healths: dict[str, CardHealth] = field(default_factory=dict)
    xids: dict[tuple[str, int], int] = field(default_factory=dict)

    def hear(self, uuid: str, seen: Seen) -> None:
        """One observation of a card."""
        if isinstance(seen, CardEvent) and seen.xid is not None:
            self.xids[uuid, seen.xid] = self.xids.get((uuid, seen.xid), 0) + 1
        before = self.healths.get(uuid, CardHealth(uuid))
        pods = self._pods_on(uuid) if isinstance(seen, CardEvent) else ()  # nothing else is laid at a pod's door
        health, notices = observe(before, self.now_s(), seen, pods, self.policy)
        self.healths[uuid] = health
        for notice in notices:
            self._tell(uuid, notice)
        why = health.fence.what if health.fence is not None else ""
        if self.inventory.report(SOURCE, uuid, why):
            self.renewed()

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
