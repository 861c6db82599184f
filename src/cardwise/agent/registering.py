"""Serves the device plugin and registers with the kubelet, and does both again whenever the kubelet has restarted.

A kubelet that starts removes every socket in its folder and forgets who registered: the sign is that its own socket is
another file than before. One that does not listen any more has forgotten us too. Refuses to give up: a folder that is
missing or cannot be written is told, and tried again.
Source: kubernetes.io, "Device plugins", "Handling kubelet restarts".
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import structlog

from cardwise.adapters.kubelet.device_plugin import Plugin, register, serving
from cardwise.errors import ClusterError

log = structlog.get_logger()

KUBELET_SOCKET = "kubelet.sock"
ENDPOINT = "cardwise.sock"
LOOK_S = 1.0
BACKOFF_MOST_S = 30.0
DEAF_S = 5.0
"""A kubelet that has not listened for so long has forgotten us, though it did not restart."""


@dataclass(slots=True)
class Registering:
    """registered: True while a kubelet knows us, as far as we know. problem: why not, for health and metrics."""

    plugin: Plugin
    folder: Path
    resource: str
    look_s: float = LOOK_S
    deaf_s: float = DEAF_S
    registered: bool = False
    registrations: int = 0
    problem: str = "not registered yet"

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            if self._kubelet() is None:  # no reason to look less and less often: it costs nothing
                self._say(f"{self.folder / KUBELET_SOCKET}: there is no kubelet")
                await asyncio.sleep(self.look_s)
                continue
            try:
                await self._serve_until_restart()
                failures = 0
            except ClusterError as exc:
                failures += 1
                self._say(str(exc))
                await asyncio.sleep(min(self.look_s * 2 ** min(failures - 1, 10), BACKOFF_MOST_S))
            finally:
                self.registered = False

    async def _serve_until_restart(self) -> None:
        kubelet = self._kubelet()
        async with serving(self.plugin, self.folder / ENDPOINT) as served:
            ours = self._identity(ENDPOINT)
            await register(self.folder / KUBELET_SOCKET, ENDPOINT, self.resource)
            self.registered, self.problem = True, ""
            self.registrations += 1
            log.info("registered with the kubelet", resource=self.resource)
            deaf_s = 0.0
            while self._kubelet() == kubelet and self._identity(ENDPOINT) == ours and deaf_s < self.deaf_s:
                await asyncio.sleep(self.look_s)
                deaf_s = 0.0 if served.streams else deaf_s + self.look_s
        self._say("the kubelet restarted" if deaf_s < self.deaf_s else "the kubelet does not listen any more")

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("not registered with the kubelet", why=problem)
        self.problem = problem

    def _kubelet(self) -> tuple[int, int, int] | None:
        return self._identity(KUBELET_SOCKET)

    def _identity(self, name: str) -> tuple[int, int, int] | None:
        """Which file it is: an inode number alone may come again."""
        try:
            found = (self.folder / name).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns
