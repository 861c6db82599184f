"""Files that a user hands us: read whole or refused in one sentence; written whole or not at all.

Every reader of this room meets the same wrong files: missing, a folder, empty, compressed, in another encoding.
Refuses to guess: nothing is unpacked, re-encoded or repaired here; the message says which command does it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

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


def _read_bytes(path: Path, want: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as exc:
        raise InputError(str(path), f"no such file; give {want}") from exc
    except IsADirectoryError as exc:
        raise InputError(str(path), f"is a directory; give {want}") from exc
    except OSError as exc:
        raise InputError(str(path), f"cannot be read ({exc.strerror}); give {want}") from exc


def write_text(path: Path, text: str) -> None:
    """Write one file as :func:`write_texts` does."""
    write_texts({path: text})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write several files so that none is ever seen half-written: all beside their places first, then renamed.

    Raises UserError if a file cannot be written; what stood in its place is then untouched.
    """
    parts = {path: path.with_name(f".{path.name}.{os.getpid()}.part") for path in texts}
    try:
        for path, text in texts.items():
            with _refusing(path):
                parts[path].write_text(text, encoding="utf-8", newline="")
        for path, part in parts.items():
            with _refusing(path):
                part.replace(path)
    finally:
        for part in parts.values():
            with contextlib.suppress(OSError):  # the folder itself may be what is missing
                part.unlink(missing_ok=True)


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Turn the system's word on the part file into one on the file that the user named."""
    try:
        if path.is_dir():
            raise UserError(f"{path}: is a directory; give the name of a file to write")
        yield
    except OSError as exc:
        message = f"{path}: cannot be written ({exc.strerror}); give a file in a folder that exists and takes files"
        raise UserError(message) from exc


def seen(value: object) -> str:
    """A wrong value as a message shows it: quoted, control characters escaped, cut if long."""
    text = repr(value)
    return text if len(text) <= LONGEST_SEEN else f"{text[:LONGEST_SEEN]}…"
