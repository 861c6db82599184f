"""CW403: requests wait before an idle card, for no more of them are let through at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import LIKELY, Check, Finding
from cardwise.doctor.load import busy_share, cpu_is_short, last_mean
from cardwise.doctor.measures import mean

IDLE_SHARE, AT_LIMIT, OFTEN = 0.5, 0.9, 0.5
"""A card that is idle half of the time; in flight as many as may be; for half of the window somebody waits."""


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each service; none where it is the CPU that is short."""
    for service in facts.services:
        busy, queued = busy_share(facts, service), facts.metrics.values("queue_length", service=service.name)
        flying, limit = last_mean(facts, "in_flight", service), last_mean(facts, "limit", service)
        if busy is None or queued is None or flying is None or not limit:
            continue
        waits = float(np.mean(np.nan_to_num(queued) >= 1))
        if waits < OFTEN or flying < AT_LIMIT * limit or mean(busy) > IDLE_SHARE or cpu_is_short(facts, service, None):
            continue
        yield Finding(
            "CW403",
            f"service {service.name}",
            service.places,
            f"service {service.name}: requests wait while its cards are idle: no more are let through at a time",
            (
                f"cards busy {mean(busy):.0%}; somebody waits {waits:.0%} of the time",
                f"{flying:.1f} in flight, {limit:.0f} may be",
            ),
            "raise or remove the service's limit in the gateway (without one it adapts), or raise max-batch; if "
            "replicas answer no faster then, they are what is slow",
            LIKELY,
        )


CHECK = Check("CW403", "A limit holds requests back from an idle card", find, needs=frozenset({"metrics"}))
