"""Calls of the driver: its errors become ours, and what a card refuses is not asked again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml

from cardwise.errors import CardError, DriverError

Handle = Any
"""A pointer of the bindings, or a value that they return: they are not typed."""
MIB = 1 << 20
NO_INSTANCE = 0xFFFFFFFF
REFUSED = frozenset(
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
DRIVER_ADVICE = {
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
class Card:
    """A card that is open, and what is remembered between samples. counters: of PCIe, each with its time."""

    uuid: str
    handle: Handle
    untold: dict[str, str] = field(default_factory=dict)
    processes_seen_us: int = 0
    counters: dict[int, tuple[int, int]] = field(default_factory=dict)


def call(uuid: str, name: str, *args: Handle) -> Handle:
    """Call the driver for a card, which must answer."""
    try:
        return getattr(pynvml, name)(*args)
    except pynvml.NVMLError as error:
        raise ours(uuid, name, error) from error


def node_call(name: str) -> Handle:
    """Call the driver for no card in particular."""
    try:
        return getattr(pynvml, name)()
    except pynvml.NVMLError as error:
        raise DriverError(f"{name}: {error}: {advice(error)}") from error


def ask(card: Card, name: str, *args: Handle, key: str = "", nothing: Handle = None) -> Handle:
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
        if error.value in REFUSED:
            card.untold[known_as] = str(error)
        elif error.value not in _NOT_NOW:
            raise ours(card.uuid, name, error) from error
        return None


def ours(uuid: str, name: str, error: Handle) -> CardError | DriverError:
    """An error of the bindings as one of ours: of the card, or of the driver, with what to do."""
    if error.value in DRIVER_ADVICE:
        return DriverError(f"{name}: {error}: {advice(error)}")
    to_do = _CARD_ADVICE.get(error.value)
    return CardError(uuid, f"{name}: {error}" + (f": {to_do}" if to_do else ""))


def advice(error: Handle) -> str:
    """What to do about an error."""
    return DRIVER_ADVICE.get(error.value) or _CARD_ADVICE.get(error.value, "see nvidia-smi and dmesg on this node")


def why(error: CardError) -> str:
    """Its text without the card."""
    return str(error).removeprefix(f"card {error.card_uuid}: ")


def memory_of(card: Card) -> Handle | None:
    """total, free, used and, but for drivers before R510, reserved; those count what is reserved as used."""
    told = ask(card, "nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2, key="nvmlDeviceGetMemoryInfo_v2")
    return told if told is not None else ask(card, "nvmlDeviceGetMemoryInfo")


def instance_of(number: int) -> int | None:
    """The GPU instance of a number that the driver tells; None outside MIG."""
    return None if number == NO_INSTANCE else number


def ceil_mib(size: int) -> int:
    """What is taken is rounded up, what is free down."""
    return -(-size // MIB)
