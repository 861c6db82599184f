"""For a pod that waits beside free pieces of cards: which healthy replicas move elsewhere, so that the pieces join.

On each node, the ones that lack least first, all replicas that may move are taken away in thought. If the pod then
fits, the most important stay again, one by one, as long as it still fits; those that are left must each find a place
elsewhere *while they still hold the one that they have*, beside what is kept for the pod that waits. One that finds
none stays, and it is tried without it. Of all nodes the set with the fewest moves wins.

Where nothing helps so, places count as free too that best-effort pods hold which may be evicted (``preempt.py``): for
the pod that waits, and for successors. Each waits for its place then like any other pod, and has others evicted.

A move costs a start of the model and nobody a request: the successor is ready before the replica goes (``rescue.py``).
Still, never moved: what no Deployment would make anew beside itself, what says that it stays, trains, has a volume of
its own, starts, goes, or moved lately; nor what is more important than the pod that waits. A service on two nodes is
not moved onto one. Refuses to act, and to know cards: what fits is asked of the ledger.

Source: SPEC B3, B5; the same aim as the action "consolidation" of KAI-Scheduler (docs/developer/designs).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from cardwise.core.allocation import BoundPod
from cardwise.core.arrays import FloatArray
from cardwise.core.claim import Claim
from cardwise.core.cluster import Cluster
from cardwise.core.fleet.preempt import Opened, Running, Waiting, listed, smallest
from cardwise.core.fleet.room import Room
from cardwise.core.ledger import Ledger
from cardwise.core.reasons import Code, Reason
from cardwise.core.request import Shape
from cardwise.units import MILLI_PER_CARD


class Fixed(enum.Enum):
    """Why a replica does not move for another; the value is how it reads."""

    CONTROLLER = "not of a Deployment"
    PROTECTED = "says that it stays"
    TRAINING = "training"
    VOLUME = "with a volume claim"
    CLASS = "latency-sensitive, which move for their like only"
    PRIORITY = "of higher priority"
    STARTING = "starting"
    GOING = "going or moving"
    BUDGET = "whose budget lets nobody go"
    QUEUE = "admitted by Kueue"
    RESTS = "of a service that moved lately"
    PLACE = "without another place"
    """It may move, and there is nowhere to go."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod that holds cards, as it may or may not move.

    beside: its controller would make another one while it serves. beside_it: nodes on which others of its service
    serve. rests: its service moved lately, or its node does not tell.
    """

    pod: Running
    service: str
    beside: bool
    protected: bool = False
    training: bool = False
    has_volume: bool = False
    rests: bool = False
    beside_it: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Moves:
    """Who moves off which node. to: where the ledger sees room for the successor of each.

    evicts: best-effort pods have to go besides, for the pod that waits or for successors.
    """

    node: str
    movers: tuple[Replica, ...]
    to: tuple[str, ...]
    evicts: bool = False


@dataclass(frozen=True, slots=True)
class Nobody:
    """Why nobody moves. fixed: replicas that stay, by why. tried: nodes on which all that may move would not help."""

    fixed: Mapping[Fixed, int] = field(default_factory=dict)
    tried: int = 0

    @property
    def reason(self) -> Reason:
        """The same as one reason with its numbers."""
        return Reason(Code.MOVE_NOBODY, {"tried": self.tried, "told": listed(self.fixed)})


@dataclass(frozen=True, slots=True)
class Places:
    """Of a node's movers, in order. evicts: as :class:`Moves` has it."""

    to: tuple[str, ...]
    evicts: bool = False


@dataclass(frozen=True, slots=True)
class Stuck:
    """This replica (UID) has no other place."""

    uid: str


Settle = Callable[[str, Sequence[Replica]], Places | Stuck]
"""Where the successors of a node's replicas would go, all of them at once, with the waiting pod's place kept."""
MOST_TRIED = 64
"""Nodes that are looked at for one pod: those that lack least come first, and the others hardly cost less."""
ENOUGH = 8
"""So many sets to choose from will do."""


