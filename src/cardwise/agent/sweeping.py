"""What pods leave behind, and what a crash left half done.

A container's files, limits and row go when its pod is gone from the API *and* from the kubelet: either alone may lie
for a while. Refuses to clean up while one of the two cannot be asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from cardwise.adapters.journal import Row, State
from cardwise.adapters.kubelet.pod_resources import Held
from cardwise.agent.preparing import Preparing
from cardwise.agent.telling import to_nobody
from cardwise.errors import CardwiseError, NotFoundError
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

PERIOD_S = 10.0
SOON_S = 0.5
"""After news of a pod: the kubelet forgets it a moment later than the API."""


@dataclass(slots=True)
class Sweeping:
    """Cleans up after pods. resource: what the slots are called. renewed: called when slots have become free."""

    preparing: Preparing
    resource: str
    renewed: Callable[[], None] = to_nobody
    period_s: float = PERIOD_S
    soon_s: float = SOON_S
    _said: Said = field(default_factory=lambda: Said(most=MOST_REMEMBERED))

    async def run(self) -> None:
        """Sweep after news and every some seconds, until cancelled."""
        changed = self.preparing.pods.changed
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.period_s):
                    await changed.wait()
                    await asyncio.sleep(self.soon_s)
            changed.clear()
            try:
                await self.preparing.enter_what_runs()
                await self.sweep()
            except CardwiseError as exc:
                if self._said.is_news("sweep", str(exc)):
                    log.warning("could not clean up after pods", why=str(exc))

    async def sweep(self) -> None:
        """Remove what is of pods that are gone. What cannot be removed is told and left for the next time.

        Raises CardwiseError if the kubelet or the API server cannot be asked.
        """
        pods, journal = self.preparing.pods, self.preparing.journal
        if not pods.synced:
            return
        gone = [row for row in journal.rows if row.uid not in pods.by_uid]
        if not gone and not self._strays():
            return
        held = await self.preparing.owners.resources.held(self.resource)
        for row in gone:
            if not any(_has(each, row) for each in held) and await self._is_gone(row):
                await self._remove(row)
        for slot in self._strays() - {slot for each in held for slot in each.ids}:
            try:
                self.preparing.files.remove(slot)
            except CardwiseError as exc:
                if self._said.is_news(slot, str(exc)):
                    log.warning("a file that nobody has is left", slot=slot, why=str(exc))

    async def _remove(self, row: Row) -> None:
        pod = f"{row.namespace}/{row.pod}"
        try:
            await self.preparing.remove(row)
        except CardwiseError as exc:  # it must not keep the others
            if self._said.is_news((row.uid, row.container), str(exc)):
                log.warning("could not clean up after a pod", pod=pod, container=row.container, why=str(exc))
            return
        log.info("cleaned up", pod=pod, container=row.container, slots=row.slots)
        self.renewed()

    async def _is_gone(self, row: Row) -> bool:
        """Whether the API server itself says so: a watch that broke tells nothing. Raises ClusterError."""
        try:
            pod = await self.preparing.pods.fetch(row.namespace, row.pod)
        except NotFoundError:
            return True
        return pod.metadata.uid != row.uid or pod.ended

    def _strays(self) -> set[str]:
        """Slots with a file that no container has. Looked at anew after each wait: a container may have come."""
        return self.preparing.files.present() - {slot for row in self.preparing.journal.rows for slot in row.slots}

    async def restore(self) -> None:
        """After a start: drop what was half done, for the kubelet asks again, and enter what runs and is not known.

        Files need no care: each start of a container writes its own (a reboot empties their folder).
        """
        self.preparing.files.tidy()
        for row in [row for row in self.preparing.journal.rows if row.state is State.PREPARING]:
            try:
                await self.preparing.remove(row)
            except CardwiseError as exc:
                log.error("a start that was broken off was not taken back", pod=row.pod, why=str(exc))
        self.preparing.unknown = "the agent has just started"
        try:
            await self.preparing.enter_what_runs()
        except CardwiseError as exc:
            log.warning("what runs here is not known yet", why=str(exc))


def _has(held: Held, row: Row) -> bool:
    """Whether the kubelet says that the row's pod is there: its slots alone may be another's by now, who waits yet."""
    return (held.namespace, held.pod) == (row.namespace, row.pod) and not held.ids.isdisjoint(row.slots)
