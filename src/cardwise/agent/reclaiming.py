"""Takes memory back from best-effort slices when their card is nearly full, within a second and without the API server.

Each look: 1. what was sampled; 2. a card above its high mark: who has to go (``core/card/reclaim.py``), written down
before anything is done; 3. those who are going: wait, SIGTERM or SIGKILL (``core/card/ending.py``). Evicting the pod
and telling of it is ``evicting.py``'s, beside this. Refuses to end what is not best-effort and was lent nothing, and
who has a card alone.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from cardwise.adapters.journal import Eviction
from cardwise.adapters.signalling import signal_of_pod
from cardwise.agent.evicting import Evicting
from cardwise.agent.marking import CardUse, Marking, PodUse
from cardwise.agent.settings import RECLAIM
from cardwise.agent.telling import Teller
from cardwise.core.card.ending import Act, EndPolicy, Going, is_given_up, next_act
from cardwise.core.card.reclaim import Holder, Victim, reclaim
from cardwise.core.card.watermark import Level
from cardwise.errors import ClusterError
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

BEST_EFFORT, LENT, OFF = RECLAIM
ALONE = 1
SIGNALS = {Act.TERM: signal.SIGTERM, Act.KILL: signal.SIGKILL}
_HOW = {
    Act.TERM: "it was not evicted in time, so its processes were told to stop (SIGTERM)",
    Act.KILL: "there was no time left, so its processes were stopped (SIGKILL)",
}


@dataclass(slots=True)
class Reclaiming:
    """going: who has to give memory back, by UID. shorts: MiB that no best-effort slice can give, by card.

    counts: evictions begun, SIGTERM and SIGKILL sent, pods given up. hung: after the end, cards that hang.
    """

    marking: Marking
    evicting: Evicting
    teller: Teller
    proc: Path
    now_s: Callable[[], float]
    mode: str = BEST_EFFORT
    policy: EndPolicy = field(default_factory=EndPolicy)
    look_s: float = 0.1
    going: dict[str, Going] = field(default_factory=dict)
    shorts: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("begun", "term", "kill", "given-up"), 0))
    hung: tuple[str, ...] = ()
    _given_up: set[str] = field(default_factory=set)
    _said: Said = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was said yet."""
        self._said = Said(self.now_s, most=MOST_REMEMBERED)

    async def run(self) -> None:
        """Until cancelled."""
        self._take_up()
        self.marking.want()
        self.marking.cards.start()
        try:
            while True:
                await asyncio.sleep(self.look_s)
                self.look()
        finally:
            self.hung = self.marking.cards.close()

    def _take_up(self) -> None:
        """What an agent before this one began and did not see the end of."""
        here = {row.uid for row in self.marking.journal.rows if self.evicting.why_not(row.uid)}
        for uid in self.evicting.journal.evictions.keys() & here:
            self.going[uid] = Going(self.now_s())

    def look(self) -> None:
        """One look at all cards. What goes wrong with one pod must not keep the others."""
        for use in self.marking.look():
            self._choose(use)
        self._drop_who_is_gone()
        for uid, going in self.going.items():
            try:
                self._end(uid, going)
            except ClusterError as exc:
                if self._said.is_news(uid, str(exc)):
                    log.error("a pod that has to go cannot be ended", uid=uid, why=str(exc))

    def _drop_who_is_gone(self) -> None:
        """Who has no container here any more, or may run here again."""
        here = {row.uid for row in self.marking.journal.rows if self.evicting.why_not(row.uid)}
        for uid in self.going.keys() - here:
            del self.going[uid]
        self._given_up &= here

    # ---------------------------------------------------------------- who

    def _choose(self, use: CardUse) -> None:
        if use.reading.level is not Level.RECLAIM or not self._may(use):
            self.shorts.pop(use.uuid, None)
            return
        found = reclaim(map(self._holder, use.pods), use.used_mib, use.total_mib, self.marking.policy.low_share)
        pods = {pod.uid: pod for pod in use.pods}
        for victim in found.victims:
            self._begin(use, pods[victim.name], victim)
        self._tell_short(use, found.short_mib)

    def _may(self, use: CardUse) -> bool:
        """Whether it helps anybody. Who has a card alone takes it from nobody, though it fill it."""
        if self.mode == OFF or len(use.pods) <= ALONE:
            return False
        oversold = any(pod.lent_mib or pod.used_mib > pod.physical_mib for pod in use.pods)
        return self.mode == BEST_EFFORT or oversold

    def _holder(self, pod: PodUse) -> Holder:
        """The pod as the rule sees it. One that should long be gone is counted on no more, and not ended twice."""
        standing, going = pod.standing, self.going.get(pod.uid)
        return Holder(
            pod.uid,
            best_effort=pod.gives_back and pod.uid not in self._given_up,
            used_mib=pod.used_mib,
            granted_mib=pod.physical_mib,
            priority=standing.priority,
            restart_s=pod.restart_s,
            started_s=standing.created_s,
            going=going is not None and pod.uid not in self._given_up,
        )

    def _begin(self, use: CardUse, pod: PodUse, victim: Victim) -> None:
        namespace, _, name = pod.name.partition("/")
        why, at_s = f"card {use.uuid}: {victim.why}", self.evicting.wall_s()
        self.evicting.begin(Eviction(pod.uid, namespace, name, pod.standing.service, (use.uuid,), why, at_s))
        self.going[pod.uid] = Going(self.now_s())
        self.counts["begun"] += 1

    def _tell_short(self, use: CardUse, short_mib: int) -> None:
        """That a card is nearly full and no best-effort slice is left that could help: for the operator to see."""
        if not short_mib:
            self.shorts.pop(use.uuid, None)
            return
        if use.uuid not in self.shorts:
            text = (
                f"card {use.uuid}: {use.used_mib} of {use.total_mib} MiB are used, and {short_mib} MiB more than "
                "best-effort slices can give back would have to go; lend less, or give its other slices smaller amounts"
            )
            log.warning("nobody is left who could give memory back", card=use.uuid, short_mib=short_mib)
            self.teller.of_node("CardwiseMemoryShort", text, card=use.uuid)
        self.shorts[use.uuid] = short_mib

    # ---------------------------------------------------------------- how

    def _end(self, uid: str, going: Going) -> None:
        """What is due for one pod."""
        going.accepted = self.evicting.journal.evictions[uid].deleted
        on = [(use, pod) for use in self.marking.uses.values() for pod in use.pods if pod.uid == uid and pod.pids]
        if not on:
            return
        full_in_s = min(self._full_in_s(use) for use, _ in on)
        act = next_act(going, self.now_s(), full_in_s, self.policy)
        if act is not Act.WAIT:
            self._signal(uid, going, {pid for _, pod in on for pid in pod.pids}, act)
        if is_given_up(going, self.now_s(), self.policy) and uid not in self._given_up:
            self._given_up.add(uid)
            self.counts["given-up"] += 1
            log.error("a pod that has to go still holds memory, others go instead", pod=on[0][1].name)

    def _full_in_s(self, use: CardUse) -> float:
        return use.reading.full_in_s if use.reading.level is Level.RECLAIM else float("inf")

    def _signal(self, uid: str, going: Going, pids: set[int], act: Act) -> None:
        sent = [pid for pid in sorted(pids) if signal_of_pod(pid, uid, SIGNALS[act], self.proc)]
        if going.termed_s is None:
            going.termed_s = self.now_s()
        if not sent:
            return
        self.counts[SIGNALS[act].name.removeprefix("SIG").lower()] += 1
        if self.evicting.journal.evictions[uid].how != _HOW[act]:
            log.warning("processes were signalled", uid=uid, pids=sent, signal=SIGNALS[act].name)
            self.evicting.note(uid, how=_HOW[act])
