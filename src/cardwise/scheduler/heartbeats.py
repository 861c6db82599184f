"""Which agents are silent: a node whose agent has not renewed its Lease for a while takes no new slices.

The kubelet notices an agent that is dead, and withdraws its slots; this notices one that hangs, or that a cut network
keeps from telling what became of its cards. Time is measured here, by this machine's steady clock: a Lease that has not
changed as seen from here is old, whatever it says itself (case C15). Refuses to judge what it could not look at, and
nodes that never had a Lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from cardwise.adapters import wire
from cardwise.adapters.kube.port import ClusterPort
from cardwise.core.ledger import Ledger
from cardwise.errors import ClusterError
from cardwise.said import Said

log = structlog.get_logger()

PERIOD_S, SILENT_S = 15.0, 60.0
"""Agents renew every 20 s. Two renewals may get lost."""


@dataclass(slots=True)
class Heartbeats:
    """namespace: of the agents' Leases. now_s: a steady clock."""

    port: ClusterPort
    ledger: Ledger
    namespace: str
    now_s: Callable[[], float]
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)
    _looked_s: float | None = None
    _said: Said = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was said yet."""
        self._said = Said(self.now_s)

    async def run(self) -> None:
        """Look every some seconds, until cancelled."""
        while True:
            try:
                self.judge(await self.port.list_leases(self.namespace, wire.LEASE_AGENT_PREFIX))
            except ClusterError as exc:
                self._looked_s = None
                if self._said.is_news("leases", str(exc)):
                    log.warning("the agents' leases cannot be read; nobody is called silent", why=str(exc))
            await asyncio.sleep(PERIOD_S)

    def judge(self, versions: Mapping[str, str]) -> None:
        """Take over the leases as they are now, by node, and fence or free nodes accordingly."""
        now_s = self.now_s()
        blind = self._looked_s is None or now_s - self._looked_s > 2 * PERIOD_S
        self._looked_s = now_s
        for node, version in versions.items():
            if blind or node not in self._seen or self._seen[node][0] != version:
                self._seen[node] = (version, now_s)
        self._seen = {node: seen for node, seen in self._seen.items() if node in self.ledger.nodes}
        for node, (version, since_s) in self._seen.items():
            if blind and node not in versions:
                self._seen[node] = (version, now_s)
            elif now_s - since_s >= SILENT_S:
                self._fence(node)
            else:
                self._free(node)

    def _fence(self, node: str) -> None:
        if node not in self.ledger.silent:
            log.error("an agent is silent", node=node)
            self.ledger.silence(node, f"its agent has not reported for {SILENT_S:.0f} s or more; see its pod there")

    def _free(self, node: str) -> None:
        if node in self.ledger.silent:
            log.info("an agent reports again", node=node)
            self.ledger.silence(node, "")
