"""The gateway program. Only wires.

1. read the settings, and refuse what cannot meet its own target;
2. probe and warm up the replicas;
3. take requests, let in what the replicas can do, and tell the rest when to come again;
4. told to stop: say that it is not ready, accept no more, finish what is in flight, end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from cardwise.adapters.http1.server import Limits, Server
from cardwise.gateway.server import Admin, Front
from cardwise.gateway.service import Service
from cardwise.gateway.settings import Settings
from cardwise.process import until_stopped

log = structlog.get_logger()


@dataclass(slots=True)
class Gateway:
    """All parts, not yet running."""

    settings: Settings
    services: list[Service]
    front: Front
    server: Server
    admin: Server

    @classmethod
    def build(cls, settings: Settings) -> Gateway:
        """Wire the parts. Needs a running event loop."""
        services = [Service(each) for each in settings.services]
        front = Front(services)
        limits = Limits(
            connections=settings.max_connections,
            headers=settings.max_headers,
            body=settings.max_body_mib * 2**20,
            buffered=settings.max_buffered_mib * 2**20,
            idle_s=settings.idle_s,
            head_s=settings.head_s,
            body_s=settings.body_s,
            write_s=settings.write_s,
        )
        return cls(settings, services, front, Server(front, limits), Server(Admin(front), Limits(connections=256)))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[int, int]]:
        """Run until the ``with`` ends, then drain; the port of requests, and the admin's."""
        settings = self.settings
        try:
            for service in self.services:
                service.start()
            port = await self.server.listen(settings.host, settings.port)
            admin_port = await self.admin.listen(settings.admin_host, settings.admin_port)
            log.info("listening", host=settings.host, port=port, admin_port=admin_port)
            yield port, admin_port
            await self.drain()
        finally:
            self.server.close()
            self.admin.close()
            for service in self.services:
                await service.close()

    async def drain(self) -> None:
        """Say so, accept no more, and finish what is in flight; not longer than ``drain_s``."""
        self.front.is_leaving = True
        await asyncio.sleep(self.settings.drain_delay_s)
        self.front.is_draining = True
        self.server.stop_accepting()
        log.info("draining", connections=len(self.server.connections))
        if not await self.server.drained(self.settings.drain_s):
            log.warning("not drained in time", connections=len(self.server.connections))


async def run(settings: Settings, told: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT. told: hears where it listens."""

    @asynccontextmanager
    async def telling() -> AsyncIterator[None]:
        async with Gateway.build(settings).running() as (port, admin_port):
            told(f"listening on {settings.host}:{port}, admin on {settings.admin_host}:{admin_port}")
            yield

    await until_stopped(telling())
