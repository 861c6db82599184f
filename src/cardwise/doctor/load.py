"""How busy a service's cards and CPUs are, and when it was slow. Several checks ask it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cardwise.core.arrays import FloatArray
from cardwise.doctor.facts import Facts, Served, cpu_limit_cores
from cardwise.doctor.findings import CERTAIN, LIKELY
from cardwise.doctor.measures import Spikes, mean, mean_of, spikes

THROTTLED_SHARE, AT_LIMIT, WAITING_SHARE = 0.25, 0.9, 0.2
"""Periods in which the kernel held the pod back; of its limit; of the time in which a task of it waits for a CPU."""
ONE_THREAD = 0.12
"""CPU use within that of a whole number of cores: so many threads never wait for anything."""
MORE = 1.2
"""Times the usual CPU use."""
IDLE_SHARE, LESS = 0.4, 0.7
"""A card that has time; and by how much less busy it is than usual."""
LOST_S = 1.0
"""Packets per second more than usual."""


def spikes_of(facts: Facts, service: Served) -> Spikes | None:
    """When the service was slow; None if it was not, or it is not known."""
    target = facts.metrics.last("target_s", service=service.name)
    return spikes(facts.metrics.values("p99_s", service=service.name), target)


def busy_share(facts: Facts, service: Served) -> FloatArray | None:
    """How busy a service keeps its part of its cards, in [0, 1], float64 [T]; all of them where slices are not told."""
    own = [_of_slices(facts, *pod.split("/", 1)) for pod in service.pods]
    found = mean_of(each for each in own if each is not None)
    if found is not None:
        return found
    cards = [facts.metrics.values("card_busy_pct", uuid=uuid) for uuid in service.uuids]
    busy = mean_of(each for each in cards if each is not None)
    return None if busy is None else busy / 100


def _of_slices(facts: Facts, namespace: str, pod: str) -> FloatArray | None:
    used = facts.metrics.values("slice_sm_pct", namespace=namespace, pod=pod)
    granted = facts.metrics.last("slice_compute_granted_pct", namespace=namespace, pod=pod)
    return None if used is None or not granted else np.minimum(used / granted, 1.0)


def last_mean(facts: Facts, query: str, service: Served) -> float | None:
    """Mean of a service's series over the window, or None."""
    values = facts.metrics.values(query, service=service.name)
    found = mean(values) if values is not None else np.nan
    return float(found) if np.isfinite(found) else None


def engine_batches(facts: Facts, service: Served) -> bool:
    """Whether the service's engine runs several requests at a time by itself."""
    running = [facts.metrics.values("engine_running", **_labels(pod)) for pod in service.pods]
    found = mean_of(each for each in running if each is not None)
    return found is not None and mean(found) > 1.5


def idle_while_slow(facts: Facts, service: Served) -> tuple[Spikes, float, float] | None:
    """Its spikes, and how busy its cards were then and otherwise, if they had time when it was slow."""
    found, busy = spikes_of(facts, service), busy_share(facts, service)
    if found is None or busy is None:
        return None
    slow, calm = found.both(busy)
    if not slow < IDLE_SHARE or (np.isfinite(calm) and slow > LESS * calm):
        return None
    return found, slow, calm


@dataclass(frozen=True, slots=True)
class Short:
    """That CPU is short, how that shows, and how sure that is."""

    evidence: tuple[str, ...]
    likelihood: float


def cpu_is_short(facts: Facts, service: Served, when: Spikes | None) -> Short | None:
    """Whether the pods of a service lack CPU (while it is slow), the pod that lacks it most first."""
    found = [each for pod in service.pods if (each := _pod_is_short(facts, pod, when)) is not None]
    return max(found, key=lambda each: each.likelihood, default=None)


def _pod_is_short(facts: Facts, pod: str, when: Spikes | None) -> Short | None:
    limit = cpu_limit_cores(facts.pod(pod))
    used, usual = _then(facts.metrics.values("pod_cpu_cores", **_labels(pod)), when)
    throttled, _ = _then(facts.metrics.values("pod_cpu_throttled_share", **_labels(pod)), when)
    waiting, _ = _then(facts.metrics.values("pod_cpu_waiting_share", **_labels(pod)), when)
    told = [
        f"pod {pod} uses {used:.2f} CPUs then"
        + (f", {usual:.2f} otherwise" if np.isfinite(usual) else "")
        + (f"; its limit is {limit:g}" if limit is not None else "; it has no limit")
    ]
    if throttled >= THROTTLED_SHARE:
        told.append(f"the kernel holds it back in {throttled:.0%} of its periods")
    if waiting >= WAITING_SHARE:
        told.append(f"a task of it waits for a CPU {waiting:.0%} of the time")
    if throttled >= THROTTLED_SHARE or (limit is not None and used >= AT_LIMIT * limit):
        return Short(tuple(told), CERTAIN)
    threads = round(used) if np.isfinite(used) else 0
    if threads >= 1 and abs(used - threads) <= ONE_THREAD and used > MORE * usual:
        told.append(f"that is {threads} whole threads: they never wait for anything else")
        return Short(tuple(told), LIKELY)
    return Short(tuple(told), LIKELY) if waiting >= WAITING_SHARE else None


def network_is_short(facts: Facts, service: Served, when: Spikes) -> tuple[float, float] | None:
    """Packets of its pods that are dropped per second, then and otherwise, if those are many more."""
    lost = [facts.metrics.values("pod_packets_dropped_s", **_labels(pod)) for pod in service.pods]
    found = [each for each in lost if each is not None]
    if not found:
        return None
    slow, calm = when.both(np.sum(found, axis=0))
    calm = calm if np.isfinite(calm) else 0.0
    return (slow, calm) if slow >= calm + LOST_S else None


def _then(values: FloatArray | None, when: Spikes | None) -> tuple[float, float]:
    """Mean while slow and while calm, NaN if unknown; of all times, and NaN, without spikes."""
    if values is None:
        return np.nan, np.nan
    return (mean(values), np.nan) if when is None else when.both(values)


def percent(share: float) -> str:
    """For a sentence."""
    return f"{share:.0%}" if np.isfinite(share) else "unknown"


def _labels(pod: str) -> dict[str, str]:
    namespace, name = pod.split("/", 1)
    return {"namespace": namespace, "pod": name}
