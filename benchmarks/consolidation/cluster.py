"""The cluster under the services: the hollow one, with the scheduler's and two of the controller's loops on it.

Emulated beside them: kube-scheduler's cycle (``cardwise.up``), ReplicaSets, jobs that fill what is left, and kubelets:
a replica is ready a while after it was bound, one that was told to end takes its grace. Time is a number that goes to
the next event, and by some seconds while somebody waits, goes or moves. Watches that nobody is missed by a move.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

from benchmarks.consolidation.demand import Service
from benchmarks.hollow import Programs
from cardwise.adapters import wire
from cardwise.adapters.allocations import decode
from cardwise.adapters.kube_objects import Pod
from cardwise.controller.consolidation.settings import ConsolidationSettings
from cardwise.controller.preemption.settings import PreemptionSettings
from cardwise.controller.rescue.facts import released
from cardwise.core.allocation import Share
from cardwise.core.inventory import CardSpec
from cardwise.scheduler.settings import Settings

NAMESPACE, HASH, JOBS = "default", "5d4c8b7f9", "jobs"
BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
CARD_MIB, SLOW_S, GRACE_S, TICK_S = 24576, 90.0, 15.0, 5.0
"""A card; from bound to ready; what a pod takes to end; and between two looks while something is under way."""
RETRY_S = 30.0
"""Who waits gets a try so often, also if nothing has happened; kube-scheduler gives one within five minutes."""
PRIORITY, JOB_PCT, JOB_S = 1000, 25, 2700.0


@dataclass(slots=True)
class Life:
    """A pod, in seconds.

    extra: made beside one that moves. successor: that its controller made when it was released, empty for none, None
    before it has seen it. homes: where others of its service served when it was released.
    """

    name: str
    group: str
    made_s: float
    extra: bool = False
    node: str = ""
    shares: tuple[Share, ...] = ()
    bound_s: float | None = None
    ready_s: float | None = None
    going_s: float | None = None
    is_ready: bool = False
    released_s: float | None = None
    successor: str | None = None
    homes: frozenset[str] = frozenset()

    @property
    def serves(self) -> bool:
        """Whether requests reach it."""
        return self.is_ready and self.going_s is None

    @property
    def is_owned(self) -> bool:
        """Whether its controller counts it."""
        return self.going_s is None and self.released_s is None


@dataclass(slots=True)
class Told:
    """What became of it. before: what the programs had counted when it began.

    waits_s: of each replica. waiting_s: how long somebody waited; waiting_pod_s: times how many. used_card_s: cards in
    use, in compute, while somebody waited. loads: of models, by replicas made beside one that moved. turns_ms: what a
    turn of both loops took. missed, early, oversold, gathered: what must
    not be.
    """

    before: tuple[int, ...] = (0, 0, 0, 0)
    waits_s: list[float] = field(default_factory=list)
    waiting_s: float = 0.0
    waiting_pod_s: float = 0.0
    used_card_s: float = 0.0
    loads: int = 0
    turns_ms: list[float] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    oversold: list[str] = field(default_factory=list)
    gathered: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """All that must not be."""
        return [*self.missed, *self.early, *self.oversold, *self.gathered]


@dataclass(slots=True)
class Emulation:
    """services: by name. jobs: preemptible ones that are wanted at a time. wanted: replicas of each service, now."""

    nodes: int
    cards_per_node: int
    services: Mapping[str, Service]
    jobs: int
    scheduling: Settings
    moving: ConsolidationSettings
    now_s: float = 0.0
    told: Told = field(default_factory=Told)
    lives: dict[str, Life] = field(default_factory=dict)
    wanted: Counter[str] = field(default_factory=Counter)
    programs: Programs = field(init=False)
    _made: int = 0
    _tried_s: float = 0.0
    _shrunk_s: dict[str, float] = field(default_factory=dict)
    _ready: Counter[str] = field(default_factory=Counter)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All programs, until the ``with`` ends."""
        self.programs = Programs(self._utc, self._clock, PreemptionSettings(), self.moving, self.scheduling)
        for i in range(self.nodes):
            cards = [CardSpec(f"n{i:03}-{card}", "A10", CARD_MIB) for card in range(self.cards_per_node)]
            self.programs.put_node(f"n{i:03}", cards)
        async with self.programs.running():
            yield

    def _utc(self) -> datetime:
        return BEGIN + timedelta(seconds=self.now_s)

    def _clock(self) -> float:
        return self.now_s

    # ---------------------------------------------------------------- time goes on

    async def until(self, end_s: float) -> None:
        """Go on to this second with the replicas that are wanted now."""
        while self.now_s < end_s:
            self._replicate()
            self._live()
            await self._schedule()
            begin_s = time.perf_counter()
            await self.programs.preempting.turn()
            await self.programs.cluster.heard()
            await self.programs.rescuing.turn()
            self.told.turns_ms.append(1000 * (time.perf_counter() - begin_s))
            await self.programs.cluster.heard()
            self._hear()
            self._watch()
            step_s = min(self._step_s(), end_s - self.now_s)
            self._count(step_s)
            self.now_s += step_s

    async def _schedule(self) -> None:
        if self.now_s >= self._tried_s + RETRY_S:
            self.programs.cycle.unpark()
            self._tried_s = self.now_s
        await self.programs.schedule()

    def _step_s(self) -> float:
        lives = self.lives.values()
        if any(each.going_s is not None or each.released_s is not None or self.waits(each) for each in lives):
            return TICK_S
        later = [each.ready_s + (JOB_S if each.is_ready else 0) for each in lives if each.ready_s is not None]
        return max(min((at_s - self.now_s for at_s in later if at_s > self.now_s), default=3600.0), 1.0)

    def waits(self, life: Life) -> bool:
        """Whether a service waits for this one."""
        return life.bound_s is None and life.group != JOBS

    def _count(self, step_s: float) -> None:
        waiting = sum(map(self.waits, self.lives.values()))
        if waiting:
            used_pct = sum(share.compute_pct for each in self.lives.values() for share in each.shares)
            self.told.waiting_s += step_s
            self.told.waiting_pod_s += waiting * step_s
            self.told.used_card_s += used_pct / 100 * step_s

    # ---------------------------------------------------------------- ReplicaSets, jobs, kubelets

    def _replicate(self) -> None:
        owned, moving = defaultdict[str, list[Life]](list), defaultdict[str, list[Life]](list)
        for each in self.lives.values():
            if each.is_owned:
                owned[each.group].append(each)
            elif each.released_s is not None and each.successor is None:
                moving[each.group].append(each)
        for group, number in {**self.wanted, JOBS: self.jobs}.items():
            made = [self._create(group) for _ in range(number - len(owned[group]))]
            for leaving, each in zip_longest(moving[group], made[: len(moving[group])]):
                leaving.successor = each.name if each else ""
                if each:
                    each.extra = True
            surplus = sorted(owned[group], key=lambda each: self._rank(each, owned[each.group]))
            for each in surplus[: max(len(surplus) - number, 0)]:
                self._end(each)

    def _rank(self, life: Life, of_group: list[Life]) -> tuple[bool, bool, int, float]:
        """Who goes first where there are too many. Source: Kubernetes, pkg/controller, ActivePodsWithRanks."""
        beside = sum(each.node == life.node and each.is_ready for each in of_group)
        return life.bound_s is not None, life.is_ready, -beside, -(life.ready_s or life.made_s)

    def _create(self, group: str) -> Life:
        self._made += 1
        name = f"{group}-{self._made:06}"
        self.programs.cluster.create_pod(_pod(name, group, self.services.get(group)))
        self.lives[name] = Life(name, group, self.now_s)
        return self.lives[name]

    def _end(self, life: Life) -> None:
        self._shrunk_s[life.group] = self.now_s
        self.programs.cluster.delete_pod(NAMESPACE, life.name, graceful=life.bound_s is not None)
        if life.bound_s is None:
            self._gone(life)
        else:
            life.going_s = self.now_s

    def _gone(self, life: Life) -> None:
        if self.waits(life):
            self.told.waits_s.append(self.now_s - life.made_s)
        del self.lives[life.name]

    def _live(self) -> None:
        """Kubelets: pods get ready, jobs end, who was told to go is gone after its grace."""
        for each in list(self.lives.values()):
            if each.going_s is not None:
                if self.now_s >= each.going_s + GRACE_S:
                    self.programs.cluster.delete_pod(NAMESPACE, each.name)
                    self._gone(each)
            elif each.ready_s is not None and each.ready_s <= self.now_s and not each.is_ready:
                each.is_ready = True
                self.programs.cluster.ready_pod(NAMESPACE, each.name)
            elif each.group == JOBS and each.ready_s is not None and each.ready_s + JOB_S <= self.now_s:
                self.programs.cluster.end_pod(NAMESPACE, each.name)
                self._gone(each)

    # ---------------------------------------------------------------- what the cluster says

    def _hear(self) -> None:
        for pod in self.programs.preempting.seen.pods.values():
            life = self.lives.get(pod.metadata.name)
            if life is None:
                continue
            if pod.spec.node_name and life.bound_s is None:
                self._bound(life, pod)
            if released(pod) is None:
                life.released_s = life.successor = None
            elif life.released_s is None:
                life.released_s, life.homes = self.now_s, frozenset(self._homes(life))
            if pod.metadata.deletion_timestamp is not None and life.going_s is None:
                self._evicted(life)

    def _bound(self, life: Life, pod: Pod) -> None:
        life.node, life.bound_s, life.ready_s = pod.spec.node_name, self.now_s, self.now_s + SLOW_S
        life.shares = tuple(decode(pod.metadata.annotations[wire.ANNOTATION_ALLOC]).shares)
        self.told.loads += life.extra
        if life.group != JOBS:
            self.told.waits_s.append(self.now_s - life.made_s)

    def _evicted(self, life: Life) -> None:
        life.going_s = self.now_s
        if life.group == JOBS:
            return
        if life.released_s is None:
            self.told.missed.append(f"{life.name} was evicted at {self.now_s:.0f} s, and nobody had released it")
            return
        homes, before = self._homes(life), {*life.homes, life.node}
        successor = self.lives.get(life.successor or "")
        if life.successor and not (successor and successor.serves) and len(homes) < self.wanted[life.group]:
            text = (
                f"{life.name} left at {self.now_s:.0f} s, before {life.successor} was ready: {len(homes)} others are, "
            )
            self.told.early.append(f"{text}of {self.wanted[life.group]} wanted")
        shrunk = self._shrunk_s.get(life.group, -1.0) >= life.released_s  # its own controller may have gathered it
        if life.homes and len(before) > 1 and len(homes) > 1 and len(set(homes)) == 1 and not shrunk:
            text = f"{life.name} left {life.node} at {self.now_s:.0f} s, and all others are on {homes[0]}"
            self.told.gathered.append(text)

    def _homes(self, life: Life) -> list[str]:
        """Where others of its service serve."""
        others = (each for each in self.lives.values() if each.group == life.group and each is not life)
        return [each.node for each in others if each.serves]

    def _watch(self) -> None:
        """Ready replicas of a service are as many as before, or as many as are wanted; and no card is oversold."""
        ready = Counter(each.group for each in self.lives.values() if each.serves and each.group != JOBS)
        for group, before in self._ready.items():
            if ready[group] < min(before, self.wanted[group]):
                self.told.missed.append(f"{group} has {ready[group]} ready at {self.now_s:.0f} s, and had {before}")
        self._ready = ready
        self.told.oversold.extend(self._oversold())

    def _oversold(self) -> Iterator[str]:
        mib, pct = Counter[str](), Counter[str]()
        for share in (share for each in self.lives.values() for share in each.shares):
            mib[share.uuid] += share.memory_mib
            pct[share.uuid] += share.compute_pct
        for uuid in mib:
            if mib[uuid] > CARD_MIB or pct[uuid] > 100:
                yield f"{uuid} has {mib[uuid]} MiB and {pct[uuid]} % given away at {self.now_s:.0f} s"


def _pod(name: str, group: str, service: Service | None) -> dict[str, Any]:
    """A replica of a service's ReplicaSet, or without a service a job."""
    pct = JOB_PCT if service is None else service.compute_pct
    asked = {wire.GPU: "1", wire.USER_MEMORY: str(CARD_MIB * pct // 100), wire.USER_CORES: str(pct)}
    owner = {"kind": "Job", "name": group, "controller": True, "uid": f"uid-{group}"}
    metadata: dict[str, Any] = {"name": name, "namespace": NAMESPACE, "ownerReferences": [owner]}
    spec: dict[str, Any] = {"priority": 0 if service is None else PRIORITY}
    if service is None:
        metadata["annotations"] = {wire.ANNOTATION_CLASS: "best-effort"}
        spec["preemptionPolicy"] = "Never"
    else:
        owner.update(kind="ReplicaSet", name=f"{group}-{HASH}")
        metadata["labels"] = {wire.LABEL_POD_HASHES[0]: HASH, "app": group}
    limits = {wire.GPU: "1"} if pct == 100 else asked
    return {"metadata": metadata, "spec": {**spec, "containers": [{"name": "app", "resources": {"limits": limits}}]}}
