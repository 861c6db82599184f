"""One run: arrivals in, placements by a policy, figures out. The loop every regime goes through."""

from __future__ import annotations

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cardwise.core.arrays import IntArray
from cardwise.core.cluster import Cluster
from cardwise.core.history import History
from cardwise.core.placement.choose import choose, tie_ranks
from cardwise.core.placement.explain import refusals
from cardwise.core.placement.filter import memory_asked_mib
from cardwise.core.placement.free import asked_milli
from cardwise.core.placement.mix import Mix, demand_milli
from cardwise.core.placement.policy import Policy
from cardwise.core.reasons import Code
from cardwise.core.request import Shape
from cardwise.replay.outcome import Leftover, Replayed, Run
from cardwise.replay.workload import Arrival, Regime, Workload
from cardwise.units import MILLI_PER_CARD

CURVE_POINTS = 400
PolicyMaker = Callable[[Cluster, Mix, int], Policy]


@dataclass(slots=True)
class _Tally:
    """Running sums of one run."""

    capacity_milli: int
    arrived: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    decision_ns: list[int] = field(default_factory=list)
    allocated_milli: int = 0
    placed: int = 0
    cards_used: int = 0
    cards_used_max: int = 0
    counted_milli: int = 0
    refused_milli: int = 0
    refused_for: dict[Code, float] = field(default_factory=dict)


class _Replay:
    """The state of one run. Order of a step: departures up to now, then the arrival, then the books."""

    def __init__(self, history: History, workload: Workload, make: PolicyMaker) -> None:
        self.cluster = Cluster.build(history.nodes)
        self.mix = Mix.of(pod.request.shape for pod in history.pods)
        self.policy = make(self.cluster, self.mix, workload.seed)
        self.policy.warm(self.mix)
        self.ranks = tie_ranks(self.cluster, workload.seed)
        self.workload = workload
        self.tally = _Tally(workload.capacity_milli)
        self.leaving: list[tuple[float, int]] = []
        self.waiting: OrderedDict[int, Arrival] = OrderedDict()
        self.asked_milli = 0

    def play(self, progress: Callable[[int], None]) -> None:
        for step, arrival in enumerate(self.workload.arrivals):
            self._depart_until(arrival.at)
            self._arrive(step, arrival)
            self._note(arrival.at)
            if step % 256 == 0:
                progress(step)
        if self.workload.waits:
            self._depart_until(np.inf)
        progress(len(self.workload.arrivals))

    # ---------------------------------------------------------------- events

    def _arrive(self, step: int, arrival: Arrival) -> None:
        counted = step >= self.workload.counted_from
        self.asked_milli += arrival.demand_milli
        self.tally.counted_milli += arrival.demand_milli * counted
        if arrival.leaves is not None:
            heapq.heappush(self.leaving, (arrival.leaves, step))
        if self._place(arrival):
            return
        if self.workload.waits:
            self.waiting[step] = arrival
        elif counted:
            self._refuse(arrival)

    def _depart_until(self, now: float) -> None:
        while self.leaving and self.leaving[0][0] <= now:
            left_at, step = heapq.heappop(self.leaving)
            arrival = self.workload.arrivals[step]
            if step in self.waiting:
                self._refuse(self.waiting.pop(step))
            elif arrival.request.name in self.cluster.slices:
                self._release(arrival)
                self._wake()
                if self.workload.waits:
                    self._note(left_at)

    def _place(self, arrival: Arrival) -> bool:
        started = time.perf_counter_ns()
        placement = choose(self.policy, arrival.request, self.ranks)
        self.tally.decision_ns.append(time.perf_counter_ns() - started)
        if placement is None:
            return False
        self.cluster.reserve(placement.granted, placement.node_idx, placement.places)
        tally = self.tally
        tally.placed += 1
        tally.allocated_milli += arrival.demand_milli
        tally.cards_used += sum(int(self.cluster.card_slices[placement.node_idx, p]) == 1 for p in placement.places)
        tally.cards_used_max = max(tally.cards_used_max, tally.cards_used)
        return True

    def _release(self, arrival: Arrival) -> None:
        held = self.cluster.release(arrival.request.name)
        self.tally.allocated_milli -= arrival.demand_milli
        self.tally.cards_used -= sum(int(self.cluster.card_slices[held.node_idx, p]) == 0 for p in held.places)

    def _wake(self) -> None:
        """Offer freed room to those who wait, first come first served; one shape that does not fit is asked once."""
        hopeless: set[Shape] = set()
        for step, arrival in list(self.waiting.items()):
            shape = arrival.request.shape
            if shape in hopeless:
                continue
            if self._place(arrival):
                del self.waiting[step]
            else:
                hopeless.add(shape)

    def _refuse(self, arrival: Arrival) -> None:
        tally = self.tally
        tally.refused_milli += arrival.demand_milli
        counts = refusals(self.cluster, self.policy.granted(arrival.request))
        if counts:
            code = next(iter(counts))
            tally.refused_for[code] = tally.refused_for.get(code, 0.0) + arrival.demand_milli / MILLI_PER_CARD

    def _note(self, at: float) -> None:
        self.tally.at.append(at)
        self.tally.arrived.append(self.asked_milli)
        self.tally.allocated.append(self.tally.allocated_milli)


