"""The driver, open: facts, samples, events, limits and MIG of this node's cards."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import pynvml

from cardwise.adapters import wire
from cardwise.adapters.aside import Aside, Asides
from cardwise.adapters.nvml.asking import (
    DRIVER_ADVICE,
    MIB,
    Card,
    Handle,
    advice,
    ask,
    call,
    ceil_mib,
    instance_of,
    memory_of,
    node_call,
    why,
)
from cardwise.adapters.nvml.instances import create, destroy, mig_of, profile_of, profiles_of
from cardwise.adapters.nvml.placing import limits_memory, limits_of, links_of, open_card, twins
from cardwise.adapters.nvml.samples import memory_sample_of, sample_of
from cardwise.core.card.facts import CardEvent, CardFacts, CardSample, MemoryLimit, MigInstance, NodeFacts
from cardwise.core.card.mig import Profile
from cardwise.errors import CardError, DriverError

_KeyT = TypeVar("_KeyT", bound=Hashable)
_ValueT = TypeVar("_ValueT")
WITHIN_S = 30.0
"""For a card to say what it is. Without persistence mode a driver wakes its cards one after the other, seconds each."""
WATCH_WITHIN_S = 2.0
"""For cards to be registered for events; one that takes longer is watched when it is done, and the others meanwhile."""
EXCLUSIVE_PROCESS, DEFAULT_MODE = 3, 0
UNLIMITED = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
EVENT_KINDS = {
    0x2: "double-bit-ecc",
    0x8: "xid",
    0x100: "mig-config",
    0x400: "dram-retirement",
    0x800: "dram-retirement-failure",
    0x1000: "poison",
    0x2000: "poison-fatal",
    0x4000: "unavailable",
    0x8000: "recovery-action",
}
"""Kinds of events that are asked for, by the driver's bit."""
XID = 0x8
EVENTS_AT_ONCE = 64


