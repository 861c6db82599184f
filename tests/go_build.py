"""Programs built with Go, once, into the cache. Refuses to leave half a build there."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LOG_TAIL = 4000


class BinariesMissingError(RuntimeError):
    """Programs are neither there nor can they be built: the message says what to do."""


def cache_folder(name: str) -> Path:
    """Where builds of a kind are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cardwise" / name


def built_once(folder: Path, lock: str, build: Callable[[Path], None]) -> None:
    """Have ``build`` fill it where no earlier run did. lock: a file beside it, at which parallel callers wait."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / lock).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not folder.is_dir():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            build(part)
            part.rename(folder)


def require_go(otherwise: str) -> None:
    """Raises BinariesMissingError, which says what to do ``otherwise``, where Go is not on PATH."""
    if not shutil.which("go"):
        raise BinariesMissingError(otherwise)


def run_go(what: str, command: Sequence[str | Path], cwd: Path | None = None, more: Mapping[str, str] = {}) -> None:
    """Build, politely to the rest of the machine. what: in words. more: of the environment.

    Raises BinariesMissingError with the end of what Go wrote.
    """
    done = subprocess.run(
        [*(["nice"] if shutil.which("nice") else []), *command],
        cwd=cwd,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off", **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BinariesMissingError(f"building {what} failed:\n{done.stdout[-LOG_TAIL:]}")
