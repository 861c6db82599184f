"""The replicas of a service: who gets traffic. None before it has answered a warm-up request.

A replica leaves at once when it refuses a connection, and after several failures in a row, of requests or of probes. It
returns by the same warm-up request, tried with growing pauses, so that a cold start is not met by a crowd.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog

from cardwise.adapters.http1.client import Pool, fetch
from cardwise.adapters.http1.wire import Headers, request_head
from cardwise.core.queue.ahead import Ahead
from cardwise.core.queue.limit import FixedLimit, Limiter, Limits
from cardwise.core.queue.retry import Failure, backoff_s
from cardwise.gateway.settings import ServiceSettings

log = structlog.get_logger()

_RETURN_BASE_S, _RETURN_MOST_S = 0.2, 5.0
"""Pauses between two tries of a warm-up: doubled each time, with jitter."""


@dataclass(frozen=True, slots=True)
class Check:
    """A request that must be answered with 2xx."""

    method: str
    path: str
    timeout_s: float
    body: bytes = b""
    kind: bytes = b""


class Replica:
    """One replica: its connections, its limit, and whether it is fit. What ``choose`` asks of a replica."""

    __slots__ = (
        "ahead",
        "authority",
        "draining",
        "failures",
        "idle_since_s",
        "left",
        "limits",
        "penalty",
        "pod",
        "pool",
        "ready",
        "url",
    )

    def __init__(self, url: str, pool: Pool, limits: Limits, ahead: Ahead | None = None) -> None:
        """Not ready."""
        self.url = url
        self.authority = urlsplit(url).netloc.encode()
        self.pool = pool
        self.limits = limits
        self.ahead = ahead
        """When its next batch may leave before the one under way is over; None: never."""
        self.pod: tuple[str, str] | None = None
        """Namespace and name, if it is a pod: for metrics."""
        self.ready = False
        self.draining = False
        self.penalty = 0.0
        self.failures = 0
        self.idle_since_s = 0.0
        self.left = asyncio.Event()
        """Set when it has failed: wakes its prober."""

    @property
    def in_flight(self) -> int:
        """Requests or batches sent and not answered."""
        return self.limits.in_flight

    @property
    def limit(self) -> int:
        """Most of them."""
        return self.limits.limit

    def worked(self) -> None:
        """It has answered."""
        self.failures = 0

    def failed(self, failure: Failure, most: int) -> None:
        """It has not; at ``most`` times in a row, or if it refuses connections, it leaves."""
        self.failures += 1
        if self.ready and (failure is Failure.REFUSED or self.failures >= most):
            log.warning("replica leaves", replica=self.url, why=failure.value, failures=self.failures)
            self.ready = False
            self.left.set()


def replica_of(url: str, service: ServiceSettings) -> Replica:
    """A replica as its service's settings have it."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    pool = Pool(
        parts.hostname or "",
        parts.port or (443 if secure else 80),
        tls=ssl.create_default_context() if secure else None,
        connect_s=service.connect_ms / 1000,
        keep_s=service.keep_alive_s,
    )
    if service.batches and service.limit <= 1:
        return Replica(url, pool, FixedLimit(1, ahead=1), Ahead())
    if service.limit:
        return Replica(url, pool, FixedLimit(service.limit))
    return Replica(url, pool, Limiter(service.target_s, start=service.first_limit))


def warm_up_of(service: ServiceSettings) -> tuple[Check, ...]:
    """What a replica must answer, in order, before it gets traffic."""
    if (told := service.warm_up) is not None:
        kind = told.content_type.encode() if told.body else b""
        warm_up = Check(told.method, told.path, told.timeout_ms / 1000, told.body.encode(), kind)
        return (*_probes_of(service), warm_up)
    checks = _probes_of(service)
    if service.kind == "oip" and service.model:
        checks = (*checks, Check("GET", f"/v2/models/{service.model}", service.probe_timeout_ms / 1000))
    return checks


def _probes_of(service: ServiceSettings) -> tuple[Check, ...]:
    path = service.probe_path or {"oip": "/v2/health/ready", "openai": "/v1/models"}.get(service.kind, "")
    return (Check("GET", path, service.probe_timeout_ms / 1000),) if path else ()


class Prober:
    """Watches one replica for as long as it runs."""

    def __init__(self, replica: Replica, service: ServiceSettings, changed: Callable[[], None]) -> None:
        """changed: called when it has become ready, or has left."""
        self._replica = replica
        self._service = service
        self._changed = changed
        self._warm_up = warm_up_of(service)
        self._probes = _probes_of(service)

    async def run(self) -> None:
        """Warm up, watch, and again when it has left."""
        while True:
            await self._return()
            await self._watch()
            self._changed()

    async def _return(self) -> None:
        """Try until it answers."""
        tries = 0
        while not await self._answers(self._warm_up):
            tries += 1
            if tries == 1:
                log.info("replica is not ready", replica=self._replica.url)
            pause_s = backoff_s(tries, random.random, base_s=_RETURN_BASE_S, cap_s=_RETURN_MOST_S)
            await asyncio.sleep(pause_s / 2 + _RETURN_BASE_S / 2)
        replica = self._replica
        replica.left.clear()
        replica.failures = 0
        replica.idle_since_s = time.monotonic()
        replica.ready = True
        log.info("replica is ready", replica=replica.url)
        self._changed()

    async def _watch(self) -> None:
        """Until it has left."""
        every_s = self._service.probe_every_ms / 1000
        failed = 0
        while self._replica.ready:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._replica.left.wait(), every_s or None)
            failed = 0 if await self._answers(self._probes) else failed + 1
            if failed >= self._service.fail_after and self._replica.ready:
                log.warning("replica leaves", replica=self._replica.url, why="probe", failures=failed)
                self._replica.ready = False

    async def _answers(self, checks: tuple[Check, ...]) -> bool:
        for check in checks:
            headers: Headers = [(b"host", self._replica.authority), (b"user-agent", b"cardwise-gateway")]
            if check.kind:
                headers.append((b"content-type", check.kind))
            if check.method == "POST":
                headers.append((b"content-length", b"%d" % len(check.body)))
            head = request_head(check.method, check.path, headers)
            status, _ = await fetch(self._replica.pool, check.method, head, check.body, timeout_s=check.timeout_s)
            if not 200 <= status < 300:
                return False
        return True if checks else await self._connects()

    async def _connects(self) -> bool:
        """Where no path is told: whether it can be reached at all."""
        head = request_head("HEAD", "/", [(b"host", self._replica.authority)])
        status, _ = await fetch(self._replica.pool, "HEAD", head, b"", timeout_s=self._service.probe_timeout_ms / 1000)
        return status > 0
