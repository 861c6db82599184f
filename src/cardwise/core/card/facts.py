"""What a node's driver tells of its cards: what they are, how they are now, and what happened to them.

``None`` means that the driver or the card does not say, never zero. Refuses to interpret: that is for ``health.py``,
``isolation.py`` and ``usage.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

SELF, HOST_ONLY = 0, 3
"""``placement.links.Link`` values (which is not imported: it needs numpy)."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG instance that exists. gpu_instance, compute_instance: the driver's ids; start: its first memory slice.

    uuid empty and compute_instance -1: only half of it was made. It takes its place on the card and runs nothing.
    number: its place in the driver's list, which moves as instances come and go; -1 if it is not in it.
    """

    uuid: str
    profile: str
    memory_mib: int
    gpu_instance: int
    compute_instance: int
    start: int
    size: int
    number: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The driver's limit on a cgroup's memory of one card. None: no limit. used_mib: what its processes hold now."""

    soft_mib: int | None
    hard_mib: int | None
    used_mib: int


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What does not change while the driver runs, but for MIG.

    index: place in the driver's list, which moves; minor: of /dev/nvidiaN; pci_bus_id: ``00000000:07:00.0``.
    memory_mib: all of it; reserved_mib: what the driver keeps for itself (measured; 0 if it is not told).
    links: distance to each card of the node in this order, itself included (``placement.links.Link`` values).
    mig: None if the card knows no MIG, else whether it is on.
    """

    uuid: str
    model: str
    index: int
    minor: int
    pci_bus_id: str
    memory_mib: int
    reserved_mib: int = 0
    compute_capability: tuple[int, int] = (0, 0)
    numa_node: int | None = None
    links: tuple[int, ...] = ()
    mig: bool | None = None
    instances: tuple[MigInstance, ...] = ()

    @property
    def allocatable_mib(self) -> int:
        """What may be handed out."""
        return self.memory_mib - self.reserved_mib

    @property
    def usable_instances(self) -> tuple[MigInstance, ...]:
        """Those that a container can have to itself: made whole, and not one of several that share their memory."""
        sharing = Counter(each.gpu_instance for each in self.instances)
        return tuple(each for each in self.instances if each.uuid and sharing[each.gpu_instance] == 1)


@dataclass(frozen=True, slots=True)
class Unit:
    """What is handed out as one card: a card, or an instance of a card with MIG on."""

    card: CardFacts
    instance: MigInstance | None = None

    @property
    def uuid(self) -> str:
        """Of the instance, or of the card."""
        return self.instance.uuid if self.instance else self.card.uuid

    @property
    def allocatable_mib(self) -> int:
        """What may be handed out."""
        return self.instance.memory_mib if self.instance else self.card.allocatable_mib


def units(cards: Sequence[CardFacts]) -> tuple[Unit, ...]:
    """What these cards are handed out as, in order; a card with MIG on is handed out by its instances only."""
    return tuple(
        unit
        for card in cards
        for unit in ([Unit(card, each) for each in card.usable_instances] if card.mig else [Unit(card)])
    )


def links_of(unit: Unit, all_units: Sequence[Unit], cards: Sequence[CardFacts]) -> tuple[int, ...]:
    """Distance to each unit, itself included; empty if the card's are not told. Instances talk over the host only."""
    place = {card.uuid: i for i, card in enumerate(cards)}
    if len(unit.card.links) != len(cards):
        return ()
    return tuple(
        SELF
        if other.uuid == unit.uuid
        else HOST_ONLY
        if unit.instance or other.instance
        else unit.card.links[place[other.card.uuid]]
        for other in all_units
    )


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The driver and its cards. cuda_version: 13040 is 13.4. memory_limits: the driver can limit a cgroup (R615).

    lost: cards that the driver counts and cannot open, as "index: why".
    """

    driver_version: str
    cuda_version: int
    cards: tuple[CardFacts, ...]
    memory_limits: bool = False
    lost: tuple[str, ...] = ()

    @property
    def driver_branch(self) -> int:
        """The release branch, such as 615; 0 if the version is not a number."""
        head = self.driver_version.partition(".")[0]
        return int(head) if head.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process on a card: its host PID, the card's memory it holds, whether it is a client of MPS, its SM time."""

    pid: int
    memory_mib: int | None
    mps: bool = False
    sm_pct: int | None = None
    gpu_instance: int | None = None


@dataclass(frozen=True, slots=True)
class CardSample:
    """A card at one moment. Percent, MiB, MHz, degrees Celsius, watts, KiB per second; events as the driver's bits.

    recovery_action: the driver's verdict: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, … (field 230).
    margin_c: degrees to the nearest slowdown. rows_*: ECC row remapping. compute_mode: 0 default, 2 prohibited,
    3 exclusive process. processes: None where they cannot be told.
    """

    uuid: str
    gpu_util_pct: int | None = None
    memory_util_pct: int | None = None
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    clock_event_bits: int | None = None
    temperature_c: int | None = None
    margin_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    pcie_tx_kib_s: int | None = None
    pcie_rx_kib_s: int | None = None
    ecc_uncorrected: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    recovery_action: int | None = None
    compute_mode: int | None = None
    processes: tuple[ProcessUse, ...] | None = None


@dataclass(frozen=True, slots=True)
class CardEvent:
    """Something that the driver told of a card. xid: the number, or None for another kind, which ``kind`` names.

    uuid empty: the driver told of a card that it can no longer name.
    """

    uuid: str
    kind: str
    xid: int | None = None
    gpu_instance: int | None = None
