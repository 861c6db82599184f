"""Where the programs of the control plane come from.

``KUBEBUILDER_ASSETS`` names a folder that holds them; without it they are built with Go, once per content of
``build/``, into ``$XDG_CACHE_HOME/cardwise/controlplane``. ``python -m tests.controlplane.binaries`` builds ahead.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from pathlib import Path

from tests.go_build import BinariesMissingError, built_once, cache_folder, require_go, run_go

BUILD = Path(__file__).parent / "build"
PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
VERSION = re.compile(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)$", re.MULTILINE)
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@functools.cache
def binary(name: str) -> Path:
    """Path of one of ``PROGRAMS``; builds them first where no earlier run did."""
    told = os.environ.get("KUBEBUILDER_ASSETS")
    folder = Path(told) if told else built()
    path = folder / name
    if not os.access(path, os.X_OK):
        raise BinariesMissingError(
            f"KUBEBUILDER_ASSETS={told}: no program {name} there; name a folder that holds {', '.join(PROGRAMS)}, "
            "or unset it to have them built with Go"
        )
    return path


@functools.cache
def built() -> Path:
    """Folder with one link per program to the cached build; parallel callers wait for the one that builds."""
    command = build_command()
    folder = cache_folder("controlplane") / fingerprint(command)
    built_once(folder, "lock", lambda part: build(command, part))
    return folder


def build_command() -> list[str]:
    """Command line of the build, but for the output's path."""
    found = VERSION.search((BUILD / "go.mod").read_text())
    if not found:
        raise BinariesMissingError(f"{BUILD / 'go.mod'}: no line that requires k8s.io/kubernetes")
    full, major, minor = found.groups()
    told = {"gitVersion": full, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = [f"-X {package}.{key}={value}" for package in VERSION_PACKAGES for key, value in told.items()]
    flags = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace"]
    return ["go", "build", *flags, "-ldflags", " ".join(["-s", "-w", *stamps])]


def fingerprint(command: list[str], folder: Path = BUILD) -> str:
    """Name of a build: changes with the sources, the flags and the kind of machine."""
    digest = hashlib.sha256("\0".join([platform.machine(), *command]).encode())
    for path in (folder / name for name in ("go.mod", "go.sum", "main.go")):
        if path.exists():
            digest.update(b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def build(command: list[str], folder: Path) -> None:
    """Build the multi-call binary into a folder and link each program's name to it."""
    require_go(
        "the control plane's programs are absent and Go is not on PATH: install Go 1.26 or newer, "
        f"or set KUBEBUILDER_ASSETS to a folder that holds {', '.join(PROGRAMS)}"
    )
    run_go(f"the control plane in {BUILD}", [*command, "-o", folder / "controlplane", "."], BUILD)
    for name in PROGRAMS:
        (folder / name).symlink_to("controlplane")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{binary('kube-apiserver').parent}\n")
    except BinariesMissingError as error:
        sys.exit(str(error))
