"""Files that a user hands us: read whole or refused in one sentence; written whole or not at all.

Every reader of this room meets the same wrong files: missing, a folder, empty, compressed, in another encoding.
Refuses to guess: nothing is unpacked, re-encoded or repaired here; the message says which command does it. Refuses to
replace what is no file of the user's: links are followed, devices and pipes written to, never renamed over.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cardwise.errors import InputError, UserError

LONGEST_SEEN = 60
"""Characters of a wrong value that a message shows: enough to find it, short enough to read."""

_PACKED = {
    b"\x1f\x8b": ("gzip-compressed", "gunzip"),
    b"BZh": ("bzip2-compressed", "bunzip2"),
    b"\xfd7zXZ": ("xz-compressed", "unxz"),
    b"\x28\xb5\x2f\xfd": ("zstd-compressed", "unzstd"),
    b"PK\x03\x04": ("a zip archive", "unzip"),
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_STREAMS = frozenset({stat.S_IFCHR, stat.S_IFIFO})
_STDOUT = 1
_ValueT = TypeVar("_ValueT")


def read_text(path: Path, want: str) -> str:
    """The text of a UTF-8 file, without a byte order mark. ``want`` says what to give instead of a wrong file.

    Raises InputError if the file cannot be read, is empty, compressed or not UTF-8.
    """
    data = _read_bytes(path, want)
    for magic, (what, tool) in _PACKED.items():
        if data.startswith(magic):
            raise InputError(str(path), f"is {what}; run {tool} first and give {want}")
    if data.startswith(_UTF16):
        raise InputError(str(path), f"is UTF-16 (Windows PowerShell's `>` writes that); save it as UTF-8, give {want}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        message = f"byte 0x{data[exc.start]:02x} is not UTF-8; save the file as UTF-8, give {want}"
        raise InputError(str(path), message, line=line) from exc
    if not text.strip():
        raise InputError(str(path), f"is empty; give {want}")
    return text


def read_toml(path: Path, want: str) -> dict[str, Any]:
    """The content of a TOML file. Raises InputError as :func:`read_text`, and if it is not TOML."""
    try:
        return tomllib.loads(read_text(path, want))
    except RecursionError as exc:
        raise InputError(str(path), f"is nested too deep; give {want}") from exc
    except ValueError as exc:  # a TOMLDecodeError, or an integer of more digits than Python reads
        raise InputError(str(path), f"is not TOML: {exc}; give {want}") from exc


def decode_json(text: str | bytes | msgspec.Raw, kind: type[_ValueT]) -> _ValueT:
    """A value of this type from JSON. Raises msgspec.DecodeError whatever is wrong, also if it is nested too deep."""
    try:
        return msgspec.json.decode(text, type=kind)
    except RecursionError as exc:
        raise msgspec.DecodeError("JSON is nested too deep") from exc


def _read_bytes(path: Path, want: str) -> bytes:
    try:
        _refuse_endless(path, want)
        return path.read_bytes()
    except FileNotFoundError as exc:
        raise InputError(str(path), f"no such file; give {want}") from exc
    except OSError as exc:
        raise InputError(str(path), f"cannot be read ({exc.strerror}); give {want}") from exc


def _refuse_endless(path: Path, want: str) -> None:
    """Only regular files end for certain; and the pipes that a shell makes, for it writes the other end."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind == stat.S_IFREG or (kind == stat.S_IFIFO and _is_descriptor(path)):
        return
    raise InputError(str(path), f"is {_KINDS.get(kind, 'no file')}; give {want}")


def _is_descriptor(path: Path) -> bool:
    """``/dev/stdin``, or ``/dev/fd/63`` as a shell's ``<(...)`` writes it."""
    return path == Path("/dev/stdin") or path.parent in {Path("/dev/fd"), Path("/proc/self/fd")}


def is_same(one: Path, other: Path) -> bool:
    """Whether two names, links among them, mean one regular file that exists."""
    try:
        return one.is_file() and one.samefile(other)
    except OSError:
        return False


def check_output(path: Path, inputs: Iterable[Path] = ()) -> None:
    """Refuse before the work what :func:`write_texts` would refuse after it, and to write over an input.

    Raises UserError that says what to give instead.
    """
    for given in inputs:
        if is_same(path, given):
            raise UserError(f"{path}: is read by this command ({given}); give another file to write")
    with _refusing(path):
        target = _target(path)
        if target is None or target.exists():
            _demand(path, os.W_OK)
        if target is not None:
            _demand(target.parent, os.W_OK | os.X_OK)


def _demand(path: Path, mode: int) -> None:
    if not path.exists():
        raise FileNotFoundError(None, f"there is no folder {path}")
    if not os.access(path, mode):
        raise PermissionError(None, f"{path} takes nothing from this user")


def write_text(path: Path, text: str) -> None:
    """Write one file as :func:`write_texts` does."""
    write_texts({path: text})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write several files so that none is ever seen half-written: all beside their places first, then renamed.

    A link is followed to its file. Devices and pipes, such as /dev/stdout, are written to as they are.
    Raises UserError if a file cannot be written; what stood in its place is then untouched.
    """
    parts: dict[Path, tuple[Path, Path]] = {}
    try:
        for path, text in texts.items():
            with _refusing(path):
                target = _target(path)
                if target is None:
                    _stream(path, text)
                    continue
                part = target.with_name(f".{target.name}.{os.getpid()}.part")
                parts[path] = part, target
                part.write_text(text, encoding="utf-8", newline="")
        for path, (part, target) in parts.items():
            with _refusing(path):
                part.replace(target)
    finally:
        for part, _ in parts.values():
            with contextlib.suppress(OSError):  # the folder itself may be what is missing
                part.unlink(missing_ok=True)


def _target(path: Path) -> Path | None:
    """The regular file, there or not yet, that a name means once links are followed; None for a device or a pipe."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    kind = stat.S_IFMT(found.st_mode)
    if kind in _STREAMS or _is_stdout(found):
        return None
    if kind != stat.S_IFREG:
        raise UserError(f"{path}: is {_KINDS.get(kind, 'no file')}; give the name of a file to write")
    return Path(os.path.realpath(path))


def _is_stdout(found: os.stat_result) -> bool:
    """Whether it is where stdout goes: a file there has been opened by the shell, and must not be swapped under it."""
    try:
        return os.path.samestat(found, os.fstat(_STDOUT))
    except OSError:  # stdout is closed
        return False


def _stream(path: Path, text: str) -> None:
    file: Path | int = os.dup(_STDOUT) if _is_stdout(path.stat()) else path
    with open(file, "w", encoding="utf-8", newline="") as stream:  # noqa: PTH123 - a descriptor has no Path
        stream.write(text)


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn the system's word on the part file into one on the file that the user named."""
    try:
        yield
    except OSError as exc:
        message = f"{path}: cannot be written ({exc.strerror}); give a file in a folder that exists and takes files"
        raise UserError(message) from exc


def plain(text: str) -> str:
    """A text of the user's as terminals and files may have it: what is not printable is escaped."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def seen(value: object) -> str:
    """A wrong value as a message shows it: quoted, control characters escaped, cut if long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python prints, or lists in lists in lists
        return "a value too long to show"
    return text if len(text) <= LONGEST_SEEN else f"{text[:LONGEST_SEEN]}…"
