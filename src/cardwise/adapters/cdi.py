"""CDI files: the container toolkit's says how a card enters a container, a slot's repeats that for its card.

A slot's file exists only while a container has the slot, so a runtime that finds none creates no container. What others
wrote is read as runtimes read it: unknown edits are kept as they are, and garbage in one file is not the others'.
Refuses to invent: without the toolkit's description there are no driver libraries to mount, and that is an error.
Source: Container Device Interface 0.8, SPEC.md; nvidia-ctk cdi generate.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog
import yaml

from cardwise.errors import ClusterError

log = structlog.get_logger()

TOOLKIT_KIND = "nvidia.com/gpu"
SLOT_KIND = "cardwise.dev/slot"
STATIC, DYNAMIC = Path("/etc/cdi"), Path("/var/run/cdi")
"""Where CDI files lie; ours are written to the second, which a reboot empties."""
LEAST_VERSION = "0.5.0"
_PREFIX = "cardwise.dev-"
MOST_BYTES, MOST_PARTS = 32 << 20, 500_000
"""Of a file that is read; and of what it says, each alias of YAML counted with all that it stands for."""
_EditsT = dict[str, Any]
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML was built with it: ten times as fast."""


class _Device(msgspec.Struct):
    name: str
    container_edits: _EditsT | None = msgspec.field(name="containerEdits", default=None)


class _Spec(msgspec.Struct):
    version: str = msgspec.field(name="cdiVersion")
    kind: str
    devices: list[_Device] | None = None
    container_edits: _EditsT | None = msgspec.field(name="containerEdits", default=None)


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


@dataclass(frozen=True, slots=True)
class _Stamp:
    """A file as it was when it was read: one that is the same in all of this has not changed."""

    mtime_ns: int = 0
    ctime_ns: int = 0
    size: int = 0
    inode: int = 0


@dataclass(frozen=True, slots=True)
class _Read:
    """What a file said. spec: None if it is of another kind, or cannot be read: that is its problem."""

    stamp: _Stamp
    spec: _Spec | None = None
    problem: str = ""


@dataclass(slots=True)
class ToolkitFiles:
    """The toolkit's files in some folders, later ones over earlier ones. A file that has not changed is not read again.

    Readable from several threads: at worst two of them read the same file.
    """

    folders: Sequence[Path] = (STATIC, DYNAMIC)
    _known: dict[Path, _Read] = field(default_factory=dict)

    def read(self) -> Toolkit:
        """The toolkit's description of the cards, as it is now. Raises ClusterError without one."""
        by_folder = [self._read_folder(folder) for folder in self.folders]
        reads = {path: read for found in by_folder for path, read in found.items()}
        self._known = reads
        toolkit = _described([[read.spec for read in found.values() if read.spec] for found in by_folder])
        if toolkit is None:
            raise _missing(self.folders, [read.problem for read in reads.values() if read.problem])
        return toolkit

    def _read_folder(self, folder: Path) -> dict[Path, _Read]:
        try:
            names = sorted(os.listdir(folder))  # noqa: PTH208 - thousands of names, and a Path for few of them
        except OSError:
            return {}
        ours = (name for name in names if name.endswith((".json", ".yaml")) and not name.startswith(_PREFIX))
        reads = {folder / name: self._read(folder / name) for name in ours}
        return {path: read for path, read in reads.items() if read is not None}

    def _read(self, path: Path) -> _Read | None:
        """The file as it is, read only if it changed; None if it is gone."""
        try:
            stamp = _stamp(path.stat())
        except FileNotFoundError:
            return None
        except OSError as exc:
            return self._noted(path, _Read(_Stamp(), problem=f"{path}: {exc.strerror}"))
        known = self._known.get(path)
        return known if known is not None and known.stamp == stamp else self._noted(path, _read(path, stamp))

    def _noted(self, path: Path, read: _Read) -> _Read:
        known = self._known.get(path)
        if read.problem and (known is None or known.problem != read.problem):
            log.warning("a CDI file is skipped", why=read.problem)
        return read


def read_toolkit(folders: Sequence[Path] = (STATIC, DYNAMIC)) -> Toolkit:
    """The toolkit's description of the cards, read anew. Raises ClusterError without one."""
    return ToolkitFiles(folders).read()


