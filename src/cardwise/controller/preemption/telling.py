"""What is said of preemptions: as an event, as a metric, and in the log, each with its reason.

A refusal is said again only when its reason changes or after a while. Refuses to fail: what cannot be said is logged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry, Counter

from cardwise.adapters.kube.events import event
from cardwise.adapters.kube.port import EvictingPort
from cardwise.adapters.kube_objects import Pod
from cardwise.controller import metrics
from cardwise.core.fleet.preempt import Plan
from cardwise.core.reasons import Code, Reason
from cardwise.errors import ClusterError

log = structlog.get_logger()

COMPONENT = "cardwise-controller"
AGAIN_S = 300.0
MOST_REMEMBERED = 4096


@dataclass(slots=True)
class Telling:
    """port: for events. registry: for metrics."""

    port: EvictingPort
    now_s: Callable[[], float]
    registry: CollectorRegistry
    evicted: Counter = field(init=False)
    nominations: Counter = field(init=False)
    refusals: Counter = field(init=False)
    _said: dict[str, tuple[Code, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the metrics."""
        registry = self.registry
        self.evicted = metrics.PREEMPTION_EVICTIONS.counter(registry)
        self.nominations = metrics.PREEMPTION_NOMINATIONS.counter(registry)
        self.refusals = metrics.PREEMPTION_REFUSALS.counter(registry)

    async def nominated(self, pod: Pod, plan: Plan) -> None:
        """Others go for this pod."""
        self.nominations.inc()
        victims = ", ".join(victim.name for victim in plan.victims)
        log.info("others go for a pod that waits", pod=pod.name, node=plan.node, victims=victims)
        await self._post(pod, "CardwisePreempting", f"on {plan.node} these go for it: {victims}", warning=False)

    async def gone(self, victim: Pod, by: Pod, grace_s: int) -> None:
        """A pod was evicted."""
        self.evicted.labels(victim.metadata.namespace).inc()
        node = victim.spec.node_name
        log.info("evicted", pod=victim.name, node=node, by=by.name, grace_s=grace_s)
        text = f"evicted for {by.name}, whose priority is {by.spec.priority or 0}; it has {grace_s} s to end"
        await self._post(victim, "CardwisePreempted", text)

    async def nobody(self, pod: Pod, reason: Reason) -> None:
        """Nobody is evicted for a pod, or not as it was decided."""
        self.refusals.labels(reason.code.value).inc()
        uid, now_s = pod.metadata.uid, self.now_s()
        code, said_s = self._said.get(uid, (None, 0.0))
        if code is reason.code and now_s - said_s < AGAIN_S:
            return
        if len(self._said) >= MOST_REMEMBERED:
            self._said.clear()
        self._said[uid] = (reason.code, now_s)
        log.info("nobody is evicted for a pod that waits", pod=pod.name, code=reason.code.value, why=reason.long)
        if reason.code is not Code.PREEMPT_ROOM:  # kube-scheduler is at it
            await self._post(pod, "CardwiseNotPreempting", f"{reason.short}: {reason.long}")

    async def _post(self, pod: Pod, reason: str, text: str, *, warning: bool = True) -> None:
        meta = pod.metadata
        about = {"kind": "Pod", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid, "apiVersion": "v1"}
        told = event(about, reason, text, component=COMPONENT, namespace=meta.namespace, warning=warning)
        try:
            await self.port.post_event(told, meta.namespace)
        except ClusterError as exc:
            log.warning("an event could not be written", pod=pod.name, why=str(exc))
