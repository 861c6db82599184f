"""CW404: latency spikes while the card idles, for the CPU does not bring work to it: tokenizer, decoding, one thread.

The trap: P99 rises and GPU use *falls*, so the card looks innocent and healthy, and another card would change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts, Served
from cardwise.doctor.findings import POSSIBLE, Check, Finding
from cardwise.doctor.load import cpu_is_short, idle_while_slow, network_is_short, percent
from cardwise.doctor.measures import Spikes


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each service whose cards idle while it is slow."""
    for service in facts.services:
        idle = idle_while_slow(facts, service)
        if idle is None:
            continue
        spikes, busy_slow, busy_calm = idle
        short = cpu_is_short(facts, service, spikes)
        if short is not None:
            yield _finding(service, spikes, busy_slow, busy_calm, short.evidence, short.likelihood)
        elif not facts.metrics.of("pod_cpu_cores") and network_is_short(facts, service, spikes) is None:
            seen = ("no CPU figures of its pods are there (cAdvisor is not scraped): CPU is the usual cause",)
            yield _finding(service, spikes, busy_slow, busy_calm, seen, POSSIBLE)


def _finding(
    service: Served, spikes: Spikes, slow: float, calm: float, evidence: tuple[str, ...], likelihood: float
) -> Finding:
    return Finding(
        "CW404",
        f"service {service.name}",
        service.places,
        f"service {service.name}: its CPU is short, not its card: P99 rises while the card idles",
        (
            (
                f"P99 up to {spikes.worst_s:.3f} s, {spikes.usual_s:.3f} s usually; card busy then {percent(slow)}, "
                f"{percent(calm)} otherwise"
            ),
            *evidence,
        ),
        "raise the CPU limit, or drop it and keep the request; give tokenizing and decoding more threads or processes "
        "(TOKENIZERS_PARALLELISM, --api-server-count), or do them outside of the replica",
        likelihood,
    )


CHECK = Check(
    "CW404",
    "The CPU starves the card",
    find,
    frozenset({"CW401", "CW402", "CW403", "CW412"}),
    frozenset({"objects", "metrics"}),
)
