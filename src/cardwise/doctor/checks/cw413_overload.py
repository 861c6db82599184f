"""CW413: more requests come than the replicas can serve: their cards are full of work that is well batched."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cardwise.doctor.facts import Facts, Served
from cardwise.doctor.findings import LIKELY, POSSIBLE, Check, Finding
from cardwise.doctor.load import MORE, busy_share, engine_batches, last_mean, spikes_of
from cardwise.doctor.measures import Spikes

BUSY_SHARE, ONE = 0.85, 1.5
"""A card, or a slice of it, that is full; and a batch that is as good as one: that is for CW401 and CW402 to say."""


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each service that is slow while its own part of its cards is full."""
    for service in facts.services:
        spikes, busy = spikes_of(facts, service), busy_share(facts, service)
        if spikes is None or busy is None:
            continue
        then, usual = spikes.both(busy)
        batch = last_mean(facts, "batch_mean", service)
        batched = engine_batches(facts, service) or (batch is not None and batch > ONE)
        if then >= BUSY_SHARE and batched:
            yield _finding(facts, service, spikes, (then, usual))


def _finding(facts: Facts, service: Served, spikes: Spikes, busy: tuple[float, float]) -> Finding:
    told = [spikes.told(facts.metrics.values(query, service=service.name), what) for query, what in QUERIES]
    qps = facts.metrics.values("qps", service=service.name)
    then, usual = spikes.both(qps) if qps is not None else (np.nan, np.nan)
    rose = bool(then > MORE * usual)
    return Finding(
        "CW413",
        f"service {service.name}",
        service.places,
        f"service {service.name}: more requests come than its {len(service.pods)} replicas can serve",
        (
            f"P99 up to {spikes.worst_s:.3f} s, {spikes.usual_s:.3f} s usually; its part of its cards busy "
            f"{busy[0]:.0%} then" + (f", {busy[1]:.0%} otherwise" if np.isfinite(busy[1]) else ""),
            *filter(None, told),
        ),
        "add replicas, by the hour if the load comes by the hour (cardwise's schedule, or an autoscaler by queue "
        "length), or give each a larger slice; cardwise loadtest says what one can bear",
        LIKELY if rose else POSSIBLE,
    )


QUERIES = (("qps", "requests/s"), ("queue_length", "in the queue"), ("batch_mean", "requests per batch"))


CHECK = Check("CW413", "More requests come than the replicas can serve", find, needs=frozenset({"metrics"}))
