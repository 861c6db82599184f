"""Xids: what the driver's numbered faults ask for, by NVIDIA's own catalogue.

Refuses to remember anything: which faults came together is told by who asks.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass


class Action(enum.Enum):
    """What a fault asks for. From CORDON on the card is fenced, the later the harsher."""

    IGNORE = "ignore"
    APP = "app"
    """An application's own fault: counted per pod."""
    WARN = "warn"
    FOLLOW_DRIVER = "follow-driver"
    """The driver's recovery action decides, with the next sample."""
    DEGRADE = "degrade"
    CORDON = "cordon"
    """No new slices; running pods stay."""
    DRAIN = "drain"
    """Running pods may finish, then the card is reset."""
    RESET = "reset"
    """Services move now, then the card is reset."""
    REBOOT = "reboot"
    """Services move now, then the node is rebooted."""

    @property
    def fences(self) -> bool:
        """Whether the card takes no new slices."""
        return self in HARSHNESS

    @property
    def keeps_pods(self) -> bool:
        """Whether what runs on a fenced card may stay for good; else the card waits until it is gone."""
        return self is Action.CORDON

    @property
    def moves_pods(self) -> bool:
        """Whether what runs on the card should move now."""
        return self in {Action.RESET, Action.REBOOT}


HARSHNESS = {Action.CORDON: 1, Action.DRAIN: 2, Action.RESET: 3, Action.REBOOT: 4}


@dataclass(frozen=True, slots=True)
class XidRule:
    """What one Xid asks for, and who says so."""

    action: Action
    source: str


_BUCKETS: tuple[tuple[Action, str, str], ...] = (
    (
        Action.APP,
        "RESTART_APP",
        "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88 89 94 96-105 126-135 139",
    ),
    (Action.IGNORE, "IGNORE", "37 38 43 44 63 66 67 92 93 106 107 121 137 141 152 153 157 160 161"),
    (Action.WARN, "WORKFLOW_XID_45, ignored if another Xid came with it", "45"),
    (Action.RESET, "RESET_GPU", "46 62 64 95 109 110 119 120 136 140 143 155 156 158"),
    (Action.RESET, "WORKFLOW_XID_48, with 63 or 64 drain and reset", "48"),
    (Action.REBOOT, "RESTART_BM", "79"),
    (Action.REBOOT, "CHECK_MECHANICALS", "54"),
    (Action.REBOOT, "CONTACT_SUPPORT", "142"),
    (Action.DEGRADE, "WORKFLOW_NVLINK_ERR, many of them not fatal", "74 144-150"),
    (Action.FOLLOW_DRIVER, "XID_154, the recovery action changed", "154"),
    (Action.FOLLOW_DRIVER, "UPDATE_SWFW, RESTART_VM, CHECK_UVM: not about the card alone", "78 151 159"),
    (Action.WARN, "no resolution given yet", "162-172"),
)


def _numbers(text: str) -> Iterator[int]:
    for part in text.split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


XIDS: Mapping[int, XidRule] = {
    xid: XidRule(action, f"NVIDIA's Xid catalogue of October 2025: {resolution}")
    for action, resolution, xids in _BUCKETS
    for xid in _numbers(xids)
}
"""What NVIDIA says of each Xid. Where NVIDIA's device plugin differs, it is not followed: it ignores 68 and 109, and
marks a card unhealthy for 63, 92 and 94, after which it runs on."""

_UNKNOWN = XidRule(Action.CORDON, "in no table: new work waits until someone has looked")
_MEANINGS: Mapping[int, str] = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "the card stopped processing a channel",
    45: "cleanup after an earlier fault or a kill",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "micro-controller halt",
    63: "memory row remapped",
    64: "memory row could not be remapped",
    74: "NVLink error",
    79: "the card has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    119: "the card's system processor does not answer",
    120: "error of the card's system processor",
    140: "unrecovered ECC error",
    154: "the driver's recovery action changed",
    168: "less memory than before",
}
REMAPPED, DOUBLE_BIT, _CLEANUP, CONTAINED = frozenset({63, 64}), 48, 45, 94


def rule_of(xid: int, overrides: Mapping[int, Action] | None = None) -> XidRule:
    """What an Xid asks for: the operator's word, else the table's, else new work waits (case C34)."""
    if overrides and xid in overrides:
        return XidRule(overrides[xid], "your configuration")
    return XIDS.get(xid, _UNKNOWN)


def action_of(xid: int, recent: Collection[int], overrides: Mapping[int, Action]) -> Action:
    """What to do about an Xid, after others that came just before it: some are one fault together."""
    if xid not in overrides:
        together = {xid, *recent}
        if xid in {*REMAPPED, DOUBLE_BIT} and DOUBLE_BIT in together and together & REMAPPED:
            return Action.DRAIN
        if xid == _CLEANUP and recent:
            return Action.IGNORE
    return rule_of(xid, overrides).action


def name_of(xid: int) -> str:
    """Its number, and what it means where that is known."""
    meaning = _MEANINGS.get(xid, "" if xid in XIDS else "which is in no table")
    return f"Xid {xid}, {meaning}" if meaning else f"Xid {xid}"
