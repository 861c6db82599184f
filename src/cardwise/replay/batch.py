"""Many runs at once, spread over processes, results in the order asked for.

Runs of one seed see the same arrivals whatever the policy: differences between policies are differences of policies.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from cardwise.config import PolicyChoice
from cardwise.core.history import History
from cardwise.replay.outcome import Replayed
from cardwise.replay.run import replay
from cardwise.replay.workload import Regime, make_workload

OnProgress = Callable[[int, int], None]
"""Called with (done, total): runs, or arrivals where a single process tells them."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run to do."""

    policy: PolicyChoice
    regime: Regime
    load: float
    seed: int
    arrivals: int | None = None


def run_jobs(
    history: History,
    jobs: Sequence[Job],
    *,
    workers: int = 0,
    on_progress: OnProgress = lambda _done, _total: None,
) -> list[Replayed]:
    """Do the jobs. workers: processes; 0 takes as many as there are processors, 1 runs in this process.

    Raises what a run raises, UserError for a history that the regime cannot use; other runs are then given up.
    """
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    if workers <= 1:
        return _run_here(history, jobs, on_progress)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start, initargs=(history,)) as pool:
        futures = [pool.submit(_run_one, job) for job in jobs]
        try:
            return _collected(futures, on_progress)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _collected(futures: Sequence[Future[Replayed]], on_progress: OnProgress) -> list[Replayed]:
    for done, future in enumerate(as_completed(futures), start=1):
        future.result()
        on_progress(done, len(futures))
    return [future.result() for future in futures]


def _run_here(history: History, jobs: Sequence[Job], on_progress: OnProgress) -> list[Replayed]:
    def told_of(job_idx: int) -> OnProgress:
        return lambda done, total: on_progress(job_idx * total + done, len(jobs) * total)

    return [_play(history, job, told_of(i)) for i, job in enumerate(jobs)]


def _play(history: History, job: Job, on_progress: OnProgress) -> Replayed:
    workload = make_workload(history, job.regime, load=job.load, seed=job.seed, arrivals=job.arrivals)
    total = len(workload.arrivals)
    return replay(history, workload, job.policy.label, job.policy.make, lambda done: on_progress(done, total))


_history: History


def _start(history: History) -> None:
    global _history  # noqa: PLW0603 - sent once per process instead of once per run
    _history = history


def _run_one(job: Job) -> Replayed:
    return _play(_history, job, lambda _done, _total: None)
