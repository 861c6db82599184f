"""The kubelet's own record of devices, ``kubelet_internal_checkpoint``: it knows pod UIDs and init containers.

An internal format, unchanged since Kubernetes 1.20: asked only where the pod resources API has no answer. Refuses to
trust its checksum, which is a hash of Go's own making; a file that cannot be read says nothing, and a start is refused.
Source: kubernetes pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from cardwise.errors import ClusterError

FILE = "kubelet_internal_checkpoint"


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str]] = msgspec.field(name="DeviceIDs")


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data


@dataclass(frozen=True, slots=True)
class Entry:
    """A container, by its pod's UID, and the devices that the kubelet gave it."""

    pod_uid: str
    container: str
    ids: frozenset[str]


def read_checkpoint(folder: Path, resource: str) -> list[Entry]:
    """Who was given devices of ``resource``. Raises ClusterError if the file is absent or not as expected."""
    path = folder / FILE
    try:
        told = msgspec.json.decode(path.read_bytes(), type=_Checkpoint)
    except OSError as exc:
        raise ClusterError(f"{path}: {exc.strerror}", retry=True) from exc
    except msgspec.DecodeError as exc:
        raise ClusterError(f"{path}: is not the kubelet's checkpoint of devices: {exc}", retry=True) from exc
    return [
        Entry(entry.pod_uid, entry.container_name, frozenset(id_ for ids in entry.device_ids.values() for id_ in ids))
        for entry in told.data.pod_device_entries or []
        if entry.resource_name == resource
    ]
