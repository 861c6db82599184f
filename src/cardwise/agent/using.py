"""How the cards are used: each second the cards' samples to their judge, each ten the processes to their containers.

The driver's events wait on a thread of their own; a card whose events are not heard is told. Refuses to evict: what
uses more than it was given, or runs beside MPS, is told and counted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from cardwise.adapters.cgroup import Home, home_of
from cardwise.adapters.journal import Journal
from cardwise.adapters.nvml.driver import Driver
from cardwise.agent.cards import NOT_YET, Cards
from cardwise.agent.inventory import Inventory
from cardwise.agent.mps_daemon import Alarm, bypasses
from cardwise.agent.telling import to_nobody
from cardwise.agent.watching import NodePods
from cardwise.agent.wellness import Wellness
from cardwise.core.card.facts import CardEvent, CardSample
from cardwise.core.card.health_record import Problem, ProblemKind
from cardwise.core.card.usage import Container, SliceUse, Stranger, by_instance, slice_uses
from cardwise.core.request import Isolation
from cardwise.errors import CardwiseError
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

LOOK_S, JOIN_EVERY = 1.0, 10
"""Samples are read each second, processes joined with containers at every tenth."""
SMOOTHING = 0.05
"""Weight of a new second in a card's load: what is told is about the last 20 seconds' mean."""
EVENT_WAIT_MS, EVENT_SPARE_S = 1000, 0.5
EVENT_PAUSE_S, EVENT_HEARD_S = 5.0, 0.1
EVENT_STUCK_S = 10.0
"""For how long the driver may overrun the time that it was told to wait for events."""
MIG_CHANGED = "mig-config"


def _of_a_bug(exc: Exception) -> Exception | None:
    return None if isinstance(exc, CardwiseError) else exc


@dataclass(slots=True)
class Using:
    """divided: called when a card's MIG instances changed.

    deaf: cards whose events are not heard, and why. slices, strangers, bypassing: as of the last join.
    hung: after the end, what still waits for the driver.
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
    event_stuck_s: float = EVENT_STUCK_S
    divided: Callable[[], None] = to_nobody
    deaf: dict[str, str] = field(default_factory=dict)
    slices: list[SliceUse] = field(default_factory=list)
    strangers: list[Stranger] = field(default_factory=list)
    bypassing: tuple[Alarm, ...] = ()
    hung: tuple[str, ...] = ()
    _loads: dict[str, float] = field(default_factory=dict)
    _ends: threading.Event = field(default_factory=threading.Event)
    _asked_s: float | None = None
    _event_problem: str = ""
    _said: Said = field(default_factory=lambda: Said(most=MOST_REMEMBERED))

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
                self._asked_s = time.monotonic()
                events = self.driver.events(self.event_wait_ms)
                self._asked_s, self._event_problem = None, ""
                if events:
                    self._hand_over(events, loop)
            except Exception as exc:  # without this thread no Xid is heard: nothing may end it
                self._asked_s, self._event_problem = None, str(exc) or type(exc).__name__
                if self._said.is_news("events", self._event_problem):
                    log.warning("events of cards cannot be heard", why=self._event_problem, exc_info=_of_a_bug(exc))
                self._ends.wait(EVENT_PAUSE_S)

    def _hand_over(self, events: Iterable[CardEvent], loop: asyncio.AbstractEventLoop) -> None:
        """Have them heard, and wait for that: in a flood of them the loop must come to other things too."""
        heard = threading.Event()
        if not self._ends.is_set():
            loop.call_soon_threadsafe(self._hear, events, heard)
        while not heard.wait(EVENT_HEARD_S) and not self._ends.is_set():
            pass

    def _hear(self, events: Iterable[CardEvent], heard: threading.Event) -> None:
        for event in events:
            try:
                self._hear_one(event)
            except Exception:
                log.exception("an event of a card was not understood", card=event.uuid, what=event.kind)
        heard.set()

    def _hear_one(self, event: CardEvent) -> None:
        log.warning("card event", card=event.uuid, what=event.kind, xid=event.xid)
        if any(card.uuid == event.uuid for card in self.inventory.facts.cards):
            self.wellness.hear(event.uuid, event)
        if event.kind == MIG_CHANGED:
            self.divided()

    def look_for_deaf(self) -> None:
        """Find the cards whose events are not heard; say it of each that is new among them."""
        before, self.deaf = self.deaf, self._deaf_now()
        for uuid in self.deaf.keys() - before.keys():
            text = f"card {uuid}: its events (Xids) are not heard: {self.deaf[uuid]}; samples are still read"
            log.warning("a card's events are not heard", card=uuid, why=self.deaf[uuid])
            self.wellness.teller.of_node("CardwiseEventsNotHeard", text, card=uuid)
        for uuid in before.keys() - self.deaf.keys():
            log.info("a card's events are heard again", card=uuid)

    def _deaf_now(self) -> dict[str, str]:
        all_cards = [card.uuid for card in self.inventory.facts.cards]
        waited_s = 0.0 if (asked_s := self._asked_s) is None else time.monotonic() - asked_s
        if waited_s > self.event_wait_ms / 1000 + self.event_stuck_s:
            return dict.fromkeys(all_cards, f"the driver has not answered for {waited_s:.0f} s")
        if self._event_problem:
            return dict.fromkeys(all_cards, self._event_problem)
        return {uuid: why for uuid, why in self.driver.unwatched().items() if uuid in all_cards}

    def look(self) -> None:
        """Hand every card's state to its judge, and take its load."""
        self.look_for_deaf()
        self.wellness.clear_asked()
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
        homes = {pid: home for pid in pids if (home := self._home_of(pid)) is not None}
        return {pid: names.get(home.container_id, (home.pod_uid, "")) for pid, home in homes.items()}

    def _home_of(self, pid: int) -> Home | None:
        """One process with an odd cgroup is that: no reason to know nothing of the others."""
        try:
            return home_of(pid, self.proc)
        except (OSError, ValueError) as exc:
            if self._said.is_news(pid, str(exc)):
                log.warning("a process cannot be told", pid=pid, why=str(exc))
            return None

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
