"""CW401: the card is busy and serves few requests, for they go to it one by one while others wait."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts, Served
from cardwise.doctor.findings import LIKELY, Check, Finding
from cardwise.doctor.load import busy_share, engine_batches, last_mean
from cardwise.doctor.measures import mean

BUSY_SHARE, ONE, WAITING = 0.8, 1.5, 1.0
"""A card that is busy four fifths of the time; a mean batch that is as good as one; somebody always waits."""


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each service."""
    for service in facts.services:
        busy, batch = busy_share(facts, service), last_mean(facts, "batch_mean", service)
        waiting = last_mean(facts, "queue_length", service)
        if busy is None or batch is None or waiting is None or engine_batches(facts, service):
            continue
        if mean(busy) >= BUSY_SHARE and batch <= ONE and waiting >= WAITING:
            yield _finding(facts, service, mean(busy), batch, waiting)


def _finding(facts: Facts, service: Served, busy: float, batch: float, waiting: float) -> Finding:
    qps = last_mean(facts, "qps", service)
    return Finding(
        "CW401",
        f"service {service.name}",
        service.places,
        f"service {service.name}: its cards are busy with one request at a time while {waiting:.0f} wait",
        (
            f"cards busy {busy:.0%} of the time, {'an unknown number of' if qps is None else f'{qps:.1f}'} requests/s",
            f"{batch:.1f} requests per batch, {waiting:.1f} in the queue, both in the mean",
        ),
        "batch them: in the gateway max-batch and max-wait-ms (cardwise loadtest finds both), or in the program with "
        "cardwise.batching",
        LIKELY,
    )


CHECK = Check("CW401", "Requests go to the card one by one", find, frozenset({"CW402"}), frozenset({"metrics"}))
