"""CW305: the driver of a node does not answer, or counts cards that it cannot open."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, Check, Finding


def find(facts: Facts) -> Iterable[Finding]:
    """This node's driver, with its own words."""
    nearby = facts.nearby
    if nearby is None:
        return
    places = frozenset({nearby.place})
    if nearby.driver is None:
        cause = f"node {nearby.node}: the NVIDIA driver cannot be asked"
        action = (
            "nvidia-smi on the node says the same; load the driver (modprobe nvidia), or install it for this kernel"
        )
        yield Finding("CW305", f"node {nearby.node}", places, cause, (nearby.driver_why,), action, CERTAIN)
    elif nearby.driver.lost:
        cause = f"node {nearby.node}: {len(nearby.driver.lost)} cards are counted and cannot be opened"
        action = "see dmesg for Xid 79 (fallen off the bus) and reset or reboot; the agent fences such cards"
        yield Finding("CW305", f"node {nearby.node}", places, cause, nearby.driver.lost, action, CERTAIN)


CHECK = Check(
    "CW305",
    "The driver does not answer, or lost cards",
    find,
    frozenset({"CW107", "CW208", "CW301", "CW303", "CW304"}),
    frozenset({"node"}),
)
