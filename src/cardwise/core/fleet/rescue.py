"""A card is fenced or a node lost: which pods leave, in which order, and which cannot, keeping two replicas ready.

So do healthy ones that were chosen to make room (``consolidate.py``), by the first way alone.

A replica that still serves leaves by one of two ways. *Beside*: it is let go by its controller, which makes another
one at once; it serves until that one is ready, and only then is evicted. Nobody is missed. *Instead*: it is evicted,
one of a service at a time, and its service is one short until the next is ready; for controllers that cannot the first
way, and where there is no room for both. A replica that does not serve is evicted at once.

So of a service never fewer are ready than were ready on good ground, and never fewer than before where all go beside.
Everyone on bad ground is in the plan or among those who stay, with the reason. Refuses to act, to look at a clock, to
evict what nothing would make anew, and to move anybody where the ledger sees no room.

Source: SPEC G1, B5.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cardwise.core.fleet.grounds import Why
from cardwise.core.fleet.guard import age_s


class Way(enum.Enum):
    """How a pod can be replaced."""

    BESIDE = "beside"
    """Let go by a ReplicaSet of a Deployment, which then makes another."""
    INSTEAD = "instead"
    """Evicted first, made anew then."""
    NEVER = "never"
    """Nothing would make it anew, or only on the same node."""


class Step(enum.Enum):
    """What is done to a pod."""

    RELEASE = "release"
    EVICT = "evict"
    RETURN = "return"
    """It was released in vain: its controller takes it back."""


class Because(enum.Enum):
    """Why a pod on bad ground stays for now; the value is how it reads."""

    NO_ROOM = "no other node has room for it"
    NO_OWNER = "nothing would make it anew elsewhere: it has no controller, or one per node"
    WINDOW = "as many pods as may be moved in this window were moved"
    TURN = "others of its service go first"
    SUCCESSOR = "its successor is not ready yet"
    VAIN = "its successor was not ready in time, it is tried again later"
    BUDGET = "its PodDisruptionBudget allows nobody to go"
    FAILED = "the API server did not take the last step, it is tried again"


@dataclass(frozen=True, slots=True)
class Freed:
    """A pod that was released: when, and how many of its service were ready then, itself included."""

    at_s: float
    ready: int


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod, as rescuing sees it. node: empty while it waits. ground: what is wrong where it is; None if nothing is.

    going: it is being deleted, or somebody else makes it go.
    """

    uid: str
    name: str
    service: str
    node: str
    way: Way
    ready: bool
    sensitive: bool = True
    priority: int = 0
    ground: Why | None = None
    going: bool = False
    freed: Freed | None = None

    @property
    def serves(self) -> bool:
        """Whether requests reach it. On a lost node nothing is known to."""
        return self.ready and not self.going and self.ground is not Why.LOST


@dataclass(frozen=True, slots=True)
class Moved:
    """A move that was begun, as it is remembered; ``vain``: one that was taken back."""

    at_s: float
    uid: str
    service: str
    vain: bool = False


@dataclass(frozen=True, slots=True)
class RescuePolicy:
    """Numbers. most: moves begun in ``window_s``. at_once: of one service, pods that have a successor under way.

    settle_s: so long a controller is given to make a successor, and so long a service is complete before it counts as
    that. pending_s, starting_s: so long a successor may wait for a node, or start, before the move is taken back;
    rest_s: then the pod is left alone so long, doubled each time.
    """

    most: int = 20
    window_s: float = 300.0
    at_once: int = 2
    settle_s: float = 15.0
    pending_s: float = 300.0
    starting_s: float = 1800.0
    rest_s: float = 600.0
    memory_s: float = 7200.0

    def __post_init__(self) -> None:
        if self.most < 1 or self.at_once < 1:
            raise ValueError(f"most {self.most} and at_once {self.at_once} must be at least 1")
        for name in ("window_s", "settle_s", "pending_s", "starting_s", "rest_s", "memory_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be at least 0")


DEFAULT = RescuePolicy()


@dataclass(frozen=True, slots=True)
class World:
    """What deciding needs beside the pods. past: moves that were begun, in any order.

    complete_since_s: by service, since when all of its pods that were not released are ready. refused: why,
    by UID, a step came to nothing a moment ago. On one clock, all.
    """

    now_s: float
    past: Sequence[Moved] = ()
    complete_since_s: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, Because] = field(default_factory=dict)
    policy: RescuePolicy = DEFAULT


