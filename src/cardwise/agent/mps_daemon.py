"""Keeps a node's MPS daemon alive and its limits in force, and says so only after having read them back.

CUDA falls back to its plain mode, without any limit, when no daemon answers: "the variable is set" proves nothing. So a
slice is ready only when the daemon and its server tell its limits; they are asked again on a timer, for a daemon that
was restarted has forgotten them all. A dead daemon is started again with growing pauses, and its limits with it: ready,
not ready and ready again without a restart of the agent (case C30).

Refuses to hide what it mends: a limit that was lost and set again is an alarm too, since a client may have come in
between. Refuses to judge pods: alarms are values, and what follows from them is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import structlog

from cardwise.adapters.mps.values import MpsControl, SliceLimits, difference
from cardwise.core.card.facts import ProcessUse
from cardwise.errors import CardError
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

PERIOD_S = 15.0
"""Between two looks. A look is some five short calls and one or two for each slice."""

LONGEST_PAUSE_S, SETTLED_S = 60.0, 60.0
"""Pauses between starts double from 1 s to the first; they begin anew once a daemon has lived for the second."""

MUTE_LOOKS = 3
"""A daemon that is there and does not answer is left alone for so many looks: killing it costs all its clients."""

AlarmKind = Literal["daemon-dead", "limit-not-in-force", "bypass", "fault"]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something about a card's MPS that someone must know. slice_name: empty if all its slices are meant."""

    kind: AlarmKind
    card_uuid: str
    slice_name: str
    text: str


@dataclass(frozen=True, slots=True)
class MpsState:
    """Whether slices may be started on a card; why not; when that was last seen, on the caller's clock."""

    ready: bool
    why: str
    checked_s: float


