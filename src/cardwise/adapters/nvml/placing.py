"""Where cards are: their names, how far apart they sit, and whether the driver can hold a cgroup to a limit on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pynvml

from cardwise.adapters.nvml.asking import Card, Handle, ask, call
from cardwise.errors import CardError

_NVLINK, _SWITCH, _NUMA, _NODE = range(4)
_LINKS = {0: _SWITCH, 10: _SWITCH, 20: _SWITCH, 30: _NUMA, 40: _NUMA, 50: _NODE}
"""The driver's topology levels as ``placement.links.Link`` values (which is not imported: it needs numpy)."""
_P2P_NVLINK = 2  # by number: other constants of this family are tuples in some releases of the bindings


def open_card(index: int) -> tuple[str, Handle]:
    """UUID and handle of the card at a place of the driver's list."""
    handle = call(f"#{index}", "nvmlDeviceGetHandleByIndex", index)
    return str(call(f"#{index}", "nvmlDeviceGetUUID", handle)), handle


def twins(places: Mapping[int, str]) -> list[tuple[int, str]]:
    """Cards that cannot be told apart: none of them may be handed out."""
    uuids = list(places.values())
    return [(index, uuid) for index, uuid in places.items() if uuids.count(uuid) > 1]


def links_of(card: Card, cards: Sequence[Card]) -> tuple[int, ...]:
    """Distance to each card, itself included; empty where one of them is not told, or was lost just now."""
    try:
        found = [_NVLINK if other is card else _distance(card, other) for other in cards]
    except CardError:
        return ()
    return tuple(link for link in found if link is not None) if None not in found else ()


def _distance(card: Card, other: Card) -> int | None:
    """NVLink is what lets the pair talk over it, be it through a switch; else how far apart they sit on PCIe."""
    if ask(card, "nvmlDeviceGetP2PStatus", other.handle, _P2P_NVLINK) == pynvml.NVML_P2P_STATUS_OK:
        return _NVLINK
    return _LINKS.get(ask(card, "nvmlDeviceGetTopologyCommonAncestor", other.handle))


def limits_memory(card: Card) -> bool:
    """Whether the driver can limit a cgroup on this card: it answers, or takes offence at nothing but the path."""
    try:
        limits_of(card, "/")
    except CardError as error:
        code = getattr(error.__cause__, "value", None)
        return code in (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_FOUND)
    return True


def limits_of(card: Card, cgroup_path: str) -> Handle:
    """The driver's limits on a cgroup: softLimit, hardLimit and currentUsed in bytes."""
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t()
    limits.nameSpace = cgroup_path
    call(card.uuid, "nvmlDeviceGetMemoryLimits_v1", card.handle, limits)
    return limits
