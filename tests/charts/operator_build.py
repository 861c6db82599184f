"""The Prometheus Operator's own files and program for tests, and the Prometheus that it runs.

Nothing of them is kept here: Go downloads both as modules and checks them against ``operator/go.sum``. Prometheus is
built too, for Debian's knows no Kubernetes. Its sources are copied, and of all services in which it can look for its
targets that one is left, as its README says how. The programs go into the same cache as the control plane's. Building
takes up to eight minutes of CPU and leaves up to 1.9 GiB in Go's build cache, so it is done only where
``CARDWISE_TEST_OPERATOR`` is set: ``CARDWISE_TEST_OPERATOR=1 python -m tests.charts.operator_build`` builds ahead.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.binaries import fingerprint
from tests.go_build import LOG_TAIL, BinariesMissingError, built_once, cache_folder, require_go, run_go

MODULE = Path(__file__).parent / "operator"
PACKAGE, VERSION = "github.com/prometheus-operator/prometheus-operator", "0.85.0"
PROMETHEUS, PROMETHEUS_VERSION = "github.com/prometheus/prometheus", "3.5.0"
"""The one that this operator runs unless told otherwise. As a Go module, which the operator depends on, v0.305.0."""
WANTED = "CARDWISE_TEST_OPERATOR"
WITHOUT_GO = "the Prometheus Operator's files come as a Go module: install Go 1.26 or newer"
ABSENT = f"the Prometheus Operator and its Prometheus are not built: set {WANTED}=1 to build them with Go, in minutes"
PLUGINS = f'package plugins\n\nimport _ "{PROMETHEUS}/discovery/kubernetes"\n'
COMMAND = ["go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags"]
STAMP = "-s -w -X github.com/prometheus/common/version.Version="


@functools.cache
def crds(*plurals: str) -> list[dict[str, Any]]:
    """Definitions of some resources, by their plural names."""
    folder = "example/prometheus-operator-crd"
    return [each for plural in plurals for each in documents(f"{folder}/monitoring.coreos.com_{plural}.yaml")]


def documents(path: str) -> list[dict[str, Any]]:
    """The YAML documents of a file of the operator's."""
    return [each for each in yaml.load_all((_sources(PACKAGE) / path).read_text(), yaml.CSafeLoader) if each]


def wanted() -> bool:
    """Whether the programs are built, or may be built here."""
    return _folder().is_dir() or bool(os.environ.get(WANTED))


@functools.cache
def programs() -> Path:
    """Folder of ``operator``, ``prometheus`` and ``promtool``; they are built first where no earlier run did."""
    if not wanted():
        raise BinariesMissingError(ABSENT)
    built_once(_folder(), "operator-lock", _build)
    return _folder()


def _folder() -> Path:
    told = [*COMMAND, STAMP, VERSION, PROMETHEUS_VERSION, PLUGINS]
    return cache_folder("controlplane") / f"operator-{fingerprint(told, MODULE)}"


def _build(folder: Path) -> None:
    require_go(WITHOUT_GO)
    command = [*COMMAND, f"{STAMP}{VERSION}", "-o", folder, f"{PACKAGE}/cmd/operator"]
    run_go(f"the Prometheus Operator in {MODULE}", command, MODULE)
    with tempfile.TemporaryDirectory() as copied:
        sources = Path(copied) / "prometheus"
        shutil.copytree(_sources(PROMETHEUS), sources, copy_function=shutil.copyfile)
        for each in (sources, *filter(Path.is_dir, sources.rglob("*"))):
            each.chmod(0o700)  # Go's cache is read-only
        (sources / "plugins" / "plugins.go").write_text(PLUGINS)
        command = [*COMMAND, f"{STAMP}{PROMETHEUS_VERSION}", "-o", folder, "./cmd/prometheus", "./cmd/promtool"]
        run_go("Prometheus", command, sources)


@functools.cache
def _sources(package: str) -> Path:
    require_go(WITHOUT_GO)
    command = ["go", "mod", "download", "-json", package]
    env = {**os.environ, "GOWORK": "off"}
    done = subprocess.run(command, cwd=MODULE, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BinariesMissingError(f"downloading {package} failed:\n{(done.stdout + done.stderr)[-LOG_TAIL:]}")
    return Path(json.loads(done.stdout)["Dir"])


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{programs()}\n")
    except BinariesMissingError as error:
        sys.exit(str(error))
