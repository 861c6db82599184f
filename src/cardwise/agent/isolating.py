"""Holds containers to their shares: on which step each card stands, limits in force before a start, and still later.

The step is chosen once, when the agent starts, by what the node was found able to do; a card that cannot stand where
the operator wants it is not offered. Refuses to start a container on a limit that was not read back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from cardwise.adapters import wire
from cardwise.adapters.cdi import Edits, Mount
from cardwise.adapters.cgroup import pod_cgroup
from cardwise.adapters.claims import MOST_PROCESSES, PROCESSES, read_claim
from cardwise.adapters.journal import Journal, Row, State
from cardwise.adapters.kube_objects import LocalPod, Metadata
from cardwise.adapters.kubelet.device_plugin import RefusedError
from cardwise.adapters.mps.v3 import namespace_name
from cardwise.adapters.mps.values import SliceLimits
from cardwise.adapters.nvml.driver import Driver
from cardwise.agent.driver_calls import DriverCalls
from cardwise.agent.inventory import Inventory, pod_holds
from cardwise.agent.mps_daemon import Alarm, Supervisor
from cardwise.agent.owners import Owner
from cardwise.agent.telling import to_nobody
from cardwise.agent.watching import NodePods
from cardwise.core.card.handover import FULL_PCT, Grant
from cardwise.core.card.isolation import Hold, Offer, Standing, Unoffered, stand
from cardwise.core.claim import LatencyClass
from cardwise.core.request import Isolation, WorkloadClass
from cardwise.errors import CardError, CardwiseError
from cardwise.files import seen

log = structlog.get_logger()

SOURCE_STEP, SOURCE_MPS = "isolation", "mps"
_GONE = LocalPod(Metadata())


@dataclass(slots=True)
class Isolating:
    """mps: None where no card stands on a step that needs it. cgroups: where the kernel shows them.

    renewed: called when a card begins or ceases to take slices. tell: called with whether MPS is ready, and why not.
    """

    driver: Driver
    inventory: Inventory
    journal: Journal
    pods: NodePods
    mps: Supervisor | None
    cgroups: Path
    renewed: Callable[[], None]
    tell: Callable[[bool, str], None] = to_nobody
    standings: dict[str, Standing] = field(default_factory=dict)
    alarms: dict[str, int] = field(default_factory=dict)
    calls: DriverCalls = field(default_factory=DriverCalls)

    async def start(self) -> None:
        """Take over what runs, and have the daemon. What fails is told, and tried again by the daemon's supervisor."""
        if self.mps is None:
            return
        self.mps.restore(self._restored())
        for uuid in self.mps.card_uuids:
            try:
                await self.calls.call(uuid, partial(self.driver.set_exclusive, uuid, True))
            except CardError as exc:
                log.warning("a process that misses MPS will not fail, but run without limits", why=str(exc))
        try:
            await self.mps.start()
        except CardError as exc:
            log.error("MPS is not ready", why=str(exc))
        self.look()

    # ---------------------------------------------------------------- one start of a container

    async def enforce(self, owner: Owner, grants: Sequence[Grant]) -> Edits:
        """Put limits in force and prove them; what the container needs for that. Raises CardError."""
        for uuid in dict.fromkeys(grant.uuid for grant in grants):
            if uuid in self.standings and self.standings[uuid].kernel_memory:
                await self.calls.call(uuid, partial(self._limit_memory, owner.pod, uuid))
        wanted = [self._slice(owner.pod, grant) for grant in grants if self._by_mps(grant.uuid)]
        if not wanted or self.mps is None:
            return Edits()
        for each in wanted:
            await self.mps.ready(each)
        edits = self.mps.control.edits(wanted)
        return Edits(edits.env, tuple(Mount(*mount) for mount in edits.mounts))

    async def lift(self, row: Row) -> None:
        """Take back a container's limits. Those of its cgroup went with it, for nothing was reserved there."""
        for grant in row.grants:
            if self.mps is not None and grant.uuid in self.mps.card_uuids:  # also if it is shared otherwise by now
                await self.mps.release(namespace_name(grant.slot))

    def _by_mps(self, uuid: str) -> bool:
        return uuid in self.standings and self.standings[uuid].mode is Isolation.MPS

    def _slice(self, pod: LocalPod, grant: Grant) -> SliceLimits:
        """Raises RefusedError if the pod declares what no card can be divided into."""
        claim, _ = read_claim(pod)
        processes = _processes(pod)
        memory_mib = grant.memory_mib or self.inventory.cards[grant.uuid].allocatable_mib
        if memory_mib < processes:
            told = f"{processes} processes, each with 1 MiB at least, do not fit into {memory_mib} MiB"
            raise RefusedError(f"annotation {wire.ANNOTATION_PROCESSES}: {told}; write fewer")
        return SliceLimits(
            namespace_name(grant.slot),
            grant.uuid,
            memory_mib,
            grant.compute_pct or FULL_PCT,
            low_priority=claim.latency is LatencyClass.BEST_EFFORT or claim.workload is WorkloadClass.TRAINING,
            processes=processes,
        )

    def _limit_memory(self, pod: LocalPod, uuid: str) -> None:
        """The driver's limit, on the pod's cgroup: that of the container is not there yet. Raises CardError."""
        path = pod_cgroup(pod.metadata.uid, self.cgroups)
        if path is None:
            raise CardError(uuid, f"pod {pod.name} has no cgroup below {self.cgroups} whose memory could be limited")
        wanted = sum(hold.memory_mib for hold in pod_holds(pod) if hold.uuid == uuid)
        where = str(self.cgroups / path.lstrip("/"))
        self.driver.set_memory_limit(uuid, where, 0, wanted)
        hard = self.driver.memory_limit(uuid, where).hard_mib
        if hard != wanted:
            raise CardError(uuid, f"a limit of {wanted} MiB was set on {where} and {hard} is in force")

    # ---------------------------------------------------------------- later

    def _restored(self) -> Iterable[SliceLimits]:
        """Limits of what was handed over before this process; of a pod that is gone by now, until it is swept."""
        for row in self.journal.rows:
            pod = self.pods.by_uid.get(row.uid, _GONE)
            for grant in row.grants:
                if row.state is State.READY and self._by_mps(grant.uuid) and grant.uuid in self.inventory.cards:
                    try:
                        yield self._slice(pod, grant)
                    except (CardwiseError, ValueError) as exc:  # one pod's nonsense must not end the node's agent
                        log.error("limits of a running container are not restored", pod=row.pod, why=str(exc))

    async def run(self) -> None:
        """Look after the daemon and its limits, until cancelled."""
        if self.mps is not None:
            await self.mps.run(self.hear)

    def hear(self, alarms: Iterable[Alarm]) -> None:
        """Alarms of the MPS daemon's supervisor."""
        for alarm in alarms:
            self.alarms[alarm.kind] = self.alarms.get(alarm.kind, 0) + 1
        self.look()

    def look(self) -> None:
        """Tell the inventory which cards take no slices for want of MPS."""
        if self.mps is None:
            return
        states = {uuid: self.mps.state(uuid) for uuid in self.mps.card_uuids}
        news = [
            self.inventory.report(SOURCE_MPS, uuid, "" if state.ready else f"MPS: {state.why}")
            for uuid, state in states.items()
        ]
        if any(news):
            self.renewed()
        why = next((state.why for state in states.values() if not state.ready), "")
        self.tell(not why, why or "the daemon answers and holds every limit")


