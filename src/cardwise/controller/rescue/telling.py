"""What is said of moves: as events, node conditions, a note on the pod, metrics and the log, each with its reason.

Refuses to say the same again before a while has passed, and to fail: what cannot be said is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from cardwise.adapters import wire
from cardwise.adapters.kube.conditions import node_condition
from cardwise.adapters.kube.instants import stamp_now
from cardwise.adapters.kube.port import MovingPort
from cardwise.adapters.kube_objects import Pod
from cardwise.controller import metrics
from cardwise.controller.preemption.seeing import Seen, condition
from cardwise.controller.telling import tell_of_pod
from cardwise.core.fleet.grounds import BAD, Ground, Why
from cardwise.core.fleet.rescue import Because, Move, Stay, Step
from cardwise.errors import ClusterError, NotFoundError
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

AGAIN_S = 300.0
STUCK = frozenset({Because.NO_ROOM, Because.NO_OWNER, Because.VAIN, Because.BUDGET, Because.FAILED})
"""Reasons that somebody may have to do something about; the others pass by themselves."""
NAMED = 10
"""Pods that a condition names."""
_EVENTS = {Step.RELEASE: "CardwiseMoving", Step.EVICT: "CardwiseMoved", Step.RETURN: "CardwiseMovedInVain"}


@dataclass(slots=True)
class Telling:
    """port: for all that is written. registry: for metrics."""

    port: MovingPort
    seen: Seen
    now_s: Callable[[], float]
    registry: CollectorRegistry
    steps: Counter = field(init=False)
    stays: Gauge = field(init=False)
    grounds: Gauge = field(init=False)
    _said: Said = field(init=False)
    _failed: Said = field(init=False)
    _told: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the metrics, and remember what is said."""
        registry = self.registry
        self.steps = metrics.RESCUE_STEPS.counter(registry)
        self.stays = metrics.RESCUE_PODS_LEFT.gauge(registry)
        self.grounds = metrics.RESCUE_BAD_GROUNDS.gauge(registry)
        self._said, self._failed = Said(self.now_s, AGAIN_S), Said(self.now_s, most=MOST_REMEMBERED)

    def begin_anew(self) -> None:
        """Another may have said something else of the nodes meanwhile: it is all said again."""
        self._told.clear()

    async def moved(self, pod: Pod, move: Move) -> None:
        """A step was taken."""
        self.steps.labels(move.step.value).inc()
        text = words(move)
        log.info("a pod is moved", pod=pod.name, node=pod.spec.node_name, step=move.step.value, why=text)
        warning = move.step is Step.RETURN or move.short
        await tell_of_pod(self.port, pod, _EVENTS[move.step], text, warning=warning)

    async def left(self, stays: Collection[Stay], grounds: Collection[Ground]) -> None:
        """Who stays, and what is bad: after every turn."""
        aside = [stay for stay in stays if stay.replica.ground is Why.WAY]
        stays = [stay for stay in stays if stay.replica.ground is not Why.WAY]
        for because in Because:
            self.stays.labels(because.name.lower()).set(sum(stay.because is because for stay in stays))
        for why in BAD:
            self.grounds.labels(why.name.lower()).set(sum(each.why is why for each in grounds))
        staying = {stay.replica.uid for stay in stays}
        self._said.keep(staying | {stay.replica.uid for stay in aside})
        for stay in aside:  # nothing is wrong with it, so nothing is noted on it
            if self._said.is_news(stay.replica.uid, stay.because):
                log.info("a pod that is to make room stays", pod=stay.replica.name, why=stay.because.value)
        for stay in stays:
            await self._stays(stay)
        await self._clear(staying)
        await self._conditions(stays, grounds)

    async def _stays(self, stay: Stay) -> None:
        replica = stay.replica
        pod = self.seen.pods.get(replica.uid)
        if pod is None or not self._said.is_news(replica.uid, stay.because):
            return
        text = _left(stay)
        log.info("a pod on bad ground stays", pod=pod.name, node=replica.node, why=text)
        noted = await self._note(pod, text)
        if not noted:  # all of it is said again, with the next turn
            self._said.forget(replica.uid)
        elif stay.because in STUCK:
            await tell_of_pod(self.port, pod, "CardwiseCannotMove", text)

    async def _clear(self, staying: Collection[str]) -> None:
        """Take notes away that are true no more."""
        for uid, pod in list(self.seen.pods.items()):
            if wire.ANNOTATION_STAYS in pod.metadata.annotations and uid not in staying:
                await self._note(pod, None)

    async def _note(self, pod: Pod, text: str | None) -> bool:
        """False if it is worth trying again at once: what is denied is denied the next second, too."""
        if pod.metadata.annotations.get(wire.ANNOTATION_STAYS) == text:
            return True
        meta = pod.metadata
        try:
            await self.port.annotate_pod(meta.namespace, meta.name, meta.uid, {wire.ANNOTATION_STAYS: text})
        except NotFoundError:
            return True
        except ClusterError as exc:
            if self._failed.is_news(meta.uid, str(exc)):
                log.warning("why a pod stays could not be noted on it", pod=pod.name, why=str(exc))
            return not exc.retry
        return True

    # ---------------------------------------------------------------- nodes

    async def _conditions(self, stays: Iterable[Stay], grounds: Collection[Ground]) -> None:
        by_node: dict[str, list[Stay]] = {}
        for stay in stays:
            by_node.setdefault(stay.replica.node, []).append(stay)
        bad = {each.node for each in grounds}
        known = {name for name, node in self.seen.nodes.items() if condition(node, wire.CONDITION_RESCUED) == "False"}
        for node in sorted((by_node.keys() | known | self._told.keys()) & self.seen.nodes.keys()):
            text, reason = _condition(by_node.get(node, []), is_bad=node in bad)
            if self._told.get(node) != (reason, text) and await self._tell(node, reason, text):
                self._told[node] = (reason, text)
        self._told = {node: told for node, told in self._told.items() if node in self.seen.nodes}

    async def _tell(self, node: str, reason: str, text: str) -> bool:
        status, now = "True" if reason == "NobodyLeft" else "False", stamp_now()
        told = node_condition(wire.CONDITION_RESCUED, status, reason, text, now, now)
        try:
            await self.port.set_node_condition(node, told)
        except ClusterError as exc:
            if self._failed.is_news(node, str(exc)):
                log.warning("a node's condition could not be written", node=node, text=text, why=str(exc))
            return False
        return True


