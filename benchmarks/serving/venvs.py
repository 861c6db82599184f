"""An environment per peer, made once in the cache: their dependencies contradict each other, and ours.

Below ``$XDG_CACHE_HOME/cardwise/serving``, one folder per list of pinned packages and Python version. Refuses to hide
why one could not be made: the installer's last words are in the error.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

INSTALL_S = 900
TAIL = 600
DONE = ".installed"


class InstallError(Exception):
    """An environment could not be made; the message is what the installer said."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is installed. name: of its folder."""

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it lies: changes with packages and Python."""
        key = "\0".join([*self.packages, sys.version])
        return _cache() / f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"


def python_of(recipe: Recipe) -> Path:
    """The environment's interpreter; makes the environment if it is not there. Raises InstallError."""
    folder = recipe.folder
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{recipe.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / DONE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            for command in _commands(recipe, python):
                _run(command)
            (folder / DONE).touch()
    return python


def _commands(recipe: Recipe, python: Path) -> list[list[str]]:
    uv = _uv()
    if uv is not None:
        made = [uv, "venv", "--quiet", "--python", sys.executable, str(recipe.folder)]
        return [made, [uv, "pip", "install", "--quiet", "--python", str(python), *recipe.packages]]
    made = [sys.executable, "-m", "venv", str(recipe.folder)]
    return [made, [str(python), "-m", "pip", "install", "--quiet", *recipe.packages]]


def _uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"not installed within {INSTALL_S} s") from error
    if done.returncode:
        raise InstallError((done.stderr or done.stdout).strip()[-TAIL:])


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cardwise" / "serving"
