"""What can be seen from a node itself: the driver, CDI files, the kubelet's sockets, MPS, the clock's zone.

For ``doctor --node-local``, as root on a node or in the agent's container. Reads only: no daemon is started, no card
set, no socket written to but MPS' own, which is asked whether it lives. What cannot be seen is a gap, never "healthy".
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cardwise.adapters.cdi import ToolkitFiles
from cardwise.adapters.mps.daemon import ControlDaemon, probe
from cardwise.adapters.mps.v2 import MpsV2
from cardwise.adapters.mps.v3 import MpsV3
from cardwise.adapters.nvml.driver import Driver
from cardwise.agent.settings import Settings
from cardwise.core.card.facts import CardSample, NodeFacts
from cardwise.errors import CardError, CardwiseError, ClusterError

PID_FILE = "nvidia-cuda-mps-control.pid"
"""In the pipe directory of a daemon that was started."""


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """A control daemon whose pipe directory is there. why: how it failed to answer; empty if it did."""

    folder: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Nearby:
    """One node from within.

    driver None: it cannot be asked, and ``driver_why`` says how that reads. cdi: names of the toolkit's devices;
    cdi_why: why there are none. absent: host paths that its file for the cards names and that are not there.
    sockets: names in the kubelet's folder. off_utc_s: the zone of this machine's clock.
    """

    node: str
    driver: NodeFacts | None = None
    driver_why: str = ""
    samples: tuple[CardSample, ...] = ()
    cdi: frozenset[str] = frozenset()
    cdi_why: str = ""
    absent: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    mps: tuple[MpsDaemon, ...] = ()
    off_utc_s: int = 0
    gaps: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where findings about it are."""
        return f"node:{self.node}"


def look(settings: Settings, node: str = "") -> Nearby:
    """Look at this node; folders and programs are those of the agent's settings."""
    driver, driver_why, samples = _driver()
    cdi, cdi_why, absent = _cdi([Path(each) for each in settings.cdi_read_folders])
    sockets, kubelet_why = _sockets(Path(settings.kubelet_folder))
    daemons, gaps = asyncio.run(_mps(settings, [card.uuid for card in driver.cards] if driver else []))
    return Nearby(
        node or os.environ.get("NODE_NAME") or socket.gethostname(),
        driver,
        driver_why,
        samples,
        cdi,
        cdi_why,
        absent,
        sockets,
        daemons,
        time.localtime().tm_gmtoff,
        (*gaps, *([f"the kubelet's folder cannot be read: {kubelet_why}"] if kubelet_why else [])),
    )


def _driver() -> tuple[NodeFacts | None, str, tuple[CardSample, ...]]:
    try:
        with Driver() as driver:
            facts = driver.facts()
            return facts, "", tuple(_samples(driver, facts))
    except CardwiseError as exc:
        return None, str(exc), ()


def _samples(driver: Driver, facts: NodeFacts) -> Iterable[CardSample]:
    for card in facts.cards:
        try:
            yield driver.sample(card.uuid)
        except CardError:  # facts name a card that is lost
            continue


def _cdi(folders: Sequence[Path]) -> tuple[frozenset[str], str, tuple[str, ...]]:
    try:
        toolkit = ToolkitFiles(folders).read()
    except ClusterError as exc:
        return frozenset(), str(exc), ()
    edits = [toolkit.common, *toolkit.devices.values()]
    paths = {
        str(part.get("hostPath") or part.get("path") or "")
        for each in edits
        for key in ("mounts", "deviceNodes")
        for part in each.get(key) or []
        if isinstance(part, dict)
    }
    return frozenset(toolkit.devices), "", tuple(sorted(path for path in paths if path and not Path(path).exists()))


def _sockets(folder: Path) -> tuple[tuple[str, ...], str]:
    try:
        return tuple(sorted(path.name for path in folder.iterdir())), ""
    except OSError as exc:
        return (), f"{folder}: {exc.strerror}"


async def _mps(settings: Settings, uuids: Sequence[str]) -> tuple[tuple[MpsDaemon, ...], tuple[str, ...]]:
    """The agent's daemon, where its folder shows that there was one since the last reboot."""
    run = Path(settings.run_folder)
    pipe = run / "mps"
    if not (pipe / PID_FILE).exists():
        return (), ()
    support = await probe(settings.mps_control)
    if support is None:
        return (), (f"{settings.mps_control} cannot be run here: whether MPS answers was not looked at",)
    daemon = ControlDaemon(settings.mps_control, pipe, run / "mps-log", tuple(uuids))
    # a daemon outlives an upgrade of its program, so that it may speak the older protocol
    controls = (*((MpsV3(daemon),) if support.version3 else ()), MpsV2(daemon))
    for control in controls:
        if await control.alive():
            return (MpsDaemon(str(pipe)),), ()
    return (MpsDaemon(str(pipe), "the daemon does not answer"),), ()
