"""What a replica says of itself, scraped, as the last of the grounds by which replicas are chosen.

Old gauges tell of another time: a penalty ends once they are older than two scrapes. Refuses to take a replica out:
that is for probes and requests, which see what callers see.
"""

from __future__ import annotations

import asyncio
import math
import time

from prometheus_client.parser import text_string_to_metric_families

from cardwise.adapters.http1.client import fetch
from cardwise.adapters.http1.wire import request_head
from cardwise.core.queue.choose import Gauges, penalty_of
from cardwise.gateway.replicas import Replica
from cardwise.gateway.settings import ServiceSettings

WAITING = frozenset({"vllm:num_requests_waiting"})
"""vLLM's name, which the emulated engine has too."""
CACHE = frozenset({"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"})
"""vLLM's, a share in [0, 1] in spite of the name; the second until it was renamed."""
_BEGINS = tuple(name.encode() for name in sorted(WAITING | CACHE))


def gauges_of(text: bytes, at_s: float) -> Gauges | None:
    """The gauges in Prometheus' text; None if there are none. Of several models: all that wait, the fullest cache.

    Only lines of these names are parsed: an engine's page has thousands, and here one thread serves all requests.
    """
    ours = b"\n".join(line for line in text.splitlines() if line.startswith(_BEGINS))
    waiting, cache_share, is_told = 0.0, 0.0, False
    try:
        samples = [each for family in text_string_to_metric_families(f"{ours.decode()}\n") for each in family.samples]
    except ValueError:  # UnicodeDecodeError is one
        return None
    for sample in samples:
        if not math.isfinite(sample.value):
            continue
        if sample.name in WAITING:
            waiting, is_told = waiting + max(sample.value, 0.0), True
        elif sample.name in CACHE:
            cache_share, is_told = max(cache_share, sample.value), True
    return Gauges(at_s, int(waiting), min(cache_share, 1.0)) if is_told else None


class Scraper:
    """Scrapes one replica for as long as it runs."""

    def __init__(self, replica: Replica, service: ServiceSettings) -> None:
        """By its service's settings."""
        self._replica = replica
        self._path = service.scrape_path
        self._every_s = service.scrape_every_ms / 1000
        self._timeout_s = min(service.probe_timeout_ms / 1000, self._every_s)
        self._gauges: Gauges | None = None

    async def run(self) -> None:
        """Keep the replica's penalty."""
        replica = self._replica
        while True:
            started_s = time.monotonic()
            self._gauges = await self._scrape() or self._gauges
            now_s = time.monotonic()
            replica.penalty = penalty_of(self._gauges, now_s, scrape_s=self._every_s, limit=replica.limit)
            await asyncio.sleep(max(self._every_s - (now_s - started_s), 0.01))

    async def _scrape(self) -> Gauges | None:
        at_s = time.monotonic()
        head = request_head(
            "GET", self._path, [(b"host", self._replica.authority), (b"user-agent", b"cardwise-gateway")]
        )
        status, body = await fetch(self._replica.pool, "GET", head, b"", timeout_s=self._timeout_s)
        return gauges_of(body, at_s) if status == 200 else None
