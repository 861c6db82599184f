"""Tune: find a policy's weights by replaying a cluster's own history (SPEC B6), and say honestly what that brought.

One part of the history is searched on, the other is held out. The search is CMA-ES (pycma) over the logarithms of the
weights; the verdict is a paired comparison on the held-out part with seeds the search never saw. Refuses to claim an
improvement that the held-out part does not show: a search always finds something on what it searches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import cma
import numpy as np
from scipy import stats

from cardwise.config import WEIGHED, PolicyChoice
from cardwise.core.history import History, PodRecord
from cardwise.errors import UserError
from cardwise.replay.batch import Job, run_jobs
from cardwise.replay.outcome import Replayed
from cardwise.replay.workload import Regime

STEP = 0.5
"""Initial step of the search: a factor of e^0.5, about 1.6, up or down."""
FACTOR_MAX = 100.0
"""No weight is moved by more than this factor."""
PODS_MIN = 20
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Case:
    """A situation to be good at."""

    regime: Regime
    load: float

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.regime.value} {self.load:g}"


@dataclass(frozen=True, slots=True)
class TunePlan:
    """What to search, and how long.

    start: the policy and the weights to start from and to beat. held_out: share of the pods kept for the verdict.
    evaluations: weights tried, each on every case and search seed. arrivals: pods per churn run.
    """

    start: PolicyChoice
    cases: tuple[Case, ...]
    evaluations: int
    held_out: float = 0.3
    search_seeds: int = 2
    verdict_seeds: int = 6
    arrivals: int = 12_000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """Held-out loss of one case before and after, shares in [0, 1], and the mean paired difference with its interval.

    Loss is the refused share under churn and the unallocated share under fill. Negative differences are improvements.
    """

    case: str
    before: float
    after: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """The weights found and what they are worth on pods the search never saw.

    improved: the mean difference over all cases is below 0 with confidence, and no case got worse with confidence.
    """

    policy: str
    weights: dict[str, float]
    searched_pods: int
    held_out_pods: int
    evaluations: int
    cases: tuple[CaseVerdict, ...]
    difference: float
    low: float
    high: float
    improved: bool


def split(history: History, held_out: float, seed: int) -> tuple[History, History]:
    """(search, held out): by time where every pod has a creation time, the later ones held out; else at random.

    Raises UserError if either part would be too small to say anything.
    """
    pods = sorted(history.pods, key=lambda pod: pod.request.name)
    if all(pod.created_s is not None for pod in pods):
        pods.sort(key=lambda pod: (pod.created_s or 0.0, pod.request.name))
    else:
        pods = [pods[i] for i in np.random.default_rng(seed).permutation(len(pods))]
    cut = round(len(pods) * (1.0 - held_out))
    if min(cut, len(pods) - cut) < PODS_MIN:
        raise UserError(
            f"{history.source}: {len(pods)} pods split into {cut} and {len(pods) - cut}; tuning needs {PODS_MIN} on "
            "each side: give a longer history or another --held-out"
        )
    return _part(history, pods[:cut]), _part(history, pods[cut:])


def tune(
    history: History, plan: TunePlan, *, workers: int = 0, on_progress: Callable[[int, int], None] = lambda _d, _t: None
) -> Tuned:
    """Search on one part of the history, judge on the other. Raises UserError for policies without weights to move."""
    if plan.start.name not in WEIGHED:
        raise UserError(f"policy {plan.start.name} has no weights to tune; write one of {', '.join(WEIGHED)}")
    search, held_out = split(history, plan.held_out, plan.seed)
    start = {**asdict(WEIGHED[plan.start.name]()), **plan.start.weights}
    if not any(start.values()):
        raise UserError(
            f"policy {plan.start.label}: all weights are 0, and the search moves them by factors; write one above 0"
        )
    found = _search(search, plan, start, workers, on_progress)
    return _judge(held_out, plan, start, found, len(search.pods), workers)


# -------------------------------------------------------------------- search


def _search(
    history: History, plan: TunePlan, start: Mapping[str, float], workers: int, on_progress: Callable[[int, int], None]
) -> dict[str, float]:
    """The best weights seen on the search part; the starting weights are among the tried."""
    names = [name for name, value in start.items() if value > 0]
    bound = math.log(FACTOR_MAX)
    options = {"verbose": -9, "seed": plan.seed + 1, "bounds": [-bound, bound], "maxfevals": plan.evaluations}
    strategy = cma.CMAEvolutionStrategy(np.zeros(len(names)), STEP, options)
    best, best_loss = dict(start), _losses(history, plan, [dict(start)], workers)[0]
    tried = 1
    while tried < plan.evaluations and not strategy.stop():
        asked = strategy.ask()
        candidates = [_moved(start, names, step) for step in asked]
        losses = _losses(history, plan, candidates, workers)
        strategy.tell(asked, losses)
        tried += len(asked)
        on_progress(min(tried, plan.evaluations), plan.evaluations)
        lowest = int(np.argmin(losses))
        if losses[lowest] < best_loss:
            best, best_loss = candidates[lowest], losses[lowest]
    return best


def _moved(start: Mapping[str, float], names: Sequence[str], step: np.ndarray) -> dict[str, float]:
    """The starting weights times e^step, four digits: more would pretend a precision that the search has not."""
    factors = dict(zip(names, np.exp(step), strict=True))
    return {name: float(f"{value * factors.get(name, 1.0):.4g}") for name, value in start.items()}


def _losses(history: History, plan: TunePlan, candidates: Sequence[Mapping[str, float]], workers: int) -> list[float]:
    """Mean loss of each candidate over all cases and search seeds."""
    seeds = range(plan.seed + 1, plan.seed + 1 + plan.search_seeds)
    table = _run(history, plan, candidates, seeds, workers)
    return [float(np.mean(row)) for row in table]


def _run(
    history: History, plan: TunePlan, candidates: Sequence[Mapping[str, float]], seeds: Sequence[int], workers: int
) -> np.ndarray:
    """Losses, float64 [candidates, cases, seeds]."""
    jobs = [
        Job(replace(plan.start, weights=weights), case.regime, case.load, seed, plan.arrivals)
        for weights in candidates
        for case in plan.cases
        for seed in seeds
    ]
    losses = [loss(result) for result in run_jobs(history, jobs, workers=workers)]
    return np.array(losses).reshape(len(candidates), len(plan.cases), len(seeds))


def loss(result: Replayed) -> float:
    """What a run should have less of: unallocated share under fill, refused share else."""
    run = result.run
    return 1.0 - run.allocated_share if run.regime == Regime.FILL.value else run.refused_share


# -------------------------------------------------------------------- verdict


def _judge(
    history: History,
    plan: TunePlan,
    start: Mapping[str, float],
    found: Mapping[str, float],
    searched: int,
    workers: int,
) -> Tuned:
    """Paired comparison on the held-out part; seeds start far from the search's."""
    first = plan.seed + 1001
    table = _run(history, plan, [start, found], range(first, first + plan.verdict_seeds), workers)
    differences = table[1] - table[0]  # [cases, seeds]
    cases = tuple(
        CaseVerdict(case.label, float(table[0, i].mean()), float(table[1, i].mean()), *interval(differences[i]))
        for i, case in enumerate(plan.cases)
    )
    mean, low, high = interval(differences.mean(axis=0))
    improved = high < 0 and all(case.low <= 0 for case in cases)
    return Tuned(
        policy=plan.start.name,
        weights=dict(found),
        searched_pods=searched,
        held_out_pods=len(history.pods),
        evaluations=plan.evaluations,
        cases=cases,
        difference=mean,
        low=low,
        high=high,
        improved=improved,
    )


def interval(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean of paired differences and its 95 % confidence interval (Student's t); no width if all are equal."""
    mean = float(np.mean(differences))
    error = float(stats.sem(differences)) if len(differences) > 1 else math.inf
    if error == 0.0:
        return mean, mean, mean
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(differences) - 1)) * error if math.isfinite(error) else math.inf
    return mean, mean - half, mean + half


def _part(history: History, pods: Sequence[PodRecord]) -> History:
    return replace(history, pods=tuple(pods))
