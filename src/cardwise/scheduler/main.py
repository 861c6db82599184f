"""The scheduler program. Only wires.

1. connect, and follow nodes and pods into the ledger;
2. stand for leader; when elected, list afresh before the first binding;
3. answer kube-scheduler, the API server's admission, and those who ask why;
4. wake pods that wait, and say which nodes contradict themselves.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from cardwise.adapters.kube.leader import Leader
from cardwise.adapters.kube.port import ClusterPort
from cardwise.adapters.listening import serve
from cardwise.adapters.watching import Watching
from cardwise.core.ledger import Ledger
from cardwise.process import end_if_failed, until_stopped
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.certificates import Certificates
from cardwise.scheduler.engines import EnginePolicy, Rules, memories_of
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.heartbeats import Heartbeats
from cardwise.scheduler.server import Parts, Server
from cardwise.scheduler.settings import Settings, policies_of
from cardwise.scheduler.waking import Waking

log = structlog.get_logger()

RENEW_POLICIES_S = 600.0
"""How often the policies learn what pods the cluster sees by now."""


@dataclass(slots=True)
class Scheduler:
    """All parts of one replica, not yet running."""

    settings: Settings
    parts: Parts
    leader: Leader
    waking: Waking
    heartbeats: Heartbeats

    @classmethod
    def build(cls, port: ClusterPort, settings: Settings, identity: str = "") -> Scheduler:
        """Wire the parts to a cluster."""
        ledger = Ledger(policies_of(settings))
        watching = Watching(ledger)
        extender = Extender(ledger, time.monotonic)
        elected = _Elected(watching, ledger)
        who = identity or f"{socket.gethostname()}-{os.getpid()}"
        leader = Leader(
            port, settings.namespace, settings.lease, who, time.monotonic, elected.begin, elected.last_epoch
        )

        def why_not() -> str | None:
            if not watching.synced:
                return "nodes and pods are not known yet"
            return None if leader.leads else f"not the leader ({leader.holder or 'nobody'} is)"

        binder = Binder(port, ledger, extender, why_not)
        waking = Waking(port, ledger, extender, watching, lambda: leader.leads)
        heartbeats = Heartbeats(port, ledger, settings.namespace, time.monotonic)
        rules = Rules(EnginePolicy(settings.engine_policy), memories_of(ledger))
        parts = Parts(port, ledger, watching, extender, binder, why_not, rules)
        return cls(settings, parts, leader, waking, heartbeats)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[int, int]]:
        """Run until the ``with`` ends; the extender's and the webhook's port (0 without a webhook)."""
        extender_tls, webhook_tls = (
            _certificates(self.settings, self.settings.client_ca_file),
            _certificates(self.settings),
        )
        tasks = [
            asyncio.create_task(self.parts.watching.follow(self.parts.port), name="watching"),
            asyncio.create_task(self.leader.run(), name="leader"),
            asyncio.create_task(self.waking.run(), name="waking"),
            asyncio.create_task(self.heartbeats.run(), name="heartbeats"),
            asyncio.create_task(self._renew_policies(), name="policies"),
            *(asyncio.create_task(each.follow(), name="certificates") for each in (extender_tls, webhook_tls) if each),
        ]
        for task in tasks:
            task.add_done_callback(end_if_failed)
        server, runners, ports = Server(self.parts), [], []
        try:
            settings = self.settings
            apps = [(server.extender_app(known_only=bool(settings.client_ca_file)), settings.port, extender_tls)]
            if settings.webhook_port:
                apps.append((server.webhook_app(), settings.webhook_port, webhook_tls))
            for app, wanted, tls in apps:
                runner, taken = await serve(app, settings.host, wanted, tls.context if tls else None)
                runners.append(runner)
                ports.append(taken)
            log.info("listening", host=settings.host, extender=ports[0], webhook=ports[1] if len(ports) > 1 else None)
            yield ports[0], ports[1] if len(ports) > 1 else 0
        finally:
            for runner in runners:
                await runner.cleanup()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew_policies(self) -> None:
        while True:
            await asyncio.sleep(RENEW_POLICIES_S)
            self.parts.ledger.renew_policies()


@dataclass(slots=True)
class _Elected:
    """What a new leader does first: hear everything afresh, for it may have missed what the old one wrote last."""

    watching: Watching
    ledger: Ledger

    async def begin(self, term: int) -> None:
        """Hear everything, and number what we bind above all that is bound."""
        await self.watching.hear_afresh()
        self.ledger.epoch, self.ledger.seq = max(term, 1 + self._highest()), 0

    def last_epoch(self) -> int | None:
        """The highest epoch of the allocations that are known; None while no pods are."""
        return self._highest() if self.watching.pods_synced else None

    def _highest(self) -> int:
        held = (*self.ledger.pods.values(), *self.ledger.under_way.values())
        return max((pod.allocation.epoch for pod in held if pod.allocation), default=0)


def _certificates(settings: Settings, client_ca_file: str = "") -> Certificates | None:
    if not settings.tls_cert_file:
        return None
    return Certificates(settings.tls_cert_file, settings.tls_key_file, client_ca_file)


async def run(port: ClusterPort, settings: Settings, identity: str = "") -> None:
    """Run until SIGTERM or SIGINT."""
    await until_stopped(Scheduler.build(port, settings, identity).running())
