"""The controller program. Only wires.

1. connect, and follow nodes and pods into the ledger;
2. stand for leader; when elected, list afresh before anything is done;
3. run the loops, each in a task of its own: they look whether this replica leads, and act;
4. answer those who ask for metrics.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry

from cardwise.adapters.kube.leader import Leader
from cardwise.adapters.kube.port import LoadingPort, MovingPort, Requests
from cardwise.adapters.policies import Policies
from cardwise.adapters.prometheus import Prometheus
from cardwise.adapters.seasonal import forecast_aside
from cardwise.adapters.watching import Watching
from cardwise.controller import metrics
from cardwise.controller.consolidation.movers import Mover
from cardwise.controller.forecasting import Forecasting
from cardwise.controller.preempting import Preempting
from cardwise.controller.preemption.seeing import Seen
from cardwise.controller.prefetching import Prefetching
from cardwise.controller.quotas import Quotas
from cardwise.controller.rescuing import Rescuing
from cardwise.controller.scaling import Scaling, utc_now
from cardwise.controller.server import pages, serving
from cardwise.controller.settings import Settings, consolidation_of, policies_of, prometheus_of
from cardwise.core.ledger import Ledger
from cardwise.process import end_if_failed, until_stopped

log = structlog.get_logger()


class Port(MovingPort, LoadingPort, Requests, Protocol):
    """What the loops need of a cluster."""


class Loop(Protocol):
    """One part of the program."""

    async def run(self) -> None:
        """Until cancelled."""


@dataclass(slots=True)
class Controller:
    """All parts of one replica, not yet running. loops: by the names of their tasks."""

    settings: Settings
    port: Port
    watching: Watching
    leader: Leader
    loops: dict[str, Loop]
    registry: CollectorRegistry
    prometheus: Prometheus | None

    @classmethod
    def build(cls, port: Port, settings: Settings, identity: str = "") -> Controller:
        """Wire the parts to a cluster."""
        now_s, registry = time.monotonic, CollectorRegistry()
        ledger, seen = Ledger(policies_of(settings)), Seen(now_s)
        watching = Watching(ledger, now_s, also=(seen,))
        elected = _Elected(watching, ledger)
        who = identity or f"{socket.gethostname()}-{os.getpid()}"
        leader = Leader(port, settings.namespace, settings.lease, who, now_s, elected.begin, elected.last_epoch)

        def leads() -> bool:
            return leader.leads

        prometheus = prometheus_of(settings)
        common, movers = (port, ledger, watching, seen, now_s, leads), dict[str, Mover]()
        loops: dict[str, Loop] = {
            "preempting": Preempting(
                *common, settings.preemption, registry=registry, moving=consolidation_of(settings), movers=movers
            ),
            "rescuing": Rescuing(*common, settings.rescue, registry=registry, movers=movers),
            "prefetching": Prefetching(*common, settings.prefetch, registry=registry),
        }
        if settings.scaling.enabled:
            forecasting = Forecasting(prometheus, now_s, forecast_aside)
            loops["forecasting"] = forecasting
            loops["scaling"] = Scaling(port, Policies(port), prometheus, forecasting, now_s, leads, registry=registry)
        if settings.quota.file:
            loops["quotas"] = Quotas(port, port, Path(settings.quota.file), utc_now, now_s, leads, registry=registry)
        metrics.LEADER.gauge(registry).set_function(leads)
        return cls(settings, port, watching, leader, loops, registry, prometheus)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[int]:
        """Run until the ``with`` ends; the port of the metrics."""
        parts = {"watching": self.watching.follow(self.port), "leader": self.leader.run()}
        parts |= {name: loop.run() for name, loop in self.loops.items()}
        tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
        for task in tasks:
            task.add_done_callback(end_if_failed)
        try:
            async with serving(pages(self.registry, self._why_not_ready), self.settings.host, self.settings.port) as at:
                log.info("listening", host=self.settings.host, port=at, loops=sorted(self.loops))
                yield at
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.prometheus is not None:
                await self.prometheus.close()

    def _why_not_ready(self) -> str | None:
        return None if self.watching.synced else "nodes and pods are not known yet"


@dataclass(slots=True)
class _Elected:
    """What a new leader does first: hear everything afresh, for it may have missed what the old one wrote last."""

    watching: Watching
    ledger: Ledger

    async def begin(self, _term: int) -> None:
        """Hear everything."""
        await self.watching.hear_afresh()

    def last_epoch(self) -> int | None:
        """The highest epoch of the allocations that are known; None while no pods are."""
        if not self.watching.pods_synced:
            return None
        return max((pod.allocation.epoch for pod in self.ledger.pods.values() if pod.allocation), default=0)


async def run(port: Port, settings: Settings, identity: str = "") -> None:
    """Run until SIGTERM or SIGINT."""
    await until_stopped(Controller.build(port, settings, identity).running())
