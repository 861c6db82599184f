"""Windows as Prometheus would tell them, of services that a test describes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from cardwise.compare.window import Service, Window
from cardwise.gateway.metrics import SECONDS

BEGIN = datetime(2026, 11, 30, 10, tzinfo=UTC)
STEP_S, PARTS = 60.0, 32


def service(
    seed, *, scale=1.0, per_part=600, parts=PARTS, drift=0.05, alike=0.0, refused=0.0, failed=0.0, wrong=0.0, left=None
):
    """Log-normal latencies around 20 ms times ``scale``. drift: spread of the parts' own factors, as a logarithm.

    alike: correlation of a part's factor with the one before it. wrong: share of other 4xx. left: of callers that hung
    up, or None if nothing is known of them.
    """
    rng = np.random.default_rng(seed)
    factors, last = [], rng.normal()
    for _ in range(parts):
        last = alike * last + np.sqrt(1 - alike**2) * rng.normal()
        factors.append(np.exp(drift * last))
    counts, sums = [], []
    arrivals = rng.poisson(per_part, parts)
    lost = rng.binomial(arrivals, refused), rng.binomial(arrivals, failed)
    others = rng.binomial(arrivals, wrong)
    for factor, arrived in zip(factors, arrivals, strict=True):
        values = 0.02 * scale * factor * rng.lognormal(0, 0.5, arrived)
        counts.append(np.bincount(np.searchsorted(SECONDS, values), minlength=len(SECONDS) + 1).astype(float).tolist())
        sums.append(float(values.sum()))
    good = arrivals - lost[0] - lost[1] - others
    return Service(
        latency_counts=counts,
        latency_sum_s=sums,
        answers=arrivals.astype(float).tolist(),
        good=good.astype(float).tolist(),
        refused=lost[0].astype(float).tolist(),
        failed=lost[1].astype(float).tolist(),
        hung_up=None if left is None else rng.binomial(arrivals, left).astype(float).tolist(),
    )


def window(services=None, *, cards=None, busy=None, memory_mib=None, events=None, alerts=None, parts=PARTS, **more):
    """services: by name; default one, called s. cards: by model, a number. busy: the share of each that works."""
    nothing = [None] * parts
    count = sum((cards or {}).values())
    return Window(
        source="http://prometheus:9090",
        begin=BEGIN,
        end=BEGIN + timedelta(seconds=STEP_S * parts),
        step_s=STEP_S,
        scrape_s=15.0,
        chosen=[],
        bounds_s=list(SECONDS),
        services=services or {"s": service(1)},
        cards={model: [float(each)] * parts for model, each in (cards or {}).items()},
        memory_granted_mib=[float(memory_mib)] * parts if memory_mib else nothing,
        busy_cards=nothing if busy is None else _around(count * busy, parts),
        cards_with_slices=[float(count)] * parts if cards else nothing,
        events=events or {},
        alerts=alerts,
        **more,
    )


def _around(mean, parts):
    return (mean * np.random.default_rng(5).normal(1, 0.03, parts)).tolist()
