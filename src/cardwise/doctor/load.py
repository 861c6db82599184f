"""How busy a service's cards and CPUs are, and when it was slow. Several checks ask it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cardwise.core.arrays import FloatArray
from cardwise.core.claim import LatencyClass
from cardwise.doctor.facts import Facts, Served, cpu_limit_cores
from cardwise.doctor.findings import CERTAIN, LIKELY
from cardwise.doctor.measures import LEAST_SPIKE_STEPS, Spikes, labels_of, mean, mean_of, spikes
from cardwise.doctor.queries import RATE_S

LEAST_REQUESTS = 50
"""Of which the 99th percentile is more than the slowest of a few."""
THROTTLED_SHARE, AT_LIMIT, WAITING_SHARE = 0.25, 0.9, 0.2
"""Periods in which the kernel held the pod back; of its limit; of the time in which a task of it waits for a CPU."""
ONE_THREAD = 0.12
"""CPU use within that of a whole number of cores: so many threads never wait for anything."""
ALWAYS_THROTTLED, ALWAYS_USED = 0.5, 0.7
"""The same, and of its limit, of a pod that is short all the time though nobody says that it is slow: bursts of few
requests are held back too, and use little."""
MORE = 1.2
"""Times the usual CPU use."""
IDLE_SHARE, LESS = 0.4, 0.7
"""A card that has time; and by how much less busy it is than usual."""
LOST_S = 1.0
"""Packets per second more than usual."""


def spikes_of(facts: Facts, service: Served) -> Spikes | None:
    """When the service was slow; None if it was not, it is not known, or nobody said what slow is and none can tell.

    Nobody waits for best-effort pods without a target; and P99 of a few requests is one of them: it jumps.
    """
    target = facts.metrics.last("target_s", service=service.name)
    p99_s, qps = (facts.metrics.values(name, service=service.name) for name in ("p99_s", "qps"))
    if target is None and p99_s is not None:
        if _is_best_effort(facts, service):
            return None
        if qps is not None:
            p99_s = np.where(qps * RATE_S >= LEAST_REQUESTS, p99_s, np.nan)
    return spikes(p99_s, target)


def _is_best_effort(facts: Facts, service: Served) -> bool:
    pods = [pod for name in service.pods if (pod := facts.pod(name)) is not None]
    return bool(pods) and all(facts.claim(pod).latency is LatencyClass.BEST_EFFORT for pod in pods)


def busy_share(facts: Facts, service: Served) -> FloatArray | None:
    """How busy a service keeps its part of its cards, in [0, 1], float64 [T]; all of them where slices are not told."""
    key = "busy", service.name  # five checks ask
    if key not in facts.memo:
        facts.memo[key] = _busy_share(facts, service)
    found = facts.memo[key]
    assert found is None or isinstance(found, np.ndarray)  # noqa: S101 - it was put there a line above
    return found


def _busy_share(facts: Facts, service: Served) -> FloatArray | None:
    own = [_of_slices(facts, pod) for pod in service.pods]
    found = mean_of(each for each in own if each is not None)
    if found is not None:
        return found
    cards = [facts.metrics.values("card_busy_pct", uuid=uuid) for uuid in service.uuids]
    busy = mean_of(each for each in cards if each is not None)
    return None if busy is None else busy / 100


def _of_slices(facts: Facts, pod: str) -> FloatArray | None:
    used = facts.metrics.values("slice_sm_pct", **labels_of(pod))
    granted = facts.metrics.last("slice_compute_granted_pct", **labels_of(pod))
    return None if used is None or not granted else np.minimum(used / granted, 1.0)


def last_mean(facts: Facts, query: str, service: Served) -> float | None:
    """Mean of a service's series over the window, or None."""
    values = facts.metrics.values(query, service=service.name)
    found = mean(values) if values is not None else np.nan
    return float(found) if np.isfinite(found) else None


def engine_batches(facts: Facts, service: Served) -> bool:
    """Whether the service's engine runs several requests at a time by itself."""
    running = [facts.metrics.values("engine_running", **labels_of(pod)) for pod in service.pods]
    found = mean_of(each for each in running if each is not None)
    return found is not None and mean(found) > 1.5


@dataclass(frozen=True, slots=True)
class Idle:
    """A service whose cards had time when it was slow. told: how busy they were then and otherwise."""

    spikes: Spikes
    told: str


def idle_while_slow(facts: Facts, service: Served) -> Idle | None:
    """None if its cards had no time when it was slow, it was not, or it is not known.

    Half an hour may hold two troubles: where the cards were full at most of the slow times, those at which they were
    idle count by themselves.
    """
    found, busy = spikes_of(facts, service), busy_share(facts, service)
    if found is None or busy is None:
        return None
    apart = replace(found, slow=found.slow & (busy < IDLE_SHARE))
    part = f" ({apart.slow.sum()} of {found.slow.sum()} slow steps)"
    if found.both(busy)[0] < IDLE_SHARE:
        apart, part = found, ""
    elif apart.slow.sum() < LEAST_SPIKE_STEPS:
        return None
    slow, calm = apart.both(busy)
    if np.isfinite(calm) and slow > LESS * calm:
        return None
    return Idle(apart, f"card busy then {_percent(slow)}{part}, {_percent(calm)} otherwise")


