"""Scripts the node that the fake NVML plays: which cards, how they are, and what befalls them while a test runs.

Every change is written at once and holds from the next call on. Numbers may also be curves, which the library works
out by the clock: :func:`wave` and :func:`growing`. Refuses nothing: a node may be as odd as a test needs it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from cardwise.core.card.mig import table_of

MIB = 1 << 20
GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, FUNCTION_NOT_FOUND, MISMATCH, UNKNOWN = 15, 4, 3, 13, 18, 999
EVERY_CARD, EVERY_CALL = -1, "*"
SAME_BOARD, ONE_SWITCH, SWITCHES, HOST_BRIDGE, NUMA_NODE, SYSTEM = 0, 10, 20, 30, 40, 50
XID, DOUBLE_BIT, MIG_CHANGED, RECOVERY = 0x8, 0x2, 0x100, 0x8000
WHOLE_CARD = 0xFFFFFFFF
HOUR_MS = 3_600_000

# name, capability, MiB, reserved MiB, W, SM MHz, memory MHz. Totals as nvidia-smi shows them; what the driver keeps
# differs between drivers and is of the right size only.
_MODELS = {
    "A100-40": ("NVIDIA A100-SXM4-40GB", "8.0", 40960, 607, 400, 1410, 1215),
    "A100-80": ("NVIDIA A100-SXM4-80GB", "8.0", 81920, 642, 400, 1410, 1593),
    "H100": ("NVIDIA H100 80GB HBM3", "9.0", 81559, 551, 700, 1980, 2619),
    "H200": ("NVIDIA H200", "9.0", 143771, 615, 700, 1980, 3201),
    "T4": ("Tesla T4", "7.5", 15360, 448, 70, 1590, 5001),
    "A10": ("NVIDIA A10", "8.6", 23028, 512, 150, 1695, 6251),
    "L4": ("NVIDIA L4", "8.9", 23034, 519, 72, 2040, 6251),
}
# By the id that creates an instance: the driver's enumeration, compute slices.
_MIG_SLOTS = {19: (0, 1), 20: (7, 1), 15: (9, 1), 14: (1, 2), 9: (2, 3), 5: (3, 4), 0: (4, 7)}


def wave(low: float, high: float, period_s: float) -> str:
    """A value that swings between two bounds, once there and back in ``period_s``."""
    return f"{low}~{high}~{period_s}"


def growing(per_s: float) -> str:
    """A counter that grows by so much a second."""
    return f"+{per_s}"


class Node:
    """A node of some cards. path: of the state file; beside it the library keeps what is set, and the events.

    The driver is R580 unless told otherwise; ``driver="615.71.05", memory_limits=True`` can limit a cgroup.
    """

    def __init__(
        self, path: Path, *models: str, driver: str = "580.95.05", cuda: int = 13000, memory_limits: bool = False
    ) -> None:
        self.path = path
        self._node: dict[str, object] = {"driver": driver, "cuda": cuda, "memory_limits": int(memory_limits)}
        self._cards = [_card(model, place) for place, model in enumerate(models)]
        self._models = models
        self._lines: list[str] = []
        self.write()

    def use(self, env: dict[str, str] | os._Environ[str]) -> Node:
        """Name this node's state in an environment: the own process's, or one of a process to start."""
        env["FAKE_NVML_STATE"] = str(self.path)
        return self

    def uuid(self, card: int) -> str:
        """UUID of a card by its place."""
        return str(self._cards[card]["uuid"])

    @property
    def uuids(self) -> tuple[str, ...]:
        """UUIDs of all cards, in the driver's order."""
        return tuple(self.uuid(place) for place in range(len(self._cards)))

    def set(self, card: int, **values: object) -> Node:
        """Change values of a card. None: the card does not know that value (any more)."""
        for key, value in values.items():
            name = key.replace("field_", "field.")
            if value is None:
                self._cards[card].pop(name, None)
            else:
                self._cards[card][name] = value
        return self.write()

    def init_fails(self, code: int) -> Node:
        """The driver refuses to start."""
        self._node["init"] = code
        return self.write()

    def lost(self, card: int, *, lost: bool = True) -> Node:
        """The card has fallen off the bus: every call on it fails, the count still has it."""
        return self.set(card, lost=int(lost))

    def hot(self, card: int) -> Node:
        """The card is at its limit: thermal slowdown by software and hardware."""
        return self.set(card, temperature=91, margin=0, clock_events=0x20 | 0x40, sm_clock=540)

    def idle(self, card: int) -> Node:
        """Nothing runs on the card."""
        return self.set(card, gpu_util=0, memory_util=0, clock_events=1, used=0)

    def fail(self, card: int, call: str, code: int) -> Node:
        """A call on a card returns this code (``EVERY_CARD``, ``EVERY_CALL``)."""
        return self._line(f"fail {card} {call} {code}")

    def hang(self, card: int, call: str, ms: int) -> Node:
        """A call on a card takes so long, or until :meth:`heal`."""
        return self._line(f"hang {card} {call} {ms}")

    def heal(self) -> Node:
        """No call fails or hangs any more; a call that hangs now goes on."""
        self._lines = [line for line in self._lines if not line.startswith(("fail", "hang"))]
        return self.write()

    def process(
        self, card: int, pid: int, mib: int | None, *, mps: bool = False, sm: int = -1, instance: int = -1
    ) -> Node:
        """A process on a card, or what it does there now.

        mib None: its memory is not told; sm: percent, -1 for idle; instance: of MIG.
        """
        held = mib * MIB if mib is not None else 2**64 - 1
        line = f"process {card} {pid} {held} {'M' if mps else 'C'} {instance} {sm}"
        place = [each for each in self._lines if each.startswith(f"process {card} {pid} ")]
        self._lines = [each for each in self._lines if each not in place or each.split()[5] != str(instance)]
        return self._line(line)

    def gone(self, pid: int) -> Node:
        """A process ended."""
        self._lines = [line for line in self._lines if not (line.startswith("process") and line.split()[2] == str(pid))]
        return self.write()

    def mig(self, card: int, *, on: bool = True) -> Node:
        """MIG mode of a card; it starts without instances."""
        return self.set(card, mig=int(on))

    def topology(self, a: int, b: int, level: int) -> Node:
        """How far two cards are from each other; ``SYSTEM`` unless told."""
        return self._line(f"topology {a} {b} {level}")

    def nvlink(self, *cards: int) -> Node:
        """All of these cards see each other over NVLink."""
        for a in cards:
            self._lines += [f"nvlink {a} {b} 1" for b in cards if b > a]
        return self.write()

    def held(self, cgroup: str, mib: int) -> Node:
        """What a cgroup's processes hold, as the memory limit's reading tells it."""
        return self._line(f"held {mib * MIB} {cgroup}")

    def event(self, card: int, bits: int, value: int = 0, *, instance: int = WHOLE_CARD) -> None:
        """Something happens on a card, now."""
        with self.path.with_name(self.path.name + ".events").open("a") as file:
            file.write(f"{card} {bits:x} {value} {instance} {instance}\n")

    def xid(self, card: int, number: int, *, instance: int = WHOLE_CARD) -> None:
        """An Xid, now."""
        self.event(card, XID, number, instance=instance)

    def write(self) -> Node:
        """Put the state in place, whole: a reader sees the old one or the new one."""
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text("\n".join([*self._head(), *self._lines]) + "\n")
        beside.replace(self.path)
        return self

    def _line(self, line: str) -> Node:
        self._lines.append(line)
        return self.write()

    def _head(self) -> list[str]:
        lines = [f"node {key} {value}" for key, value in self._node.items()]
        for place, card in enumerate(self._cards):
            lines += [f"card {place} {key} {value}" for key, value in card.items()]
            lines += _profiles(place, self._models[place])
        return lines