@dataclass(slots=True)
class Supervisor:
    """One control daemon, its cards, and the slices that are on them. now_s: a steady clock."""

    control: MpsControl
    card_uuids: tuple[str, ...]
    now_s: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    period_s: float = PERIOD_S
    _slices: dict[str, SliceLimits] = field(default_factory=dict)
    _states: dict[str, MpsState] = field(default_factory=dict)
    _pending: list[Alarm] = field(default_factory=list)
    _leftover: set[str] = field(default_factory=set)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _unapplied: bool = False
    _starts: int = 0
    _mute: int = 0
    _started_s: float = float("-inf")
    _next_start_s: float = float("-inf")
    _said: Said = field(init=False)

    def __post_init__(self) -> None:
        self._said = Said(self.now_s, most=MOST_REMEMBERED)
        self._mark(dict.fromkeys(self.card_uuids, "not looked at yet"))

    def state(self, card_uuid: str) -> MpsState:
        """Return whether slices may be started on one of the cards."""
        return self._states[card_uuid]

    def restore(self, slices: Iterable[SliceLimits]) -> None:
        """Take over slices of before the agent's restart: the next look sets and proves their limits."""
        self._slices.update({one.name: one for one in slices})
        self._unapplied = True

    async def start(self) -> None:
        """Have the daemon, before there is any slice. Raises CardError; :meth:`run` tries again."""
        async with self._lock:
            await self._have_daemon(await self.control.alive())
            self._pending += await self._verify()

    async def stop(self) -> None:
        """End the daemon and with it every client: only when the node gives MPS up."""
        async with self._lock:
            await self.control.stop()
            self._mark(dict.fromkeys(self.card_uuids, "stopped"))

    async def ready(self, wanted: SliceLimits) -> None:
        """Return once the slice's limits are in force. Raises CardError with the reason if they are not."""
        if wanted.card_uuid not in self._states:
            raise CardError(wanted.card_uuid, "not a card of this MPS daemon")
        async with self._lock:
            before = self._slices.get(wanted.name)
            if not (alive := await self.control.alive()):
                self._pending += self._dead()
            if await self._have_daemon(alive):
                self._pending += await self._verify()
            try:
                await self._put_in_force(wanted)
            except (CardError, asyncio.CancelledError):
                await self._back_to(wanted, before)
                raise

    async def release(self, name: str) -> None:
        """Have the daemon forget a slice whose container is gone; no error if it is unknown or the daemon is dead.

        One that we do not know may be the daemon's: an agent that was killed set it, and had not noted that yet.
        """
        async with self._lock:
            self._slices.pop(name, None)
            await self._remove(name)

    async def check(self) -> tuple[Alarm, ...]:
        """Look once, mend what can be mended, return what is or was wrong.

        What lasts is returned at every look, and logged once and then now and then.
        """
        async with self._lock:
            alarms = tuple(dict.fromkeys([*self._pending, *await self._look()]))
            self._pending.clear()
        for alarm in alarms:
            about = {"card": alarm.card_uuid, "slice": alarm.slice_name}
            if self._said.is_news((alarm.kind, *about.values()), alarm.text):
                log.warning("mps", alarm=alarm.kind, **about, text=alarm.text)
        return alarms

    async def run(self, tell: Callable[[tuple[Alarm, ...]], None]) -> None:
        """Look again and again, until cancelled."""
        while True:
            tell(await self.check())
            await self.sleep(self.period_s)

    async def _look(self) -> list[Alarm]:
        alive, alarms = await self.control.alive(), []
        self._mute = 0 if alive else self._mute + self.control.running()
        if not alive:
            alarms = self._dead()
        elif self.now_s() - self._started_s >= SETTLED_S:
            self._starts = 0
        try:
            await self._have_daemon(alive)
            for name in self._leftover - self._slices.keys():
                await self._remove(name)
            return alarms + await self._verify()
        except CardError as exc:  # not slice by slice: each call of a daemon that hangs takes its whole deadline
            self._mark(dict.fromkeys(self.card_uuids, str(exc)))
            return alarms or [Alarm("limit-not-in-force", card_uuid, "", str(exc)) for card_uuid in self.card_uuids]

    def _dead(self) -> list[Alarm]:
        """Mark all cards. No alarm for a daemon that was never there and that nobody needed."""
        why = "the MPS daemon does not answer" if self.control.running() else "the MPS daemon is dead"
        self._mark(dict.fromkeys(self.card_uuids, why))
        if not self._slices and self._started_s == float("-inf"):
            return []
        return [Alarm("daemon-dead", card_uuid, "", why) for card_uuid in self.card_uuids]

    async def _have_daemon(self, alive: bool) -> bool:
        """Have a daemon that knows all slices; returns whether anything had to be done for it."""
        if not alive:
            await self._start()
        if not self._unapplied:
            return False
        for one in self._slices.values():
            await self.control.set_limits(one)
        self._unapplied = False
        return True

    async def _start(self) -> None:
        if self.control.running():
            if self._mute < MUTE_LOOKS:
                raise self._error(f"the MPS daemon does not answer; killed when {MUTE_LOOKS} looks have found it so")
            await self.control.stop()
        if self._next_start_s > self.now_s():
            pause_s = self._next_start_s - self._started_s  # not what is left: the text becomes a condition of the node
            raise self._error(f"the MPS daemon is dead; it is started again after a pause of {pause_s:.0f} s")
        self._mute, self._unapplied, self._started_s = 0, True, self.now_s()
        self._next_start_s = self._started_s + min(LONGEST_PAUSE_S, 2.0**self._starts)
        self._starts += 1
        await self.control.start()
        self._leftover.clear()
        log.info("the MPS daemon was started", starts=self._starts, slices=len(self._slices))

    async def _verify(self) -> list[Alarm]:
        """Read every limit back; set anew what is lost. Marks the cards. Raises CardError if the daemon fails."""
        alarms, why = [], dict.fromkeys(self.card_uuids, "")
        for one in self._slices.values():
            if gap := await self._gap(one):
                await self.control.set_limits(one)
                left = await self._gap(one)
                text = f"{gap}; set again, {'in vain' if left else 'and in force'}"
                alarms.append(Alarm("limit-not-in-force", one.card_uuid, one.name, text))
                why[one.card_uuid] = why[one.card_uuid] or (left and f"slice {one.name}: {left}")
        if fault := await self._fault():
            alarms += [Alarm("fault", card_uuid, "", fault) for card_uuid in self.card_uuids]
            why = dict.fromkeys(self.card_uuids, fault)
        self._mark(why)
        return alarms

    async def _gap(self, one: SliceLimits) -> str:
        """Return how what is in force differs from what the slice was given; empty if it does not."""
        return difference(self.control.wanted(one), await self.control.read_limits(one))

    async def _fault(self) -> str:
        faulty = [server for server in await self.control.servers() if server.faulty]
        return f"MPS server {faulty[0].pid} takes no clients: {faulty[0].status}" if faulty else ""

    async def _put_in_force(self, wanted: SliceLimits) -> None:
        self._slices[wanted.name] = wanted
        await self.control.set_limits(wanted)
        if why := await self._gap(wanted) or await self._fault():
            raise CardError(wanted.card_uuid, f"MPS slice {wanted.name}: {why}")

    async def _back_to(self, refused: SliceLimits, before: SliceLimits | None) -> None:
        """Undo a slice that was refused: what it raised must not stay."""
        if before is not None:
            self._slices[before.name], self._unapplied = before, True
        else:
            del self._slices[refused.name]
            await self._remove(refused.name)

    async def _remove(self, name: str) -> None:
        """What the daemon does not remove is tried again at the next look; a new daemon knows it no more."""
        self._leftover.discard(name)
        try:
            await self.control.remove(name)
        except CardError as exc:
            self._leftover.add(name)
            if self._said.is_news(("leftover", name), str(exc)):
                log.warning("an MPS slice was not removed", slice=name, why=str(exc))

    def _mark(self, why: Mapping[str, str]) -> None:
        now_s = self.now_s()
        self._states.update({card_uuid: MpsState(not text, text, now_s) for card_uuid, text in why.items()})

    def _error(self, text: str) -> CardError:
        return CardError(", ".join(self.card_uuids), text)


def bypasses(processes: Mapping[str, Iterable[ProcessUse]], slices_by_pid: Mapping[int, str]) -> tuple[Alarm, ...]:
    """Return the processes of MPS slices that run on a card without MPS, and so without any limit.

    processes: by card, as the driver lists them. slices_by_pid: host PID → slice, of containers that got MPS slices.
    A process that the driver lists both ways (``M+C`` in nvidia-smi) is a client: no bypass.
    """
    alarms = []
    for card_uuid, uses in processes.items():
        seen = list(uses)
        clients = {use.pid for use in seen if use.mps}
        for pid in dict.fromkeys(use.pid for use in seen if use.pid not in clients and use.pid in slices_by_pid):
            text = f"process {pid} runs on the card without MPS, thus without limits"
            alarms.append(Alarm("bypass", card_uuid, slices_by_pid[pid], text))
    return tuple(alarms)
