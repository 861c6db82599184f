"""MIG: the sizes that a card offers, where they may lie, and the instances that are there."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress

import pynvml

from cardwise.adapters.nvml.asking import MIB, REFUSED, Card, Handle, ask, call, memory_of, ours
from cardwise.core.card.facts import MigInstance
from cardwise.core.card.mig import Profile
from cardwise.errors import CardError


def mig_of(card: Card) -> tuple[bool | None, tuple[MigInstance, ...]]:
    """Whether MIG is on (None: the card knows none), and the instances."""
    told = ask(card, "nvmlDeviceGetMigMode")
    on = None if told is None else told[0] == 1
    return on, _instances(card) if on else ()


def create(card: Card, profile_id: int, start: int) -> MigInstance:
    """Make an instance whose memory begins at slice ``start``, with all its compute; all of it or nothing is made."""
    told = next((told for told in profiles_of(card) if told.id == profile_id), None)
    if told is None:
        raise CardError(card.uuid, f"it offers no MIG profile {profile_id}")
    place = next((place for place in _placements(card, told) if place.start == start), None)
    if place is None:
        raise CardError(card.uuid, f"MIG profile {profile_id} cannot begin at memory slice {start}")
    name = "nvmlDeviceCreateGpuInstanceWithPlacement"
    gpu_instance = call(card.uuid, name, card.handle, profile_id, ctypes.byref(place))
    try:
        _fill(card, gpu_instance, told.sliceCount)
    except CardError:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlGpuInstanceDestroy(gpu_instance)
        raise
    number = call(card.uuid, "nvmlGpuInstanceGetInfo", gpu_instance).id
    return next(instance for instance in _instances(card) if instance.gpu_instance == number)


def destroy(card: Card, instance: MigInstance) -> None:
    """Take an instance away, or what is left of one. Raises CardError while a process holds it."""
    gpu_instance = call(card.uuid, "nvmlDeviceGetGpuInstanceById", card.handle, instance.gpu_instance)
    if instance.compute_instance >= 0:
        name = "nvmlGpuInstanceGetComputeInstanceById"
        compute_instance = call(card.uuid, name, gpu_instance, instance.compute_instance)
        call(card.uuid, "nvmlComputeInstanceDestroy", compute_instance)
    call(card.uuid, "nvmlGpuInstanceDestroy", gpu_instance)


def profiles_of(card: Card) -> Iterator[Handle]:
    """The profiles that the card offers, as the driver tells them."""
    for slot in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        told = _profile_at(card, slot)
        if told is not None:
            yield told


def _profile_at(card: Card, slot: int) -> Handle | None:
    """The profile at a place of the driver's enumeration; drivers before R520 do not name it."""
    for version in (2, 1):
        try:
            return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card.handle, slot, version)
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                return None
            if version == 1 or error.value not in REFUSED:
                raise ours(card.uuid, "nvmlDeviceGetGpuInstanceProfileInfo", error) from error
    return None


def profile_of(card: Card, told: Handle) -> Profile:
    """A profile as the driver tells it, with where it may lie."""
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


def _profile_name(card: Card, told: Handle) -> str:
    """Such as ``1g.10gb``. Where the driver does not say: the share of the card's memory in eighths, in GB."""
    name = str(getattr(told, "name", "")).removeprefix("MIG ")
    if name:
        return name
    memory = memory_of(card)
    total_mib = memory.total // MIB if memory is not None else told.memorySizeMB
    eighths = round(told.memorySizeMB / total_mib * 8)
    return f"{told.sliceCount}g.{round(eighths / 8 * -(-total_mib // 1024))}gb"


def _placements(card: Card, told: Handle) -> list[Handle]:
    """Where instances of a profile may lie on an empty card."""
    name, count = "nvmlDeviceGetGpuInstancePossiblePlacements", ctypes.c_uint(0)
    call(card.uuid, name, card.handle, told.id, None, ctypes.byref(count))
    places = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    call(card.uuid, name, card.handle, told.id, places, ctypes.byref(count))
    return list(places[: count.value])


def _instances(card: Card) -> tuple[MigInstance, ...]:
    """All instances, half-made ones too: those the driver's list of MIG devices does not show."""
    devices = _mig_devices(card)
    found: list[MigInstance] = []
    for profile in profiles_of(card):
        for gpu_instance in _gpu_instances(card, profile):
            info = call(card.uuid, "nvmlGpuInstanceGetInfo", gpu_instance)
            parts = {ci: told for (gi, ci), told in devices.items() if gi == info.id} or {-1: (-1, "")}
            name = _profile_name(card, profile)
            found += [_mig_instance(name, profile, info, ci, *told) for ci, told in parts.items()]
    return tuple(sorted(found, key=lambda instance: (instance.start, instance.compute_instance)))


def _mig_instance(
    name: str, profile: Handle, info: Handle, compute_instance: int, number: int, uuid: str
) -> MigInstance:
    place = info.placement
    return MigInstance(uuid, name, profile.memorySizeMB, info.id, compute_instance, place.start, place.size, number)


def _mig_devices(card: Card) -> dict[tuple[int, int], tuple[int, str]]:
    """Place in the driver's list and UUID of the card's MIG devices, by GPU instance and compute instance."""
    found: dict[tuple[int, int], tuple[int, str]] = {}
    for place in range(call(card.uuid, "nvmlDeviceGetMaxMigDeviceCount", card.handle)):
        device = ask(card, "nvmlDeviceGetMigDeviceHandleByIndex", place)  # there are gaps
        if device is not None:
            gpu_instance = call(card.uuid, "nvmlDeviceGetGpuInstanceId", device)
            compute_instance = call(card.uuid, "nvmlDeviceGetComputeInstanceId", device)
            found[gpu_instance, compute_instance] = (place, call(card.uuid, "nvmlDeviceGetUUID", device))
    return found


def _gpu_instances(card: Card, profile: Handle) -> list[Handle]:
    count = ctypes.c_uint(profile.instanceCount)
    handles = (pynvml.c_nvmlGpuInstance_t * profile.instanceCount)()
    call(card.uuid, "nvmlDeviceGetGpuInstances", card.handle, profile.id, handles, ctypes.byref(count))
    return list(handles[: count.value])


def _fill(card: Card, gpu_instance: Handle, slices: int) -> None:
    """Make the compute instance that takes all of a GPU instance; both together are what a container gets."""
    offered = (_compute_profile(gpu_instance, slot) for slot in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT))
    told = next((told for told in offered if told is not None and told.sliceCount == slices), None)
    if told is None:
        raise CardError(card.uuid, f"the new MIG instance offers no compute instance of {slices} slices")
    call(card.uuid, "nvmlGpuInstanceCreateComputeInstance", gpu_instance, told.id)


def _compute_profile(gpu_instance: Handle, slot: int) -> Handle | None:
    for version in (2, 1):
        with suppress(pynvml.NVMLError):
            return pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, slot, 0, version)
    return None