def _missing(folders: Sequence[Path], problems: Sequence[str]) -> ClusterError:
    where = " and ".join(map(str, folders))
    known = f" ({'; '.join(problems[:3])})" if problems else ""
    return ClusterError(
        f"no CDI file of kind {TOOLKIT_KIND} in {where}{known}: install NVIDIA's container toolkit and run "
        f"nvidia-ctk cdi generate --output={DYNAMIC / 'nvidia.yaml'}",
        retry=True,
    )


# ---------------------------------------------------------------------- several files


def _described(by_folder: Sequence[Sequence[_Spec]]) -> Toolkit | None:
    """What the files say together: a device of a later folder stands for that of an earlier one.

    One that two files of the same folder describe is nobody's, as for runtimes. Where one file describes all, what it
    says of every container stays apart; else each device carries what its own file says.
    """
    found: dict[str, tuple[_Spec, _Device]] = {}
    for here in by_folder:
        named = [(device.name, spec, device) for spec in here for device in spec.devices or ()]
        times = Counter(name for name, _, _ in named)
        found |= {name: (spec, device) for name, spec, device in named}
        found = {name: each for name, each in found.items() if times[name] < 2}
    specs = [spec for specs in by_folder for spec in specs]
    return _joined(specs, found) if specs else None


def _joined(specs: Sequence[_Spec], found: Mapping[str, tuple[_Spec, _Device]]) -> Toolkit:
    used = [spec for spec in specs if any(each is spec for each, _ in found.values())] or specs[-1:]
    version = max((spec.version for spec in used), key=_version)
    devices = {name: _edits(device.container_edits) for name, (_, device) in found.items()}
    if len(used) == 1:
        return Toolkit(version, _edits(used[0].container_edits), devices)
    folded = {name: merged([_edits(spec.container_edits), devices[name]]) for name, (spec, _) in found.items()}
    return Toolkit(version, {}, folded)


def _edits(told: _EditsT | None) -> _EditsT:
    """Without what is null: that is how Go writes a list that is empty."""
    return {name: value for name, value in (told or {}).items() if value is not None}


# ---------------------------------------------------------------------- one file


def _stamp(found: os.stat_result) -> _Stamp:
    return _Stamp(found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def _read(path: Path, stamp: _Stamp) -> _Read:
    try:
        spec = _parsed(path)
    except Exception as exc:  # noqa: BLE001 - whatever is wrong with a file of others, it is not the others' problem
        why = str(exc).partition("\n")[0] or type(exc).__name__
        return _Read(stamp, problem=f"{path}: {why}")
    return _Read(stamp, spec if spec.kind == TOOLKIT_KIND else None)


def _parsed(path: Path) -> _Spec:
    text = _content(path)
    told = msgspec.json.decode(text) if path.suffix == ".json" else yaml.load(text, Loader=_Loader)  # noqa: S506 - safe
    if isinstance(told, dict) and told.get("kind") != TOOLKIT_KIND:
        return _Spec("", str(told.get("kind"))[:100])
    if _size(told, {}) > MOST_PARTS:
        raise ValueError(f"says more than {MOST_PARTS:,} things, its aliases (*name) written out")
    return msgspec.convert(told, _Spec)


def _content(path: Path) -> bytes:
    """Of a regular file: a pipe of that name must not make us wait for who writes it."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("is no regular file")
        if found.st_size > MOST_BYTES:
            raise ValueError(f"is larger than {MOST_BYTES >> 20} MiB")
        return file.read(MOST_BYTES)


def _size(told: object, known: dict[int, int]) -> int:
    """Parts of what a file says, each alias counted in full."""
    if not isinstance(told, dict | list):
        return 1
    if id(told) not in known:
        known[id(told)] = MOST_PARTS + 1  # within itself it would have no end
        parts = told.values() if isinstance(told, dict) else told
        known[id(told)] = 1 + sum(_size(each, known) for each in parts)
    return known[id(told)]


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
        together = {name: told for name, told in merged([*parts, ours]).items() if told}
        body = {
            "cdiVersion": max(toolkit.version, LEAST_VERSION, key=_version),
            "kind": SLOT_KIND,
            "devices": [{"name": slot, "containerEdits": together}],
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


def merged(parts: Iterable[_EditsT]) -> _EditsT:
    """All edits, each once: a card's device node may stand in several parts. What is no list: the last that says so."""
    found: _EditsT = {}
    for part in parts:
        for name, told in part.items():
            before = found.get(name)
            if isinstance(told, list) and isinstance(before, list):
                found[name] = [*before, *(each for each in told if each not in before)]
            else:
                found[name] = told
    return found


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
