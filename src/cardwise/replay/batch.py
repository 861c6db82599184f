"""Many runs at once, spread over processes, results in the order asked for.

Runs of one seed see the same arrivals whatever the policy: differences between policies are differences of policies.
Refuses to leave processes behind: they end at once when the runs are given up, and soon after this process is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait

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

    Raises what a run raises, UserError for a history that the regime cannot use; other runs are then given up. So they
    are if anything else ends the wait for them, such as KeyboardInterrupt: the processes are terminated.
    """
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    if workers <= 1:
        return _run_here(history, jobs, on_progress)
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(workers, context, initializer=_start, initargs=(history,)) as pool:
        try:
            return _collected([_submitted(pool, job) for job in jobs], on_progress)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                if process not in others:
                    process.terminate()
            raise


def _submitted(pool: ProcessPoolExecutor, job: Job) -> Future[Replayed]:
    """Hand a job over, which starts a process if one is wanting; interrupted half way, that would live and complain."""
    with _signals_held(), _interrupt_blocked():
        return pool.submit(_run_one, job)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Let what would end this process wait. Only the main thread hears signals, so others have nothing to hold."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    held = {number: handler for number, handler in heard.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _interrupt_blocked() -> Iterator[None]:
    """Processes started meanwhile inherit this: Ctrl-C, which a terminal sends to all, is for their parent to hear."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Nobody waits for the runs of a process that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run_one(job: Job) -> Replayed:
    return _play(_history, job, lambda _done, _total: None)