@dataclass(frozen=True, slots=True)
class Move:
    """One step. to: where the ledger sees room for the successor; empty where none is made by it.

    ready: how many of its service are ready. short: the service is one short until the successor is ready. alone: by
    what the ledger sees, all that is ready of the service will be on one node.
    """

    replica: Replica
    step: Step
    why: str
    to: str = ""
    ready: int = 0
    short: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Stay:
    """A pod on bad ground that is not touched now, and why."""

    replica: Replica
    because: Because


@dataclass(frozen=True, slots=True)
class Plan:
    """Everyone on bad ground, in the way, or released is in one of the two."""

    moves: tuple[Move, ...]
    stays: tuple[Stay, ...]


Take = Callable[[str, bool], str | None]
"""Where the successor of a pod (UID) would go, beside it (True) or instead of it; counts from then on."""


def rescue(replicas: Iterable[Replica], take: Take, world: World) -> Plan:
    """The next steps. replicas: all pods of all services that have one on bad ground, or released.

    Latency-sensitive ones first, then the higher priorities, and of them those that serve nothing.
    """
    planning = _Planning(sorted(replicas, key=lambda each: (each.name, each.uid)), take, world)
    for replica in planning.replicas:
        if replica.freed is not None and not replica.going:
            planning.finish(replica, replica.freed)
    leaving = [each for each in planning.replicas if each.ground and not each.freed and not each.going]
    for replica in sorted(leaving, key=planning.rank):
        planning.begin(replica)
    return Plan(tuple(planning.moves), tuple(planning.stays))


