"""What the gateways say of their services, by way of Prometheus: requests, P99 beside its target, queue, refusals.

All replicas of all gateways together, over five minutes. What is not known is None, never 0. Refuses to hold up the
page: Prometheus is asked beside it, and that it does not answer is a note.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cardwise.adapters.prometheus import Prometheus
from cardwise.errors import ClusterError, UserError

PERIOD_S = 15.0
_RATE = "sum by (service) (rate(cardwise_gateway_{}[5m]))"
QUERIES = {
    "requests_per_s": _RATE.format("requests_total"),
    "p99_ms": "1000 * histogram_quantile(0.99, "
    "sum by (service, le) (rate(cardwise_gateway_latency_seconds_bucket[5m])))",
    "target_ms": "1000 * max by (service) (cardwise_gateway_target_seconds)",
    "queue": "sum by (service) (cardwise_gateway_queue_length)",
    "queue_depth": "sum by (service) (cardwise_gateway_queue_depth)",
    "refused_share": f"{_RATE.format('rejections_total')} / ({_RATE.format('requests_total')} > 0)",
}
"""A number per service each. The names are the gateway's: cardwise/gateway/metrics.py."""


@dataclass(slots=True)
class Traffic:
    """told: a row per service, another list whenever it was asked anew. notes: why some of it is unknown."""

    prometheus: Prometheus
    now: Callable[[], datetime]
    told: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Ask every some seconds, until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(PERIOD_S)

    async def ask(self) -> None:
        """Ask once. An answer in part is told in part; none leaves nothing, for old numbers would pass for new."""
        rows: dict[str, dict[str, Any]] = {}
        warnings = set[str]()
        try:
            for key, query in QUERIES.items():
                now = self.now()
                for series in await self.prometheus.range(query, now, now, 1.0):
                    warnings.update(series.warnings)
                    name, value = series.labels.get("service", ""), float(series.values[0])
                    row = rows.setdefault(name, {"service": name, **dict.fromkeys(QUERIES)})
                    row[key] = value if math.isfinite(value) else None
        except (ClusterError, UserError) as exc:  # whoever's mistake it is, the page goes on
            self.told, self.notes = [], [f"traffic is not known: {exc}"]
            return
        self.told = [rows[name] for name in sorted(rows)]
        self.notes = [f"traffic may be a part of it: {warning}" for warning in sorted(warnings)]