def choose_steps(inventory: Inventory, offer: Offer, wish: str) -> dict[str, Standing]:
    """On which step each card and instance stands; tells the inventory of modes, and of what cannot be offered."""
    standings: dict[str, Standing] = {}
    for card in inventory.facts.cards:
        found = stand(card, inventory.facts, offer, wish)
        grounds = found.grounds if isinstance(found, Unoffered) else ()
        inventory.report(SOURCE_STEP, card.uuid, "; ".join(ground.text for ground in grounds))
        if not isinstance(found, Unoffered):
            standings |= dict.fromkeys((card.uuid, *(each.uuid for each in card.usable_instances)), found)
    inventory.modes = {uuid: standing.mode for uuid, standing in standings.items()}
    inventory.binds = frozenset(u for u, standing in standings.items() if standing.guarantee.memory is Hold.BINDS)
    return standings


def _processes(pod: LocalPod) -> int:
    """How many processes of each container share a card, as the pod says. Raises RefusedError if it says nonsense."""
    text = pod.metadata.annotations.get(wire.ANNOTATION_PROCESSES, "1")
    if not (PROCESSES.fullmatch(text) and int(text) <= MOST_PROCESSES):
        told = f"{seen(text)} is no number of processes; write a whole number from 1 to {MOST_PROCESSES}"
        raise RefusedError(f"annotation {wire.ANNOTATION_PROCESSES}: {told}")
    return int(text)