def _percent(share: float) -> str:
    return f"{share:.0%}" if np.isfinite(share) else "unknown"


THREADS = (
    "give tokenizing and decoding more threads or processes (TOKENIZERS_PARALLELISM, --api-server-count), or do them "
    "outside of the replica"
)
LIMIT = f"raise the CPU limit, or drop it and keep the request; {THREADS}"
CROWDED = (
    "ask for more CPU, for what a pod asks for is its share of a busy node, or move it to a node whose CPU is free; "
    "or tokenize and decode outside of the replica"
)
"""What helps against each way in which CPU is short."""


@dataclass(frozen=True, slots=True)
class Short:
    """That CPU is short, how that shows, how sure that is, and what helps."""

    evidence: tuple[str, ...]
    likelihood: float
    action: str


def cpu_is_short(facts: Facts, service: Served, when: Spikes | None) -> Short | None:
    """Whether the pods of a service lack CPU (while it is slow), the pod that lacks it most first."""
    found = [each for pod in service.pods if (each := _pod_is_short(facts, pod, when)) is not None]
    return max(found, key=lambda each: each.likelihood, default=None)


def _pod_is_short(facts: Facts, pod: str, when: Spikes | None) -> Short | None:
    limit = cpu_limit_cores(facts.pod(pod))
    used, usual = _of_pod(facts, pod, "pod_cpu_cores", when)
    throttled, _ = _of_pod(facts, pod, "pod_cpu_throttled_share", when)
    waiting, _ = _of_pod(facts, pod, "pod_cpu_waiting_share", when)
    bound = f"its limit is {limit:g}" if limit is not None else "it, or a container of it, has no limit"
    told = [
        f"pod {pod} uses {used:.2f} CPUs then"
        + (f", {usual:.2f} otherwise" if np.isfinite(usual) else "")
        + f"; {bound}"
    ]
    if throttled >= THROTTLED_SHARE:
        told.append(f"the kernel holds it back in {throttled:.0%} of its periods")
    if waiting >= WAITING_SHARE:
        told.append(f"a task of it waits for a CPU {waiting:.0%} of the time")
    if throttled >= THROTTLED_SHARE or (limit is not None and used >= AT_LIMIT * limit):
        return Short(tuple(told), CERTAIN, LIMIT)
    threads = round(used) if np.isfinite(used) else 0
    if threads >= 1 and abs(used - threads) <= ONE_THREAD and used > MORE * usual:
        told.append(f"that is {threads} whole threads: they never wait for anything else")
        return Short(tuple(told), LIKELY, THREADS)
    return Short(tuple(told), LIKELY, CROWDED) if waiting >= WAITING_SHARE else None


def held_back_always(facts: Facts, service: Served) -> tuple[str, ...]:
    """Evidence that a service with requests is held back by a CPU limit all the time, while its cards idle; or none."""
    busy = busy_share(facts, service)
    requests = (last_mean(facts, "qps", service) or 0.0) * RATE_S
    if busy is None or not mean(busy) < IDLE_SHARE or requests < LEAST_REQUESTS or _is_best_effort(facts, service):
        return ()
    for pod in service.pods:
        limit = cpu_limit_cores(facts.pod(pod))
        used, _ = _of_pod(facts, pod, "pod_cpu_cores", None)
        throttled, _ = _of_pod(facts, pod, "pod_cpu_throttled_share", None)
        if limit is not None and used >= ALWAYS_USED * limit and throttled >= ALWAYS_THROTTLED:
            return (
                f"its card busy {_percent(mean(busy))} in the mean",
                f"pod {pod} uses {used:.2f} CPUs; its limit is {limit:g}",
                f"the kernel holds it back in {throttled:.0%} of its periods",
            )
    return ()


def network_is_short(facts: Facts, service: Served, when: Spikes) -> tuple[float, float] | None:
    """Packets of its pods that are dropped per second, then and otherwise, if those are many more."""
    lost = [facts.metrics.values("pod_packets_dropped_s", **labels_of(pod)) for pod in service.pods]
    found = [each for each in lost if each is not None]
    if not found:
        return None
    slow, calm = when.both(np.sum(found, axis=0))
    calm = calm if np.isfinite(calm) else 0.0
    return (slow, calm) if slow >= calm + LOST_S else None


def _of_pod(facts: Facts, pod: str, query: str, when: Spikes | None) -> tuple[float, float]:
    """Mean while slow and while calm, NaN if unknown; of all times, and NaN, without spikes."""
    values = facts.metrics.values(query, **labels_of(pod))
    if values is None:
        return np.nan, np.nan
    return (mean(values), np.nan) if when is None else when.both(values)
