"""Helm, and what it makes of our chart.

``CARDWISE_HELM`` names the program; without it one is built with Go, once per version, into
``$XDG_CACHE_HOME/cardwise/helm``. ``python -m tests.charts.helm`` builds ahead.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.go_build import BinariesMissingError, built_once, cache_folder, require_go, run_go

VERSION = "v3.22.0"
MODULE = "helm.sh/helm/v3"
CHART = Path(__file__).resolve().parents[2] / "charts" / "cardwise"
DEADLINE_S = 120


class HelmError(RuntimeError):
    """Helm ended with an error: the message carries what it wrote."""


@functools.cache
def helm_binary() -> Path:
    """Path of the program; builds it first where no earlier run did. Parallel callers wait for the one that builds."""
    told = os.environ.get("CARDWISE_HELM")
    if told:
        if not os.access(told, os.X_OK):
            raise BinariesMissingError(
                f"CARDWISE_HELM={told}: no program there; name Helm 3 or 4, or unset it to build one"
            )
        return Path(told)
    folder = cache_folder("helm") / VERSION
    built_once(folder, "lock", _build)
    return folder / "helm"


def _build(folder: Path) -> None:
    require_go("Helm is absent and Go is not on PATH: install Go 1.26 or newer, or set CARDWISE_HELM to a Helm program")
    stamp = f"-s -w -X {MODULE}/internal/version.version={VERSION}"
    command = ["go", "install", "-trimpath", "-ldflags", stamp, f"{MODULE}/cmd/helm@{VERSION}"]
    run_go(f"Helm {VERSION}", command, more={"GOBIN": str(folder)})


def helm(*args: str | Path, home: Path, kubeconfig: Path | None = None) -> str:
    """What ``helm`` prints. ``home``: a folder for its caches, so that a user's own settings have no say."""
    env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "KUBECONFIG": str(kubeconfig or os.devnull)}
    done = subprocess.run(
        [helm_binary(), *args],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise HelmError(f"helm {' '.join(map(str, args))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def set_flags(values: Mapping[str, Any]) -> list[str]:
    """``--set-json`` for each value; the dots of a key are levels."""
    return [flag for key, value in values.items() for flag in ("--set-json", f"{key}={json.dumps(value)}")]


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{helm_binary()}\n")
    except BinariesMissingError as error:
        sys.exit(str(error))
