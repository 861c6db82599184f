"""The scheduler program. Only wires.

1. connect, and follow nodes and pods into the ledger;
2. stand for leader; when elected, list afresh before the first binding;
3. answer kube-scheduler, the API server's admission, and those who ask why;
4. wake pods that wait, and say which nodes contradict themselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from cardwise.adapters.kube.port import ClusterPort
from cardwise.core.ledger import Ledger
from cardwise.errors import UserError
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.leader import Leader
from cardwise.scheduler.server import Parts, Server, serve
from cardwise.scheduler.settings import Settings, policies_of
from cardwise.scheduler.waking import Waking
from cardwise.scheduler.watching import Watching

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

    @classmethod
    def build(cls, port: ClusterPort, settings: Settings, identity: str = "") -> Scheduler:
        """Wire the parts to a cluster."""
        ledger = Ledger(policies_of(settings))
        watching = Watching(ledger)
        extender = Extender(ledger, time.monotonic)
        elected = _Elected(watching, ledger)
        who = identity or f"{socket.gethostname()}-{os.getpid()}"
        leader = Leader(port, settings.namespace, settings.lease, who, time.monotonic, elected.begin)

        def why_not() -> str | None:
            if not watching.synced:
                return "nodes and pods are not known yet"
            return None if leader.leads else f"not the leader ({leader.holder or 'nobody'} is)"

        binder = Binder(port, ledger, extender, why_not)
        waking = Waking(port, ledger, extender, watching, lambda: leader.leads)
        return cls(settings, Parts(port, ledger, watching, extender, binder, why_not), leader, waking)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[int, int]]:
        """Run until the ``with`` ends; the extender's and the webhook's port (0 without a webhook)."""
        tasks = [
            asyncio.create_task(self.parts.watching.follow(self.parts.port), name="watching"),
            asyncio.create_task(self.leader.run(), name="leader"),
            asyncio.create_task(self.waking.run(), name="waking"),
            asyncio.create_task(self._renew_policies(), name="policies"),
        ]
        for task in tasks:
            task.add_done_callback(_end_if_failed)
        server, runners, ports = Server(self.parts), [], []
        try:
            tls, settings = _tls(self.settings), self.settings
            apps = [(server.extender_app(known_only=bool(settings.client_ca_file)), settings.port, tls)]
            if settings.webhook_port:
                apps.append((server.webhook_app(), settings.webhook_port, _tls(replace(settings, client_ca_file=""))))
            for app, wanted, context in apps:
                runner, taken = await serve(app, settings.host, wanted, context)
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

    async def begin(self, epoch: int) -> None:
        self.ledger.epoch, self.ledger.seq = epoch, 0
        await self.watching.hear_afresh()


def _end_if_failed(task: asyncio.Task[None]) -> None:
    """A part that died would leave a scheduler that looks alive: end the process, and be started again."""
    if not task.cancelled() and task.exception() is not None:
        log.critical("a part of the scheduler died", part=task.get_name(), exc_info=task.exception())
        os.kill(os.getpid(), signal.SIGTERM)


def _tls(settings: Settings) -> ssl.SSLContext | None:
    if not settings.tls_cert_file:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file or None)
        if settings.client_ca_file:
            context.load_verify_locations(settings.client_ca_file)
            context.verify_mode = ssl.CERT_OPTIONAL  # probes show none; the verbs ask for one
    except (OSError, ssl.SSLError) as exc:
        raise UserError(f"tls-cert-file {settings.tls_cert_file}: {exc}; give a PEM certificate and its key") from exc
    return context


async def run(port: ClusterPort, settings: Settings, identity: str = "") -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Scheduler.build(port, settings, identity).running():
        await stop.wait()
    log.info("stopped")


def log_as_json() -> None:
    """One JSON object per line on stderr, times in UTC (SPEC A9)."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