class Driver:
    """The node's driver, open between :meth:`open` and :meth:`close`.

    sys_root: where sysfs is mounted. within_s: how long :meth:`open` and :meth:`facts` wait for cards. measure_pcie:
    where a card does not count its PCIe bytes, measure them; that blocks for 20 ms per direction and sample. Methods
    may be called from several threads, :meth:`sample` of one card from one at a time. Any of them can block for as long
    as the driver does; :meth:`close` releases nothing while a call that :meth:`open`, :meth:`facts` or :meth:`events`
    began has not returned: the process may only end.

    Raises: CardError where one card fails; DriverError where none can be asked.
    """

    def __init__(
        self, *, sys_root: Path = Path("/sys"), measure_pcie: bool = False, within_s: float = WITHIN_S
    ) -> None:
        self._sys_root = sys_root
        self._measure_pcie = measure_pcie
        self._within_s = within_s
        self._asides = Asides()
        self._cards: dict[str, Card] = {}
        self._event_set: Handle | None = None
        self._watches: dict[str, tuple[Handle, Aside[None]]] = {}

    def open(self) -> None:
        """Start the library and find the cards."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            advice = DRIVER_ADVICE.get(error.value, "see nvidia-smi on this node")
            raise DriverError(f"the NVIDIA driver does not start: {error}: {advice}") from error
        self._enumerate()

    def close(self) -> None:
        """Release the library. Not while a call of another thread is under way."""
        self._forget_events()
        self._cards = {}
        if self._asides.hang or self._is_registering():
            return
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ------------------------------------------------------------------ facts

    def facts(self) -> NodeFacts:
        """The driver and its cards as they are now; what a card did not support is asked anew after this.

        Waits ``within_s`` for a card that does not answer; it is then lost, and is no card of this driver.
        """
        places, lost = self._enumerate()
        told = self._each(
            {index: partial(self._card_facts, index, self._card(places[index])) for index in places}, lost
        )
        for index in [index for index in places if lost.get(index) == self._silent]:
            self._cards.pop(places[index], None)
        open_cards = [self._card(facts.uuid) for _, facts in sorted(told.items())]
        links = self._each({("links", card.uuid): partial(links_of, card, open_cards) for card in open_cards}, {})
        limits = self._each({("limits", card.uuid): partial(limits_memory, card) for card in open_cards}, {})
        return NodeFacts(
            driver_version=str(node_call("nvmlSystemGetDriverVersion")),
            cuda_version=int(node_call("nvmlSystemGetCudaDriverVersion_v2")),
            cards=tuple(
                replace(facts, links=links.get(("links", facts.uuid), ())) for _, facts in sorted(told.items())
            ),
            memory_limits=any(limits.values()),
            lost=tuple(f"{index}: {why}" for index, why in sorted(lost.items())),
        )

    def _each(self, calls: Mapping[_KeyT, Callable[[], _ValueT]], lost: dict[_KeyT, str]) -> dict[_KeyT, _ValueT]:
        """What calls for single cards return, all made at once; why one did not goes into ``lost``. DriverError."""
        over = self._asides.together(calls, self._within_s)
        for key in calls:
            if key not in over:
                lost[key] = self._silent
            elif isinstance(failed := over[key].failed, CardError):
                lost[key] = why(failed)
        return {key: each.value() for key, each in over.items() if key not in lost}

    @property
    def _silent(self) -> str:
        return f"the driver has not answered for {self._within_s:g} s; restart the agent once nvidia-smi shows the card"

    def untold(self, uuid: str) -> dict[str, str]:
        """Calls that this card refused since the last :meth:`facts`, and why: their fields are None."""
        return dict(self._card(uuid).untold)

    def _enumerate(self) -> tuple[dict[int, str], dict[int, str]]:
        """Open every card. Returns the UUID at each index, and why an index cannot be opened."""
        lost: dict[int, str] = {}
        count = node_call("nvmlDeviceGetCount")
        opened = self._each({index: partial(open_card, index) for index in range(count)}, lost)
        places: dict[int, str] = {}
        for index, (uuid, handle) in sorted(opened.items()):
            places[index] = uuid
            card = self._cards.setdefault(uuid, Card(uuid, handle))
            card.handle, card.untold = handle, {}
        for index, uuid in twins(places):
            lost[index] = f"another card has its UUID {uuid} too"
            del places[index]
            self._cards.pop(uuid, None)
        return places, lost

    def _card(self, uuid: str) -> Card:
        if uuid not in self._cards:
            raise CardError(uuid, "the driver of this node has no such card")
        return self._cards[uuid]

    def _card_facts(self, index: int, card: Card) -> CardFacts:
        """All but the links."""
        pci = call(card.uuid, "nvmlDeviceGetPciInfo", card.handle)
        memory = memory_of(card)
        if memory is None:
            raise CardError(card.uuid, "it does not tell its memory")
        if memory.total // MIB <= ceil_mib(getattr(memory, "reserved", 0)):
            raise CardError(card.uuid, "it has no memory that could be handed out")
        mig, instances = mig_of(card)
        return CardFacts(
            uuid=card.uuid,
            model=wire.model_token(call(card.uuid, "nvmlDeviceGetName", card.handle)),
            index=index,
            minor=call(card.uuid, "nvmlDeviceGetMinorNumber", card.handle),
            pci_bus_id=pci.busId,
            memory_mib=memory.total // MIB,
            reserved_mib=ceil_mib(getattr(memory, "reserved", 0)),
            compute_capability=ask(card, "nvmlDeviceGetCudaComputeCapability") or (0, 0),
            numa_node=self._numa_node(pci),
            mig=mig,
            instances=instances,
        )

    def _numa_node(self, pci: Handle) -> int | None:
        """From sysfs: the driver's own call is only for cards that are NUMA nodes themselves."""
        device = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        try:
            node = int((self._sys_root / "bus/pci/devices" / device / "numa_node").read_text())
        except (OSError, ValueError):
            return None
        return node if node >= 0 else None

    # ------------------------------------------------------------------ samples

    def sample(self, uuid: str) -> CardSample:
        """The card as it is now. PCIe is the mean since the last sample of this card, None in the first.

        A process that is not busy has 0 percent of SM time; a client of MPS that is not listed has None, for drivers
        differ in whether its time is told for it or for the MPS server.
        """
        return sample_of(self._card(uuid), measure_pcie=self._measure_pcie)

    def memory(self, uuid: str, *, processes: bool) -> CardSample:
        """Only the card's memory, and that of its processes if they are asked for: for several times a second."""
        return memory_sample_of(self._card(uuid), processes=processes)

    # ------------------------------------------------------------------ events

    def events(self, timeout_ms: int) -> list[CardEvent]:
        """What befell the cards since the last call; waits up to ``timeout_ms`` for the first.

        The first call registers all cards: nothing from before it is told. Cards that refuse, or have not answered yet,
        are in :meth:`unwatched`. After a DriverError the next call registers anew.
        """
        self._watch()
        events: list[CardEvent] = []
        while len(events) < EVENTS_AT_ONCE and (event := self._next_event(0 if events else timeout_ms)):
            events.append(event)
        return events

    def unwatched(self) -> dict[str, str]:
        """Cards whose events cannot be had, and why."""
        found: dict[str, str] = {}
        for uuid, (event_set, watch) in list(self._watches.items()):
            if not watch.returned:
                found[uuid] = f"its registration for events has not returned for {watch.age_s:.0f} s"
            elif watch.failed is not None:
                found[uuid] = why(watch.failed) if isinstance(watch.failed, CardError) else str(watch.failed)
            elif event_set is not self._event_set:
                found[uuid] = "it is about to be registered for events anew"
        return found

    def _watch(self) -> None:
        """Register every card in the set of events that lets itself be, but for those that are being registered."""
        if self._event_set is None:
            self._event_set = node_call("nvmlEventSetCreate")
        event_set, new = self._event_set, list[Aside[None]]()
        for card in list(self._cards.values()):  # facts() of another thread may add one
            before = self._watches.get(card.uuid)
            if before is None or (before[0] is not event_set and before[1].returned):
                new.append(Aside(partial(_register, card, event_set), f"events-{card.uuid}"))
                self._watches[card.uuid] = event_set, new[-1]
        end_s = time.monotonic() + WATCH_WITHIN_S
        for watch in new:
            watch.wait(end_s - time.monotonic())
        failed = (watch.failed for watch in new if watch.returned)
        if gone := next((why for why in failed if isinstance(why, DriverError)), None):
            self._forget_events()
            raise gone

    def _is_registering(self) -> bool:
        return any(not watch.returned for _, watch in self._watches.values())

    def _next_event(self, timeout_ms: int) -> CardEvent | None:
        try:
            told = pynvml.nvmlEventSetWait_v2(self._event_set, timeout_ms)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            self._forget_events()
            raise DriverError(f"no events of cards: {error}: {advice(error)}") from error
        kind = EVENT_KINDS.get(told.eventType, f"event-{told.eventType:#x}")
        xid = told.eventData if told.eventType == XID else None
        return CardEvent(self._named(told.device), kind, xid, instance_of(told.gpuInstanceId))

    def _named(self, handle: Handle) -> str:
        """UUID of an event's card. One that is lost no longer says its own, so its handle's address must do."""
        with suppress(pynvml.NVMLError):
            return str(pynvml.nvmlDeviceGetUUID(handle))
        address = ctypes.cast(handle, ctypes.c_void_p).value
        cards = list(self._cards.values())
        same = (card.uuid for card in cards if ctypes.cast(card.handle, ctypes.c_void_p).value == address)
        return next(same, "")

    def _forget_events(self) -> None:
        event_set, self._event_set = self._event_set, None
        if event_set is not None and not self._is_registering():  # else it must stay: the driver may still write there
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(event_set)

    # ------------------------------------------------------------------ limits

    def set_exclusive(self, uuid: str, on: bool) -> None:
        """One process at a time, or any number. In the exclusive mode whatever misses the MPS server fails."""
        card = self._card(uuid)
        call(uuid, "nvmlDeviceSetComputeMode", card.handle, EXCLUSIVE_PROCESS if on else DEFAULT_MODE)

    def set_memory_limit(self, uuid: str, cgroup_path: str, soft_mib: int | None, hard_mib: int | None) -> None:
        """Limit what a cgroup's processes take of this card's memory; None: no limit. Needs driver R615."""
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
        limits.nameSpace = cgroup_path
        limits.softLimit = 0 if soft_mib is None else soft_mib * MIB
        limits.hardLimit = UNLIMITED if hard_mib is None else hard_mib * MIB
        call(uuid, "nvmlDeviceSetMemoryLimits_v1", self._card(uuid).handle, limits)

    def memory_limit(self, uuid: str, cgroup_path: str) -> MemoryLimit:
        """The limit that is in force on a cgroup, and what its processes hold."""
        limits = limits_of(self._card(uuid), cgroup_path)
        return MemoryLimit(
            soft_mib=limits.softLimit // MIB or None,
            hard_mib=None if limits.hardLimit == UNLIMITED else limits.hardLimit // MIB,
            used_mib=ceil_mib(limits.currentUsed),
        )

    # ------------------------------------------------------------------ MIG

    def mig(self, uuid: str) -> tuple[bool | None, tuple[MigInstance, ...]]:
        """Whether MIG is on (None: the card knows none), and the instances: what of :meth:`facts` may change."""
        return mig_of(self._card(uuid))

    def mig_profiles(self, uuid: str) -> tuple[Profile, ...]:
        """The sizes of instances that this card offers, and where each may lie. MIG must be on."""
        card = self._card(uuid)
        return tuple(profile_of(card, told) for told in profiles_of(card))

    def create_instance(self, uuid: str, profile_id: int, start: int) -> MigInstance:
        """Make an instance whose memory begins at slice ``start``. All of it or nothing is made."""
        return create(self._card(uuid), profile_id, start)

    def destroy_instance(self, uuid: str, instance: MigInstance) -> None:
        """Take an instance away, or what is left of one. CardError while a process holds it: it is then whole."""
        destroy(self._card(uuid), instance)


def _register(card: Card, event_set: Handle) -> None:
    """Register a card for the events that it knows and we want."""
    known = call(card.uuid, "nvmlDeviceGetSupportedEventTypes", card.handle)
    wanted = known & sum(EVENT_KINDS)
    if not wanted & XID:
        raise CardError(card.uuid, "it tells no Xid errors")
    call(card.uuid, "nvmlDeviceRegisterEvents", card.handle, wanted, event_set)
