"""CW402: more requests are in flight at a replica than its card can serve at a time: they wait there, and P99 grows."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import LIKELY, Check, Finding
from cardwise.doctor.load import busy_share, engine_batches, last_mean, spikes_of
from cardwise.doctor.measures import mean

BUSY_SHARE, ONE, MANY = 0.85, 1.5, 8.0
"""A card that is full; batches of one; so many requests at a time that all but a few only wait (50 workers less 46 cut
P99 by four fifths, SPEC D3)."""


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each service that is too slow."""
    for service in facts.services:
        busy, flying = busy_share(facts, service), last_mean(facts, "in_flight", service)
        spikes, batch = spikes_of(facts, service), last_mean(facts, "batch_mean", service)
        if busy is None or flying is None or spikes is None or engine_batches(facts, service):
            continue
        each = flying / max(1, len(service.pods))
        if mean(busy, spikes.slow) < BUSY_SHARE or each < MANY or (batch is not None and batch > ONE):
            continue
        yield Finding(
            "CW402",
            f"service {service.name}",
            service.places,
            f"service {service.name}: {each:.0f} requests at a time are in each replica, and its card is full",
            (
                f"P99 up to {spikes.worst_s:.3f} s; cards busy {mean(busy, spikes.slow):.0%} meanwhile",
                f"{each:.1f} in flight per replica, in batches of one",
            ),
            "let the gateway find the limit (without a limit of its own the service gets an adaptive one), or lower "
            "the server's workers until QPS falls: cardwise loadtest shows the knee",
            LIKELY,
        )


CHECK = Check("CW402", "Too many requests at a time in a replica", find, needs=frozenset({"metrics"}))
