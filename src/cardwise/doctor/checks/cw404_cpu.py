"""CW404: latency spikes while the card idles, for the CPU does not bring work to it: tokenizer, decoding, one thread.

The trap: P99 rises and GPU use *falls*, so the card looks innocent and healthy, and another card would change nothing.
Where that is so all the time and nobody said what slow is, there is no spike: then the CPU alone is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts, Served
from cardwise.doctor.findings import LIKELY, POSSIBLE, Check, Finding
from cardwise.doctor.load import (
    LIMIT,
    Idle,
    Short,
    cpu_is_short,
    held_back_always,
    idle_while_slow,
    last_mean,
    network_is_short,
    spikes_of,
)


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each service whose cards idle while it is slow, or always, behind a CPU that is held back."""
    for service in facts.services:
        idle = idle_while_slow(facts, service)
        if idle is None:
            if spikes_of(facts, service) is None and (told := held_back_always(facts, service)):
                yield _always(facts, service, told)
            continue
        short = cpu_is_short(facts, service, idle.spikes)
        if short is not None:
            yield _finding(service, idle, short)
        elif not facts.metrics.of("pod_cpu_cores") and network_is_short(facts, service, idle.spikes) is None:
            seen = ("no CPU figures of its pods are there (cAdvisor is not scraped): CPU is the usual cause",)
            yield _finding(service, idle, Short(seen, POSSIBLE, LIMIT))


def _finding(service: Served, idle: Idle, short: Short) -> Finding:
    spikes = idle.spikes
    return Finding(
        "CW404",
        f"service {service.name}",
        service.places,
        f"service {service.name}: its CPU is short, not its card: P99 rises while the card idles",
        (
            f"P99 up to {spikes.worst_s:.3f} s, {spikes.usual_s:.3f} s usually; {idle.told}",
            *short.evidence,
        ),
        short.action,
        short.likelihood,
    )


def _always(facts: Facts, service: Served, told: tuple[str, ...]) -> Finding:
    p99_s = last_mean(facts, "p99_s", service)
    return Finding(
        "CW404",
        f"service {service.name}",
        service.places,
        f"service {service.name}: its CPU is short all the time, and its card idles",
        (
            *(() if p99_s is None else (f"P99 {p99_s:.3f} s in the mean; no target says whether that is slow",)),
            *told,
        ),
        LIMIT,
        LIKELY,
    )


CHECK = Check(
    "CW404",
    "The CPU starves the card",
    find,
    frozenset({"CW401", "CW402", "CW403", "CW412"}),
    frozenset({"objects", "metrics"}),
)
