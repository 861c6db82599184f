"""The steps of a preemption that was begun: look again, note, tell, evict; or take it back.

Each step reads what stands in the objects, and does what is still to be done: done again it does nothing. Before the
first pod goes all evictions are tried without effect, so that one which a budget forbids makes another set be chosen
instead of half of this one go. Refuses to evict whom it did not read anew just before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import structlog

from cardwise.adapters import wire
from cardwise.adapters.claims import read_claim
from cardwise.adapters.kube.instants import stamp
from cardwise.adapters.kube.port import Evictee, EvictingPort
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.nominations import (
    Nomination,
    Preempted,
    Preemptions,
    encode_nomination,
    encode_preemptions,
)
from cardwise.controller.preemption.seeing import Seen, owner_of, remembered
from cardwise.controller.preemption.settings import PreemptionSettings
from cardwise.controller.preemption.snapshot import Snapshot, waiting
from cardwise.controller.preemption.telling import Telling
from cardwise.core.claim import Claim, LatencyClass
from cardwise.core.fleet.guard import Eviction, age_s
from cardwise.core.fleet.preempt import exemption
from cardwise.core.ledger import Ledger
from cardwise.core.reasons import Code, Reason
from cardwise.errors import BudgetError, ClusterError, ConflictError, NotFoundError
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

DENIED_S = 600.0
"""So long a pod counts as nobody's victim whose eviction was denied, not by a budget but for good."""
USUAL_GRACE_S = 30
"""terminationGracePeriodSeconds of a pod that does not say."""


async def write(port: EvictingPort, pod: Pod, nomination: Nomination) -> None:
    """Keep something for a pod that waits, from now on."""
    meta, told = pod.metadata, {wire.ANNOTATION_NOMINATED: encode_nomination(nomination)}
    await port.annotate_pod(meta.namespace, meta.name, meta.uid, told)
    await port.nominate(meta.namespace, meta.name, meta.uid, nomination.allocation.node)


