"""How the cards are used: each second the cards' samples to their judge, each ten the processes to their containers.

The driver's events wait on a thread of their own. Refuses to evict: what uses more than it was given, or runs beside
MPS, is told and counted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from cardwise.adapters.cgroup import home_of
from cardwise.adapters.journal import Journal
from cardwise.adapters.nvml import Driver
from cardwise.agent.cards import NOT_YET, Cards
from cardwise.agent.inventory import Inventory
from cardwise.agent.mps_daemon import Alarm, bypasses
from cardwise.agent.watching import NodePods
from cardwise.agent.wellness import Wellness
from cardwise.core.card.facts import CardEvent, CardSample
from cardwise.core.card.health import Problem, ProblemKind
from cardwise.core.card.usage import Container, SliceUse, Stranger, by_instance, slice_uses
from cardwise.core.request import Isolation
from cardwise.errors import CardwiseError

log = structlog.get_logger()

LOOK_S, JOIN_EVERY = 1.0, 10
"""Samples are read each second, processes joined with containers at every tenth."""
SMOOTHING = 0.05
"""Weight of a new second in a card's load: what is told is about the last 20 seconds' mean."""
EVENT_WAIT_MS, EVENT_SPARE_S = 1000, 0.5
EVENT_PAUSE_S = 5.0
MIG_CHANGED = "mig-config"


def _to_nobody() -> None:
    return


@dataclass(slots=True)
class Using:
    """divided: called when a card's MIG instances changed.

    slices, strangers, bypassing: as of the last join. hung: after the end, what still waits for the driver.
    """

    driver: Driver
    cards: Cards
    wellness: Wellness
    inventory: Inventory
    journal: Journal
    pods: NodePods
    proc: Path
    look_s: float = LOOK_S
    event_wait_ms: int = EVENT_WAIT_MS
    divided: Callable[[], None] = _to_nobody
    slices: list[SliceUse] = field(default_factory=list)
    strangers: list[Stranger] = field(default_factory=list)
    bypassing: tuple[Alarm, ...] = ()
    hung: tuple[str, ...] = ()
    _loads: dict[str, float] = field(default_factory=dict)
    _ends: threading.Event = field(default_factory=threading.Event)

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        hearing = threading.Thread(target=self._hear_events, args=(loop,), name="card-events", daemon=True)
        hearing.start()
        self.cards.start()
        turn = 0
        try:
            while True:
                await asyncio.sleep(self.look_s)
                self.look()
                if turn % JOIN_EVERY == 0:
                    self.join()
                turn += 1
        finally:
            self._ends.set()
            self.hung = self.cards.close()
            hearing.join(self.event_wait_ms / 1000 + EVENT_SPARE_S)  # or the driver would be closed under its call
            if hearing.is_alive():
                self.hung = (*self.hung, hearing.name)

    def _hear_events(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._ends.is_set():
            try:
                events = self.driver.events(self.event_wait_ms)
            except CardwiseError as exc:
                log.warning("events of cards cannot be heard", why=str(exc))
                self._ends.wait(EVENT_PAUSE_S)
                continue
            if events and not self._ends.is_set():
                loop.call_soon_threadsafe(self._hear, events)

    def _hear(self, events: Iterable[CardEvent]) -> None:
        for event in events:
            log.warning("card event", card=event.uuid, what=event.kind, xid=event.xid)
            if any(card.uuid == event.uuid for card in self.inventory.facts.cards):
                self.wellness.hear(event.uuid, event)
            if event.kind == MIG_CHANGED:
                self.divided()

    def look(self) -> None:
        """Hand every card's state to its judge, and take its load."""
        for uuid, state in self.cards.states().items():
            if state.stuck:
                self.wellness.hear(uuid, Problem(ProblemKind.STUCK, state.problem or ""))
            elif state.problem is not None and state.problem != NOT_YET:
                self.wellness.hear(uuid, Problem(ProblemKind.LOST, state.problem))
            elif state.sample is not None:
                self.wellness.hear(uuid, state.sample)
                self._take_load(uuid, state.sample)

    def _take_load(self, uuid: str, sample: CardSample) -> None:
        if sample.gpu_util_pct is not None:
            now = sample.gpu_util_pct / 100
            self._loads[uuid] = self._loads.get(uuid, now) * (1 - SMOOTHING) + now * SMOOTHING

    def load(self) -> Mapping[str, float]:
        """Recent utilization of each card that says so, in [0, 1]."""
        return self._loads

    def join(self) -> None:
        """Which container uses what, and which process should not be there."""
        samples = [state.sample for state in self.cards.states().values() if state.sample is not None]
        containers = self._containers({use.pid for sample in samples for use in sample.processes or ()})
        granted = {
            ((row.uid, row.container), grant.uuid): grant.memory_mib
            for row in self.journal.rows
            for grant in row.grants
        }
        cards = {card.uuid: card for card in self.inventory.facts.cards}
        apart = [each for sample in samples for each in by_instance(sample, cards[sample.uuid])]
        self.slices, self.strangers = slice_uses(apart, containers, granted)
        self.bypassing = self._bypasses(samples, containers, granted)

    def _containers(self, pids: Iterable[int]) -> dict[int, Container]:
        names = {
            status.container_id.rpartition("/")[2]: (uid, status.name)
            for uid, pod in self.pods.by_uid.items()
            for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
            if status.container_id
        }
        homes = {pid: home for pid in pids if (home := home_of(pid, self.proc)) is not None}
        return {pid: names.get(home.container_id, (home.pod_uid, "")) for pid, home in homes.items()}

    def _bypasses(
        self,
        samples: Iterable[CardSample],
        containers: Mapping[int, Container],
        granted: Mapping[tuple[Container, str], int],
    ) -> tuple[Alarm, ...]:
        by_mps = [s for s in samples if self.inventory.modes.get(s.uuid) is Isolation.MPS]
        sliced = {
            pid: "/".join(container)
            for pid, container in containers.items()
            if any((container, sample.uuid) in granted for sample in by_mps)
        }
        found = bypasses({sample.uuid: sample.processes or () for sample in by_mps}, sliced)
        for alarm in found:
            if alarm not in self.bypassing:
                log.error("a process runs beside MPS", card=alarm.card_uuid, container=alarm.slice_name)
                self.wellness.teller.of_node("CardwiseBypass", f"card {alarm.card_uuid}: {alarm.text}")
        return found
