"""CDI files: the container toolkit's says how a card enters a container, a slot's repeats that for its card.

A slot's file exists only while a container has the slot, so a runtime that finds none creates no container. Refuses to
invent: without the toolkit's description there are no driver libraries to mount, and that is an error.
Source: Container Device Interface 0.8, SPEC.md; nvidia-ctk cdi generate.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from cardwise.errors import ClusterError

TOOLKIT_KIND = "nvidia.com/gpu"
SLOT_KIND = "cardwise.dev/slot"
STATIC, DYNAMIC = Path("/etc/cdi"), Path("/var/run/cdi")
"""Where CDI files lie; ours are written to the second, which a reboot empties."""
LEAST_VERSION = "0.5.0"
_PREFIX = "cardwise.dev-"
_EditsT = dict[str, list[Any]]


class _Device(msgspec.Struct):
    name: str
    container_edits: _EditsT = msgspec.field(name="containerEdits", default_factory=dict)


class _Spec(msgspec.Struct):
    version: str = msgspec.field(name="cdiVersion")
    kind: str
    devices: list[_Device] = []
    container_edits: _EditsT = msgspec.field(name="containerEdits", default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or a file of the host in a container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("rw", "nosuid", "nodev", "bind")


@dataclass(frozen=True, slots=True)
class Edits:
    """What a container gets beside its cards."""

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


def slot_name(slot: str) -> str:
    """The CDI device of a slot, fully qualified."""
    return f"{SLOT_KIND}={slot}"


@dataclass(frozen=True, slots=True)
class Toolkit:
    """What the container toolkit says of this node's cards. common: edits of every container with a card."""

    version: str
    common: _EditsT
    devices: Mapping[str, _EditsT]

    def of_card(self, names: Iterable[str]) -> _EditsT | None:
        """Edits of the card that is known by one of these names, the first that is."""
        return next((self.devices[name] for name in names if name in self.devices), None)


def read_toolkit(folders: Sequence[Path] = (STATIC, DYNAMIC)) -> Toolkit:
    """The toolkit's description of the cards. Later folders win, as for runtimes. Raises ClusterError without one."""
    found: _Spec | None = None
    unreadable: list[str] = []
    for path in (path for folder in folders for path in sorted(folder.glob("*")) if path.suffix in {".json", ".yaml"}):
        try:
            spec = _read(path)
        except (OSError, ValueError, yaml.YAMLError) as exc:
            unreadable.append(f"{path}: {str(exc).splitlines()[0]}")
            continue
        found = spec if spec.kind == TOOLKIT_KIND else found
    if found is None:
        where = " and ".join(map(str, folders))
        known = f" ({'; '.join(unreadable)})" if unreadable else ""
        raise ClusterError(
            f"no CDI file of kind {TOOLKIT_KIND} in {where}{known}: install NVIDIA's container toolkit and run "
            f"nvidia-ctk cdi generate --output={DYNAMIC / 'nvidia.yaml'}",
            retry=True,
        )
    return Toolkit(found.version, found.container_edits, {each.name: each.container_edits for each in found.devices})


def _read(path: Path) -> _Spec:
    text = path.read_bytes()
    if path.suffix == ".json":
        return msgspec.json.decode(text, type=_Spec)
    return msgspec.convert(yaml.safe_load(text), _Spec)


class SlotFiles:
    """The slots' files in one folder."""

    def __init__(self, folder: Path) -> None:
        """Keep them in ``folder``, which is made if it is absent."""
        self._folder = folder

    def write(self, slot: str, toolkit: Toolkit, parts: Sequence[_EditsT], edits: Edits) -> None:
        """A slot's file, in one step: who reads it sees the old one or all of the new. Raises ClusterError."""
        ours: _EditsT = {
            "env": [f"{name}={value}" for name, value in sorted(edits.env.items())],
            "mounts": [
                {"hostPath": each.host_path, "containerPath": each.container_path, "options": list(each.options)}
                for each in edits.mounts
            ],
        }
        merged = {name: told for name, told in _merged([*parts, ours]).items() if told}
        body = {
            "cdiVersion": max(toolkit.version, LEAST_VERSION, key=_version),
            "kind": SLOT_KIND,
            "devices": [{"name": slot, "containerEdits": merged}],
        }
        path = self._path(slot)
        new = path.with_suffix(f".{os.getpid()}.tmp")  # runtimes read .json and .yaml only
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            new.write_bytes(msgspec.json.encode(body))
            new.replace(path)
        except OSError as exc:
            with contextlib.suppress(OSError):
                new.unlink()
            raise ClusterError(f"{path}: {exc.strerror}; the runtime finds no card without it", retry=True) from exc

    def remove(self, slot: str) -> None:
        """Take a slot's file away, if it is there. Raises ClusterError."""
        path = self._path(slot)
        try:
            path.unlink(missing_ok=True)
        except OSError as exc:
            raise ClusterError(f"{path}: {exc.strerror}", retry=True) from exc

    def present(self) -> set[str]:
        """Slots that have a file."""
        return {path.stem.removeprefix(_PREFIX) for path in self._folder.glob(f"{_PREFIX}*.json")}

    def tidy(self) -> None:
        """Take away what a crash left half written."""
        for path in self._folder.glob(f"{_PREFIX}*.tmp"):
            with contextlib.suppress(OSError):
                path.unlink()

    def _path(self, slot: str) -> Path:
        return self._folder / f"{_PREFIX}{slot}.json"


def _merged(parts: Iterable[_EditsT]) -> _EditsT:
    """All edits, each once: a card's device node may stand in several parts."""
    merged: _EditsT = {}
    for part in parts:
        for name, entries in part.items():
            merged[name] = [*merged.get(name, []), *(each for each in entries if each not in merged.get(name, []))]
    return merged


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
