"""CDI names → container edits, as the runtime's CDI cache does it.

Source: container-device-interface, pkg/cdi/cache.go (refresh, InjectDevices), spec.go, device.go, container-edits.go,
specs-go/version.go. A file with a fault, even an unknown field, is as good as absent; a device that two files of one
folder define is absent too; a later folder wins over an earlier one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.kubelet.faults import CREATE_CONTAINER, ContainerError

SUFFIXES = (".json", ".yaml")
VERSIONS = (*((0, minor, 0) for minor in range(1, 9)), (1, 0, 0), (1, 1, 0))
SPEC_FIELDS = {"cdiVersion", "kind", "annotations", "devices", "containerEdits"}
DEVICE_FIELDS = {"name", "annotations", "containerEdits"}
EDIT_FIELDS = {"env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids"}
NODE_FIELDS = {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}
MOUNT_FIELDS = {"hostPath", "containerPath", "options", "type"}
HOOK_FIELDS = {"hookName", "path", "args", "env", "timeout"}
HOOK_NAMES = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
KIND = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


@dataclass
class Edits:
    """All that is to be done to a container, in order."""

    env: list[str] = field(default_factory=list)
    device_nodes: list[Mapping[str, Any]] = field(default_factory=list)
    mounts: list[Mapping[str, Any]] = field(default_factory=list)
    hooks: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, raw: Mapping[str, Any]) -> None:
        self.env += raw.get("env") or []
        self.device_nodes += raw.get("deviceNodes") or []
        self.mounts += raw.get("mounts") or []
        self.hooks += raw.get("hooks") or []


@dataclass(frozen=True)
class Definition:
    """A device and the file it stands in."""

    spec: Mapping[str, Any]
    path: Path
    priority: int
    edits: Mapping[str, Any]


def resolve(names: Sequence[str], folders: Iterable[Path]) -> Edits:
    """The edits of these devices: those of a file once, before its first device. Raises ContainerError."""
    known = definitions(folders)
    absent = [name for name in names if name not in known]
    if absent:
        words = f"CDI device injection failed: unresolvable CDI devices {', '.join(absent)}"
        raise ContainerError(CREATE_CONTAINER, f"failed to create containerd container: {words}")
    edits, seen = Edits(), set()
    for name in names:
        device = known[name]
        if device.path not in seen:
            seen.add(device.path)
            edits.add(device.spec.get("containerEdits") or {})
        edits.add(device.edits)
    return edits


def definitions(folders: Iterable[Path]) -> dict[str, Definition]:
    """Every device that the runtime knows, by its full name."""
    known: dict[str, Definition] = {}
    conflicts = set()
    for priority, folder in enumerate(folders):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            for name, device in _devices_of(path, priority):
                if name in known and known[name].priority == priority:
                    conflicts.add(name)
                known[name] = device
    return {name: device for name, device in known.items() if name not in conflicts}


def faults(path: Path) -> list[str]:
    """Why the runtime would not read this file; empty where it would."""
    try:
        text = path.read_text()
        spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        return [str(error)]
    return list(_spec_faults(spec)) if isinstance(spec, dict) else ["no Spec data"]


def _devices_of(path: Path, priority: int) -> list[tuple[str, Definition]]:
    if path.suffix not in SUFFIXES or path.is_dir() or faults(path):
        return []
    spec = yaml.safe_load(path.read_text())  # JSON is YAML
    return [
        (f"{spec['kind']}={each['name']}", Definition(spec, path, priority, each["containerEdits"]))
        for each in spec["devices"]
    ]


def _spec_faults(spec: Mapping[str, Any]) -> Iterable[str]:
    yield from _unknown("spec", spec, SPEC_FIELDS)
    if not KIND.fullmatch(str(spec.get("kind", ""))):
        yield f"invalid kind {spec.get('kind')!r}"
    yield from _edit_faults("spec", spec.get("containerEdits") or {})
    devices = spec.get("devices") or []
    if not devices:
        yield "invalid spec, no devices"
    if len({each.get("name") for each in devices}) < len(devices):
        yield "invalid spec, multiple device"
    for each in devices:
        yield from _device_faults(each)
    yield from _version_faults(spec)


def _device_faults(device: Mapping[str, Any]) -> Iterable[str]:
    name, edits = str(device.get("name", "")), device.get("containerEdits") or {}
    yield from _unknown(f"device {name}", device, DEVICE_FIELDS)
    if not DEVICE_NAME.fullmatch(name):
        yield f"invalid device name {name!r}"
    if not any(edits.values()):
        yield f"invalid device {name}, empty device edits"
    yield from _edit_faults(f"device {name}", edits)


def _edit_faults(where: str, edits: Mapping[str, Any]) -> Iterable[str]:
    yield from _unknown(where, edits, EDIT_FIELDS)
    for variable in edits.get("env") or []:
        if str(variable).find("=") <= 0:
            yield f"{where}: invalid environment variable {variable!r}"
    for node in edits.get("deviceNodes") or []:
        yield from _unknown(f"{where}: device node", node, NODE_FIELDS)
        if not node.get("path"):
            yield f"{where}: invalid (empty) device path"
    for mount in edits.get("mounts") or []:
        yield from _unknown(f"{where}: mount", mount, MOUNT_FIELDS)
        if not (mount.get("hostPath") and mount.get("containerPath")):
            yield f"{where}: invalid mount, empty path"
    for hook in edits.get("hooks") or []:
        yield from _unknown(f"{where}: hook", hook, HOOK_FIELDS)
        if hook.get("hookName") not in HOOK_NAMES or not hook.get("path"):
            yield f"{where}: invalid hook {hook.get('hookName')!r}"


def _version_faults(spec: Mapping[str, Any]) -> Iterable[str]:
    told = str(spec.get("cdiVersion", "")).removeprefix("v")
    version = tuple(int(part) for part in told.split(".")) if re.fullmatch(r"\d+\.\d+\.\d+", told) else ()
    if version not in VERSIONS:
        yield f"invalid version {told!r}"
    elif version < (least := _least_version(spec)):
        yield f"the spec version must be at least v{'.'.join(map(str, least))}"


def _least_version(spec: Mapping[str, Any]) -> tuple[int, int, int]:
    devices = spec.get("devices") or []
    edits = [each.get("containerEdits") or {} for each in (spec, *devices)]
    needs = [(0, 3, 0)]
    if any(mount.get("type") for each in edits for mount in each.get("mounts") or []):
        needs.append((0, 4, 0))
    if any(node.get("hostPath") for each in edits for node in each.get("deviceNodes") or []):
        needs.append((0, 5, 0))
    if any(str(each.get("name", ""))[:1].isdigit() for each in devices):
        needs.append((0, 5, 0))
    if "." in str(spec.get("kind", "")).partition("/")[2] or any(each.get("annotations") for each in (spec, *devices)):
        needs.append((0, 6, 0))
    if any(each.get("additionalGids") or each.get("intelRdt") for each in edits):
        needs.append((0, 7, 0))
    if any(each.get("netDevices") for each in edits):
        needs.append((1, 1, 0))
    return max(needs)


def _unknown(where: str, raw: Mapping[str, Any], fields: set[str]) -> Iterable[str]:
    """The runtime's reader is strict."""
    for name in raw.keys() - fields:
        yield f"{where}: unknown field {name!r}"
