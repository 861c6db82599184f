"""Preemption of shares: a pod of higher priority waits, and best-effort pods go for it (SPEC E3, case C40).

A turn reads the objects as they are, takes the next step of each preemption that was begun, then decides on new ones:

1. *decide*: for a pod that waits, on a snapshot: who would go on which node (``core/fleet/preempt.py``);
2. *nominate*: written on the pod that waits: what is kept for it, and who has to go. The scheduler then keeps it;
3. *carry out*, from the next turn on, if it is still right: note it on the node, tell the victims, evict them;
4. *give up*, if the pod did not take its share by the deadline; it asks again after a growing pause.

Where nobody may be evicted, healthy replicas may move instead (:mod:`cardwise.controller.consolidation.steps`).

What was begun stands in the objects alone, so a controller that is killed at any step goes on where it was, and does
nothing twice. Refuses to evict for what kube-scheduler's other rules would keep off the node, as far as they can be
read: labels and taints.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from cardwise.adapters import wire
from cardwise.adapters.kube.port import EvictingPort
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.nominations import Nomination, Preempted, Victim, nomination_of
from cardwise.adapters.watching import Watching
from cardwise.controller.consolidation.movers import Movers
from cardwise.controller.consolidation.settings import OFF, ConsolidationSettings
from cardwise.controller.consolidation.steps import Consolidation
from cardwise.controller.pieces import in_pieces
from cardwise.controller.preemption.seeing import Seen, owner_of, queue_of, remembered
from cardwise.controller.preemption.settings import PreemptionSettings
from cardwise.controller.preemption.snapshot import Snapshot
from cardwise.controller.preemption.steps import Steps, write
from cardwise.controller.preemption.telling import Telling
from cardwise.controller.rescue.facts import Facts
from cardwise.controller.turns import take_turns
from cardwise.core.claim import Claim
from cardwise.core.fleet.guard import Eviction, age_s
from cardwise.core.fleet.preempt import Nobody, Plan
from cardwise.core.ledger import Ledger
from cardwise.core.reasons import Code
from cardwise.errors import ClusterError, ConflictError, NotFoundError
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

PERIOD_S = 1.0
AGAIN_S = 5.0
"""A pod for which nobody was evicted is asked about again after this."""
MOST_DECIDED = 8
"""Pods that are decided on per turn: each takes the longer, the larger the cluster is."""
NEVER = "Never"
"""preemptionPolicy of pods that wait. Source: Kubernetes, "Pod Priority and Preemption"."""


@dataclass(slots=True)
class Preempting:
    """The loop. watching: with ``seen`` among those who also hear. now_s: the steady clock of both.

    leads: whether this replica works now. utc_s: seconds since 1970. movers: what is written for the loop that moves.
    """

    port: EvictingPort
    ledger: Ledger
    watching: Watching
    seen: Seen
    now_s: Callable[[], float]
    leads: Callable[[], bool]
    settings: PreemptionSettings = field(default_factory=PreemptionSettings)
    utc_s: Callable[[], float] = time.time
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    moving: ConsolidationSettings = OFF
    movers: Movers = field(default_factory=dict)
    telling: Telling = field(init=False)
    steps: Steps = field(init=False)
    consolidation: Consolidation = field(init=False)
    _not_before_s: dict[str, float] = field(default_factory=dict)
    _failed: Said = field(default_factory=partial(Said, most=MOST_REMEMBERED))

    def __post_init__(self) -> None:
        """Wire the parts."""
        self.telling = Telling(self.port, self.now_s, self.registry)
        self.steps = Steps(self.port, self.ledger, self.seen, self.leads, self.telling, self.utc_s, self.settings)
        clocks, facts = (self.now_s, self.utc_s), Facts(self.ledger, self.watching, self.seen)
        self.consolidation = Consolidation(
            self.port,
            self.ledger,
            *clocks,
            self.telling,
            self.moving,
            self.movers,
            facts.is_open,
            lambda: self.watching.pending,
        )

    async def run(self) -> None:
        """A turn per second, until cancelled."""
        said = "preemption could not go on, it does with the next turn"
        await take_turns(self.turn, self._may_act, PERIOD_S, said)

    def _may_act(self) -> bool:
        return (self.settings.enabled or self.moving.enabled) and self.leads() and self.watching.synced

    async def turn(self) -> None:
        """Take the next step of what was begun, then decide on what is new."""
        if self.ledger.outdated:
            self.ledger.rebuild()
        self.ledger.expire(self.now_s())
        told = dict(self._nominations())
        live = {uid: each for uid, each in told.items() if self._lives(uid)}
        asking = [pod for pod in self._asking(told) if pod.metadata.uid not in live]
        for uid, nomination in told.items():
            pod = self.seen.pods.get(uid)  # it may be gone since the turn began
            if uid not in live and not nomination.over and pod is not None:
                await self._apart(uid, self.steps.give_up(pod, nomination))
        await self.steps.forgive(live)
        self.consolidation.keep(live)
        if not live and not asking:
            return
        snapshot = await self._snapshot(live)
        for uid, nomination in live.items():
            await self._apart(uid, self._carry_out(uid, nomination, snapshot))
        for pod in self._whose_turn(asking):
            await self._apart(pod.metadata.uid, self._decide(pod, told.get(pod.metadata.uid), live, snapshot))
            await asyncio.sleep(0)

    async def _apart(self, uid: str, step: Awaitable[None]) -> None:
        """One pod's trouble is not the others'."""
        try:
            await step
        except (NotFoundError, ConflictError) as exc:  # the feed tells of it in a moment
            log.info("a pod changed while others were to go for it", uid=uid, why=str(exc))
        except ClusterError as exc:
            self._not_before_s[uid] = self.now_s() + AGAIN_S
            if self._failed.is_news(uid, str(exc)):
                log.warning("a preemption could not go on, it is tried again", uid=uid, why=str(exc))

    # ---------------------------------------------------------------- what the objects say

    def _nominations(self) -> Iterator[tuple[str, Nomination]]:
        """Of pods that wait, the most important first."""
        pending = self.watching.pending
        for uid in sorted(pending, key=lambda uid: (-pending[uid].priority, uid)):
            pod = self.seen.pods.get(uid)
            try:
                told = None if pod is None else nomination_of(pod)
            except ValueError:  # said by Watching
                continue
            if told is not None:
                yield uid, told

    def _lives(self, uid: str) -> bool:
        """Whether something is kept for the pod."""
        return uid in self.ledger.nominated and not self.ledger.nominated[uid].over

    def _asking(self, told: Mapping[str, Nomination]) -> list[Pod]:
        """Pods that have waited long enough for cards and may ask now, the most important and the oldest first."""
        now_s, pending = self.now_s(), self.watching.pending
        self._not_before_s = {uid: then_s for uid, then_s in self._not_before_s.items() if uid in pending}
        found = list[tuple[tuple[int, float, str], Pod]]()
        for uid, claim in pending.items():
            pod, standing = self.seen.pods.get(uid), self.seen.standing.get(uid)
            if pod is None or standing is None or not claim.asks or not _may_ask(pod):
                continue
            from_s = max(standing.seen_s + self.settings.wait_s, self._not_before_s.get(uid, now_s))
            if now_s >= from_s and (uid not in told or self._pause_is_over(told[uid])):
                found.append(((-claim.priority, standing.seen_s, pod.name), pod))
        return [pod for _, pod in sorted(found, key=lambda each: each[0])]

    def _whose_turn(self, asking: Sequence[Pod]) -> list[Pod]:
        """Of those that ask: half are the first of them, half those that were not asked about for longest.

        Where many wait whom nobody can help, the others would never have their turn.
        """
        first, others = asking[: MOST_DECIDED // 2], asking[MOST_DECIDED // 2 :]
        longest = sorted(others, key=lambda pod: self._not_before_s.get(pod.metadata.uid, -math.inf))
        return [*first, *longest[: MOST_DECIDED - len(first)]]

    def _pause_is_over(self, nomination: Nomination) -> bool:
        """Whether a pod that did not take what was kept for it may ask again, also where a clock was set back."""
        pause_s = self.settings.fruitless_pause_s(nomination.tries)
        return age_s(nomination.at_s, self.utc_s()) >= nomination.keep_s + pause_s

    async def _snapshot(self, live: Mapping[str, Nomination]) -> Snapshot:
        budgets, leaving = await self.port.list_budgets(), await self._kueue_evicts()
        going = {victim.uid for nomination in live.values() for victim in nomination.victims}
        memories = {name: remembered(node) for name, node in self.seen.nodes.items()}
        closed = frozenset(name for name, lines in memories.items() if lines is None)
        past = list(self._past(live, [line for lines in memories.values() for line in lines or ()]))
        parts = (self.ledger, self.seen, self.settings, self.now_s(), self.utc_s(), leaving, going, past, closed)
        return Snapshot(*parts, frozenset(self.watching.inconsistent), self.steps.denied()).fill(budgets)

    def _past(self, live: Mapping[str, Nomination], lines: Sequence[Preempted]) -> Iterator[Eviction]:
        """What was done of late, as nodes remember it; and what is decided and not noted there yet."""
        yield from (line.eviction for line in lines)
        noted = {line.uid for line in lines}
        for uid, nomination in live.items():
            by = None if nomination.moves else self.seen.pods.get(uid)
            for victim in nomination.victims:
                pod = self.seen.pods.get(victim.uid)
                if victim.uid not in noted and pod is not None and by is not None:
                    yield Eviction(self.utc_s(), nomination.allocation.node, owner_of(pod), owner_of(by))

    async def _kueue_evicts(self) -> frozenset[str] | None:
        """UIDs of those whose Workload Kueue evicts; None if that cannot be asked. Asked only where Kueue has pods."""
        if not any(map(queue_of, self.seen.pods.values())):
            return frozenset()
        try:
            workloads = await self.port.list_workloads()
        except ClusterError as exc:
            if self._failed.is_news("Kueue", str(exc)):
                log.warning("Kueue's workloads cannot be read, its pods are left alone", why=str(exc))
            return None
        return frozenset(
            owner.uid
            for each in workloads
            if any((told.type, told.status) == ("Evicted", "True") for told in each.status.conditions)
            for owner in each.metadata.owner_references
        )

    # ---------------------------------------------------------------- steps

    async def _carry_out(self, uid: str, nomination: Nomination, snapshot: Snapshot) -> None:
        claim, pod = self.watching.pending.get(uid), self.seen.pods.get(uid)
        if claim is None or pod is None:  # gone, or bound, since the turn began
            return
        if nomination.moves:
            why = self.consolidation.see_to(claim, pod, nomination, snapshot)
            if why is not None and why.code is Code.MOVE_FRUITLESS:
                await self.steps.give_up(pod, nomination)
            elif why is not None:
                await self.steps.take_back(pod, why)
            else:
                await self._go_on(claim, pod, nomination, snapshot)
        elif not await self.steps.carry_out(claim, pod, nomination, snapshot):
            self._not_before_s[uid] = self.now_s() + AGAIN_S

    async def _decide(
        self, pod: Pod, before: Nomination | None, live: Mapping[str, Nomination], snapshot: Snapshot
    ) -> None:
        """Decide for one pod that waits, and nominate it, or say why not."""
        claim = self.watching.pending.get(pod.metadata.uid)
        if claim is None:  # gone, or bound, since the turn began
            return
        self._not_before_s[claim.uid] = self.now_s() + AGAIN_S
        if snapshot.is_leaving(pod):
            log.info("Kueue evicts the pod's workload, nobody goes for it", pod=pod.name)
            return
        tries = 1 + (before.tries if before else 0)
        found: Plan | Nobody
        if self.settings.enabled:
            found = await in_pieces(snapshot.search(claim, pod), self.now_s)
        else:
            found = Nobody(room=snapshot.room(claim, pod))
        if isinstance(found, Plan):
            await self._nominate(pod, claim, found, tries)
            snapshot.note(found, owner_of(pod))
            return
        if self.settings.enabled:
            await self.telling.nobody(pod, found.reason(self.utc_s()))
        standing, helpless = self.seen.standing.get(claim.uid), found.room is None and found.rests_until_s is None
        waited_s = self.now_s() - standing.seen_s if standing is not None else 0.0
        if helpless and self.consolidation.may_ask(claim.uid, waited_s, live):
            await self.consolidation.decide(claim, pod, snapshot, tries)

    async def _go_on(self, claim: Claim, pod: Pod, nomination: Nomination, snapshot: Snapshot) -> None:
        """Where all that were to move are gone, and best-effort pods are in the way still: they go for it."""
        node, there = nomination.allocation.node, [each for each in nomination.victims if each.uid in self.seen.pods]
        if there or not self.settings.enabled or self.ledger.suppose(claim, node) is not None:
            return
        found = snapshot.search_on(node, claim, pod)
        if isinstance(found, Plan):
            await self._nominate(pod, claim, found, nomination.tries)
            snapshot.note(found, owner_of(pod))

    async def _nominate(self, pod: Pod, claim: Claim, plan: Plan, tries: int) -> None:
        kept = self.ledger.suppose_without(claim, plan.node, [victim.uid for victim in plan.victims])
        if kept is None or kept.allocation is None:
            return
        nomination = Nomination(
            replace(kept.allocation, seq=tries),  # so that a second try of the same is another one
            tuple(Victim(victim.uid, victim.name) for victim in plan.victims),
            self.utc_s(),
            self.settings.grace_s + self.settings.keep_s,
            tries,
        )
        await write(self.port, pod, nomination)
        await self.telling.nominated(pod, plan)


def _may_ask(pod: Pod) -> bool:
    """Whether the pod is kube-scheduler's to place now, and others may go for it."""
    if pod.metadata.deletion_timestamp is not None or pod.spec.scheduling_gates:
        return False
    return pod.spec.scheduler_name == wire.SCHEDULER_NAME and pod.spec.preemption_policy != NEVER
