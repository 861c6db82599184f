"""The replicas of one service, as they come and go.

One that leaves gets nothing new and finishes what it has; one that rests gets nothing until it is told to work again,
and is probed meanwhile. Refuses to know who says so: a file, or a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from cardwise.gateway.replicas import Prober, Replica, replica_of
from cardwise.gateway.scraping import Scraper
from cardwise.gateway.settings import ServiceSettings
from cardwise.process import end_if_failed

log = structlog.get_logger()


class Members:
    """Needs a running event loop to start."""

    def __init__(self, settings: ServiceSettings, changed: Callable[[], None]) -> None:
        """Those that the settings name. changed: called when one has become ready, or has left."""
        self.active = [replica_of(url, settings) for url in settings.replicas]
        """Those that may get requests: only these are chosen from."""
        self.resting: list[Replica] = []
        """Probed, and given nothing."""
        self.leaving: list[Replica] = []
        """Given nothing more; gone when nothing is in flight."""
        self._settings, self._changed = settings, changed
        self._tasks: dict[Replica, list[asyncio.Task[None]]] = {}

    def start(self) -> None:
        """Probe all that are there."""
        for replica in self.active:
            self._watch(replica)

    async def close(self) -> None:
        """End at once; what is in flight is not answered."""
        tasks = [task for each in self._tasks.values() for task in each]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in self.known:
            replica.pool.close()

    def join(self, url: str, pod: tuple[str, str] | None = None) -> Replica:
        """A new one: it is warmed up first. pod: its namespace and name, if it is one."""
        replica = replica_of(url, self._settings)
        replica.pod = pod
        self.active.append(replica)
        self._watch(replica)
        return replica

    def rest(self, replica: Replica) -> None:
        """Nothing new for it until :meth:`work`."""
        if replica in self.active:
            self.active.remove(replica)
            self.resting.append(replica)
            replica.draining = True

    def work(self, replica: Replica) -> None:
        """It may get requests again."""
        if replica in self.resting:
            self.resting.remove(replica)
            self.active.append(replica)
            replica.draining = False
            self._changed()

    def leave(self, replica: Replica) -> None:
        """Nothing new for it, for good."""
        self.rest(replica)
        self.resting.remove(replica)
        self.leaving.append(replica)
        for task in self._tasks.pop(replica):
            task.cancel()
        log.info("replica drains", replica=replica.url, in_flight=replica.in_flight)
        self._changed()  # who waits may be waiting for this very one

    def let_go(self) -> None:
        """Close those that have finished."""
        for replica in [each for each in self.leaving if not each.pool.in_use]:
            self.leaving.remove(replica)
            replica.pool.close()
            log.info("replica is gone", replica=replica.url)

    def sweep(self) -> None:
        """Close connections that have not been used for long."""
        for replica in (*self.active, *self.resting):
            replica.pool.sweep()

    @property
    def known(self) -> list[Replica]:
        """All that are there, whatever they may get."""
        return [*self.active, *self.resting, *self.leaving]

    @property
    def limits(self) -> list[tuple[str, int, int, bool]]:
        """For metrics, one per address: of a pod that took over another's address both count."""
        found: dict[str, tuple[str, int, int, bool]] = {}
        for replica in self.known:
            _, in_flight, limit, ready = found.get(replica.url, ("", 0, 0, False))
            takes = replica.ready and not replica.draining
            found[replica.url] = (
                replica.url,
                in_flight + replica.in_flight,
                limit + (0 if replica.draining else replica.limit),
                ready or takes,
            )
        return list(found.values())

    @property
    def pods(self) -> set[tuple[str, str, str]]:
        """Address, namespace and name of all that are pods."""
        return {(replica.url, *replica.pod) for replica in self.known if replica.pod is not None}

    def _watch(self, replica: Replica) -> None:
        loop, settings = asyncio.get_running_loop(), self._settings
        tasks = [loop.create_task(Prober(replica, settings, self._changed).run(), name=f"probing {replica.url}")]
        if settings.scrape_path:
            tasks.append(loop.create_task(Scraper(replica, settings).run(), name=f"scraping {replica.url}"))
        for task in tasks:
            task.add_done_callback(end_if_failed)
        self._tasks[replica] = tasks
