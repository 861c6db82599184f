"""For a pod that waits: which pods on which node would have to go, as few and as unimportant as can be.

On each node everything that may go is taken away in thought. If the pod then fits, the most important of them are let
stay again, one by one, as long as it still fits; who is left is a set without anyone to spare. Of all nodes the set
that hurts least wins. If taking away everything that may go helps nowhere, nobody is evicted; nor if it fits as it is.

Never a victim: a latency-sensitive pod, one of no lower priority, one that does not say that it may be preempted, one
that is starting (its warm-up would be paid twice) or going already, one whose budget is used up, one of another queue
of Kueue, which evicts by itself. Refuses to act, and to know cards: whether the pod would fit is asked of the ledger.

Source: SPEC E3, case C40; kube-scheduler's "reprieve", pkg/scheduler/framework/preemption.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from cardwise.core.fleet.guard import DEFAULT, Brake, BrakePolicy, Eviction, age_s, brake, rests_until_s
from cardwise.core.reasons import Code, Reason

_WhyT = TypeVar("_WhyT", bound=enum.Enum)


class Exempt(enum.Enum):
    """Why a pod is nobody's victim."""

    SENSITIVE = "latency-sensitive"
    PRIORITY = "priority"
    """Its priority is not lower."""
    PROTECTED = "protected"
    """It does not say that it may be preempted."""
    STARTING = "starting"
    GOING = "going"
    """It is being deleted, or was told to go."""
    BUDGET = "budget"
    """Its PodDisruptionBudget allows nobody to go."""
    QUEUE = "queue"
    """Another queue of Kueue admitted it: who goes for whom across queues is decided there."""


@dataclass(frozen=True, slots=True)
class Running:
    """A pod that holds cards.

    owner: its workload ("namespace/name"). budgets: PodDisruptionBudgets that cover it. memory_mib: held, of all cards.
    queue: Kueue's that admitted it, empty without.
    """

    uid: str
    name: str
    owner: str
    priority: int
    memory_mib: int
    sensitive: bool
    preemptible: bool
    starting: bool = False
    going: bool = False
    budgets: frozenset[str] = frozenset()
    queue: str = ""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The pod that waits. owner: its workload. queue: Kueue's, empty without."""

    uid: str
    owner: str
    priority: int
    queue: str = ""


@dataclass(frozen=True, slots=True)
class World:
    """What deciding needs beside the ledger. allowed: by PodDisruptionBudget, how many may go now.

    closed: nodes of which it is not known what they gave up of late: they give up nobody.
    """

    now_s: float
    past: Sequence[Eviction] = ()
    allowed: Mapping[str, int] = field(default_factory=dict)
    policy: BrakePolicy = DEFAULT
    closed: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Who goes where. victims: the least important first."""

    node: str
    victims: tuple[Running, ...]


@dataclass(frozen=True, slots=True)
class Nobody:
    """Why nobody is evicted. rests_until_s: who waits was evicted itself and asks again then.

    room: a node that it fits as it is. exempt, braked: how many pods could not be victims, by why. tried: nodes on
    which all that may go would not help.
    """

    rests_until_s: float | None = None
    room: str | None = None
    exempt: Mapping[Exempt, int] = field(default_factory=dict)
    braked: Mapping[Brake, int] = field(default_factory=dict)
    tried: int = 0

    def reason(self, now_s: float) -> Reason:
        """The same as one reason with its numbers: the first of these that holds."""
        if self.rests_until_s is not None:
            return Reason(Code.PREEMPT_RESTS, {"left_s": math.ceil(max(self.rests_until_s - now_s, 0.0))})
        if self.room is not None:
            return Reason(Code.PREEMPT_ROOM, {"node": self.room})
        if self.braked:
            return Reason(Code.PREEMPT_BRAKED, {"told": listed(self.braked)})
        if self.tried:
            return Reason(Code.PREEMPT_NO_HELP, {"tried": self.tried, "told": listed(self.exempt)})
        return Reason(Code.PREEMPT_NOBODY, {"told": listed(self.exempt)})


def listed(counts: Mapping[_WhyT, int]) -> str:
    """How many pods were left alone, by why; most first."""
    told = sorted(((number, why.value) for why, number in counts.items()), key=lambda each: (-each[0], each[1]))
    return ", ".join(f"{number} {why}" for number, why in told) or "no pod with cards"


Fits = Callable[[str, Collection[str]], bool]
"""Whether the waiting pod would fit a node with these pods (UIDs) gone. More gone never makes it fit less."""


Opened = Callable[[str], AbstractContextManager[Callable[[Collection[str]], bool]]]
"""The same of one node, which is asked many times in a row: for the length of a ``with``."""
Room = Callable[[], str | None]
"""A node that the waiting pod fits as it is, if there is one."""
ENOUGH = 100
"""So many sets to choose from will do. Source: kube-scheduler's minCandidateNodesAbsolute."""


def preempt(waiting: Waiting, nodes: Mapping[str, Sequence[Running]], fits: Fits, world: World) -> Plan | Nobody:
    """Whom to evict for a pod that waits, or why nobody. nodes: what runs on each.

    The order of nodes and pods does not matter.
    """

    def room() -> str | None:
        return next((node for node in sorted(nodes) if fits(node, ())), None)

    running = workloads(pod for pods in nodes.values() for pod in pods)
    return decided(search(waiting, nodes, lambda node: nullcontext(partial(fits, node)), world, room, running))


