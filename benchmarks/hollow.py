"""The scheduler's and two of the controller's loops on a hollow cluster, with kube-scheduler's cycle emulated.

Refuses to know why pods come and go: that is each benchmark's. Time is what its clocks say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime

from cardwise.adapters import wire
from cardwise.adapters.hollow import HollowCluster
from cardwise.adapters.node_cards import encode_cards
from cardwise.adapters.watching import Watching
from cardwise.controller.consolidation.movers import Mover
from cardwise.controller.consolidation.settings import OFF, ConsolidationSettings
from cardwise.controller.preempting import Preempting
from cardwise.controller.preemption.seeing import Seen
from cardwise.controller.preemption.settings import PreemptionSettings
from cardwise.controller.rescue.settings import RescueSettings
from cardwise.controller.rescuing import Rescuing
from cardwise.core.inventory import CardSpec
from cardwise.core.ledger import Ledger
from cardwise.scheduler import webhook
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.settings import Settings, policies_of
from cardwise.up.kube_cycle import Cycle

SLOTS_PER_CARD = 16


class Programs:
    """ledger: the scheduler's; the controller has its own, as in a cluster."""

    def __init__(
        self,
        utc: Callable[[], datetime],
        now_s: Callable[[], float],
        preemption: PreemptionSettings,
        moving: ConsolidationSettings = OFF,
        scheduling: Settings | None = None,
    ) -> None:
        """Without nodes. utc, now_s: the wall clock and the steady one, of all of them."""
        self.cluster, self._now_s = HollowCluster(utc, webhook.admit), now_s
        policies = policies_of(scheduling or Settings())
        self.ledger, known = Ledger(policies, epoch=1), Ledger(policies)
        seen, extender = Seen(now_s), Extender(self.ledger, now_s)
        self._heard = Watching(self.ledger, now_s), Watching(known, now_s, (seen,))
        self.cycle = Cycle(self.cluster, extender, Binder(self.cluster, self.ledger, extender, lambda: None))
        common, movers = (self.cluster, known, self._heard[1], seen, now_s, lambda: True), dict[str, Mover]()

        def epoch_s() -> float:
            return utc().timestamp()

        self.preempting = Preempting(*common, preemption, epoch_s, moving=moving, movers=movers)
        self.rescuing = Rescuing(*common, RescueSettings(), epoch_s, movers=movers)

    def put_node(self, name: str, cards: Sequence[CardSpec]) -> None:
        """A node with room for all that its cards take."""
        slots = str(SLOTS_PER_CARD * len(cards))
        amounts = {"cpu": "128", "memory": "1024Gi", "pods": "110", wire.OWN_COUNT: slots}
        metadata = {"name": name, "annotations": {wire.ANNOTATION_CARDS: encode_cards(cards)}}
        self.cluster.put_node({"metadata": metadata, "status": {"allocatable": amounts, "capacity": amounts}})

    async def schedule(self) -> None:
        """Everybody gets a try for whom something has happened."""
        await self.cluster.heard()
        self.ledger.expire(self._now_s())
        while await self.cycle.step():
            await self.cluster.heard()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the cluster until the ``with`` ends; it has begun when all that is there was heard."""
        follows = [each.follow(self.cluster) for each in self._heard]
        tasks = [asyncio.create_task(each) for each in (*follows, self.cycle.follow())]
        try:
            while not all(each.synced for each in self._heard):
                await asyncio.sleep(0)
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
