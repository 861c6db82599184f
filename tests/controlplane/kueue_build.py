"""Kueue's own files and program for tests: its CRDs from the published Go module, its controller built from it.

The module is downloaded by Go, which checks it against ``kueue/go.sum``; nothing of it is kept here. The program is
built into the same cache as the control plane's. That takes about seven minutes of CPU, so it is done only where
``CARDWISE_TEST_KUEUE`` is set: ``CARDWISE_TEST_KUEUE=1 python -m tests.controlplane.kueue_build`` builds ahead.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.controlplane.binaries import fingerprint
from tests.go_build import LOG_TAIL, BinariesMissingError, built_once, cache_folder, require_go, run_go

MODULE = Path(__file__).parent / "kueue"
PACKAGE = "sigs.k8s.io/kueue"
WANTED = "CARDWISE_TEST_KUEUE"
WITHOUT_GO = "Kueue's files come as a Go module: install Go 1.26 or newer"
COMMAND = [
    *("go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace"),
    # its visibility server would write its certificate to /visibility
    *("-ldflags", f"-s -w -X {PACKAGE}/pkg/visibility.certDir=visibility"),
]


@functools.cache
def sources() -> Path:
    """Folder with Kueue's sources, downloaded where need be."""
    require_go(WITHOUT_GO)
    done = _asked("list", "-mod=readonly", "-m", "-json")
    told = json.loads(done.stdout) if not done.returncode else {}
    if "Dir" not in told:
        done = _asked("mod", "download", "-json")
        if done.returncode:
            raise BinariesMissingError(f"downloading {PACKAGE} failed:\n{(done.stdout + done.stderr)[-LOG_TAIL:]}")
        told = json.loads(done.stdout)
    return Path(told["Dir"])


def _asked(*args: str) -> subprocess.CompletedProcess[str]:
    command, env = ["go", *args, PACKAGE], {**os.environ, "GOWORK": "off"}
    return subprocess.run(command, cwd=MODULE, env=env, capture_output=True, text=True, check=False)


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
    folder = cache_folder("controlplane") / f"kueue-{fingerprint(COMMAND, MODULE)}"
    if not folder.is_dir() and not wanted():
        raise BinariesMissingError(f"Kueue's controller is not built: set {WANTED}=1 to build it with Go, in minutes")
    built_once(folder, "kueue-lock", _build)
    return folder / "kueue"


def _build(folder: Path) -> None:
    require_go(WITHOUT_GO)
    run_go(f"Kueue in {MODULE}", [*COMMAND, "-o", folder / "kueue", f"{PACKAGE}/cmd/kueue"], MODULE)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{program()}\n")
    except BinariesMissingError as error:
        sys.exit(str(error))
