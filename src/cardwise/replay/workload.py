"""Which pods arrive when: three regimes made from one history, deterministic for a seed.

``fill``   the published procedure: pods arrive in random order until they ask for ``load`` × capacity; none leaves.
``churn``  pods drawn from the history's mix arrive and leave, so that on average ``load`` × capacity is asked for.
``trace``  the history's own creation and deletion times.

Sources: "Beware of Fragmentation" (USENIX ATC '23) and its simulator's workload inflation, for ``fill``; Little's law,
for the mean lifetime in ``churn``. Refuses to look at the cluster's state: what arrives never depends on what fits.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cardwise.core.history import History, PodRecord
from cardwise.core.placement.mix import demand_milli
from cardwise.core.request import PodRequest
from cardwise.errors import UserError
from cardwise.units import MILLI_PER_CARD

CHURN_LIFETIMES = 8
"""Length of a churn run in mean lifetimes of a pod; the second half is counted.

A cluster forgets how it was filled at the pace at which pods leave: after 4 lifetimes 2 % of the first pods are left.
Counted earlier, a policy that filled badly still has room, and looks good while it catches up.
"""
CHURN_ARRIVALS_MIN = 2000
ARRIVALS_MAX = 10_000_000
"""Some 3 GB of arrivals in every process, and an hour of decisions; beyond, a machine runs out of memory."""
CHURN_SALT, FILL_SALT = 1, 2
"""Keep the regimes' random streams apart for equal seeds."""


class Regime(enum.Enum):
    """How pods arrive and leave."""

    FILL = "fill"
    CHURN = "churn"
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that arrives at ``at`` and leaves at ``leaves``, or never. Time is seconds in ``trace``, arrivals else."""

    request: PodRequest
    demand_milli: int
    at: float
    leaves: float | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrivals in order of time.

    counted_from: index of the first arrival that counts. waits: pods that find no place wait for one until they leave,
    as in a cluster; without, they are refused for good.
    """

    regime: Regime
    load: float
    seed: int
    capacity_milli: int
    arrivals: tuple[Arrival, ...]
    counted_from: int = 0
    waits: bool = False


def reference_memory_mib(history: History) -> int:
    """Memory of the cluster's most common card: the yardstick for demand that is given in MiB."""
    sizes = [card.memory_mib for node in history.nodes for card in node.cards]
    if not sizes:
        raise UserError(f"{history.source}: no node has a card, there is nothing to place GPU pods on")
    values, counts = np.unique(sizes, return_counts=True)
    return int(values[np.argmax(counts)])


def capacity_milli(history: History) -> int:
    """Thousandths of cards that the cluster has."""
    return sum(len(node.cards) for node in history.nodes) * MILLI_PER_CARD


def make_workload(history: History, regime: Regime, *, load: float, seed: int, arrivals: int | None = None) -> Workload:
    """The arrivals of a regime. Raises UserError if the history has no pods, no demand or, for ``trace``, no times.

    arrivals: pods that arrive under ``churn``; by default CHURN_LIFETIMES mean lifetimes of them.
    Raises UserError, too, if the load needs more than ARRIVALS_MAX pods, or is so small that none asks for a card.
    """
    if not history.pods:
        raise UserError(f"{history.source}: no pods to replay")
    memory_mib = reference_memory_mib(history)
    pods = sorted(history.pods, key=lambda pod: pod.request.name)
    demand = np.array([demand_milli(pod.request.shape, memory_mib) for pod in pods], np.int64)
    if not demand.any():
        raise UserError(f"{history.source}: no pod asks for a card")
    capacity = capacity_milli(history)
    if regime is Regime.FILL:
        return _fill(history, pods, demand, capacity, load=load, seed=seed)
    if regime is Regime.CHURN:
        return _churn(history, pods, demand, capacity, load=load, seed=seed, arrivals=arrivals)
    return _trace(history, pods, demand, capacity, seed=seed)


def as_is(history: History) -> Workload:
    """Every pod of the history once, in the order of creation: what a cluster needs for what it runs today."""
    memory_mib = reference_memory_mib(history)
    pods = sorted(history.pods, key=lambda pod: (pod.created_s or 0.0, pod.request.name))
    arrivals = tuple(
        Arrival(pod.request, demand_milli(pod.request.shape, memory_mib), float(step)) for step, pod in enumerate(pods)
    )
    capacity = capacity_milli(history)
    load = sum(arrival.demand_milli for arrival in arrivals) / capacity
    return Workload(Regime.FILL, load, 0, capacity, arrivals)


