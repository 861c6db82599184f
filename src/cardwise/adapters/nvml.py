"""The NVIDIA driver of this node, by NVIDIA's own bindings: what cards there are, how they are, what befalls them.

The only module that imports ``pynvml``: its objects become :mod:`cardwise.core.card.facts`, its errors ours. What the
driver or a card does not support is None in that field, is not asked again until the next :meth:`Driver.facts`, and is
told by :meth:`Driver.untold`. A card whose calls do not return costs neither the facts nor the events of the others.
Refuses to judge, and to guard other calls against that: one thread per card does (``agent/cards.py``). Refuses numpy
too: the agent has a budget of memory.

Cards are told apart by UUID alone: the driver's order and its handles move.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pynvml

from cardwise.adapters import wire
from cardwise.adapters.aside import Aside, Asides
from cardwise.core.card.facts import (
    CardEvent,
    CardFacts,
    CardSample,
    MemoryLimit,
    MigInstance,
    NodeFacts,
    ProcessUse,
)
from cardwise.core.card.mig import Profile
from cardwise.errors import CardError, DriverError

Handle = Any
"""A pointer of the bindings, or a value that they return: they are not typed."""
_KeyT = TypeVar("_KeyT", bound=Hashable)
_ValueT = TypeVar("_ValueT")

WITHIN_S = 30.0
"""For a card to say what it is. Without persistence mode a driver wakes its cards one after the other, seconds each."""
WATCH_WITHIN_S = 2.0
"""For cards to be registered for events; one that takes longer is watched when it is done, and the others meanwhile."""

MIB = 1 << 20
EXCLUSIVE_PROCESS, DEFAULT_MODE = 3, 0
NO_INSTANCE = 0xFFFFFFFF
UNLIMITED = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX
RECOVERY_ACTION, PCIE_SENT, PCIE_RECEIVED = 230, 197, 198
"""Field values: the driver's verdict on the card; bytes over PCIe since it started."""
_WIDE = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Where a field value lies, by its type."""

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

_NVLINK, _SWITCH, _NUMA, _NODE = range(4)
_LINKS = {0: _SWITCH, 10: _SWITCH, 20: _SWITCH, 30: _NUMA, 40: _NUMA, 50: _NODE}
"""The driver's topology levels as ``placement.links.Link`` values (which is not imported: it needs numpy)."""
_P2P_NVLINK = 2  # by number: other constants of this family are tuples in some releases of the bindings

_REFUSED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_CORRUPTED_INFOROM,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
"""The answer will be the same next second."""
_NOTHING = frozenset({pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA})
"""There is nothing to tell. SUCCESS: the bindings raise it where a list's size is asked and the list is empty."""
_NOT_NOW = frozenset({pynvml.NVML_ERROR_NOT_READY, pynvml.NVML_ERROR_INSUFFICIENT_SIZE})
"""Ask again next time. INSUFFICIENT_SIZE: a process came between the two calls that read a list."""

_DRIVER_ADVICE = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not found: install the NVIDIA driver on this node, or"
    " give the agent's pod the node's driver (runtimeClassName: nvidia)",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "the driver's kernel module is not loaded: modprobe nvidia, and see dmesg",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was replaced while its library was loaded: restart the"
    " agent; if that does not help, drain the node and reboot it",
    pynvml.NVML_ERROR_UNINITIALIZED: "the driver is not open",
}
"""Errors that are of no single card, and what to do."""
_CARD_ADVICE = {
    pynvml.NVML_ERROR_NO_PERMISSION: "the agent must run as root, in a privileged container",
    pynvml.NVML_ERROR_GPU_IS_LOST: "it has fallen off the bus: drain the node and reboot it",
    pynvml.NVML_ERROR_RESET_REQUIRED: "drain it and reset it (nvidia-smi --gpu-reset)",
    pynvml.NVML_ERROR_IN_USE: "a process still holds it",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "there is no room for it beside what is there",
}