def words(move: Move) -> str:
    """A move in words."""
    match move.step:
        case Step.RELEASE:
            text = f"{move.why}: another is made beside it, by the ledger on {move.to}; it serves until that is ready"
        case Step.RETURN:
            text = f"{move.why}: its controller takes it back"
        case _ if move.to:
            text = f"{move.why}: evicted, another is made instead, by the ledger on {move.to}"
        case _:
            text = f"evicted: {move.why}"
    if move.short:
        text += "; its service is one short until then"
    return f"{text}; all of its service is on one node then, for no other has room" if move.alone else text


def _left(stay: Stay) -> str:
    ground = stay.replica.ground
    return f"{ground.value if ground else 'it was released'}, and it stays: {stay.because.value}"


def _condition(stays: list[Stay], *, is_bad: bool) -> tuple[str, str]:
    if not stays:
        return ("nobody is left on bad ground here" if is_bad else "no card here is fenced, and the node is ready"), (
            "NobodyLeft"
        )
    stuck = [stay for stay in stays if stay.because in STUCK]
    shown = sorted(stuck or stays, key=lambda stay: stay.replica.name)
    named = "; ".join(f"{stay.replica.name}: {stay.because.value}" for stay in shown[:NAMED])
    more = f"; and {len(shown) - NAMED} more" if len(shown) > NAMED else ""
    return f"{len(stays)} pods are left on bad ground: {named}{more}", "Stuck" if stuck else "Leaving"