def _card(model: str, place: int) -> dict[str, object]:
    """A card of a model that does some work."""
    name, capability, mib, reserved, watts, sm, memory = _MODELS[model]
    uuid = f"GPU-{place:08x}-5ca1-ab1e-fade-{sum(model.encode()):012x}"
    known: dict[str, object] = {
        "uuid": uuid,
        "name": name,
        "minor": place,
        "bus": f"00000000:{0x07 + place:02X}:00.0",
        "capability": capability,
        "memory": mib * MIB,
        "reserved": reserved * MIB,
        "used": mib // 4 * MIB,
        "gpu_util": 40,
        "memory_util": 25,
        "sm_clock": sm,
        "memory_clock": memory,
        "clock_events": 0,
        "temperature": 55,
        "margin": 32,
        "power_mw": watts * 600,
        "power_limit_mw": watts * 1000,
        "pcie_tx_kb": 120000,
        "pcie_rx_kb": 340000,
        "ecc_uncorrected": 0,
        "ecc_corrected": 0,
        "field.230": 0,
        "event_types": 0xFFFF & ~0x40,
    }
    if table_of(name):
        known |= {"mig": 0}
    if model != "T4":  # Turing retires pages instead; its driver counts no bytes
        known |= {"rows_pending": 0, "rows_failed": 0, "field.197": growing(2e9), "field.198": growing(5e9)}
    return known


def _profiles(place: int, model: str) -> list[str]:
    """The MIG profiles of a card, as lines; one variant with the media engines among them."""
    table = table_of(_MODELS[model][0])
    media = [replace(table[0], name=f"{table[0].name}+me", profile_id=20, most=1)] if table else []
    lines = []
    for each in (*table, *media):
        slot, slices = _MIG_SLOTS[each.profile_id]
        starts = ",".join(str(start) for start in each.starts)
        sizes = f"{each.memory_mib} {slices} {each.sms} {each.most} {each.size} {starts}"
        lines.append(f"profile {place} {slot} {each.profile_id} {each.name} {sizes}")
    return lines
