"""Waking pods that wait, and saying which nodes contradict themselves.

kube-scheduler parks a pod that no node takes until something happens in the cluster. It may see a pod's end before we
do, ask too early, and park again; so when capacity comes free on a node that a waiting pod now fits, that node is
annotated, which wakes all. Refuses to write more than one annotation per node and second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from cardwise.adapters import wire
from cardwise.adapters.kube.port import ClusterPort
from cardwise.core.claim import Claim
from cardwise.core.ledger import Ledger
from cardwise.errors import ClusterError
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.watching import Watching

log = structlog.get_logger()

PERIOD_S = 1.0
MOST_TRIED = 64
"""Waiting pods that are tried per turn: one that fits is enough to wake all."""


@dataclass(slots=True)
class Waking:
    """leads: whether this replica speaks for the scheduler now."""

    port: ClusterPort
    ledger: Ledger
    extender: Extender
    watching: Watching
    leads: Callable[[], bool]
    wakes: int = 0
    _untried: dict[str, None] = field(default_factory=dict)
    _freed: set[str] = field(default_factory=set)
    _unknown: set[str] = field(default_factory=set)
    _told: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            if self.leads() and self.watching.synced:
                try:
                    await self.wake()
                    await self.tell_conflicts()
                except ClusterError as exc:
                    log.warning("could not annotate a node", why=str(exc))

    async def wake(self) -> None:
        """Annotate a node on which a waiting pod would fit, among those where capacity came free."""
        if self.ledger.outdated:
            self.ledger.rebuild()
        waiting, freed = self.extender.waiting, self.ledger.take_freed()
        unknown = waiting.keys() - self.watching.pending.keys()
        for uid in unknown & self._unknown:  # twice: kube-scheduler may have heard of the pod before us
            del waiting[uid]
        self._unknown = unknown
        self._untried = dict.fromkeys(waiting) if freed else {uid: None for uid in self._untried if uid in waiting}
        self._freed = self._freed | freed if self._untried else set()
        for uid in list(self._untried)[:MOST_TRIED]:
            del self._untried[uid]
            node = self.extender.fits_now(waiting[uid], sorted(self._freed))
            if node is not None:
                await self._wake(node, waiting[uid])
                return

    async def _wake(self, node: str, claim: Claim) -> None:
        self.wakes += 1
        log.info("waking pods that wait", node=node, pod=claim.name)
        try:
            await self.port.annotate_node(node, {wire.ANNOTATION_FREED: f"{self.ledger.epoch}.{self.wakes}"})
        except ClusterError:
            self.ledger.freed |= self._freed  # nobody was woken: look again
            raise
        self._untried, self._freed = {}, set()

    async def tell_conflicts(self) -> None:
        """Write a condition where pods contradict a node's cards, with their names, or two nodes each other.

        And again when that is over.
        """
        told: dict[str, list[str]] = {}
        for conflict in sorted(self.ledger.conflicts.values(), key=lambda each: each.pod):
            text = f"{conflict.pod}: {conflict.text}" if conflict.pod else conflict.text
            told.setdefault(conflict.node, []).append(text)
        texts = {node: "; ".join(each) for node, each in told.items()}
        for node in sorted(texts.keys() | self.watching.inconsistent | self._told.keys()):
            text = texts.get(node, "")
            known = node in self.watching.inconsistent if node not in self._told else bool(self._told[node])
            if (text and self._told.get(node) == text) or (not text and not known):
                self._told.pop(node, None) if not text else None
                continue
            if node in self.ledger.nodes:
                await self._tell(node, text)
            self._told[node] = text

    async def _tell(self, node: str, text: str) -> None:
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        condition = {
            "type": wire.CONDITION_CONSISTENT,
            "status": "False" if text else "True",
            "reason": "Conflict" if text else "Consistent",
            "message": text[:1000] or "the slices of the node's pods fit its cards",
            "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }
        await self.port.set_node_condition(node, condition)
        if text:
            log.error("a node is fenced", node=node, why=text)
            await self.port.post_event(_event(node, text, now), "default")


def _event(node: str, text: str, now: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "cardwise-", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": node, "uid": node, "apiVersion": "v1"},
        "type": "Warning",
        "reason": "CardwiseConflict",
        "message": text[:1000],
        "source": {"component": "cardwise"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
