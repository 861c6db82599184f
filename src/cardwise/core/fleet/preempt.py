"""For a pod that waits: which pods on which node would have to go, as few and as unimportant as can be.

On each node everything that may go is taken away in thought. If the pod then fits, the most important of them are let
stay again, one by one, as long as it still fits; who is left is a set without anyone to spare. Of all nodes the set
that hurts least wins. If taking away everything that may go helps nowhere, nobody is evicted; nor if it fits as it is.

Never a victim: a latency-sensitive pod, one of no lower priority, one that does not say that it may be preempted, one
that is starting (its warm-up would be paid twice) or going already, one whose budget is used up. Refuses to act, and to
know cards: whether the pod would fit is asked of the ledger.

Source: SPEC E3, case C40; kube-scheduler's "reprieve", pkg/scheduler/framework/preemption.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from cardwise.core.fleet.guard import DEFAULT, Brake, BrakePolicy, Eviction, brake, rests_until_s


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


@dataclass(frozen=True, slots=True)
class Running:
    """A pod that holds cards.

    owner: its workload ("namespace/name"). budgets: PodDisruptionBudgets that cover it. memory_mib: held, of all cards.
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """The pod that waits. owner: its workload."""

    uid: str
    owner: str
    priority: int


@dataclass(frozen=True, slots=True)
class World:
    """What deciding needs beside the ledger. allowed: by PodDisruptionBudget, how many may go now."""

    now_s: float
    past: Sequence[Eviction] = ()
    allowed: Mapping[str, int] = field(default_factory=dict)
    policy: BrakePolicy = DEFAULT


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


Fits = Callable[[str, Collection[str]], bool]
"""Whether the waiting pod would fit a node with these pods (UIDs) gone. More gone never makes it fit less."""


def preempt(waiting: Waiting, nodes: Mapping[str, Sequence[Running]], fits: Fits, world: World) -> Plan | Nobody:
    """Whom to evict for a pod that waits, or why nobody. nodes: what runs on each.

    The order of nodes and pods does not matter.
    """
    until_s = rests_until_s(world.past, world.now_s, waiting.owner, world.policy)
    if world.now_s < until_s:
        return Nobody(rests_until_s=until_s)
    room = next((node for node in sorted(nodes) if fits(node, ())), None)
    if room is not None:
        return Nobody(room=room)
    why_not = _WhyNot(Counter(), Counter())
    plans, tried = list[Plan](), 0
    for node in sorted(nodes):
        open_to = [pod for pod in nodes[node] if _may_go(pod, node, waiting, world, why_not)]
        if not open_to:
            continue
        victims = smallest(open_to, partial(fits, node))
        if victims is None:
            tried += 1
        elif _within_budgets(node, victims, world):
            plans.append(Plan(node, victims))
        else:
            why_not.braked[Brake.NODE] += 1
    return min(plans, key=_hurt) if plans else Nobody(exempt=why_not.exempt, braked=why_not.braked, tried=tried)


class _WhyNot(NamedTuple):
    exempt: Counter[Exempt]
    braked: Counter[Brake]


def _may_go(pod: Running, node: str, waiting: Waiting, world: World, why_not: _WhyNot) -> bool:
    if (why := exemption(pod, waiting, world)) is not None:
        why_not.exempt[why] += 1
    elif (stop := brake(world.past, world.now_s, node, pod.owner, waiting.owner, world.policy)) is not None:
        why_not.braked[stop] += 1
    else:
        return True
    return False


def exemption(pod: Running, waiting: Waiting, world: World) -> Exempt | None:
    """Why this pod is no victim of that one, or None."""
    rules = (
        (pod.going, Exempt.GOING),
        (pod.sensitive, Exempt.SENSITIVE),
        (pod.priority >= waiting.priority, Exempt.PRIORITY),
        (not pod.preemptible, Exempt.PROTECTED),
        (pod.starting, Exempt.STARTING),
        (any(world.allowed.get(budget, 0) < 1 for budget in pod.budgets), Exempt.BUDGET),
    )
    return next((why for holds, why in rules if holds), None)


def smallest(pods: Sequence[Running], fits: Callable[[Collection[str]], bool]) -> tuple[Running, ...] | None:
    """Of these, a set none of whom can stay, the least important first; None if all of them gone would not help."""
    gone = {pod.uid for pod in pods}
    if not fits(gone):
        return None
    for pod in sorted(pods, key=lambda pod: (-pod.priority, pod.memory_mib, pod.name, pod.uid)):
        gone.remove(pod.uid)
        if not fits(gone):
            gone.add(pod.uid)
    chosen = [pod for pod in pods if pod.uid in gone]
    return tuple(sorted(chosen, key=lambda pod: (pod.priority, -pod.memory_mib, pod.name, pod.uid)))


def _within_budgets(node: str, victims: Sequence[Running], world: World) -> bool:
    """Whether so many may go at once: of each budget, of the node, of the cluster."""
    counted = Counter(budget for pod in victims for budget in pod.budgets)
    if any(number > world.allowed.get(budget, 0) for budget, number in counted.items()):
        return False
    recent = [each for each in world.past if 0 <= world.now_s - each.at_s < world.policy.window_s]
    on_node = sum(each.node == node for each in recent)
    policy = world.policy
    return on_node + len(victims) <= policy.most_per_node and len(recent) + len(victims) <= policy.most


def _hurt(plan: Plan) -> tuple[tuple[int, ...], int, str]:
    """Fewest of the higher priorities, then fewest, then least memory; ties by name."""
    priorities = tuple(sorted((pod.priority for pod in plan.victims), reverse=True))
    return priorities, sum(pod.memory_mib for pod in plan.victims), plan.node