@dataclass(frozen=True, slots=True)
class Question:
    """For whom others would move, and what is allowed. allowed: by PodDisruptionBudget, how many may go now."""

    waiting: Waiting
    sensitive: bool
    allowed: Mapping[str, int] = field(default_factory=dict)
    most: int = 3


def fixed(replica: Replica, question: Question) -> Fixed | None:
    """Why this replica does not move for that pod, None if it may."""
    pod = replica.pod
    rules = (
        (not replica.beside, Fixed.CONTROLLER),
        (replica.protected, Fixed.PROTECTED),
        (replica.training, Fixed.TRAINING),
        (replica.has_volume, Fixed.VOLUME),
        (pod.going, Fixed.GOING),
        (pod.sensitive and not question.sensitive, Fixed.CLASS),
        (pod.priority > question.waiting.priority, Fixed.PRIORITY),
        (pod.starting, Fixed.STARTING),
        (bool(pod.queue), Fixed.QUEUE),
        (replica.rests, Fixed.RESTS),
        (any(question.allowed.get(budget, 0) < 1 for budget in pod.budgets), Fixed.BUDGET),
    )
    return next((why for holds, why in rules if holds), None)


def search(
    question: Question, nodes: Iterable[tuple[str, Sequence[Replica]]], opened: Opened, settle: Settle
) -> Generator[None, None, Moves | Nobody]:
    """Who moves for a pod that waits and fits nowhere, or why nobody; pauses after each node.

    nodes: those that would take the pod, the most promising first (:func:`lacks`), and what runs on each.
    """
    counted, found, tried = Counter[Fixed](), list[Moves](), 0
    for node, replicas in nodes:
        if tried == MOST_TRIED or len(found) == ENOUGH:
            break
        movable = list(_sieved(replicas, question, counted))
        if not movable:
            continue
        tried += 1
        moves = _moves(node, movable, opened, settle, question.most, counted)
        if moves is not None:
            found.append(moves)
        yield
    return min(found, key=_cost) if found else Nobody(counted, tried)


def _sieved(replicas: Iterable[Replica], question: Question, counted: Counter[Fixed]) -> Iterable[Replica]:
    for replica in replicas:
        why = fixed(replica, question)
        if why is None:
            yield replica
        else:
            counted[why] += 1


def _moves(
    node: str, movable: list[Replica], opened: Opened, settle: Settle, most: int, counted: Counter[Fixed]
) -> Moves | None:
    """The moves on one node; None if there are none that help, or too many."""
    while movable:
        by_uid = {each.pod.uid: each for each in movable}
        with opened(node) as fits:
            chosen = smallest([each.pod for each in movable], fits, most)
        if chosen is None or not 0 < len(chosen) <= most:
            return None
        movers = tuple(by_uid[pod.uid] for pod in chosen)
        found = settle(node, movers)
        if isinstance(found, Places):
            return Moves(node, movers, found.to, found.evicts)
        counted[Fixed.PLACE] += 1
        movable = [each for each in movable if each.pod.uid != found.uid]
    return None


def _cost(moves: Moves) -> tuple[int, int, str]:
    """Fewest, then least memory to load anew; ties by name."""
    return len(moves.movers), sum(each.pod.memory_mib for each in moves.movers), moves.node


Yielding = Mapping[str, Sequence[Running]]
"""By node, best-effort pods that may be evicted for the pod that waits."""


