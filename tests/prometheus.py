"""A real Prometheus on loopback, and a history for it.

Needs ``prometheus`` and ``promtool`` on PATH (Debian: apt-get install prometheus); without them tests skip, and say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import urllib.request

import pytest

from tests.e2e.cardwise_plane import wait_for
from tests.ports import free_ports

MISSING = "prometheus and promtool are not on PATH: apt-get install prometheus"
READY_S, STOP_S, BLOCKS_S = 60, 30, 120


def must_have(*binaries):
    """Skip where one of them is missing."""
    if not all(map(shutil.which, binaries)):
        pytest.skip(MISSING)


def store_history(folder, openmetrics, *flags):
    """Samples with their times, as blocks that :func:`prometheus_in` the same folder finds. flags: of promtool."""
    must_have("prometheus", "promtool")
    (folder / "history").write_text(openmetrics)
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", *flags, folder / "history", folder / "data"]
    subprocess.run(made, check=True, capture_output=True, timeout=BLOCKS_S)


@contextlib.contextmanager
def prometheus_in(folder, config, *flags):
    """One that can be asked, until the ``with`` ends; its address. folder: for its settings (YAML), data and log."""
    with _started(folder, config, flags) as (url, is_ready):
        wait_for(is_ready, READY_S)
        yield url


@contextlib.asynccontextmanager
async def prometheus_beside(folder, config, *flags):
    """The same, for a test whose loop has to go on while it starts."""
    with _started(folder, config, flags) as (url, is_ready):
        async with asyncio.timeout(READY_S):
            while not await asyncio.to_thread(is_ready):
                await asyncio.sleep(0.05)
        yield url


@contextlib.contextmanager
def _started(folder, config, flags):
    """Its address, and whether it can be asked by now: it listens before, and answers 503. Fails once it complains."""
    must_have("prometheus")
    (port,) = free_ports(1)
    url, settings, log = f"http://127.0.0.1:{port}", folder / "prometheus.yml", folder / "prometheus.log"
    settings.write_text(config)
    command = [
        "prometheus",
        f"--config.file={settings}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        *flags,
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)

    def is_ready():
        told = log.read_text()
        assert process.poll() is None, told
        assert "err=" not in told, told
        try:
            return urllib.request.urlopen(f"{url}/-/ready", timeout=2).status == 200  # noqa: S310 - ours, on loopback
        except OSError:
            return False

    try:
        yield url, is_ready
    finally:
        process.terminate()
        process.wait(STOP_S)
