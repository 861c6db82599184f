"""Evictions as the cluster hears of them: the pod is evicted, its event says why, its service keeps away for a while.

Each is in the journal before anything is done, and stays until the API server has heard all of it: it may be away just
then. One that its disruption budget does not allow is asked for again until the pod's time away is over; its processes
are ended meanwhile, for the memory is needed, and it starts again here after that time. Refuses to choose, and to send
signals.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from cardwise.adapters.journal import Eviction, Journal
from cardwise.adapters.kube.events import about_pod, event
from cardwise.adapters.kube.port import Evictee, NodePort
from cardwise.agent.telling import COMPONENT
from cardwise.errors import ClusterError, ConflictError, NotFoundError
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

REASON = "CardwiseReclaimed"
AGAIN_S = 2.0
"""Between two tries while the API server does not take what it has to hear."""
UNTOLD_S = 86_400.0
"""An event that nobody took for a day is not told any more."""


@dataclass(slots=True)
class Evicting:
    """away_s: for so long a service does not come back to the card. wall_s: seconds since 1970."""

    port: NodePort
    node: str
    journal: Journal
    wall_s: Callable[[], float]
    grace_s: int = 5
    away_s: float = 600.0
    again_s: float = AGAIN_S
    owed: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: dict[str, str] = field(default_factory=dict)
    _said: Said = field(default_factory=lambda: Said(most=MOST_REMEMBERED))

    def begin(self, eviction: Eviction) -> None:
        """From now on this pod has to go."""
        self._put(eviction)
        log.warning("a pod has to give its memory back", pod=eviction.name, cards=eviction.uuids, why=eviction.why)
        self.owed.set()

    def why_not(self, uid: str) -> str:
        """Why no container of a pod may start yet; empty if nothing is known against it."""
        known = self.journal.evictions.get(uid)
        if known is None or not (known.deleted or self._is_away(known)):
            return ""
        return f"the pod had to give its card's memory back: {known.why}"

    def services_away(self) -> Mapping[str, set[str]]:
        """Services that do not come to a card yet, by card."""
        away: dict[str, set[str]] = {}
        for each in self.journal.evictions.values():
            if each.service and self._is_away(each):
                for uuid in each.uuids:
                    away.setdefault(uuid, set()).add(each.service)
        return away

    async def run(self) -> None:
        """Tell the API server what it has to hear, until cancelled."""
        while True:
            self.owed.clear()
            await self.tell()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.again_s):
                    await self.owed.wait()

    async def tell(self) -> None:
        """Evict the pods that are to go, say why, and forget what nobody needs to know any more."""
        due = [each for each in self.journal.evictions.values() if self._is_due(each)]
        await asyncio.gather(*(self._tell(each.uid) for each in due))
        try:
            self._forget()
        except ClusterError as exc:
            if self._said.is_news("old", str(exc)):
                log.warning("old evictions are kept", why=str(exc))

    async def _tell(self, uid: str) -> None:
        """Both steps, whether or not the other succeeds; what fails is tried again later."""
        failed = list[str]()
        for step in (self._evict, self._post):
            try:
                await step(self.journal.evictions[uid])
            except ClusterError as exc:
                failed.append(str(exc))
        why = "; ".join(failed)
        if why and self._failed.get(uid) != why:
            log.warning("an eviction is not through yet", pod=self.journal.evictions[uid].name, why=why)
        self._failed[uid] = why

    def note(self, uid: str, *, deleted: bool = False, told: bool = False, how: str = "") -> None:
        """Write down how far it came."""
        known = self.journal.evictions[uid]
        self._put(replace(known, deleted=known.deleted or deleted, told=known.told or told, how=how or known.how))

    def _put(self, eviction: Eviction) -> None:
        """In the journal, or at least in memory: an agent that is restarted then does not know of it."""
        try:
            self.journal.put_eviction(eviction)
        except ClusterError as exc:
            if self._said.is_news(eviction.uid, str(exc)):
                log.error("an eviction could not be written down", pod=eviction.name, why=str(exc))

    async def _evict(self, eviction: Eviction) -> None:
        if eviction.deleted or not self._is_away(eviction):
            return
        with contextlib.suppress(NotFoundError, ConflictError):  # gone; another of its name is another pod
            await self.port.evict(Evictee(eviction.namespace, eviction.pod, eviction.uid, self.grace_s))
        self.note(eviction.uid, deleted=True)

    async def _post(self, eviction: Eviction) -> None:
        """After a first try to evict: the event says what else was done."""
        if eviction.told or not (eviction.deleted or eviction.how or not self._is_away(eviction)):
            return
        about = about_pod(eviction.namespace, eviction.pod, eviction.uid)
        text = f"{eviction.why}; {eviction.how}" if eviction.how else eviction.why
        told = event(about, REASON, text, component=COMPONENT, namespace=eviction.namespace, host=self.node)
        await self.port.post_event(told, eviction.namespace)
        self.note(eviction.uid, told=True)

    def _is_due(self, eviction: Eviction) -> bool:
        return not eviction.told or (not eviction.deleted and self._is_away(eviction))

    def _is_away(self, eviction: Eviction) -> bool:
        return self._age_s(eviction) <= self.away_s

    def _forget(self) -> None:
        here = {row.uid for row in self.journal.rows}
        for each in list(self.journal.evictions.values()):
            told = each.told or self._age_s(each) > UNTOLD_S
            stays = each.deleted and each.uid in here  # it is ending
            if told and not stays and not self._is_away(each):
                self.journal.drop_eviction(each.uid)
                self._failed.pop(each.uid, None)

    def _age_s(self, eviction: Eviction) -> float:
        """A clock that was set back makes nothing younger than it is by more than that."""
        return abs(self.wall_s() - eviction.at_s)
