"""Rescuing: services leave fenced cards and lost nodes, two replicas kept ready where there is room (SPEC G1).

A turn: read what is bad and for how long; plan (``core/fleet/rescue.py``); take the steps; say what is left and why.

1. *release*: the pod loses the label by which it is its ReplicaSet's, which makes another at once; its Service, which
   does not select by that label, sends it requests still (docs/decisions/0008);
2. *evict*: by the eviction API, never past a PodDisruptionBudget, once the successor is ready, or at once where the pod
   serves nothing;
3. *return*: a release in vain is undone; the ReplicaSet adopts the pod again and ends the one that is not ready.

What was begun stands in the objects: on the pod that it was released, on its node that it left. So a controller that is
killed at any step goes on where it was. Refuses to delete what is on a node that is cut off: it may run on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
from prometheus_client import CollectorRegistry

from cardwise.adapters import wire
from cardwise.adapters.kube.port import Evictee, MovingPort, Release
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.moves import Moving, encode_moves, encode_moving, moves_of
from cardwise.adapters.watching import Watching
from cardwise.controller.consolidation.movers import Mover, fresh
from cardwise.controller.preemption.seeing import Seen
from cardwise.controller.rescue.facts import Facts, complete, controller_of, released
from cardwise.controller.rescue.settings import RescueSettings
from cardwise.controller.rescue.telling import Telling
from cardwise.controller.turns import take_turns
from cardwise.core.fleet.grounds import Ground, Spell, Why, anew, hear, ripe
from cardwise.core.fleet.guard import age_s
from cardwise.core.fleet.rescue import Because, Move, Moved, Plan, Replica, Step, World, rescue
from cardwise.core.fleet.room import Room
from cardwise.core.ledger import Ledger
from cardwise.errors import BudgetError, ClusterError, NotFoundError

log = structlog.get_logger()

PERIOD_S = 1.0
UNHEARD_S = 5.0
"""So long a turn waits to hear of what the one before did. An answer that was lost is never heard of."""
LONGEST_GAP_S = 30.0
"""Between two looks, after which patience begins anew: longer than a turn takes in which some writes time out."""
REFUSED_S, MOST_REFUSED_S = 10.0, 300.0
"""So long a pod is left alone of which a step was refused, or failed, doubled each time."""


@dataclass(slots=True)
class _Refused:
    until_s: float
    because: Because
    times: int


@dataclass(slots=True)
class Rescuing:
    """The loop. watching: with ``seen`` among those who also hear. now_s: a steady clock; utc_s: seconds since 1970.

    leads: whether this replica works now. _written: what this process noted on nodes, for the watch tells it late.
    _unheard: version of each pod that was acted on, as it was then, and when that was. movers: healthy pods that are to
    make room, by UID; another loop writes it.
    """

    port: MovingPort
    ledger: Ledger
    watching: Watching
    seen: Seen
    now_s: Callable[[], float]
    leads: Callable[[], bool]
    settings: RescueSettings = field(default_factory=RescueSettings)
    utc_s: Callable[[], float] = time.time
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    movers: Mapping[str, Mover] = field(default_factory=dict)
    telling: Telling = field(init=False)
    facts: Facts = field(init=False)
    _spells: dict[Ground, Spell] = field(default_factory=dict)
    _looked_s: float = -math.inf
    _replicas: list[Replica] = field(default_factory=list)
    _complete_s: dict[str, float] = field(default_factory=dict)
    _refused: dict[str, _Refused] = field(default_factory=dict)
    _written: dict[str, set[Moved]] = field(default_factory=dict)
    _unheard: dict[str, tuple[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Wire the parts."""
        self.telling = Telling(self.port, self.seen, self.now_s, self.registry)
        self.facts = Facts(self.ledger, self.watching, self.seen)

    async def run(self) -> None:
        """A turn per second, until cancelled."""
        said = "rescuing could not go on, it does with the next turn"
        await take_turns(self.turn, self._may_act, PERIOD_S, said)

    def _may_act(self) -> bool:
        return self.settings.enabled and self.leads() and self.watching.synced

    async def turn(self) -> None:
        """One look at everything, and the steps that follow from it."""
        if self.ledger.outdated:
            self.ledger.rebuild()
        now_s = self.now_s()
        if now_s - self._looked_s > LONGEST_GAP_S:  # as after another led: who knows what was in between
            self._spells, self._complete_s = anew(self._spells, now_s), {}
            self.telling.begin_anew()
        self._looked_s = now_s
        self._spells = hear(self._spells, self.facts.grounds(), now_s, self.settings.patience)
        if self._waits_to_hear():
            return
        left = ripe(self._spells, self.now_s(), self.settings.patience)
        movers = fresh(self.movers, self.now_s())
        self._replicas = self.facts.replicas(left, movers)
        plan = self._plan(self._replicas, movers)
        for move in plan.moves:
            if not self.leads():
                return
            try:
                await self._apply(move)
            except NotFoundError:
                continue
            except BudgetError as exc:
                self._refuse(move, Because.BUDGET, exc)
            except ClusterError as exc:  # the others go on
                self._refuse(move, Because.FAILED, exc)
        await self.telling.left(plan.stays, left)

    def _plan(self, replicas: list[Replica], movers: Mapping[str, Mover]) -> Plan:
        now_s, utc_s = self.now_s(), self.utc_s()
        self._complete_s = {service: self._complete_s.get(service, utc_s) for service in complete(replicas)}
        self._refused = {uid: each for uid, each in self._refused.items() if uid in self.seen.pods}
        refused = {uid: each.because for uid, each in self._refused.items() if now_s < each.until_s}
        room = Room(self.ledger, self.facts.is_open)
        world = World(utc_s, self._past(), self._complete_s, refused, self.settings.policy)

        def take(uid: str, beside: bool) -> str | None:
            found = room.take(uid, beside=beside)
            gone = movers[uid].gone if uid in movers else ()
            return found if found is not None or not gone else room.take(uid, beside=beside, gone=gone)

        return rescue(replicas, take, world)

    # ---------------------------------------------------------------- steps

    async def _apply(self, move: Move) -> None:
        pod = self.seen.pods.get(move.replica.uid)
        if pod is None:
            return
        meta = pod.metadata
        evictee = Evictee(meta.namespace, meta.name, meta.uid)
        match move.step:
            case Step.RELEASE:
                await self._release(pod, move)
            case Step.RETURN:
                await self._return(pod, move)
            case Step.EVICT:
                if move.replica.serves and not await self._is_replaced(move):
                    log.info("a pod that was released serves on: others are not ready as it was told", pod=pod.name)
                    return
                if move.replica.freed is None:
                    await self.port.evict(evictee, dry_run=True)  # what is refused is not noted as a move
                    await self._remember(pod, move)
                await self.port.evict(evictee)
        self._unheard[meta.uid] = (meta.resource_version, self.now_s())
        self._refused.pop(meta.uid, None)
        await self.telling.moved(pod, move)

    async def _release(self, pod: Pod, move: Move) -> None:
        release = _release_of(pod)
        if release is None:
            return
        await self._remember(pod, move)
        aside = move.replica.ground is Why.WAY
        moving = Moving(self.utc_s(), move.ready, move.replica.service, release.owner_uid, release.pod_hash, aside)
        notes = {wire.ANNOTATION_MOVING: encode_moving(moving), wire.ANNOTATION_STAYS: None}
        await self.port.release_pod(release, notes)

    async def _return(self, pod: Pod, move: Move) -> None:
        moving, meta = released(pod), pod.metadata
        if moving is None:
            return
        await self._remember(pod, move, vain=True)
        release = Release(meta.namespace, meta.name, meta.uid, moving.owner_uid, moving.pod_hash)
        await self.port.take_back_pod(release, {wire.ANNOTATION_MOVING: None})

    async def _is_replaced(self, move: Move) -> bool:
        """Whether others serve in its place, read anew: a watch that is cut does not tell that a successor died."""
        freed = move.replica.freed
        if freed is None:
            return True  # it goes first, and its service is said to be short
        others = [
            each for each in self._replicas if each.service == move.replica.service and each.uid != move.replica.uid
        ]
        serving = [each for each in others if each.serves and not each.freed]
        ready = 0
        for each in serving:
            ready += await self._serves_now(each)
            if ready >= freed.ready:
                return True
        return ready == len(serving)

    async def _serves_now(self, replica: Replica) -> bool:
        namespace, _, name = replica.name.partition("/")
        try:
            now = await self.port.get_pod(namespace, name)
        except NotFoundError:
            return False
        meta = now.metadata
        return meta.uid == replica.uid and now.ready and not now.ended and meta.deletion_timestamp is None

    def _refuse(self, move: Move, because: Because, why: ClusterError) -> None:
        uid = move.replica.uid
        times = self._refused[uid].times + 1 if uid in self._refused else 1
        pause_s = min(REFUSED_S * 2.0 ** min(times - 1, 10), MOST_REFUSED_S)
        self._refused[uid] = _Refused(self.now_s() + pause_s, because, times)
        log.warning("a step of a move was not taken", pod=move.replica.name, again_s=pause_s, why=str(why))

    # ---------------------------------------------------------------- what was done

    def _waits_to_hear(self) -> bool:
        """Whether the watch has not told yet of what was done: deciding on what is old would do it twice."""
        now_s = self.now_s()
        self._unheard = {
            uid: (version, at_s)
            for uid, (version, at_s) in self._unheard.items()
            if now_s - at_s < UNHEARD_S and uid in self.seen.pods and self._version(uid) == version
        }
        return bool(self._unheard)

    def _version(self, uid: str) -> str:
        return self.seen.pods[uid].metadata.resource_version

    def _past(self) -> list[Moved]:
        """All moves that nodes remember."""
        return [moved for name in self.seen.nodes for moved in self._moves_on(name)]

    def _moves_on(self, name: str) -> set[Moved]:
        """What a node says, and what this process wrote there, which may not be told yet."""
        now_s, oldest_s, node = self.utc_s(), self.settings.policy.memory_s, self.seen.nodes.get(name)
        try:
            told: Iterable[Moved] = () if node is None else moves_of(node)  # it may be deleted within a turn
        except ValueError:  # said by Seen
            told = ()
        known = {(m.uid, m.vain, round(m.at_s)): m for m in (*told, *self._written.get(name, ()))}
        return {m for m in known.values() if age_s(m.at_s, now_s) <= oldest_s}

    async def _remember(self, pod: Pod, move: Move, *, vain: bool = False) -> None:
        """Note a move on the node that the pod leaves, before it is made."""
        node = pod.spec.node_name
        moves = self._moves_on(node) | {Moved(self.utc_s(), pod.metadata.uid, move.replica.service, vain)}
        await self.port.annotate_node(node, {wire.ANNOTATION_MOVES: encode_moves(moves)})
        self._written[node] = moves


def _release_of(pod: Pod) -> Release | None:
    owner, meta = controller_of(pod), pod.metadata
    if owner is None:
        return None
    return Release(meta.namespace, meta.name, meta.uid, owner.uid, meta.labels[wire.LABEL_POD_HASHES[0]])