@dataclass(slots=True)
class Steps:
    """leads: whether this replica works now. utc_s: seconds since 1970."""

    port: EvictingPort
    ledger: Ledger
    seen: Seen
    leads: Callable[[], bool]
    telling: Telling
    utc_s: Callable[[], float]
    settings: PreemptionSettings
    _written: dict[str, Preemptions] = field(default_factory=dict)
    _denied: dict[str, float] = field(default_factory=dict)
    _failed: Said = field(default_factory=partial(Said, most=MOST_REMEMBERED))

    async def carry_out(self, claim: Claim, pod: Pod, nomination: Nomination, snapshot: Snapshot) -> bool:
        """Take the next steps for a pod that waits. False if they were taken back: it is decided anew."""
        there = [each for victim in nomination.victims if (each := self.seen.pods.get(victim.uid)) is not None]
        staying = sum(each.metadata.deletion_timestamp is None for each in there)
        if not staying:
            return True
        begun, node = staying < len(nomination.victims), nomination.allocation.node
        needed = self._who_goes(claim, pod, nomination, there, snapshot)
        if isinstance(needed, Reason):
            if not begun:  # what has gone cannot be taken back; what it freed is kept until the deadline
                await self.take_back(pod, needed)
            return begun
        if not (needed and node in self.seen.nodes and await self._still_waits(pod)):
            return True
        return await self._act(pod, node, needed, begun=begun)

    def denied(self) -> frozenset[str]:
        """UIDs of pods whose eviction somebody's admission denied a while ago: it is not asked for again so soon."""
        now_s = self.utc_s()
        self._denied = {uid: at_s for uid, at_s in self._denied.items() if age_s(at_s, now_s) < DENIED_S}
        return frozenset(self._denied)

    async def give_up(self, pod: Pod, nomination: Nomination) -> None:
        """The deadline has passed, and the pod did not take what was kept for it: it is not kept any longer."""
        kept_s = min(nomination.keep_s, age_s(nomination.at_s, self.utc_s()))  # less, where moves were in vain
        await self._withdraw(pod, encode_nomination(replace(nomination, keep_s=kept_s, over=True)))
        numbers: dict[str, int | float | str] = {
            "node": nomination.allocation.node,
            "kept_s": round(kept_s),
            "pause_s": round(self.settings.fruitless_pause_s(nomination.tries)),
        }
        code = Code.MOVE_FRUITLESS if nomination.moves else Code.PREEMPT_FRUITLESS
        await self.telling.nobody(pod, Reason(code, numbers))

    async def forgive(self, live: Mapping[str, Nomination]) -> None:
        """Take the mark off pods that need not go after all."""
        chosen = {victim.uid for nomination in live.values() for victim in nomination.victims}
        for uid in sorted(self.seen.told - chosen):
            pod = self.seen.pods.get(uid)
            if pod is not None and pod.metadata.deletion_timestamp is None:
                await self._unmark(pod)

    async def _unmark(self, pod: Pod) -> None:
        meta, marks = pod.metadata, {wire.ANNOTATION_PREEMPTED_FOR: None, wire.ANNOTATION_PREEMPTED_BY: None}
        try:
            await self.port.annotate_pod(meta.namespace, meta.name, meta.uid, marks)
        except (NotFoundError, ConflictError):
            return
        except ClusterError as exc:
            if exc.retry:  # it is the API server that is in trouble, not this pod
                raise
            if self._failed.is_news(meta.uid, str(exc)):
                log.warning("the mark of a pod that need not go could not be taken off", pod=pod.name, why=str(exc))
            return
        log.info("a pod need not go after all", pod=pod.name)

    # ---------------------------------------------------------------- looking again

    def _who_goes(
        self, claim: Claim, pod: Pod, nomination: Nomination, there: Sequence[Pod], snapshot: Snapshot
    ) -> list[Pod] | Reason:
        """Who has to go yet, of those who were chosen and stay; or why it is no longer right that they do."""
        staying = [each for each in there if each.metadata.deletion_timestamp is None]
        node, whole = nomination.allocation.node, len(staying) == len(nomination.victims)
        if whole and (room := snapshot.room(claim, pod)) is not None:
            return Reason(Code.PREEMPT_ROOM, {"node": room})
        if node not in snapshot.open_to(pod):
            return Reason(Code.PREEMPT_CHANGED, {"node": node})
        needed = self._needed(claim, node, there, staying)
        if needed is None or not all(self._may_go(each, claim, pod, snapshot, whole=whole) for each in needed):
            return Reason(Code.PREEMPT_CHANGED, {"node": node})
        return needed

    def _needed(self, claim: Claim, node: str, there: Sequence[Pod], staying: Sequence[Pod]) -> list[Pod] | None:
        """Who of those that stay has to go yet, the most important spared first; None if it helps no more."""
        gone = {each.metadata.uid for each in there}
        if self.ledger.suppose_without(claim, node, gone) is None:
            return None
        needed = list[Pod]()
        for each in sorted(staying, key=lambda pod: (-(pod.spec.priority or 0), pod.name)):
            gone.remove(each.metadata.uid)
            if self.ledger.suppose_without(claim, node, gone) is None:
                gone.add(each.metadata.uid)
                needed.append(each)
        return needed

    def _may_go(self, victim: Pod, claim: Claim, pod: Pod, snapshot: Snapshot, *, whole: bool) -> bool:
        """Whether it may still go, but for what the choice itself made true; budgets are asked by the trial.

        It was warm when it was chosen. A controller that was started anew has seen it ready for a moment only, which is
        no reason to decide anew; that it is not ready is, while nobody has gone yet (``whole``). Who has become
        latency-sensitive, or says no by now, stays in any case.
        """
        running = snapshot.running(victim.spec.node_name, victim.metadata.uid)
        if running is None:
            return False
        cold = whole and running.starting and not victim.ready
        unmarked = replace(running, going=False, budgets=frozenset(), starting=cold)
        return exemption(unmarked, waiting(claim, pod), snapshot.world) is None

    async def _still_waits(self, pod: Pod) -> bool:
        """Whether this very pod still waits for what was decided, as the API server has it now."""
        now = await self._now(pod)
        key = wire.ANNOTATION_NOMINATED
        same = now is not None and now.metadata.annotations.get(key) == pod.metadata.annotations.get(key)
        return now is not None and same and not now.spec.node_name

    async def _now(self, pod: Pod) -> Pod | None:
        """This very pod as the API server has it now; None if it is gone, or going."""
        try:
            now = await self.port.get_pod(pod.metadata.namespace, pod.metadata.name)
        except NotFoundError:
            return None
        is_it = now.metadata.uid == pod.metadata.uid and not now.ended and now.metadata.deletion_timestamp is None
        return now if is_it else None

    # ---------------------------------------------------------------- acting

    async def _act(self, pod: Pod, node: str, victims: Sequence[Pod], *, begun: bool) -> bool:
        """Try all without effect; note, tell, evict."""
        for each in victims:
            now = await self._now(each)
            if now is not None and _is_spared(now):
                return await self._stop(pod, Reason(Code.PREEMPT_CHANGED, {"node": node}), begun=begun)
            try:
                await self.port.evict(self._evictee(each), dry_run=True)
            except BudgetError as exc:
                return await self._forbidden(pod, each, exc, begun=begun)
            except (NotFoundError, ConflictError):
                continue  # it went by itself
            except ClusterError as exc:
                if exc.retry:
                    raise
                log.warning("the API server lets nobody evict a pod, others go", pod=each.name, why=str(exc))
                self._denied[each.metadata.uid] = self.utc_s()
                return await self._stop(pod, Reason(Code.PREEMPT_CHANGED, {"node": node}), begun=begun)
        await self._note(pod, node, victims)
        for each in victims:
            await self._tell(each, pod)
        return await self._evict_all(pod, victims, begun=begun)

    async def _note(self, pod: Pod, node: str, victims: Sequence[Pod]) -> None:
        """Remember on the node who goes, before anybody does: a controller that dies next counts them still."""
        known = self._known(node)
        noted = {line.uid for line in known.lines}
        now_s, by = self.utc_s(), owner_of(pod)
        new = [
            Preempted(each.metadata.uid, Eviction(now_s, node, owner_of(each), by))
            for each in victims
            if each.metadata.uid not in noted
        ]
        if new:
            await self._remember(node, known.with_more(new, now_s, self.settings.brakes.oldest_s))

    def _known(self, node: str) -> Preemptions:
        """What the node remembers, with what was written there and was not heard of yet."""
        told = self.seen.nodes.get(node)  # it may be deleted while its pods are tried
        heard = Preemptions((remembered(told) if told else None) or ())
        return heard.with_more(self._written.get(node, Preemptions()).lines, self.utc_s(), math.inf)

    async def _remember(self, node: str, preemptions: Preemptions) -> None:
        self._written[node] = preemptions
        text = encode_preemptions(preemptions) if preemptions.lines else None
        await self.port.annotate_node(node, {wire.ANNOTATION_PREEMPTIONS: text})

    async def _tell(self, victim: Pod, pod: Pod) -> None:
        """Mark who has to go, for whoever looks at it: its owner, and what drains it."""
        meta, by = victim.metadata, f"{pod.name} {pod.metadata.uid}"
        if meta.annotations.get(wire.ANNOTATION_PREEMPTED_FOR) == by:
            return
        until = datetime.fromtimestamp(self.utc_s() + self._grace_s(victim), UTC)
        marks = {wire.ANNOTATION_PREEMPTED_FOR: by, wire.ANNOTATION_PREEMPTED_BY: stamp(until)}
        try:
            await self.port.annotate_pod(meta.namespace, meta.name, meta.uid, marks)
        except (NotFoundError, ConflictError):  # it went by itself
            return
        except ClusterError as exc:
            if exc.retry:
                raise
            log.warning("a pod that has to go cannot be marked, it goes without", pod=victim.name, why=str(exc))

    async def _evict_all(self, pod: Pod, victims: Sequence[Pod], *, begun: bool) -> bool:
        for each in victims:
            if not self.leads():
                return True
            now = await self._now(each)
            if now is None or _is_spared(now):
                continue
            try:
                await self.port.evict(self._evictee(each))
            except BudgetError as exc:  # used up since it was tried
                await self._forget(each)
                return await self._forbidden(pod, each, exc, begun=begun)
            except (NotFoundError, ConflictError):
                continue
            begun = True
            await self.telling.gone(each, pod, self._grace_s(each))
        return True

    async def _forget(self, victim: Pod) -> None:
        """It did not have to go in the end."""
        node = victim.spec.node_name
        await self._remember(node, self._known(node).without([victim.metadata.uid]))

    async def _forbidden(self, pod: Pod, victim: Pod, error: BudgetError, *, begun: bool) -> bool:
        reason = Reason(Code.PREEMPT_BUDGET, {"victim": victim.name, "told": str(error)})
        return await self._stop(pod, reason, begun=begun)

    async def _stop(self, pod: Pod, reason: Reason, *, begun: bool) -> bool:
        """Nobody more goes. False if nobody had gone yet: it is decided anew."""
        if not begun:
            await self.take_back(pod, reason)
            return False
        await self.telling.nobody(pod, reason)
        return True

    async def take_back(self, pod: Pod, reason: Reason) -> None:
        """Nobody has gone or moved yet: keep nothing, and decide anew."""
        await self._withdraw(pod, None)
        await self.telling.nobody(pod, reason)

    async def _withdraw(self, pod: Pod, told: str | None) -> None:
        """Keep nothing more. The annotation last: while it is there, all of this is tried again."""
        meta = pod.metadata
        await self.port.nominate(meta.namespace, meta.name, meta.uid, "")
        await self.port.annotate_pod(meta.namespace, meta.name, meta.uid, {wire.ANNOTATION_NOMINATED: told})

    def _evictee(self, victim: Pod) -> Evictee:
        meta = victim.metadata
        return Evictee(meta.namespace, meta.name, meta.uid, self._grace_s(victim))

    def _grace_s(self, victim: Pod) -> int:
        told = victim.spec.termination_grace_period_seconds
        return min(USUAL_GRACE_S if told is None else told, self.settings.grace_s)


def _is_spared(now: Pod) -> bool:
    """Whether a pod, read anew, says that it is nobody's victim: a watch that is cut does not tell."""
    try:
        claim, _faults = read_claim(now)
    except ValueError:
        return True
    return claim.latency is LatencyClass.SENSITIVE or not claim.preemptible