def _fill(
    history: History, pods: Sequence[PodRecord], demand: NDArray[np.int64], capacity: int, *, load: float, seed: int
) -> Workload:
    """Shuffle; drop random pods above ``load`` × capacity, or append drawn ones until the next would exceed it."""
    rng = np.random.default_rng([seed, FILL_SALT])
    limit = int(load * capacity)
    order = [int(i) for i in rng.permutation(len(pods))]
    total = int(demand.sum())
    needed = len(order) + (limit - total) / float(demand.mean())
    if needed > ARRIVALS_MAX:
        raise UserError(_too_many(history, Regime.FILL, load, needed, "give a lower --load, or"))
    while total > limit:
        total -= int(demand[order.pop(int(rng.integers(len(order))))])
    while total + int(demand[drawn := int(rng.integers(len(pods)))]) <= limit:
        order.append(drawn)
        total += int(demand[drawn])
    if not total:
        raise UserError(
            f"{history.source}: at load {load:g} of {capacity // MILLI_PER_CARD:,} cards no pod that asks for a card "
            f"arrives with seed {seed}; give a higher load"
        )
    arrivals = tuple(
        Arrival(_numbered(pods[i].request, step), int(demand[i]), float(step)) for step, i in enumerate(order)
    )
    return Workload(Regime.FILL, load, seed, capacity, arrivals)


def _churn(
    history: History,
    pods: Sequence[PodRecord],
    demand: NDArray[np.int64],
    capacity: int,
    *,
    load: float,
    seed: int,
    arrivals: int | None,
) -> Workload:
    """One arrival per unit of time; exponential lifetimes of mean load × capacity / mean demand (Little's law)."""
    rng = np.random.default_rng([seed, CHURN_SALT])
    lifetime = load * capacity / float(demand.mean())
    arrivals = arrivals or max(round(CHURN_LIFETIMES * lifetime), CHURN_ARRIVALS_MIN)
    if arrivals > ARRIVALS_MAX:
        advice = f"pass --arrivals, at most that many, to count a run of fewer than {CHURN_LIFETIMES} lifetimes, or"
        raise UserError(_too_many(history, Regime.CHURN, load, arrivals, advice))
    drawn = rng.integers(len(pods), size=arrivals)
    lifetimes = rng.exponential(lifetime, size=arrivals)
    made = tuple(
        Arrival(_numbered(pods[i].request, step), int(demand[i]), float(step), step + float(lifetimes[step]))
        for step, i in enumerate(map(int, drawn))
    )
    return Workload(Regime.CHURN, load, seed, capacity, made, counted_from=arrivals // 2)


def _too_many(history: History, regime: Regime, load: float, needed: float, advice: str) -> str:
    asking = sum(pod.request.shape.cards > 0 for pod in history.pods)
    return (
        f"{history.source}: {regime.value} at load {load:g} needs {needed:,.0f} arrivals, as only {asking:,} of "
        f"{len(history.pods):,} pods ask for cards, and at most {ARRIVALS_MAX:,} are replayed; {advice} leave out pods "
        "without cards"
    )


def _trace(
    history: History, pods: Sequence[PodRecord], demand: NDArray[np.int64], capacity: int, *, seed: int
) -> Workload:
    """The history's own times; its load is the largest demand that was ever asked for at once."""
    missing = next((pod.request.name for pod in pods if pod.created_s is None), None)
    if missing is not None:
        raise UserError(
            f"{history.source}: pod {missing} has no creation time, which the trace regime needs; "
            "use --regime fill or churn"
        )
    made = [
        Arrival(pod.request, int(asked), float(pod.created_s or 0.0), pod.deleted_s)
        for pod, asked in zip(pods, demand, strict=True)
    ]
    made.sort(key=lambda arrival: (arrival.at, arrival.request.name))
    return Workload(Regime.TRACE, _peak(made) / capacity, seed, capacity, tuple(made), waits=True)


def _peak(arrivals: Sequence[Arrival]) -> int:
    """The most demand present at one time."""
    changes = [(arrival.at, arrival.demand_milli) for arrival in arrivals]
    changes += [(arrival.leaves, -arrival.demand_milli) for arrival in arrivals if arrival.leaves is not None]
    changes.sort()
    return int(np.cumsum([change for _, change in changes]).max(initial=0))


def _numbered(request: PodRequest, step: int) -> PodRequest:
    """The same pod under a name of its own: drawn pods come more than once."""
    return replace(request, name=f"{request.name}#{step}")
