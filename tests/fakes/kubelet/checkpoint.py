"""The device manager's file, byte for byte as the kubelet's reader accepts it.

Sources: cm/devicemanager/checkpoint/checkpoint.go, checkpointmanager/checksum, util/store/filestore.go. The checksum is
FNV-1a over go-spew's print of the structure; a kubelet that finds another one starts without the file.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKPOINT = "kubelet_internal_checkpoint"
NO_NUMA_NODE = -1
FNV_OFFSET, FNV_PRIME = 0x811C9DC5, 0x01000193


@dataclass(frozen=True)
class Entry:
    """What one container got of one resource; ``answer`` is the plugin's ContainerAllocateResponse, serialized."""

    pod_uid: str
    container: str
    resource: str
    ids_by_numa: Mapping[int, Sequence[str]]
    answer: bytes


@dataclass(frozen=True)
class Checkpoint:
    entries: Sequence[Entry]
    registered: Mapping[str, Sequence[str]]

    def text(self) -> str:
        """One line, as Go's encoding/json writes it; no entries at all is Go's nil slice."""
        inner = {
            "PodDeviceEntries": [_json_entry(each) for each in self.entries] or None,
            "RegisteredDevices": {name: list(ids) for name, ids in sorted(self.registered.items())},
        }
        return json.dumps({"Data": inner, "Checksum": self.checksum()}, separators=(",", ":"))

    def checksum(self) -> int:
        value = FNV_OFFSET
        for byte in self._spew().encode():
            value = (value ^ byte) * FNV_PRIME % 2**32
        return value

    def _spew(self) -> str:
        entries = _slice(_spew_entry(each) for each in self.entries) if self.entries else "<nil>"
        registered = " ".join(f"{name}:{_slice(ids)}" for name, ids in sorted(self.registered.items()))
        return (
            f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} "
            f"RegisteredDevices:(map[string][]string)map[{registered}]}}"
        )


def read(path: Path) -> Checkpoint | None:
    """None where there is no file, or where its checksum is another: the kubelet goes on without it."""
    if not path.exists():
        return None
    raw = json.loads(path.read_text())
    entries = [
        Entry(
            each["PodUID"],
            each["ContainerName"],
            each["ResourceName"],
            {int(node): ids for node, ids in each["DeviceIDs"].items()},
            base64.b64decode(each["AllocResp"]),
        )
        for each in raw["Data"]["PodDeviceEntries"] or []
    ]
    found = Checkpoint(entries, raw["Data"]["RegisteredDevices"] or {})
    return found if found.checksum() == raw["Checksum"] else None


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Renamed over the old file, so that a reader sees the one or the other."""
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(checkpoint.text())
    Path(name).replace(path)


def _json_entry(entry: Entry) -> dict[str, object]:
    return {
        "PodUID": entry.pod_uid,
        "ContainerName": entry.container,
        "ResourceName": entry.resource,
        "DeviceIDs": dict(sorted((str(node), list(ids)) for node, ids in entry.ids_by_numa.items())),
        "AllocResp": base64.b64encode(entry.answer).decode(),
    }


def _spew_entry(entry: Entry) -> str:
    devices = " ".join(f"{node}:{_slice(ids)}" for node, ids in sorted(entry.ids_by_numa.items()))
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container} "
        f"ResourceName:(string){entry.resource} "
        f"DeviceIDs:(checkpoint.DevicesPerNUMA)map[{devices}] AllocResp:([]uint8){_slice(map(str, entry.answer))}}}"
    )


def _slice(items: Iterable[str]) -> str:
    return f"[{' '.join(items)}]"