@dataclass(frozen=True, slots=True)
class Books:
    """The two questions, asked of real books. is_open: as :class:`Room` has it. claim: of the pod that waits.

    yielding: whose places count as free; of one node at most so many are evicted for a successor as ``most_evicted``.
    """

    ledger: Ledger
    is_open: Callable[[str, str], bool]
    claim: Claim
    yielding: Yielding = field(default_factory=dict)
    most_evicted: int = 0

    @contextmanager
    def opened(self, node: str) -> Iterator[Callable[[Collection[str]], bool]]:
        """See :data:`Opened`."""
        yielding = self._yielding_on(node)
        with self.ledger.trying(self.claim, node) as fits:
            yield lambda gone: fits([*gone, *yielding])

    def kept(self, node: str, movers: Iterable[str]) -> BoundPod | None:
        """How the pod that waits would be bound once these (UIDs) have moved; None if it would not fit."""
        return self.ledger.suppose_without(self.claim, node, [*movers, *self._yielding_on(node)])

    def settle(self, node: str, movers: Sequence[Replica]) -> Places | Stuck:
        """See :data:`Settle`. Each service has one of them at most: what the others' moves make of it is not known."""
        uids = [each.pod.uid for each in movers]
        kept = self.kept(node, uids)
        if kept is None:
            return Stuck(uids[0])
        evicts = self.ledger.suppose_without(self.claim, node, uids) is None
        if evicts and not self._is_within(self.claim, node, self._yielding_on(node), uids):
            return Stuck(uids[0])
        with self.ledger.keeping(kept):
            found = self._settle(node, movers, ())
            if isinstance(found, Places):
                return Places(found.to, evicts)
            gone = self.gone_for(node, min(each.pod.priority for each in movers))
            return self._settle(node, movers, gone) if gone else found

    def gone_for(self, node: str, priority: int) -> tuple[str, ...]:
        """Who (UIDs) may be evicted for the successor, of this priority, of one that moves off the node."""
        others = (pods for at, pods in self.yielding.items() if at != node)
        return tuple(pod.uid for pods in others for pod in pods if pod.priority < priority)

    def _settle(self, node: str, movers: Sequence[Replica], gone: Sequence[str]) -> Places | Stuck:
        """One after the other, each beside those before it. gone: who may be evicted for them."""
        room, to, services = Room(self.ledger, self.is_open), list[str](), set[str]()
        for mover in movers:
            uid = mover.pod.uid
            place = None if mover.service in services else room.take(uid, beside=True, gone=gone)
            if place is None or gathers(node, place, mover.beside_it):
                return Stuck(uid)
            successor = replace(self.ledger.pods[uid].claim, uid=f"{uid}+")
            if gone and not self._is_within(successor, place, gone):
                return Stuck(uid)
            services.add(mover.service)
            to.append(place)
        return Places(tuple(to), evicts=bool(gone))

    def _is_within(self, claim: Claim, node: str, gone: Iterable[str], moved: Sequence[str] = ()) -> bool:
        """Whether few enough of these (UIDs) have to be evicted on a node for a pod, with others moved off it."""
        among = set(gone)
        pods = [pod for pod in self.yielding.get(node, ()) if pod.uid in among]
        with self.ledger.trying(claim, node) as fits:
            victims = smallest(pods, lambda uids: fits([*uids, *moved]), self.most_evicted)
        return victims is not None and len(victims) <= self.most_evicted

    def _yielding_on(self, node: str) -> list[str]:
        return [pod.uid for pod in self.yielding.get(node, ())]


def lacks(cluster: Cluster, shape: Shape) -> FloatArray:
    """What each node lacks for this shape, in cards, float64 [N]: no fewer have to move. 0 where it has enough.

    Summed over the cards that lack least; inf where a node has not so many.
    """
    usable = cluster.card_exists & cluster.card_healthy
    total_mib = np.maximum(cluster.memory_total_mib, 1)
    if shape.whole:
        lack = 1.0 - cluster.free_milli / MILLI_PER_CARD
    else:
        asked_mib = shape.memory_mib + shape.memory_milli * total_mib / MILLI_PER_CARD
        lack_mib = np.maximum(asked_mib - cluster.memory_free_mib, 0) / total_mib
        lack_milli = np.maximum(shape.compute_milli - cluster.compute_free_milli, 0) / MILLI_PER_CARD
        lack = np.maximum(lack_mib, lack_milli)
    least = np.sort(np.where(usable, lack, np.inf), axis=1)[:, : shape.cards]
    short = least.shape[1] < shape.cards
    return np.full(len(least), np.inf) if short else np.asarray(least.sum(axis=1), dtype=np.float64)


def gathers(node: str, to: str, beside_it: Collection[str]) -> bool:
    """Whether a service that is on several nodes would be on one, with a replica gone from ``node`` to ``to``."""
    return set(beside_it) == {to} and node != to
