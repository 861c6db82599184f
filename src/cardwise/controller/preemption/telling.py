"""What is said of preemptions, and of moves for who waits: as event, metric and in the log, each with its reason.

A refusal is said again only when its reason changes or after a while. Refuses to fail: what cannot be said is logged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry, Counter

from cardwise.adapters.kube.port import EvictingPort
from cardwise.adapters.kube_objects import Pod
from cardwise.controller import metrics
from cardwise.controller.telling import tell_of_pod
from cardwise.core.fleet.consolidate import Moves
from cardwise.core.fleet.preempt import Plan
from cardwise.core.reasons import Code, Reason
from cardwise.said import Said

log = structlog.get_logger()

AGAIN_S = 300.0
MOST_REMEMBERED = 4096
MOVES = frozenset({Code.MOVE_NOBODY, Code.MOVE_CHANGED, Code.MOVE_FRUITLESS})
"""Reasons why nobody moves; the others are why nobody is evicted."""


@dataclass(slots=True)
class Telling:
    """port: for events. registry: for metrics."""

    port: EvictingPort
    now_s: Callable[[], float]
    registry: CollectorRegistry
    evicted: Counter = field(init=False)
    nominations: Counter = field(init=False)
    refusals: Counter = field(init=False)
    moves: Counter = field(init=False)
    still: Counter = field(init=False)
    _said: Said = field(init=False)

    def __post_init__(self) -> None:
        """Make the metrics, and remember what is said."""
        registry = self.registry
        self.evicted = metrics.PREEMPTION_EVICTIONS.counter(registry)
        self.nominations = metrics.PREEMPTION_NOMINATIONS.counter(registry)
        self.refusals = metrics.PREEMPTION_REFUSALS.counter(registry)
        self.moves = metrics.CONSOLIDATION_NOMINATIONS.counter(registry)
        self.still = metrics.CONSOLIDATION_REFUSALS.counter(registry)
        self._said = Said(self.now_s, AGAIN_S, MOST_REMEMBERED)

    async def nominated(self, pod: Pod, plan: Plan) -> None:
        """Others go for this pod."""
        self.nominations.inc()
        victims = ", ".join(victim.name for victim in plan.victims)
        log.info("others go for a pod that waits", pod=pod.name, node=plan.node, victims=victims)
        text = f"on {plan.node} these go for it: {victims}"
        await tell_of_pod(self.port, pod, "CardwisePreempting", text, warning=False)

    async def gone(self, victim: Pod, by: Pod, grace_s: int) -> None:
        """A pod was evicted."""
        self.evicted.labels(victim.metadata.namespace).inc()
        node = victim.spec.node_name
        log.info("evicted", pod=victim.name, node=node, by=by.name, grace_s=grace_s)
        text = f"evicted for {by.name}, whose priority is {by.spec.priority or 0}; it has {grace_s} s to end"
        await tell_of_pod(self.port, victim, "CardwisePreempted", text)

    async def moving(self, pod: Pod, moves: Moves) -> None:
        """Healthy replicas move for this pod."""
        self.moves.inc()
        movers = ", ".join(f"{each.pod.name} to {to}" for each, to in zip(moves.movers, moves.to, strict=True))
        log.info("others move for a pod that waits", pod=pod.name, node=moves.node, movers=movers)
        text = f"on {moves.node} these move for it, by the ledger: {movers}; each serves until its successor is ready"
        if moves.evicts:
            text += "; best-effort pods are evicted besides, for it or for them"
        await tell_of_pod(self.port, pod, "CardwiseMakingRoom", text, warning=False)

    async def nobody(self, pod: Pod, reason: Reason) -> None:
        """Nobody is evicted for a pod, or moves for it, or not as it was decided."""
        moves = reason.code in MOVES
        (self.still if moves else self.refusals).labels(reason.code.value).inc()
        if not self._said.is_news((pod.metadata.uid, moves), reason.code):
            return
        said = "nobody moves for a pod that waits" if moves else "nobody is evicted for a pod that waits"
        log.info(said, pod=pod.name, code=reason.code.value, why=reason.long)
        if reason.code is not Code.PREEMPT_ROOM:  # kube-scheduler is at it
            event = "CardwiseNotMoving" if moves else "CardwiseNotPreempting"
            await tell_of_pod(self.port, pod, event, f"{reason.short}: {reason.long}")