@dataclass(slots=True)
class _Card:
    """A card that is open, and what is remembered between samples. counters: of PCIe, each with its time."""

    uuid: str
    handle: Handle
    untold: dict[str, str] = field(default_factory=dict)
    processes_seen_us: int = 0
    counters: dict[int, tuple[int, int]] = field(default_factory=dict)


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
        self._cards: dict[str, _Card] = {}
        self._event_set: Handle | None = None
        self._watches: dict[str, tuple[Handle, Aside[None]]] = {}

    def open(self) -> None:
        """Start the library and find the cards."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            advice = _DRIVER_ADVICE.get(error.value, "see nvidia-smi on this node")
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
        links = self._each({("links", card.uuid): partial(_links, card, open_cards) for card in open_cards}, {})
        limits = self._each({("limits", card.uuid): partial(_limits_memory, card) for card in open_cards}, {})
        return NodeFacts(
            driver_version=str(_node_call("nvmlSystemGetDriverVersion")),
            cuda_version=int(_node_call("nvmlSystemGetCudaDriverVersion_v2")),
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
                lost[key] = _why(failed)
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
        count = _node_call("nvmlDeviceGetCount")
        opened = self._each({index: partial(_open, index) for index in range(count)}, lost)
        places: dict[int, str] = {}
        for index, (uuid, handle) in sorted(opened.items()):
            places[index] = uuid
            card = self._cards.setdefault(uuid, _Card(uuid, handle))
            card.handle, card.untold = handle, {}
        for index, uuid in _twins(places):
            lost[index] = f"another card has its UUID {uuid} too"
            del places[index]
            self._cards.pop(uuid, None)
        return places, lost

    def _card(self, uuid: str) -> _Card:
        if uuid not in self._cards:
            raise CardError(uuid, "the driver of this node has no such card")
        return self._cards[uuid]

    def _card_facts(self, index: int, card: _Card) -> CardFacts:
        """All but the links."""
        pci = _call(card.uuid, "nvmlDeviceGetPciInfo", card.handle)
        memory = _memory(card)
        if memory is None:
            raise CardError(card.uuid, "it does not tell its memory")
        if memory.total // MIB <= _ceil_mib(getattr(memory, "reserved", 0)):
            raise CardError(card.uuid, "it has no memory that could be handed out")
        mig, instances = _mig(card)
        return CardFacts(
            uuid=card.uuid,
            model=wire.model_token(_call(card.uuid, "nvmlDeviceGetName", card.handle)),
            index=index,
            minor=_call(card.uuid, "nvmlDeviceGetMinorNumber", card.handle),
            pci_bus_id=pci.busId,
            memory_mib=memory.total // MIB,
            reserved_mib=_ceil_mib(getattr(memory, "reserved", 0)),
            compute_capability=_ask(card, "nvmlDeviceGetCudaComputeCapability") or (0, 0),
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
        card = self._card(uuid)
        memory, load = _memory(card), _ask(card, "nvmlDeviceGetUtilizationRates")
        rows, fields = _ask(card, "nvmlDeviceGetRemappedRows"), _fields(card)
        sent, received = self._pcie(card, fields)
        return CardSample(
            uuid=uuid,
            gpu_util_pct=None if load is None else load.gpu,
            memory_util_pct=None if load is None else load.memory,
            memory_used_mib=None if memory is None else _ceil_mib(memory.used),
            memory_free_mib=None if memory is None else memory.free // MIB,
            sm_clock_mhz=_ask(card, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_ask(card, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
            clock_event_bits=_clock_events(card),
            temperature_c=_temperature(card),
            margin_c=_ask(card, "nvmlDeviceGetMarginTemperature"),
            power_w=_watts(_ask(card, "nvmlDeviceGetPowerUsage")),
            power_limit_w=_watts(_ask(card, "nvmlDeviceGetEnforcedPowerLimit")),
            pcie_tx_kib_s=sent,
            pcie_rx_kib_s=received,
            ecc_uncorrected=_uncorrected(card),
            rows_pending=None if rows is None else bool(rows[2]),
            rows_failed=None if rows is None else bool(rows[3]),
            recovery_action=_number(fields.get(RECOVERY_ACTION)),
            compute_mode=_ask(card, "nvmlDeviceGetComputeMode"),
            processes=_processes(card),
        )

    def memory(self, uuid: str, *, processes: bool) -> CardSample:
        """Only the card's memory, and that of its processes if they are asked for: for several times a second."""
        card = self._card(uuid)
        memory = _memory(card)
        return CardSample(
            uuid=uuid,
            memory_used_mib=None if memory is None else _ceil_mib(memory.used),
            memory_free_mib=None if memory is None else memory.free // MIB,
            processes=_processes(card, busy=False) if processes else (),
        )

    def _pcie(self, card: _Card, fields: dict[int, Handle]) -> tuple[int | None, int | None]:
        """KiB per second, sent and received, from the card's counters or, where it has none, measured."""
        if self._measure_pcie and PCIE_SENT not in fields:
            sent = _ask(card, "nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_TX_BYTES)
            return sent, _ask(card, "nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_RX_BYTES)
        return _rate(card, PCIE_SENT, fields), _rate(card, PCIE_RECEIVED, fields)

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
                found[uuid] = _why(watch.failed) if isinstance(watch.failed, CardError) else str(watch.failed)
            elif event_set is not self._event_set:
                found[uuid] = "it is about to be registered for events anew"
        return found

    def _watch(self) -> None:
        """Register every card in the set of events that lets itself be, but for those that are being registered."""
        if self._event_set is None:
            self._event_set = _node_call("nvmlEventSetCreate")
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
            raise DriverError(f"no events of cards: {error}: {_advice(error)}") from error
        kind = EVENT_KINDS.get(told.eventType, f"event-{told.eventType:#x}")
        xid = told.eventData if told.eventType == XID else None
        return CardEvent(self._named(told.device), kind, xid, _instance(told.gpuInstanceId))

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
        _call(uuid, "nvmlDeviceSetComputeMode", card.handle, EXCLUSIVE_PROCESS if on else DEFAULT_MODE)

    def set_memory_limit(self, uuid: str, cgroup_path: str, soft_mib: int | None, hard_mib: int | None) -> None:
        """Limit what a cgroup's processes take of this card's memory; None: no limit. Needs driver R615."""
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t()
        limits.nameSpace = cgroup_path
        limits.softLimit = 0 if soft_mib is None else soft_mib * MIB
        limits.hardLimit = UNLIMITED if hard_mib is None else hard_mib * MIB
        _call(uuid, "nvmlDeviceSetMemoryLimits_v1", self._card(uuid).handle, limits)

    def memory_limit(self, uuid: str, cgroup_path: str) -> MemoryLimit:
        """The limit that is in force on a cgroup, and what its processes hold."""
        limits = _limits(self._card(uuid), cgroup_path)
        return MemoryLimit(
            soft_mib=limits.softLimit // MIB or None,
            hard_mib=None if limits.hardLimit == UNLIMITED else limits.hardLimit // MIB,
            used_mib=_ceil_mib(limits.currentUsed),
        )

    # ------------------------------------------------------------------ MIG

    def mig(self, uuid: str) -> tuple[bool | None, tuple[MigInstance, ...]]:
        """Whether MIG is on (None: the card knows none), and the instances: what of :meth:`facts` may change."""
        return _mig(self._card(uuid))

    def mig_profiles(self, uuid: str) -> tuple[Profile, ...]:
        """The sizes of instances that this card offers, and where each may lie. MIG must be on."""
        card = self._card(uuid)
        return tuple(_profile(card, told) for told in _profiles(card))

    def create_instance(self, uuid: str, profile_id: int, start: int) -> MigInstance:
        """Make an instance whose memory begins at slice ``start``. All of it or nothing is made."""
        card = self._card(uuid)
        told = next((told for told in _profiles(card) if told.id == profile_id), None)
        if told is None:
            raise CardError(uuid, f"it offers no MIG profile {profile_id}")
        place = next((place for place in _placements(card, told) if place.start == start), None)
        if place is None:
            raise CardError(uuid, f"MIG profile {profile_id} cannot begin at memory slice {start}")
        call = "nvmlDeviceCreateGpuInstanceWithPlacement"
        gpu_instance = _call(uuid, call, card.handle, profile_id, ctypes.byref(place))
        try:
            _fill(card, gpu_instance, told.sliceCount)
        except CardError:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpuInstanceDestroy(gpu_instance)
            raise
        number = _call(uuid, "nvmlGpuInstanceGetInfo", gpu_instance).id
        return next(instance for instance in _instances(card) if instance.gpu_instance == number)

    def destroy_instance(self, uuid: str, instance: MigInstance) -> None:
        """Take an instance away, or what is left of one. CardError while a process holds it: it is then whole."""
        card = self._card(uuid)
        gpu_instance = _call(uuid, "nvmlDeviceGetGpuInstanceById", card.handle, instance.gpu_instance)
        if instance.compute_instance >= 0:
            call = "nvmlGpuInstanceGetComputeInstanceById"
            compute_instance = _call(uuid, call, gpu_instance, instance.compute_instance)
            _call(uuid, "nvmlComputeInstanceDestroy", compute_instance)
        _call(uuid, "nvmlGpuInstanceDestroy", gpu_instance)


# ---------------------------------------------------------------------- asking


def _call(uuid: str, name: str, *args: Handle) -> Handle:
    """Call the driver for a card, which must answer."""
    try:
        return getattr(pynvml, name)(*args)
    except pynvml.NVMLError as error:
        raise _ours(uuid, name, error) from error


def _node_call(name: str) -> Handle:
    """Call the driver for no card in particular."""
    try:
        return getattr(pynvml, name)()
    except pynvml.NVMLError as error:
        raise DriverError(f"{name}: {error}: {_advice(error)}") from error


def _ask(card: _Card, name: str, *args: Handle, key: str = "", nothing: Handle = None) -> Handle:
    """What the card says, or None where it does not. nothing: stands for an answer that is empty.

    key: under which a refusal is remembered, if not the call's name.
    """
    known_as = key or name
    if known_as in card.untold:
        return None
    try:
        return getattr(pynvml, name)(card.handle, *args)
    except pynvml.NVMLError as error:
        if error.value in _NOTHING:
            return nothing
        if error.value in _REFUSED:
            card.untold[known_as] = str(error)
        elif error.value not in _NOT_NOW:
            raise _ours(card.uuid, name, error) from error
        return None


def _ours(uuid: str, name: str, error: Handle) -> CardError | DriverError:
    if error.value in _DRIVER_ADVICE:
        return DriverError(f"{name}: {error}: {_advice(error)}")
    advice = _CARD_ADVICE.get(error.value)
    return CardError(uuid, f"{name}: {error}" + (f": {advice}" if advice else ""))


def _advice(error: Handle) -> str:
    return _DRIVER_ADVICE.get(error.value) or _CARD_ADVICE.get(error.value, "see nvidia-smi and dmesg on this node")


def _why(error: CardError) -> str:
    """Its text without the card."""
    return str(error).removeprefix(f"card {error.card_uuid}: ")


# ---------------------------------------------------------------------- facts


def _open(index: int) -> tuple[str, Handle]:
    """UUID and handle of the card at a place of the driver's list."""
    handle = _call(f"#{index}", "nvmlDeviceGetHandleByIndex", index)
    return str(_call(f"#{index}", "nvmlDeviceGetUUID", handle)), handle


def _twins(places: Mapping[int, str]) -> list[tuple[int, str]]:
    """Cards that cannot be told apart: none of them may be handed out."""
    uuids = list(places.values())
    return [(index, uuid) for index, uuid in places.items() if uuids.count(uuid) > 1]


def _links(card: _Card, cards: Sequence[_Card]) -> tuple[int, ...]:
    """Distance to each card, itself included; empty where one of them is not told, or was lost just now."""
    try:
        found = [_NVLINK if other is card else _distance(card, other) for other in cards]
    except CardError:
        return ()
    return tuple(link for link in found if link is not None) if None not in found else ()


def _distance(card: _Card, other: _Card) -> int | None:
    """NVLink is what lets the pair talk over it, be it through a switch; else how far apart they sit on PCIe."""
    if _ask(card, "nvmlDeviceGetP2PStatus", other.handle, _P2P_NVLINK) == pynvml.NVML_P2P_STATUS_OK:
        return _NVLINK
    return _LINKS.get(_ask(card, "nvmlDeviceGetTopologyCommonAncestor", other.handle))


def _limits_memory(card: _Card) -> bool:
    """Whether the driver can limit a cgroup on this card: it answers, or takes offence at nothing but the path."""
    try:
        _limits(card, "/")
    except CardError as error:
        code = getattr(error.__cause__, "value", None)
        return code in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND)
    return True


def _limits(card: _Card, cgroup_path: str) -> Handle:
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = cgroup_path
    _call(card.uuid, "nvmlDeviceGetMemoryLimits_v1", card.handle, limits)
    return limits


# ---------------------------------------------------------------------- samples


def _memory(card: _Card) -> Handle | None:
    """total, free, used and, but for drivers before R510, reserved; those count what is reserved as used."""
    told = _ask(card, "nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2, key="nvmlDeviceGetMemoryInfo_v2")
    return told if told is not None else _ask(card, "nvmlDeviceGetMemoryInfo")


def _clock_events(card: _Card) -> int | None:
    told = _ask(card, "nvmlDeviceGetCurrentClocksEventReasons")
    return told if told is not None else _ask(card, "nvmlDeviceGetCurrentClocksThrottleReasons")


def _temperature(card: _Card) -> int | None:
    told = _ask(card, "nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
    return told if told is not None else _ask(card, "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)


def _uncorrected(card: _Card) -> int | None:
    """ECC errors since the driver started."""
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return _ask(card, "nvmlDeviceGetTotalEccErrors", kind, since)


def _fields(card: _Card) -> dict[int, Handle]:
    """The field values that this card has; one call for all."""
    told = _ask(card, "nvmlDeviceGetFieldValues", [RECOVERY_ACTION, PCIE_SENT, PCIE_RECEIVED], nothing=())
    return {value.fieldId: value for value in told or () if value.nvmlReturn == pynvml.NVML_SUCCESS}


def _number(value: Handle | None) -> int | None:
    return None if value is None else int(getattr(value.value, _MEMBERS[value.valueType]))


def _rate(card: _Card, counter: int, fields: dict[int, Handle]) -> int | None:
    """KiB per second of a counter of bytes since it was last read. A narrow one overflows within a second: None."""
    value = fields.get(counter)
    if value is None or value.valueType not in _WIDE:
        return None
    now, at_us = _number(value) or 0, int(value.timestamp)
    before, before_us = card.counters.get(counter, (now, at_us))
    card.counters[counter] = (now, at_us)
    if at_us <= before_us or now < before:
        return None
    return int((now - before) / 1024 * 1e6 / (at_us - before_us))


def _processes(card: _Card, *, busy: bool = True) -> tuple[ProcessUse, ...] | None:
    """Compute processes and clients of MPS. One that is in both lists is a client of MPS.

    busy: with their SM time since it was last asked for.
    """
    plain = _ask(card, "nvmlDeviceGetComputeRunningProcesses_v3", nothing=())
    if plain is None:
        return None
    clients = _ask(card, "nvmlDeviceGetMPSComputeRunningProcesses_v3", nothing=()) or ()
    times = _sm_pct(card) if busy and (plain or clients) else None
    found = {(p.pid, p.gpuInstanceId): _process(p, times, mps=False) for p in plain}
    found |= {(p.pid, p.gpuInstanceId): _process(p, times, mps=True) for p in clients}
    return tuple(found.values())


def _process(told: Handle, busy: dict[int, int | None] | None, *, mps: bool) -> ProcessUse:
    held = told.usedGpuMemory  # None: not told
    return ProcessUse(
        pid=told.pid,
        memory_mib=None if held is None else _ceil_mib(held),
        mps=mps,
        sm_pct=None if busy is None else busy.get(told.pid, None if mps else 0),
        gpu_instance=_instance(told.gpuInstanceId),
    )


def _sm_pct(card: _Card) -> dict[int, int | None] | None:
    """SM time of the processes that were busy since the last call; the newest counts. None: it cannot be told.

    Values above 100 are known to come and mean nothing.
    """
    told = _ask(card, "nvmlDeviceGetProcessUtilization", card.processes_seen_us, nothing=())
    if told is None:
        return None
    ordered = sorted(told, key=lambda use: use.timeStamp)
    if ordered:
        card.processes_seen_us = max(card.processes_seen_us, ordered[-1].timeStamp)
    return {use.pid: use.smUtil if use.smUtil <= 100 else None for use in ordered}


def _instance(number: int) -> int | None:
    return None if number == NO_INSTANCE else number


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _ceil_mib(size: int) -> int:
    """What is taken is rounded up, what is free down."""
    return -(-size // MIB)


# ---------------------------------------------------------------------- events


def _register(card: _Card, event_set: Handle) -> None:
    """Register a card for the events that it knows and we want."""
    known = _call(card.uuid, "nvmlDeviceGetSupportedEventTypes", card.handle)
    wanted = known & sum(EVENT_KINDS)
    if not wanted & XID:
        raise CardError(card.uuid, "it tells no Xid errors")
    _call(card.uuid, "nvmlDeviceRegisterEvents", card.handle, wanted, event_set)


# ---------------------------------------------------------------------- MIG


def _mig(card: _Card) -> tuple[bool | None, tuple[MigInstance, ...]]:
    told = _ask(card, "nvmlDeviceGetMigMode")
    on = None if told is None else told[0] == 1
    return on, _instances(card) if on else ()


def _profiles(card: _Card) -> Iterator[Handle]:
    """The profiles that the card offers, as the driver tells them."""
    for slot in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        told = _profile_at(card, slot)
        if told is not None:
            yield told


def _profile_at(card: _Card, slot: int) -> Handle | None:
    """The profile at a place of the driver's enumeration; drivers before R520 do not name it."""
    for version in (2, 1):
        try:
            return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card.handle, slot, version)
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                return None
            if version == 1 or error.value not in _REFUSED:
                raise _ours(card.uuid, "nvmlDeviceGetGpuInstanceProfileInfo", error) from error
    return None


def _profile(card: _Card, told: Handle) -> Profile:
    places = _placements(card, told)
    return Profile(
        name=_profile_name(card, told),
        profile_id=told.id,
        memory_mib=told.memorySizeMB,
        sms=told.multiprocessorCount,
        size=places[0].size if places else 0,
        starts=tuple(sorted(place.start for place in places)),
        most=told.instanceCount,
    )


def _profile_name(card: _Card, told: Handle) -> str:
    """Such as ``1g.10gb``. Where the driver does not say: the share of the card's memory in eighths, in GB."""
    name = str(getattr(told, "name", "")).removeprefix("MIG ")
    if name:
        return name
    memory = _memory(card)
    total_mib = memory.total // MIB if memory is not None else told.memorySizeMB
    eighths = round(told.memorySizeMB / total_mib * 8)
    return f"{told.sliceCount}g.{round(eighths / 8 * -(-total_mib // 1024))}gb"


def _placements(card: _Card, told: Handle) -> list[Handle]:
    """Where instances of a profile may lie on an empty card."""
    call, count = "nvmlDeviceGetGpuInstancePossiblePlacements", ctypes.c_uint(0)
    _call(card.uuid, call, card.handle, told.id, None, ctypes.byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    _call(card.uuid, call, card.handle, told.id, places, ctypes.byref(count))
    return list(places[: count.value])


def _instances(card: _Card) -> tuple[MigInstance, ...]:
    """All instances, half-made ones too: those the driver's list of MIG devices does not show."""
    devices = _mig_devices(card)
    found: list[MigInstance] = []
    for profile in _profiles(card):
        for gpu_instance in _gpu_instances(card, profile):
            info = _call(card.uuid, "nvmlGpuInstanceGetInfo", gpu_instance)
            parts = {ci: told for (gi, ci), told in devices.items() if gi == info.id} or {-1: (-1, "")}
            name = _profile_name(card, profile)
            found += [_mig_instance(name, profile, info, ci, *told) for ci, told in parts.items()]
    return tuple(sorted(found, key=lambda instance: (instance.start, instance.compute_instance)))


def _mig_instance(
    name: str, profile: Handle, info: Handle, compute_instance: int, number: int, uuid: str
) -> MigInstance:
    place = info.placement
    return MigInstance(uuid, name, profile.memorySizeMB, info.id, compute_instance, place.start, place.size, number)


def _mig_devices(card: _Card) -> dict[tuple[int, int], tuple[int, str]]:
    """Place in the driver's list and UUID of the card's MIG devices, by GPU instance and compute instance."""
    found: dict[tuple[int, int], tuple[int, str]] = {}
    for place in range(_call(card.uuid, "nvmlDeviceGetMaxMigDeviceCount", card.handle)):
        device = _ask(card, "nvmlDeviceGetMigDeviceHandleByIndex", place)  # there are gaps
        if device is not None:
            gpu_instance = _call(card.uuid, "nvmlDeviceGetGpuInstanceId", device)
            compute_instance = _call(card.uuid, "nvmlDeviceGetComputeInstanceId", device)
            found[gpu_instance, compute_instance] = (place, _call(card.uuid, "nvmlDeviceGetUUID", device))
    return found


def _gpu_instances(card: _Card, profile: Handle) -> list[Handle]:
    count = ctypes.c_uint(profile.instanceCount)
    handles = (pynvml.c_nvmlGpuInstance_t * profile.instanceCount)()
    _call(card.uuid, "nvmlDeviceGetGpuInstances", card.handle, profile.id, handles, ctypes.byref(count))
    return list(handles[: count.value])


def _fill(card: _Card, gpu_instance: Handle, slices: int) -> None:
    """Make the compute instance that takes all of a GPU instance; both together are what a container gets."""
    offered = (_compute_profile(gpu_instance, slot) for slot in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT))
    told = next((told for told in offered if told is not None and told.sliceCount == slices), None)
    if told is None:
        raise CardError(card.uuid, f"the new MIG instance offers no compute instance of {slices} slices")
    _call(card.uuid, "nvmlGpuInstanceCreateComputeInstance", gpu_instance, told.id)


def _compute_profile(gpu_instance: Handle, slot: int) -> Handle | None:
    for version in (2, 1):
        with suppress(pynvml.NVMLError):
            return pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, slot, 0, version)
    return None