def decided(steps: Generator[None, None, Plan | Nobody]) -> Plan | Nobody:
    """The answer of a search, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def search(
    waiting: Waiting,
    nodes: Mapping[str, Sequence[Running]],
    opened: Opened,
    world: World,
    room: Room,
    running: Mapping[str, int],
) -> Generator[None, None, Plan | Nobody]:
    """As :func:`preempt`, pausing after each node: in a large cluster the caller has other things to do meanwhile.

    Nodes that might hurt least come first, so the search ends where no other can hurt less, or with enough to choose
    from. running: pods of each workload in the whole cluster (:func:`workloads`), of which ``nodes`` may be a part.
    """
    until_s = rests_until_s(world.past, world.now_s, waiting.owner, world.policy)
    if world.now_s < until_s:
        return Nobody(rests_until_s=until_s)
    free = room()
    if free is not None:
        return Nobody(room=free)
    sieve = _Sieve(waiting, world, running)
    open_to = {node: sieve.left(node, pods) for node, pods in nodes.items()}
    plans, tried = list[Plan](), 0
    for node in sorted((node for node, pods in open_to.items() if pods), key=lambda node: _least(node, open_to[node])):
        if len(plans) == ENOUGH or (plans and _least(node, open_to[node]) >= _hurt(min(plans, key=_hurt))):
            break
        with opened(node) as fits:
            victims = smallest(open_to[node], fits, _most(node, world))
        if victims is None:
            tried += 1
        elif _within_budgets(node, victims, world):
            plans.append(Plan(node, victims))
        else:
            sieve.braked[Brake.NODE] += 1
        yield
    return min(plans, key=_hurt) if plans else Nobody(exempt=sieve.exempt, braked=sieve.braked, tried=tried)


def may_go(
    waiting: Waiting, nodes: Mapping[str, Sequence[Running]], world: World, running: Mapping[str, int]
) -> dict[str, list[Running]]:
    """Who of each node's pods may be evicted for a pod that waits, now; nodes of which nobody may are left out.

    running: as :func:`search` has it.
    """
    sieve = _Sieve(waiting, world, running)
    return {node: left for node, pods in nodes.items() if (left := sieve.left(node, pods))}


def workloads(pods: Iterable[Running]) -> Counter[str]:
    """How many pods of each workload run."""
    return Counter(pod.owner for pod in pods if not pod.going)


@dataclass(frozen=True, slots=True)
class _Sieve:
    """Who may go for a pod that waits; of the others it is counted why not. running: pods of each workload."""

    waiting: Waiting
    world: World
    running: Mapping[str, int]
    exempt: Counter[Exempt] = field(default_factory=Counter)
    braked: Counter[Brake] = field(default_factory=Counter)

    def left(self, node: str, pods: Iterable[Running]) -> list[Running]:
        """Those of a node's pods who may go."""
        found, world, by = list[Running](), self.world, self.waiting.owner
        for pod in pods:
            if (why := exemption(pod, self.waiting, world)) is not None:
                self.exempt[why] += 1
            elif node in world.closed:
                self.braked[Brake.NODE] += 1
            elif stop := brake(
                world.past, world.now_s, node, pod.owner, by, world.policy, self.running.get(pod.owner, 0)
            ):
                self.braked[stop] += 1
            else:
                found.append(pod)
        return found


def exemption(pod: Running, waiting: Waiting, world: World) -> Exempt | None:
    """Why this pod is no victim of that one, or None."""
    rules = (
        (pod.going, Exempt.GOING),
        (pod.sensitive, Exempt.SENSITIVE),
        (pod.priority >= waiting.priority, Exempt.PRIORITY),
        (not pod.preemptible, Exempt.PROTECTED),
        (pod.starting, Exempt.STARTING),
        (pod.queue not in {"", waiting.queue}, Exempt.QUEUE),
        (any(world.allowed.get(budget, 0) < 1 for budget in pod.budgets), Exempt.BUDGET),
    )
    return next((why for holds, why in rules if holds), None)


def smallest(
    pods: Sequence[Running], fits: Callable[[Collection[str]], bool], most: int | None = None
) -> tuple[Running, ...] | None:
    """Of these, a set none of whom can stay, the least important first; None if all of them gone would not help.

    most: no larger set is of use, so where one would be, the search ends and tells so many and one more.
    """
    gone = {pod.uid for pod in pods}
    if not fits(gone):
        return None
    chosen = list[Running]()
    for pod in sorted(pods, key=lambda pod: (-pod.priority, pod.memory_mib, pod.name, pod.uid)):
        gone.remove(pod.uid)
        if not fits(gone):
            gone.add(pod.uid)
            chosen.append(pod)
            if most is not None and len(chosen) > most:
                break
    return tuple(sorted(chosen, key=lambda pod: (pod.priority, -pod.memory_mib, pod.name, pod.uid)))


def _within_budgets(node: str, victims: Sequence[Running], world: World) -> bool:
    """Whether so many may go at once: of each budget, of the node, of the cluster."""
    counted = Counter(budget for pod in victims for budget in pod.budgets)
    if any(number > world.allowed.get(budget, 0) for budget, number in counted.items()):
        return False
    return len(victims) <= _most(node, world)


def _most(node: str, world: World) -> int:
    """How many more may go from a node in this window."""
    recent = [each for each in world.past if age_s(each.at_s, world.now_s) < world.policy.window_s]
    on_node = sum(each.node == node for each in recent)
    return min(world.policy.most_per_node - on_node, world.policy.most - len(recent))


def _least(node: str, pods: Sequence[Running]) -> tuple[tuple[int, ...], int, str]:
    """No set of these hurts less than that: one of the lowest priority, with the least memory."""
    return (min(pod.priority for pod in pods),), min(pod.memory_mib for pod in pods), node


def _hurt(plan: Plan) -> tuple[tuple[int, ...], int, str]:
    """Fewest of the higher priorities, then fewest, then least memory; ties by name."""
    priorities = tuple(sorted((pod.priority for pod in plan.victims), reverse=True))
    return priorities, sum(pod.memory_mib for pod in plan.victims), plan.node
