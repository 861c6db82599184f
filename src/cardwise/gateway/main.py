"""The gateway program. Only wires.

1. read the settings, and refuse what cannot meet its own target;
2. learn from the cluster, if they speak of one, which replicas there are; probe and warm them up;
3. take requests, let in what the replicas can do, and tell the rest when to come again;
4. told to stop: say that it is not ready, accept no more, finish what is in flight, end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from cardwise.adapters.http1.limits import Limits
from cardwise.adapters.http1.server import Server
from cardwise.adapters.kube.port import EndpointPort
from cardwise.gateway.discovering import Discovery
from cardwise.gateway.server import Admin, Front
from cardwise.gateway.service import Service
from cardwise.gateway.settings import Settings
from cardwise.process import end_if_failed, files_allowed, settle, until_stopped

log = structlog.get_logger()

_LAST_ASKED_S = 0.5
"""How long a kept connection may still bring a request after the port is closed; it is told 503 instead of nothing."""
_OWN_FILES = 1024
"""Open files for replicas and ourselves, or half of all there may be, if that is less."""


@dataclass(slots=True)
class Gateway:
    """All parts, not yet running."""

    settings: Settings
    services: list[Service]
    front: Front
    server: Server
    admin: Server
    discovery: Discovery | None = None
    cluster: EndpointPort | None = None

    @classmethod
    def build(cls, settings: Settings, cluster: EndpointPort | None = None) -> Gateway:
        """Wire the parts. Needs a running event loop, and a cluster if the settings speak of one."""
        services = [Service(each) for each in settings.services]
        front = Front(services)
        limits = Limits(
            connections=_most_connections(settings.max_connections),
            headers=settings.max_headers,
            body=settings.max_body_mib * 2**20,
            buffered=settings.max_buffered_mib * 2**20,
            idle_s=settings.idle_s,
            head_s=settings.head_s,
            body_s=settings.body_s,
            write_s=settings.write_s,
        )
        discovery = None if cluster is None else Discovery(settings, front, services)
        server = Server(front, limits)
        admin = Admin(front, server.faults, None if discovery is None else discovery.counts)
        return cls(settings, services, front, server, Server(admin, Limits(connections=256)), discovery, cluster)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[int, int]]:
        """Run until the ``with`` ends, then drain; the port of requests, and the admin's."""
        settings, following = self.settings, None
        try:
            for service in self.services:
                service.start()
            if self.discovery is not None and self.cluster is not None:
                following = asyncio.create_task(self.discovery.follow(self.cluster), name="following the cluster")
                following.add_done_callback(end_if_failed)
            port = await self.server.listen(settings.host, settings.port)
            admin_port = await self.admin.listen(settings.admin_host, settings.admin_port)
            log.info("listening", host=settings.host, port=port, admin_port=admin_port)
            yield port, admin_port
            await self.drain()
        finally:
            self.server.close()
            self.admin.close()
            if following is not None and self.discovery is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                await self.discovery.close()
            for service in self.services:
                await service.close()

    async def drain(self) -> None:
        """Say so, accept no more, and finish what is in flight; not longer than ``drain_s``."""
        self.front.is_leaving = self.server.is_leaving = True
        await asyncio.sleep(self.settings.drain_delay_s)
        self.front.is_draining = True
        self.server.stop_accepting(_LAST_ASKED_S)
        log.info("draining", connections=len(self.server.connections))
        if not await self.server.drained(self.settings.drain_s):
            log.warning("not drained in time", connections=len(self.server.connections))


def _most_connections(wanted: int) -> int:
    """So many clients, or as the files that we may open allow: who only holds them must not take those for replicas."""
    allowed = files_allowed(wanted + _OWN_FILES)
    most = min(wanted, max(allowed - _OWN_FILES, allowed // 2))
    if most < wanted:
        log.warning("fewer connections than max-connections", most=most, wanted=wanted, open_files=allowed)
    return most


async def run(settings: Settings, told: Callable[[str], None], cluster: EndpointPort | None = None) -> None:
    """Run until SIGTERM or SIGINT. told: hears where it listens. cluster: needed if the settings speak of one."""

    @asynccontextmanager
    async def telling() -> AsyncIterator[None]:
        async with Gateway.build(settings, cluster).running() as (port, admin_port):
            told(f"listening on {settings.host}:{port}, admin on {settings.admin_host}:{admin_port}")
            settle()
            yield

    await until_stopped(telling())
