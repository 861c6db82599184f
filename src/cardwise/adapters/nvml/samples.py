"""How a card is now: what the driver tells by several calls, of which older ones know fewer."""

from __future__ import annotations

import pynvml

from cardwise.adapters.nvml.asking import MIB, Card, Handle, ask, ceil_mib, instance_of, memory_of
from cardwise.core.card.facts import CardSample, ProcessUse

RECOVERY_ACTION, PCIE_SENT, PCIE_RECEIVED = 230, 197, 198
"""Field values: the driver's verdict on the card; bytes over PCIe since it started."""
_WIDE = (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Where a field value lies, by its type."""


def sample_of(card: Card, *, measure_pcie: bool) -> CardSample:
    """All that a card tells."""
    memory, load = memory_of(card), ask(card, "nvmlDeviceGetUtilizationRates")
    rows, fields = ask(card, "nvmlDeviceGetRemappedRows"), _fields(card)
    sent, received = _pcie(card, fields, measured=measure_pcie)
    return CardSample(
        uuid=card.uuid,
        gpu_util_pct=None if load is None else load.gpu,
        memory_util_pct=None if load is None else load.memory,
        memory_used_mib=None if memory is None else ceil_mib(memory.used),
        memory_free_mib=None if memory is None else memory.free // MIB,
        sm_clock_mhz=ask(card, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask(card, "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        clock_event_bits=_clock_events(card),
        temperature_c=_temperature(card),
        margin_c=ask(card, "nvmlDeviceGetMarginTemperature"),
        power_w=_watts(ask(card, "nvmlDeviceGetPowerUsage")),
        power_limit_w=_watts(ask(card, "nvmlDeviceGetEnforcedPowerLimit")),
        pcie_tx_kib_s=sent,
        pcie_rx_kib_s=received,
        ecc_uncorrected=_uncorrected(card),
        rows_pending=None if rows is None else bool(rows[2]),
        rows_failed=None if rows is None else bool(rows[3]),
        recovery_action=_number(fields.get(RECOVERY_ACTION)),
        compute_mode=ask(card, "nvmlDeviceGetComputeMode"),
        processes=_processes(card),
    )


def memory_sample_of(card: Card, *, processes: bool) -> CardSample:
    """Its memory alone, with that of its processes if they are asked for."""
    memory = memory_of(card)
    return CardSample(
        uuid=card.uuid,
        memory_used_mib=None if memory is None else ceil_mib(memory.used),
        memory_free_mib=None if memory is None else memory.free // MIB,
        processes=_processes(card, busy=False) if processes else (),
    )


def _pcie(card: Card, fields: dict[int, Handle], *, measured: bool) -> tuple[int | None, int | None]:
    """KiB per second, sent and received, from the card's counters or, where it has none, measured."""
    if measured and PCIE_SENT not in fields:
        sent = ask(card, "nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_TX_BYTES)
        return sent, ask(card, "nvmlDeviceGetPcieThroughput", pynvml.NVML_PCIE_UTIL_RX_BYTES)
    return _rate(card, PCIE_SENT, fields), _rate(card, PCIE_RECEIVED, fields)


def _clock_events(card: Card) -> int | None:
    told = ask(card, "nvmlDeviceGetCurrentClocksEventReasons")
    return told if told is not None else ask(card, "nvmlDeviceGetCurrentClocksThrottleReasons")


def _temperature(card: Card) -> int | None:
    told = ask(card, "nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
    return told if told is not None else ask(card, "nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)


def _uncorrected(card: Card) -> int | None:
    """ECC errors since the driver started."""
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return ask(card, "nvmlDeviceGetTotalEccErrors", kind, since)


def _fields(card: Card) -> dict[int, Handle]:
    """The field values that this card has; one call for all."""
    told = ask(card, "nvmlDeviceGetFieldValues", [RECOVERY_ACTION, PCIE_SENT, PCIE_RECEIVED], nothing=())
    return {value.fieldId: value for value in told or () if value.nvmlReturn == pynvml.NVML_SUCCESS}


def _number(value: Handle | None) -> int | None:
    return None if value is None else int(getattr(value.value, _MEMBERS[value.valueType]))


def _rate(card: Card, counter: int, fields: dict[int, Handle]) -> int | None:
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


def _processes(card: Card, *, busy: bool = True) -> tuple[ProcessUse, ...] | None:
    """Compute processes and clients of MPS. One that is in both lists is a client of MPS.

    busy: with their SM time since it was last asked for.
    """
    plain = ask(card, "nvmlDeviceGetComputeRunningProcesses_v3", nothing=())
    if plain is None:
        return None
    clients = ask(card, "nvmlDeviceGetMPSComputeRunningProcesses_v3", nothing=()) or ()
    times = _sm_pct(card) if busy and (plain or clients) else None
    found = {(p.pid, p.gpuInstanceId): _process(p, times, mps=False) for p in plain}
    found |= {(p.pid, p.gpuInstanceId): _process(p, times, mps=True) for p in clients}
    return tuple(found.values())


def _process(told: Handle, busy: dict[int, int | None] | None, *, mps: bool) -> ProcessUse:
    held = told.usedGpuMemory  # None: not told
    return ProcessUse(
        pid=told.pid,
        memory_mib=None if held is None else ceil_mib(held),
        mps=mps,
        sm_pct=None if busy is None else busy.get(told.pid, None if mps else 0),
        gpu_instance=instance_of(told.gpuInstanceId),
    )


def _sm_pct(card: Card) -> dict[int, int | None] | None:
    """SM time of the processes that were busy since the last call; the newest counts. None: it cannot be told.

    Values above 100 are known to come and mean nothing.
    """
    told = ask(card, "nvmlDeviceGetProcessUtilization", card.processes_seen_us, nothing=())
    if told is None:
        return None
    ordered = sorted(told, key=lambda use: use.timeStamp)
    if ordered:
        card.processes_seen_us = max(card.processes_seen_us, ordered[-1].timeStamp)
    return {use.pid: use.smUtil if use.smUtil <= 100 else None for use in ordered}


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000