def replay(
    history: History,
    workload: Workload,
    policy: str,
    make: PolicyMaker,
    progress: Callable[[int], None] = lambda _step: None,
) -> Replayed:
    """Play the workload on an empty copy of the history's cluster.

    policy: the name to report. make: builds it. progress: called now and then with the arrivals done so far.
    """
    started = time.perf_counter()
    run = _Replay(history, workload, make)
    run.play(progress)
    tally, cluster = run.tally, run.cluster
    allocated_share = _allocated_share(workload, tally)
    return Replayed(
        run=Run(
            policy=policy,
            seed=workload.seed,
            regime=workload.regime.value,
            load=workload.load,
            cards_total=cluster.cards_total,
            allocated_share=allocated_share,
            unallocated_cards=cluster.cards_total * (1.0 - allocated_share),
            refused_share=tally.refused_milli / max(tally.counted_milli, 1),
            pods_arrived=len(workload.arrivals),
            pods_placed=tally.placed,
            decision_us_p50=float(np.percentile(tally.decision_ns, 50)) / 1e3,
            decision_us_p99=float(np.percentile(tally.decision_ns, 99)) / 1e3,
            wall_s=time.perf_counter() - started,
        ),
        arrived_share=_sampled(tally.at if workload.regime is Regime.TRACE else tally.arrived, workload, tally),
        allocated_share=_sampled(tally.allocated, None, tally),
        free_milli=cluster.free_milli[cluster.card_exists],
        cards_used=tally.cards_used_max,
        leftover=leftover(cluster, run.mix, tally.allocated_milli),
        refused_for=dict(sorted(tally.refused_for.items(), key=lambda item: -item[1])),
    )


def _allocated_share(workload: Workload, tally: _Tally) -> float:
    allocated = np.array(tally.allocated, np.float64) / tally.capacity_milli
    if workload.regime is Regime.FILL:
        arrived_pct = np.rint(np.array(tally.arrived) / tally.capacity_milli * 100)
        reached = allocated[arrived_pct == np.rint(workload.load * 100)]
        return float(reached.mean() if len(reached) else allocated[-1])
    if workload.regime is Regime.CHURN:
        return float(allocated[workload.counted_from :].mean())
    lasts = np.diff(tally.at)
    return float(np.average(allocated[:-1], weights=lasts)) if lasts.sum() > 0 else float(allocated[-1])


def _sampled(values: list[int] | list[float], workload: Workload | None, tally: _Tally) -> NDArray[np.float64]:
    """At most CURVE_POINTS values; amounts over the cluster's capacity, times as they are."""
    keep = np.unique(np.linspace(0, len(values) - 1, min(CURVE_POINTS, len(values))).astype(int))
    sampled = np.array(values, np.float64)[keep]
    return sampled if workload is not None and workload.regime is Regime.TRACE else sampled / tally.capacity_milli


def leftover(cluster: Cluster, mix: Mix, allocated_milli: int) -> Leftover:
    """Split what is not allocated by why the mix cannot use it; a shape weighs as much as the GPU it asks for."""
    free = cluster.free_milli
    parts = dict.fromkeys(("usable", "cpu", "memory", "fragments", "model"), 0.0)
    sizes = cluster.memory_total_mib[cluster.card_exists]
    reference = int(np.median(sizes)) if len(sizes) else 1
    weights = {
        shape: count * demand_milli(shape, reference) for shape, count in zip(mix.shapes, mix.counts, strict=True)
    }
    total = sum(weights.values())
    for shape, weight in weights.items():
        if weight:
            for part, milli in _split(cluster, shape, free).items():
                parts[part] += milli * weight / total / MILLI_PER_CARD
    held = cluster.cards_total * MILLI_PER_CARD - int(free.sum())
    return Leftover(rounded_up=max(held - allocated_milli, 0) / MILLI_PER_CARD, **parts)


def _split(cluster: Cluster, shape: Shape, free: IntArray) -> dict[str, int]:
    """Thousandths of all free cards by what keeps ``shape`` from using them; the first cause in the list counts."""
    model = np.ones_like(cluster.card_exists)
    if shape.models or shape.unwanted_models:
        model = np.array([shape.takes(name) for name in cluster.models] + [False])[cluster.card_model]
    cpu = (cluster.cpu_free_milli >= shape.cpu_milli)[:, None]
    memory = (cluster.host_memory_free_mib >= shape.host_memory_mib)[:, None]
    piece = (
        model & (free >= asked_milli(cluster, shape)) & (cluster.memory_free_mib >= memory_asked_mib(cluster, shape))
    )
    fits = piece & (piece.sum(axis=1) >= shape.cards)[:, None]
    return {
        "model": int(free[~model].sum()),
        "cpu": int(free[model & ~cpu].sum()),
        "memory": int(free[model & cpu & ~memory].sum()),
        "fragments": int(free[model & cpu & memory & ~fits].sum()),
        "usable": int(free[model & cpu & memory & fits].sum()),
    }
