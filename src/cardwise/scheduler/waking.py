"""Waking pods that wait, and saying which nodes contradict themselves.

kube-scheduler parks a pod that no node takes until something happens in the cluster. It may see a pod's end before we
do, ask too early, and park again; so when capacity comes free on a node that a waiting pod now fits, that node is
annotated, which wakes all. Refuses to write more than one annotation per node and second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from cardwise.adapters import wire
from cardwise.adapters.kube.conditions import node_condition
from cardwise.adapters.kube.events import about_node, event, post
from cardwise.adapters.kube.instants import stamp_now
from cardwise.adapters.kube.port import ClusterPort
from cardwise.adapters.watching import Watching
from cardwise.core.claim import Claim
from cardwise.core.ledger import Ledger
from cardwise.errors import ClusterError
from cardwise.said import MOST_REMEMBERED, Said
from cardwise.scheduler.binder import COMPONENT
from cardwise.scheduler.extender import Extender

log = structlog.get_logger()

PERIOD_S = 1.0
MOST_TRIED = 64
"""Waiting pods that are tried per turn: one that fits is enough to wake all."""
MOST_FAILURES = 8
"""Nodes that could not be told, after which a turn ends: with an API server that is away each takes seconds."""


@dataclass(slots=True)
class Waking:
    """leads: whether this replica speaks for the scheduler now.

    _refused: nodes that took no annotation, _failed: nodes that took no condition, at the last try. They come last, so
    that one of them keeps nobody waiting.
    """

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
    _refused: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)
    _said: Said = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was said yet."""
        self._said = Said(self.watching.now_s, most=MOST_REMEMBERED)

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.ledger.expire(self.watching.now_s())
            if self.leads() and self.watching.synced:
                try:
                    await self.wake()
                except ClusterError as exc:
                    if self._said.is_news("annotation", str(exc)):
                        log.warning("could not annotate a node", why=str(exc))
                await self.tell_conflicts()

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
            node = self._fits_now(waiting[uid])
            if node is not None:
                await self._wake(node, waiting[uid])
                return

    def _fits_now(self, claim: Claim) -> str | None:
        """A node with room for it; one that took no annotation only where there is no other."""
        node = self.extender.fits_now(claim, sorted(self._freed - self._refused))
        if node is None and self._refused:
            node = self.extender.fits_now(claim, sorted(self._freed))
        return node

    async def _wake(self, node: str, claim: Claim) -> None:
        self.wakes += 1
        log.info("waking pods that wait", node=node, pod=claim.name)
        try:
            await self.port.annotate_node(node, {wire.ANNOTATION_FREED: f"{self.ledger.epoch}.{self.wakes}"})
        except ClusterError:
            self.ledger.freed |= self._freed  # nobody was woken: look again
            self._refused.add(node)
            raise
        self._untried, self._freed = {}, set()
        self._refused.discard(node)

    async def tell_conflicts(self) -> None:
        """Write a condition where pods contradict a node's cards, with their names, or two nodes each other.

        And again when that is over. A node that cannot be told now is told later, and the others meanwhile.
        """
        texts, before = self._texts(), self._failed
        self._failed = set()
        for node in sorted(
            texts.keys() | self.watching.inconsistent | self._told.keys(), key=lambda n: (n in before, n)
        ):
            text = texts.get(node, "")
            known = node in self.watching.inconsistent if node not in self._told else bool(self._told[node])
            if (text and self._told.get(node) == text) or (not text and not known):
                self._told.pop(node, None) if not text else None
                continue
            if node not in self.ledger.nodes or await self._tell(node, text):
                self._told[node] = text
            elif len(self._failed) == MOST_FAILURES:
                return

    def _texts(self) -> dict[str, str]:
        """What contradicts itself, by node."""
        told: dict[str, list[str]] = {}
        for conflict in sorted(self.ledger.conflicts.values(), key=lambda each: each.pod):
            text = f"{conflict.pod}: {conflict.text}" if conflict.pod else conflict.text
            told.setdefault(conflict.node, []).append(text)
        return {node: "; ".join(each) for node, each in told.items()}

    async def _tell(self, node: str, text: str) -> bool:
        """Whether the condition was taken. The event is told once and never again: the condition is what stays."""
        status, reason = ("False", "Conflict") if text else ("True", "Consistent")
        told, now = text or "the slices of the node's pods fit its cards", stamp_now()
        condition = node_condition(wire.CONDITION_CONSISTENT, status, reason, told, now, now)
        try:
            await self.port.set_node_condition(node, condition)
        except ClusterError as exc:
            self._failed.add(node)
            if self._said.is_news(node, (text, str(exc))):
                log.warning("a node's condition could not be written", node=node, text=text, why=str(exc))
            return False
        if text:
            log.error("a node is fenced", node=node, why=text)
            await post(self.port, event(about_node(node), "CardwiseConflict", text, component=COMPONENT))
        return True
