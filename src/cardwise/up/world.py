"""A whole cluster in one process: nodes, pods, the scheduler's parts, and the emulated cycle. Only wires.

1. the hollow cluster holds nodes and pods, and asks the webhook's rules about each pod;
2. the scheduler's own ``Watching`` hears them into the ledger;
3. controllers make the pods that the files want, and remove the others;
4. the emulated cycle schedules until nothing moves any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cardwise.adapters.hollow import HollowCluster
from cardwise.adapters.manifests import Manifests, Workload
from cardwise.adapters.watching import Watching
from cardwise.config import DEFAULT_POLICY
from cardwise.core.ledger import Ledger
from cardwise.errors import UserError
from cardwise.scheduler import webhook
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.settings import Settings, policies_of
from cardwise.up.controllers import pods_of
from cardwise.up.hardware import SomeNode
from cardwise.up.kube_cycle import Cycle

EPOCH = 1
"""There is one scheduler, and it leads."""


@dataclass(frozen=True, slots=True)
class Denied:
    """A workload whose pods the webhook refuses. ``where``: file and line."""

    workload: str
    where: str
    why: str
    pods: int


@dataclass(slots=True)
class World:
    """A cluster that is not there.

    policy: by latency class, as in the scheduler's settings. notes: what was assumed of the nodes, and what the files
    hold that is not read.
    """

    nodes: tuple[SomeNode, ...]
    policy: dict[str, str]
    cluster: HollowCluster
    ledger: Ledger
    watching: Watching
    extender: Extender
    cycle: Cycle
    denied: list[Denied] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    changes: int = 0
    _wanted: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _tasks: tuple[asyncio.Task[None], ...] = ()

    @classmethod
    def build(
        cls,
        nodes: Sequence[SomeNode],
        policy: Mapping[str, str],
        now_s: Callable[[], float],
        now: Callable[[], datetime],
    ) -> World:
        """Wire the parts. Raises UserError if a policy or a class is unknown."""
        chosen = {**DEFAULT_POLICY, **policy}
        cluster = HollowCluster(now, webhook.admit)
        ledger = Ledger(policies_of(Settings(policy=chosen)), epoch=EPOCH)
        watching, extender = Watching(ledger), Extender(ledger, now_s)
        binder = Binder(cluster, ledger, extender, lambda: None if watching.synced else "not all is known yet")
        cycle = Cycle(cluster, extender, binder)
        return cls(tuple(nodes), chosen, cluster, ledger, watching, extender, cycle)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the cluster until the ``with`` ends."""
        for node in self.nodes:
            self.cluster.put_node(node.raw())
        self._tasks = (
            asyncio.create_task(self.watching.follow(self.cluster), name="watching"),
            asyncio.create_task(self.cycle.follow(), name="cycle"),
        )
        try:
            while not self.watching.synced:
                await asyncio.sleep(0)  # until both tasks have begun to listen
                self._raise_failures()
            await self._heard()
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def apply(self, manifests: Manifests) -> None:
        """Make the cluster what the files want, and schedule until nothing moves."""
        self.notes = (*(note for node in self.nodes for note in node.notes), *manifests.notes)
        self._reconcile(manifests)
        await self._settle()
        self.changes += 1

    async def add(self, workloads: Sequence[Workload]) -> bool:
        """Place more beside what is there, and schedule until nothing moves; True if every pod has a node."""
        self._create(self._pods_wanted(workloads))
        await self._settle()
        return not (self.denied or self.cycle.pending)

    async def remove(self, workloads: Sequence[Workload]) -> None:
        """Take away what :meth:`add` placed, or left waiting."""
        for where in self._pods_wanted(workloads).keys() & self._wanted.keys():
            self.cluster.delete_pod(*where)
            del self._wanted[where]
        await self._heard()

    # ---------------------------------------------------------------- inside

    async def _settle(self) -> None:
        await self._heard()
        while await self.cycle.step():
            await self._heard()

    def _pods_wanted(self, workloads: Sequence[Workload]) -> dict[tuple[str, str], tuple[Workload, dict[str, Any]]]:
        labels = {node.name: node.labels for node in self.nodes}
        return {
            (raw["metadata"]["namespace"], raw["metadata"]["name"]): (workload, raw)
            for workload in workloads
            for raw in pods_of(workload, labels)
        }

    def _reconcile(self, manifests: Manifests) -> None:
        wanted = self._pods_wanted(manifests.workloads)
        for where in [where for where, raw in self._wanted.items() if where not in wanted or wanted[where][1] != raw]:
            self.cluster.delete_pod(*where)
            del self._wanted[where]
        self._create(wanted)

    def _create(self, wanted: Mapping[tuple[str, str], tuple[Workload, dict[str, Any]]]) -> None:
        """The pods that are not there yet; ``denied`` tells of those that the webhook refuses."""
        denied: dict[str, Denied] = {}
        for where, (workload, raw) in wanted.items():
            if where in self._wanted:
                continue
            try:
                self.cluster.create_pod(raw)
            except UserError as error:
                label = f"{workload.kind} {workload.full_name}"
                pods = denied[label].pods + 1 if label in denied else 1
                denied[label] = Denied(label, workload.where, str(error), pods)
            else:
                self._wanted[where] = raw
        self.denied = list(denied.values())

    async def _heard(self) -> None:
        """All followers are up to date; a follower that failed is our bug and shows."""
        hearing = asyncio.create_task(self.cluster.heard())
        await asyncio.wait({hearing, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        self._raise_failures()
        await hearing

    def _raise_failures(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
