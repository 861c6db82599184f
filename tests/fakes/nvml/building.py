"""Builds the fake library once per source and set of symbols, and gets it loaded in place of the driver's.

A library that a process has loaded stays: tests of one process share it and switch nodes by the state file. What needs
other symbols (an old driver) runs in a process of its own, with :func:`environment`. Refuses to leave the cache with
half a library: it is built beside its place and moved there.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
SONAME = "libnvidia-ml.so.1"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}")
OLD_DRIVER = (
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetTemperatureV",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlDeviceSetMemoryLimits_v1",
    "nvmlDeviceGetMemoryLimits_v1",
)
"""Symbols that a driver of branch 470 does not have."""


@functools.cache
def build(without: tuple[str, ...] = ()) -> Path:
    """Path of the library, lacking the symbols named in ``without``; compiled unless the cache has it."""
    told = "\n".join([SOURCE.read_text(), *FLAGS, *without])
    folder = Path.home() / ".cache" / "cardwise" / "fake-nvml" / hashlib.sha256(told.encode()).hexdigest()[:16]
    place = folder / SONAME
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as beside:
            _compile(Path(beside), without).replace(place)
    return place


def _compile(folder: Path, without: tuple[str, ...]) -> Path:
    """Compile into ``folder``."""
    made, script = folder / SONAME, folder / "symbols"
    hidden = " ".join(f"{name};" for name in without)
    script.write_text(f"{{ global: nvml*; local: {hidden} *; }};\n")
    script_flag = f"-Wl,--version-script={script}"
    subprocess.run([*_compiler(), *FLAGS, script_flag, "-o", str(made), str(SOURCE), "-lpthread"], check=True)
    return made


def _compiler() -> list[str]:
    """The machine's C compiler, else the one of the ``ziglang`` wheel."""
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise RuntimeError("the fake NVML needs a C compiler: install gcc or clang, or pip install ziglang")


@functools.cache
def load() -> ctypes.CDLL:
    """Load the full library before the bindings ask for it by its bare name: the loader then gives them this one."""
    return ctypes.CDLL(str(build()))


def environment(without: tuple[str, ...] = ()) -> dict[str, str]:
    """Environment of a process of its own that finds the fake where a driver's library would be."""
    return {**os.environ, "LD_LIBRARY_PATH": str(build(without).parent)}