class _Planning:
    """One plan while it is made."""

    def __init__(self, replicas: Sequence[Replica], take: Take, world: World) -> None:
        self.replicas, self._take, self._world = replicas, take, world
        self.moves, self.stays = list[Move](), list[Stay]()
        policy = world.policy
        self._left = policy.most - sum(_recent(each, world) for each in world.past if not each.vain)
        self._of: dict[str, list[Replica]] = {}
        for replica in replicas:
            self._of.setdefault(replica.service, []).append(replica)
        self._under_way = Counter(each.service for each in replicas if each.freed and not each.going)
        self._starting = Counter(each.service for each in replicas if _is_successor(each))
        here = {each.uid for each in replicas if not each.freed and not each.going}
        for moved in world.past:  # its controller may not have made the next one yet
            if not moved.vain and moved.uid not in here and age_s(moved.at_s, world.now_s) < policy.settle_s:
                self._starting[moved.service] += 1
        self._gone = set[str]()

    def rank(self, replica: Replica) -> tuple[bool, bool, int, bool, int, str, str]:
        """The order in which pods leave: best-effort last, and after all on bad ground those who only make room."""
        good = sum(each.serves and not each.ground for each in self._of[replica.service])
        aside = replica.ground is Why.WAY
        return (aside, not replica.sensitive, -replica.priority, replica.serves, good, replica.name, replica.uid)

    # ---------------------------------------------------------------- those who were released

    def finish(self, replica: Replica, freed: Freed) -> None:
        """What becomes of a pod that was released."""
        world, policy = self._world, self._world.policy
        owned = [each for each in self._of[replica.service] if not each.freed and not each.going]
        ready = sum(each.serves for each in owned)
        since_s, waited_s = world.complete_since_s.get(replica.service), age_s(freed.at_s, world.now_s)
        for_s = 0.0 if since_s is None else min(age_s(since_s, world.now_s), waited_s)
        complete = since_s is not None and for_s >= policy.settle_s and all(each.serves for each in owned)
        if not replica.serves:
            self._evict(replica, "it serves nothing any more")
        elif (ready >= freed.ready or complete) and self._would_gather(replica, owned):
            self.moves.append(Move(replica, Step.RETURN, "its successor came to the one node of all others"))
        elif ready >= freed.ready:
            self._evict(replica, f"{ready} others are ready")
        elif complete:
            self._evict(replica, "its service is complete without it")
        elif waited_s >= policy.starting_s or (waited_s >= policy.pending_s and any(not each.node for each in owned)):
            if len(owned) >= freed.ready and replica.uid not in world.refused:  # else nobody would take it back
                self.moves.append(Move(replica, Step.RETURN, "its successor was not ready in time"))
            else:
                self.stays.append(Stay(replica, Because.SUCCESSOR))
        else:
            self.stays.append(Stay(replica, Because.SUCCESSOR))

    def _would_gather(self, replica: Replica, owned: Sequence[Replica]) -> bool:
        """Whether the successor of one that makes room came to the one node of all others, where nobody foresaw it.

        One that was refused a moment ago goes all the same.
        """
        nodes = [each.node for each in owned if each.serves]
        gathered = len(nodes) > 1 and len(set(nodes)) == 1 and replica.node not in nodes
        return gathered and replica.ground is Why.WAY and replica.uid not in self._world.refused

    def _evict(self, replica: Replica, why: str) -> None:
        if replica.uid in self._world.refused:
            self.stays.append(Stay(replica, self._world.refused[replica.uid]))
        else:
            self._gone.add(replica.uid)
            self.moves.append(Move(replica, Step.EVICT, why))

    # ---------------------------------------------------------------- those who leave

    def begin(self, replica: Replica) -> None:
        """Begin a pod's move, or say why not now."""
        found = self._begin(replica)
        if isinstance(found, Because):
            self.stays.append(Stay(replica, found))
            return
        self._left -= 1
        self.moves.append(found)
        if found.step is Step.EVICT:
            self._gone.add(replica.uid)
        if replica.serves:
            self._under_way[replica.service] += 1

    def _begin(self, replica: Replica) -> Move | Because:
        rules = (
            (replica.way is Way.NEVER, Because.NO_OWNER),
            (replica.uid in self._world.refused, self._world.refused.get(replica.uid)),
            (self._rests(replica), Because.VAIN),
            (self._left < 1, Because.WINDOW),
        )
        stop = next((because for holds, because in rules if holds), None)
        if stop is not None:
            return stop
        if replica.ground is Why.WAY:
            return self._aside(replica)
        if not replica.serves:
            return self._instead(replica)
        return self._beside(replica) or self._in_turn(replica)

    def _aside(self, replica: Replica) -> Move | Because:
        """Nothing is wrong where it is: it goes only if nobody misses it, and never onto the one node of the others.

        And not while another of its service goes or starts: what starts anyway would be taken for its successor, and be
        missed. Half of a window's moves are left to those on bad ground.
        """
        if self._left <= self._world.policy.most // 2:
            return Because.WINDOW
        service = replica.service
        if not replica.serves or self._under_way[service] or self._starting[service]:
            return Because.TURN
        move = self._beside(replica)
        return Because.NO_ROOM if move is None or (move.alone and move.to != replica.node) else move

    def _beside(self, replica: Replica) -> Move | None:
        if replica.way is not Way.BESIDE or self._under_way[replica.service] >= self._world.policy.at_once:
            return None
        to = self._take(replica.uid, True)
        return None if to is None else self._move(replica, Step.RELEASE, to)

    def _in_turn(self, replica: Replica) -> Move | Because:
        if self._under_way[replica.service] or self._starting[replica.service]:
            return Because.TURN
        return self._instead(replica)

    def _instead(self, replica: Replica) -> Move | Because:
        to = self._take(replica.uid, False)
        return Because.NO_ROOM if to is None else self._move(replica, Step.EVICT, to)

    def _move(self, replica: Replica, step: Step, to: str) -> Move:
        service = self._of[replica.service]
        ready = sum(each.serves and not each.freed for each in service if each.uid not in self._gone)
        others = {
            each.node
            for each in service
            if each.serves and not each.ground and not each.freed and each.uid != replica.uid
        }
        short = step is Step.EVICT and replica.serves
        why = replica.ground.value if replica.ground else ""
        return Move(replica, step, why, to, ready, short, alone=others == {to})

    def _rests(self, replica: Replica) -> bool:
        now_s = self._world.now_s
        ages = [age_s(each.at_s, now_s) for each in self._world.past if each.vain and each.uid == replica.uid]
        return bool(ages) and min(ages) < self._world.policy.rest_s * 2.0 ** min(len(ages) - 1, 10)


def _recent(moved: Moved, world: World) -> bool:
    return age_s(moved.at_s, world.now_s) < world.policy.window_s


def _is_successor(replica: Replica) -> bool:
    """Not ready, and not leaving either: it is about to be one more."""
    return not replica.ready and not replica.ground and not replica.freed and not replica.going
