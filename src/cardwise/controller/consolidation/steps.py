"""Healthy replicas move for a pod that waits beside free pieces of cards (``core/fleet/consolidate.py``).

1. *decide*, for a pod for which nobody may be evicted: who would move off which node, and where to;
2. *nominate*: written on the pod that waits, as a preemption is, but that nobody is evicted for it. From then on the
   scheduler keeps of that node for it what is free, and more as others leave;
3. *approve*, each turn, while it is still right, one after the other, each once the successor before has its place:
   :mod:`cardwise.controller.rescuing` moves who is approved, as it moves replicas off a sick card, each of which serves
   until its successor is ready;
4. *evict*, where best-effort pods are all that is left in the way: from here on it is a preemption;
5. *give up*, at the deadline, when a move was in vain, or when what is left to do would not help any more; it is asked
   again after a growing pause.

What an annotation says is not enough to move anybody: who wrote it is not known, so each turn the rules are asked
again. Refuses to move a second set before the first is done, unless told otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cardwise.adapters import wire
from cardwise.adapters.dump import service_of
from cardwise.adapters.kube.port import EvictingPort
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.nominations import Nomination, Victim
from cardwise.controller.consolidation.finding import Finding
from cardwise.controller.consolidation.movers import Mover, Movers
from cardwise.controller.consolidation.settings import ConsolidationSettings
from cardwise.controller.pieces import in_pieces
from cardwise.controller.preemption.snapshot import Snapshot, waiting
from cardwise.controller.preemption.steps import write
from cardwise.controller.preemption.telling import Telling
from cardwise.controller.rescue.facts import released
from cardwise.core.claim import Claim, LatencyClass
from cardwise.core.fleet.consolidate import Books, Moves, Nobody, Question, Replica, Stuck, Yielding, fixed, search
from cardwise.core.ledger import Ledger
from cardwise.core.reasons import Code, Reason

AGAIN_S = 60.0
"""A pod for which nobody moved is asked about again after this, at least: whoever else waits has its turn before."""
PAUSE_S, REST = 1.0, 4.0
"""Between two searches, at least; and as often the time that the last one took: each may look at many nodes."""
NEAR, EVICTING = 64, 16
"""Nodes whose best-effort pods count as evicted where nothing else helps, and of them those that others may move off: a
question costs the more, the more pods are gone in thought."""
IDLE_S = 300.0
"""So long something is kept for a pod while those who are to move yet do not: somebody denies it, or other evictions
have used up what a node gives up in a while."""
UNHEARD_S = 30.0
"""So long nobody else is decided on while the watch does not tell of what was decided."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """What has become of those who were chosen. going: released, or being deleted; left: may move yet.

    stays: how many may not. begun: somebody has left. helps: the pod would fit once all of them have moved. books: on
    which those who are left find places.
    """

    going: Sequence[Replica]
    left: Sequence[Replica]
    stays: int
    begun: bool
    vain: bool
    helps: bool
    books: Books | None


@dataclass(slots=True)
class Consolidation:
    """now_s: the steady clock; utc_s: seconds since 1970. movers: what :mod:`cardwise.controller.rescuing` moves.

    is_open: whether a node takes the successor of a pod (UID), but for cards. pending: pods that wait, by UID.
    """

    port: EvictingPort
    ledger: Ledger
    now_s: Callable[[], float]
    utc_s: Callable[[], float]
    telling: Telling
    settings: ConsolidationSettings
    movers: Movers
    is_open: Callable[[str, str], bool]
    pending: Callable[[], Mapping[str, Claim]]
    _since_s: dict[str, float] = field(default_factory=dict)
    _written_s: dict[str, float] = field(default_factory=dict)
    _rests_s: dict[str, float] = field(default_factory=dict)
    _not_before_s: float = -math.inf
    _found: Finding | None = None

    def keep(self, live: Mapping[str, Nomination]) -> None:
        """Nobody moves for those who have nothing kept any more."""
        self._since_s = {uid: at_s for uid, at_s in self._since_s.items() if uid in live}
        for uid, mover in list(self.movers.items()):
            if mover.by not in live:
                del self.movers[uid]

    # ---------------------------------------------------------------- deciding

    def may_ask(self, uid: str, waited_s: float, live: Mapping[str, Nomination]) -> bool:
        """Whether it is looked now whether others move for this pod, which has waited so long."""
        now_s = self.now_s()
        self._rests_s = {each: until_s for each, until_s in self._rests_s.items() if now_s < until_s}
        written_s = self._written_s.items()
        self._written_s = {each: at_s for each, at_s in written_s if each not in live and now_s - at_s < UNHEARD_S}
        return (
            self.settings.enabled
            and not self._written_s
            and waited_s >= self.settings.wait_s
            and uid not in self._rests_s
            and now_s >= self._not_before_s
            and sum(each.moves for each in live.values()) < self.settings.at_once
        )

    async def decide(self, claim: Claim, pod: Pod, snapshot: Snapshot, tries: int) -> None:
        """Choose who moves for a pod, and write it down; or say why nobody does."""
        began_s = self.now_s()
        self._rests_s[claim.uid] = began_s + AGAIN_S
        books, found = await self._search(claim, pod, snapshot)
        now_s, waiting_pods = self.now_s(), sum(bool(each.asks) for each in self.pending().values())
        took_s = now_s - began_s
        pause_s = max(PAUSE_S, REST * took_s)
        self._not_before_s = now_s + pause_s
        self._rests_s[claim.uid] = now_s + max(AGAIN_S, waiting_pods * (took_s + pause_s))
        if not isinstance(found, Moves):
            await self.telling.nobody(pod, found.reason)
        elif not isinstance(books.settle(found.node, found.movers), Stuck):  # somebody may have changed it meanwhile
            await self._nominate(books, pod, found, tries)

    async def _search(self, claim: Claim, pod: Pod, snapshot: Snapshot) -> tuple[Books, Moves | Nobody]:
        """Who moves, first without evictions; and the books on which that holds."""
        finding, question = self._finding(snapshot), self._question(claim, pod, snapshot)
        nodes = finding.nodes(claim, pod)
        books = Books(self.ledger, self.is_open, claim)
        found = await in_pieces(search(question, finding.on_each(nodes), books.opened, books.settle), self.now_s)
        if not isinstance(found, Moves) and (yielding := self._yielding(claim, pod, nodes, snapshot)):
            books = replace(books, yielding=yielding, most_evicted=snapshot.settings.most_per_node)
            steps = search(question, finding.on_each(nodes[:EVICTING]), books.opened, books.settle)
            found = await in_pieces(steps, self.now_s)
        return books, found

    def _yielding(self, claim: Claim, pod: Pod, nodes: Sequence[str], snapshot: Snapshot) -> Yielding:
        """Who may be evicted, on the nodes that lack least: whoever moves is smaller than the pod that waits."""
        return snapshot.may_go(claim, pod, nodes[:NEAR]) if snapshot.settings.enabled else {}

    async def _nominate(self, books: Books, pod: Pod, found: Moves, tries: int) -> None:
        movers = [each.pod for each in found.movers]
        kept = books.kept(found.node, [mover.uid for mover in movers])
        if kept is None or kept.allocation is None:
            return
        nomination = Nomination(
            replace(kept.allocation, seq=tries),
            tuple(Victim(mover.uid, mover.name) for mover in movers),
            self.utc_s(),
            self.settings.keep_s,
            tries,
            moves=True,
        )
        self._written_s[pod.metadata.uid] = self.now_s()
        await write(self.port, pod, nomination)
        await self.telling.moving(pod, found)

    # ---------------------------------------------------------------- what was begun

    def see_to(self, claim: Claim, pod: Pod, nomination: Nomination, snapshot: Snapshot) -> Reason | None:
        """Approve the next one that is to move; or why it is no longer right that others do. Then nobody is."""
        for victim in nomination.victims:
            self.movers.pop(victim.uid, None)
        found = self._look(claim, pod, nomination, snapshot)
        why = self._why_not(claim, pod, nomination, found, snapshot)
        if why is not None:
            return why
        if found.books is not None and all(self._is_followed(each, snapshot) for each in found.going):
            mover, node = found.left[0].pod, nomination.allocation.node
            self.movers[mover.uid] = Mover(claim.uid, self.now_s(), found.books.gone_for(node, mover.priority))
        return None

    def _look(self, claim: Claim, pod: Pod, nomination: Nomination, snapshot: Snapshot) -> _Looked:
        node, uids = nomination.allocation.node, [victim.uid for victim in nomination.victims]
        finding, question = self._finding(snapshot), self._question(claim, pod, snapshot)
        there = {each.pod.uid: each for each in finding.replicas(node, uids) if each.pod.uid in uids}
        here = [there[uid] for uid in dict.fromkeys(uids) if uid in there]
        past = [each for each in finding.moves_since(node, nomination.at_s) if each.uid in uids]
        going = [each for each in here if each.pod.going or released(snapshot.seen.pods[each.pod.uid])]
        left = [each for each in here if each not in going and fixed(each, question) is None]
        return _Looked(
            going,
            left,
            stays=len(here) - len(going) - len(left),
            begun=not here or bool(going) or any(each.uid not in there for each in past),
            vain=any(each.vain for each in past),
            helps=node in snapshot.open_to(pod) and self._would_fit(claim, node, (*going, *left), snapshot),
            books=self._settled(claim, pod, node, left, snapshot) if left else None,
        )

    def _why_not(
        self, claim: Claim, pod: Pod, nomination: Nomination, found: _Looked, snapshot: Snapshot
    ) -> Reason | None:
        """Why it is no longer right that others move for the pod."""
        node = nomination.allocation.node
        fruitless, changed = Reason(Code.MOVE_FRUITLESS, {"node": node}), Reason(Code.MOVE_CHANGED, {"node": node})
        is_idle = self._idle_s(claim.uid, is_idle=bool(found.left) and not found.going) > IDLE_S
        if found.vain or is_idle or (found.begun and not found.helps):
            return fruitless
        if pod.metadata.deletion_timestamp is not None or self._is_wanted(claim, node, nomination, snapshot):
            return changed
        if found.begun:
            return None
        if (room := snapshot.room(claim, pod)) is not None:
            return Reason(Code.PREEMPT_ROOM, {"node": room})
        return changed if not found.helps or found.stays or found.books is None else None

    def _is_wanted(self, claim: Claim, node: str, nomination: Nomination, snapshot: Snapshot) -> bool:
        """Whether a pod of higher priority, which came later and fits nowhere else, fits what is kept there.

        One that was there before did not take it when it was free.
        """
        kept_s, seen, ledger = self._kept_s(claim, nomination), snapshot.seen, self.ledger
        for uid, other in self.pending().items():
            pod, standing = seen.pods.get(uid), seen.standing.get(uid)
            if pod is None or standing is None or not other.asks or other.priority <= claim.priority:
                continue
            is_later = self.now_s() - standing.seen_s < kept_s
            is_let = is_later and not pod.spec.scheduling_gates and node in snapshot.open_to(pod)
            fits = is_let and ledger.suppose_without(other, node, [claim.uid]) is not None
            if fits and snapshot.room(other, pod) is None:
                return True
        return False

    def _kept_s(self, claim: Claim, nomination: Nomination) -> float:
        """How long something is kept for the pod, as it was heard of here."""
        kept = self.ledger.nominated.get(claim.uid)
        return 0.0 if kept is None else self.now_s() + nomination.keep_s - kept.until_s

    def _idle_s(self, uid: str, *, is_idle: bool) -> float:
        """For how long nobody has moved for this pod though some have yet to."""
        if not is_idle:
            self._since_s.pop(uid, None)
            return 0.0
        return self.now_s() - self._since_s.setdefault(uid, self.now_s())

    def _would_fit(self, claim: Claim, node: str, movers: Sequence[Replica], snapshot: Snapshot) -> bool:
        """Whether the pod fits once these have moved, and all there have gone who can be evicted for it one day."""
        runs = snapshot.nodes.get(node, {}).values() if snapshot.settings.enabled else ()
        lesser = {
            each.uid for each in runs if not each.sensitive and each.preemptible and each.priority < claim.priority
        }
        return self.ledger.suppose_without(claim, node, {*lesser, *(each.pod.uid for each in movers)}) is not None

    def _settled(self, claim: Claim, pod: Pod, node: str, left: Sequence[Replica], snapshot: Snapshot) -> Books | None:
        """On which books those who are left find places, first without evictions; None if on none."""
        books = Books(self.ledger, self.is_open, claim)
        if not isinstance(books.settle(node, left), Stuck):
            return books
        yielding = self._yielding(claim, pod, self._finding(snapshot).nodes(claim, pod), snapshot)
        books = replace(books, yielding=yielding, most_evicted=snapshot.settings.most_per_node)
        return None if not yielding or isinstance(books.settle(node, left), Stuck) else books

    def _is_followed(self, replica: Replica, snapshot: Snapshot) -> bool:
        """Whether the successor of one that was released has its place: the next one's is sought beside it."""
        pod = snapshot.seen.pods[replica.pod.uid]
        moving = released(pod)
        if moving is None:
            return True
        places = (
            each.spec.node_name
            for each in snapshot.seen.pods.values()
            if each.metadata.deletion_timestamp is None
            and wire.ANNOTATION_MOVING not in each.metadata.annotations
            and service_of(each) == moving.service
        )
        return sum(map(bool, places)) >= moving.ready

    # ---------------------------------------------------------------- inside

    def _question(self, claim: Claim, pod: Pod, snapshot: Snapshot) -> Question:
        sensitive = claim.latency is LatencyClass.SENSITIVE
        return Question(waiting(claim, pod), sensitive, snapshot.allowed, self.settings.most)

    def _finding(self, snapshot: Snapshot) -> Finding:
        """One per snapshot: it reads all pods."""
        if self._found is None or self._found.snapshot is not snapshot:
            self._found = Finding(snapshot, self.utc_s(), self.settings.rest_s)
        return self._found
