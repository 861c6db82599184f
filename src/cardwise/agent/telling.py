"""Events on pods and on the node: what the agent did, and why. Each is said once, however often it happens.

Refuses to hold anything up: an event that cannot be written is logged and forgotten.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog

from cardwise.adapters.kube.port import NodePort
from cardwise.agent.owners import Owner
from cardwise.errors import ClusterError

log = structlog.get_logger()

COMPONENT = "cardwise-agent"
MOST_TEXT = 1000
MOST_TOLD = 1024
"""Texts that are remembered as said."""


@dataclass(slots=True)
class Teller:
    """Says things about this node and its pods."""

    port: NodePort
    node: str
    _told: dict[tuple[str, str], None] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def refused(self, owner: Owner, text: str) -> None:
        """A container may not start."""
        meta = owner.pod.metadata
        about = {"kind": "Pod", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid, "apiVersion": "v1"}
        self._say(about, meta.namespace, "CardwiseRefused", text)

    def of_node(self, reason: str, text: str, *, warning: bool = True, again: bool = False) -> None:
        """Something about this node. again: also if it was said before."""
        about = {"kind": "Node", "name": self.node, "uid": self.node, "apiVersion": "v1"}
        if again:
            self._told.pop((self.node, text), None)
        self._say(about, "default", reason, text, warning=warning)

    def _say(self, about: dict[str, str], namespace: str, reason: str, text: str, *, warning: bool = True) -> None:
        key = (about.get("uid", ""), text)
        if key in self._told:
            return
        self._told[key] = None
        while len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{COMPONENT}-", "namespace": namespace},
            "involvedObject": about,
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": text[:MOST_TEXT],
            "source": {"component": COMPONENT, "host": self.node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        task = asyncio.ensure_future(self._post(event, namespace))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, event: dict[str, Any], namespace: str) -> None:
        try:
            await self.port.post_event(event, namespace)
        except ClusterError as exc:
            log.warning("an event could not be written", reason=event["reason"], why=str(exc))
