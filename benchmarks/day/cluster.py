"""The cluster under the day: the hollow one, with the scheduler's, the controller's and the cards' own code on it.

Emulated beside them: kube-scheduler's cycle (``cardwise.up``), ReplicaSets, a queue of batch jobs, and kubelets: a pod
is warm a while after it was bound, one that was told to end takes its grace. Time is a number that goes forward by some
seconds, and second by second while somebody waits or goes. Refuses to know requests: a share of its rate is all that a
replica is told.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from benchmarks.day.load import BEGIN
from benchmarks.day.memory import Cards, Held
from benchmarks.day.sizing import Sized
from benchmarks.hollow import Programs
from cardwise.adapters import wire
from cardwise.adapters.allocations import decode
from cardwise.adapters.hollow import HollowCluster
from cardwise.adapters.kube.port import Evictee
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.moves import moving_of
from cardwise.adapters.node_cards import encode_lending
from cardwise.controller.consolidation.settings import ConsolidationSettings
from cardwise.controller.preemption.settings import PreemptionSettings
from cardwise.core.allocation import Share
from cardwise.core.card.reclaim import Holder, Victim
from cardwise.core.inventory import CardSpec

NAMESPACE, HASH = "default", "5d4c8b7f9"
NODE_CARDS = 2
COLD_S, JOB_COLD_S = 90.0, 30.0
"""From bound to ready: weights are loaded, and a batch job's too."""
GRACE_S, RECLAIM_GRACE_S = 30.0, 5.0
PRIORITY = 1000
JOB_S = 2700.0
"""A batch job's work, without which nothing of it counts: it has no checkpoints."""
BATCH, BORROWER = "batch", "borrower"
BATCH_MIB, BATCH_PCT, BORROWER_MIB = 4096, 25, 4096
WEIGHTS_SHARE, LOAD_SHARE, JOB_SHARE, GROWS_S = 0.6, 0.3, 0.95, 1800.0
"""Of a slice: what a warm replica uses without load; what load adds; what a job uses; and how long a borrower takes to
use all that it was given."""
MOST_STEPS = 200


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to run the day. whole: a replica has a card; scales: replicas by the controller, else as for the peak."""

    name: str
    whole: bool
    scales: bool
    cards: int


@dataclass(slots=True)
class Life:
    """A pod, in seconds of the day. share: what it got. why: who ended it early, in words.

    released: its ReplicaSet made another, for it moves.
    """

    name: str
    group: str
    made_s: float
    bound_s: float | None = None
    warm_s: float | None = None
    going_s: float | None = None
    grace_s: float = GRACE_S
    told_ready: bool = False
    released: bool = False
    why: str = ""
    share: Share | None = None

    def ready(self, now_s: float) -> bool:
        """Whether it serves, or works."""
        return self.warm_s is not None and self.warm_s <= now_s and self.going_s is None


@dataclass(frozen=True, slots=True)
class Eviction:
    """One that had to go. text: what its event says, empty without. missed: no other was ready in its place."""

    at_s: float
    pod: str
    group: str
    sensitive: bool
    why: str
    text: str
    missed: bool = True


@dataclass(slots=True)
class Told:
    """What became of the day. done_pct_s, lost_pct_s: percent of a card times seconds, of jobs that ended or not."""

    evictions: list[Eviction] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)
    oversold: list[str] = field(default_factory=list)
    jobs: Counter[str] = field(default_factory=Counter)
    done_pct_s: Counter[str] = field(default_factory=Counter)
    lost_pct_s: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Emulation:
    """One arm's cluster. jobs: of batch work that are wanted at a time, by group. tick_s: between two looks."""

    arm: Arm
    sizes: Sequence[Sized]
    jobs: Mapping[str, int]
    card_mib: int
    tick_s: float
    patience_s: float
    now_s: float = 0.0
    told: Told = field(default_factory=Told)
    lives: dict[str, Life] = field(default_factory=dict)
    cards: Cards = field(init=False)
    cluster: HollowCluster = field(init=False)
    _made: int = 0
    _nodes: dict[str, list[str]] = field(default_factory=dict)
    _notes: dict[str, dict[str, str]] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)
    _programs: Programs = field(init=False)

    def utc(self) -> datetime:
        """The wall clock."""
        return BEGIN.astimezone(UTC) + timedelta(seconds=self.now_s)

    def clock(self) -> float:
        """The steady one."""
        return self.now_s

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All programs, until the ``with`` ends."""
        self._programs = Programs(self.utc, self.clock, PreemptionSettings(), ConsolidationSettings())
        self.cluster = self._programs.cluster
        self._put_nodes()
        async with self._programs.running():
            yield

    def _put_nodes(self) -> None:
        uuids = [f"card-{i:02}" for i in range(self.arm.cards)]
        self.cards = Cards(uuids, self.card_mib, self.tick_s)
        for first in range(0, self.arm.cards, NODE_CARDS):
            name, own = f"n{first // NODE_CARDS:02}", uuids[first : first + NODE_CARDS]
            self._nodes[name] = own
            self._programs.put_node(name, [CardSpec(uuid, "A10", self.card_mib) for uuid in own])

    # ---------------------------------------------------------------- time goes on

    async def until(self, end_s: float, wanted: Mapping[str, int], load: Mapping[str, float]) -> None:
        """Go on to this second. wanted: replicas by service; load: of what replicas carry, so much is asked."""
        while self.now_s < end_s:
            self.now_s += min(self._step_s(), end_s - self.now_s)
            self._replicate(wanted)
            self._live()
            await self._schedule()
            await self._programs.preempting.turn()
            await self.cluster.heard()
            await self._programs.rescuing.turn()
            await self.cluster.heard()
            self._listen()
            self._look()
            await self._remember(load)

    def _step_s(self) -> float:
        """A second is a long time while a replica waits or a card is too full; less so while somebody goes."""
        if self.cards.reclaiming or any(
            each.bound_s is None and each.group not in self.jobs for each in self.lives.values()
        ):
            return 1.0
        moves = any(each.going_s is not None or each.released for each in self.lives.values())
        return 5.0 if moves else math.inf

    async def _schedule(self) -> None:
        await self.cluster.heard()
        self._programs.ledger.expire(self.now_s)
        for _ in range(MOST_STEPS):
            if not await self._programs.cycle.step():
                return
            await self.cluster.heard()

    # ---------------------------------------------------------------- ReplicaSets, the queue, kubelets

    def _replicate(self, wanted: Mapping[str, int]) -> None:
        for group, number in {**wanted, **self.jobs}.items():
            staying = [
                each
                for each in self.lives.values()
                if each.group == group and each.going_s is None and not each.released
            ]
            for _ in range(number - len(staying)):
                self._create(group)
            order = sorted(staying, key=lambda each: (each.bound_s is not None, -(each.bound_s or 0)))
            for each in order[: max(len(staying) - number, 0)]:
                self._remove(each)

    def _create(self, group: str) -> None:
        self._made += 1
        name = f"{group}-{self._made:05}"
        asked, notes, priority = self._ask(group)
        owner = {"kind": "StatefulSet", "name": group, "controller": True, "uid": f"uid-{group}"}
        metadata = {"name": name, "namespace": NAMESPACE, "annotations": notes, "ownerReferences": [owner]}
        if group not in self.jobs:  # of a Deployment, by its ReplicaSet
            owner.update(kind="ReplicaSet", name=f"{group}-{HASH}")
            metadata["labels"] = {wire.LABEL_POD_HASHES[0]: HASH}
        spec = {"containers": [{"name": "app", "resources": {"limits": asked}}], "priority": priority}
        if group in self.jobs:
            spec["preemptionPolicy"] = "Never"
        self.cluster.create_pod({"metadata": metadata, "spec": spec})
        self.lives[name] = Life(name, group, self.now_s)

    def _ask(self, group: str) -> tuple[dict[str, str], dict[str, str], int]:
        """What its container asks for, what the pod says of itself, and its priority."""
        told = {wire.ANNOTATION_CLASS: "best-effort"} if group in self.jobs else {}
        priority = 0 if group in self.jobs else PRIORITY
        if self.arm.whole:
            return {wire.GPU: "1"}, told, priority
        if group == BORROWER:
            more = {**told, wire.ANNOTATION_OVERSUBSCRIBE: "true"}
            return {wire.GPU: "1", wire.USER_MEMORY: str(BORROWER_MIB)}, more, priority - 10
        size = next((each for each in self.sizes if each.service.name == group), None)
        mib, pct = (BATCH_MIB, BATCH_PCT) if size is None else (size.memory_mib, size.compute_pct)
        return {wire.GPU: "1", wire.USER_MEMORY: str(mib), wire.USER_CORES: str(pct)}, told, priority

    def _live(self) -> None:
        """Kubelets: pods get ready, jobs end, who was told to go is gone after its grace."""
        for each in list(self.lives.values()):
            if each.ready(self.now_s) and not each.told_ready:
                each.told_ready = True
                self.cluster.ready_pod(NAMESPACE, each.name)
            if each.going_s is not None and self.now_s >= each.going_s + each.grace_s:
                self._remove(each)
            elif each.group in self.jobs and each.ready(self.now_s) and self.now_s - (each.warm_s or 0) >= JOB_S:
                self.told.jobs[each.group] += 1
                self.told.done_pct_s[each.group] += int(self.compute_pct(each) * JOB_S)
                self.cluster.end_pod(NAMESPACE, each.name)
                del self.lives[each.name]

    def _remove(self, life: Life) -> None:
        self.cluster.delete_pod(NAMESPACE, life.name)
        del self.lives[life.name]

    def compute_pct(self, life: Life) -> int:
        """Percent of a card that a pod was given; a borrower is given memory alone."""
        return 100 if self.arm.whole else life.share.compute_pct if life.share is not None else 0

    # ---------------------------------------------------------------- what the cluster says

    def _listen(self) -> None:
        for told in self.cluster.events:
            self._texts[told["involvedObject"].get("name", "")] = f"{told['reason']}: {told['message']}"
        self.cluster.events.clear()
        for pod in self._programs.preempting.seen.pods.values():
            life = self.lives.get(pod.metadata.name)
            if life is None:
                continue
            if pod.spec.node_name and life.bound_s is None:
                self._bound(life, pod)
            life.released = moving_of(pod) is not None
            if pod.metadata.deletion_timestamp is not None and life.going_s is None:
                self._goes(life, pod)
        for life in self.lives.values():
            late = life.bound_s is None and self.now_s - life.made_s > self.patience_s
            if late and life.group not in self.jobs and life.name not in self.told.unplaced:
                self.told.unplaced.append(life.name)

    def _bound(self, life: Life, pod: Pod) -> None:
        cold_s = JOB_COLD_S if life.group in self.jobs else COLD_S
        life.bound_s, life.warm_s = self.now_s, self.now_s + cold_s
        life.share = next(iter(decode(pod.metadata.annotations[wire.ANNOTATION_ALLOC]).shares))
        if life.group not in self.jobs:
            self.told.waits_s.append(self.now_s - life.made_s)

    def _goes(self, life: Life, pod: Pod) -> None:
        life.going_s = self.now_s
        if not life.why:  # reclaim has said so already
            preempted = wire.ANNOTATION_PREEMPTED_FOR in pod.metadata.annotations
            life.why = "preempted" if preempted else "moved" if life.released else "unknown"
        text, sensitive, moving = self._texts.get(life.name, ""), life.group not in self.jobs, moving_of(pod)
        ready = sum(each.group == life.group and each.ready(self.now_s) for each in self.lives.values())
        missed = moving is None or ready < moving.ready
        self.told.evictions.append(Eviction(self.now_s, life.name, life.group, sensitive, life.why, text, missed))
        if not sensitive and life.warm_s is not None:
            worked_s = min(max(self.now_s - life.warm_s, 0.0), JOB_S)
            self.told.lost_pct_s[life.group] += int(self.compute_pct(life) * worked_s)

    # ---------------------------------------------------------------- cards

    def on_cards(self) -> dict[str, list[Life]]:
        """Pods by card."""
        found = defaultdict[str, list[Life]](list)
        for each in self.lives.values():
            if each.share is not None:
                found[each.share.uuid].append(each)
        return found

    def _look(self) -> None:
        """The books of each card: what replicas were given is never more than the card."""
        for uuid, lives in self.on_cards().items():
            firm = [each.share for each in lives if each.share is not None and each.group not in self.jobs]
            if sum(each.memory_mib for each in firm) > self.card_mib or sum(each.compute_pct for each in firm) > 100:
                self.told.oversold.append(f"{uuid} at {self.now_s:.0f} s")

    async def _remember(self, load: Mapping[str, float]) -> None:
        """The agents' part: samples, reclaim, and what may be lent."""
        if self.arm.whole:
            return
        held = {uuid: [self._held(each, load) for each in lives] for uuid, lives in self.on_cards().items()}
        for victim in self.cards.look(self.now_s, held):
            await self._reclaim(victim)
        for node, uuids in self._nodes.items():
            notes = encode_lending(self.cards.lendable(uuids), self.cards.kept_away(uuids, self.now_s))
            if notes != self._notes.get(node):
                self._notes[node] = notes
                await self.cluster.annotate_node(node, notes)

    def used_mib(self, lives: Iterable[Life], load: Mapping[str, float]) -> int:
        """By these, which are on cards."""
        return sum(self._held(each, load).holder.used_mib for each in lives)

    async def _reclaim(self, victim: Victim) -> None:
        life = self.lives[victim.name]
        life.why, life.grace_s = "reclaimed", RECLAIM_GRACE_S
        self._texts[victim.name] = f"CardwiseReclaimed: {victim.why}"
        await self.cluster.evict(Evictee(NAMESPACE, victim.name, "", int(RECLAIM_GRACE_S)))

    def _held(self, life: Life, load: Mapping[str, float]) -> Held:
        share = life.share
        assert share is not None  # noqa: S101 - of pods on cards
        physical = share.memory_mib - share.lent_mib
        holder = Holder(
            life.name,
            best_effort=life.group in self.jobs,
            used_mib=int(share.memory_mib * self._used_share(life, load)),
            granted_mib=physical,
            priority=self._ask(life.group)[2],
            restart_s=JOB_COLD_S,
            started_s=life.bound_s or 0.0,
            going=life.going_s is not None,
        )
        return Held(holder, f"{NAMESPACE}/{life.group}", share.lent_mib)

    def _used_share(self, life: Life, load: Mapping[str, float]) -> float:
        """Of its slice: weights come in while it starts, load comes on top, borrowers grow slowly."""
        age_s = self.now_s - (life.bound_s or 0.0)
        if life.group == BORROWER:
            return JOB_SHARE * min(age_s / GROWS_S, 1.0)
        if life.group == BATCH:
            return JOB_SHARE * min(age_s / JOB_COLD_S, 1.0)
        return WEIGHTS_SHARE * min(age_s / COLD_S, 1.0) + LOAD_SHARE * min(load.get(life.group, 0.0), 1.0)


def given_pct(emulation: Emulation, lives: Iterable[Life]) -> int:
    """Percent of a card that these were given, together."""
    return sum(emulation.compute_pct(each) for each in lives if each.share is not None)
