"""Kueue's own files and program for tests: its CRDs from the published Go module, its controller built from it.

The module is downloaded by Go, which checks it against ``kueue/go.sum``; nothing of it is kept here. The program is
built into the same cache as the control plane's. That takes about seven minutes of CPU, so it is done only where
``CARDWISE_TEST_KUEUE`` is set: ``CARDWISE_TEST_KUEUE=1 python -m tests.controlplane.kueue_build`` builds ahead.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.controlplane.binaries import LOG_TAIL, BinariesMissingError, cache_folder, fingerprint

MODULE = Path(__file__).parent / "kueue"
PACKAGE = "sigs.k8s.io/kueue"
WANTED = "CARDWISE_TEST_KUEUE"
COMMAND = [
    *("go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace"),
    # its visibility server would write its certificate to /visibility
    *("-ldflags", f"-s -w -X {PACKAGE}/pkg/visibility.certDir=visibility"),
]


@functools.cache
def sources() -> Path:
    """Folder with Kueue's sources, downloaded where need be."""
    if not shutil.which("go"):
        raise BinariesMissingError("Kueue's files come as a Go module: install Go 1.26 or newer")
    done = subprocess.run(
        ["go", "list", "-mod=readonly", "-m", "-json", PACKAGE],
        cwd=MODULE,
        env={**os.environ, "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(done.stdout) if not done.returncode else {}
    if "Dir" not in told:
        done = subprocess.run(
            ["go", "mod", "download", "-json", PACKAGE],
            cwd=MODULE,
            env={**os.environ, "GOWORK": "off"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BinariesMissingError(f"downloading {PACKAGE} failed:\n{(done.stdout + done.stderr)[-LOG_TAIL:]}")
        told = json.loads(done.stdout)
    return Path(told["Dir"])


def documents(path: str) -> list[dict]:
    """The YAML documents of a file of Kueue's."""
    return [each for each in yaml.load_all((sources() / path).read_text(), yaml.CSafeLoader) if each]


@functools.cache
def crds() -> list[dict]:
    """Kueue's custom resources, as it publishes them."""
    files = sorted((sources() / "config/components/crd/bases").glob("*.yaml"))
    return [yaml.load(file.read_text(), yaml.CSafeLoader) for file in files]


def wanted() -> bool:
    """Whether the program may be built here."""
    return bool(os.environ.get(WANTED))


@functools.cache
def program() -> Path:
    """Kueue's controller; built first where no earlier run did."""
    folder = cache_folder() / f"kueue-{fingerprint(COMMAND, MODULE)}"
    path = folder / "kueue"
    if path.exists():
        return path
    if not wanted():
        raise BinariesMissingError(f"Kueue's controller is not built: set {WANTED}=1 to build it with Go, in minutes")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "kueue-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _build(folder)
    return path


def _build(folder: Path) -> None:
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    done = subprocess.run(
        [*(["nice"] if shutil.which("nice") else []), *COMMAND, "-o", part / "kueue", f"{PACKAGE}/cmd/kueue"],
        cwd=MODULE,
        env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BinariesMissingError(f"building Kueue in {MODULE} failed:\n{done.stdout[-LOG_TAIL:]}")
    part.rename(folder)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{program()}\n")
    except BinariesMissingError as error:
        sys.exit(str(error))
