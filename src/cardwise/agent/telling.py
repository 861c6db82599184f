"""Events on pods and on the node: what the agent did, and why. Each is said once, however often it happens.

What befalls a card is said each time, but not more than a few times a minute for the same reason: the rest is counted,
and the count is said. So with a pod that is refused. Refuses to hold anything up: events wait in a short queue, what
does not fit is counted as lost, and an event that cannot be written is logged and forgotten.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import structlog

from cardwise.adapters.kube.events import MOST_TEXT, about_node, about_pod, event, post
from cardwise.adapters.kube.port import NodePort
from cardwise.agent.owners import Owner
from cardwise.said import Said

log = structlog.get_logger()

COMPONENT = "cardwise-agent"
MOST_TOLD = 1024
"""Texts that are remembered as said."""
MOST_WAITING = 256
"""Events that were not written yet: an API server that is slow must not cost memory."""
MOST_ALIKE, ALIKE_S = 3, 60.0
"""So many events about one pod or card for one reason are said within so many seconds."""


def to_nobody(*_told: object) -> None:
    """Whom a part calls with its news while nobody wants them."""


@dataclass(slots=True)
class _Alike:
    """Events about one thing for one reason: how many were said, how many held back, and the last of those."""

    said: int = 0
    held: int = 0
    last: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Teller:
    """Says things about this node and its pods. lost: events for which there was no room."""

    port: NodePort
    node: str
    alike_s: float = ALIKE_S
    lost: int = 0
    _told: dict[tuple[str, str], None] = field(default_factory=dict)
    _alike: dict[tuple[str, str], _Alike] = field(default_factory=dict)
    _waiting: deque[dict[str, Any]] = field(default_factory=deque)
    _writing: asyncio.Task[None] | None = None
    _said: Said = field(default_factory=Said)

    def refused(self, owner: Owner, text: str) -> None:
        """A container may not start."""
        meta = owner.pod.metadata
        about = about_pod(meta.namespace, meta.name, meta.uid)
        if self._is_news(meta.uid, text):
            self._say_some((meta.uid, "CardwiseRefused"), self._event(about, meta.namespace, "CardwiseRefused", text))

    def of_node(self, reason: str, text: str, *, warning: bool = True, card: str = "") -> None:
        """Something about this node. card: it befell this card, and is said also if it was said before."""
        told = self._event(about_node(self.node), "default", reason, text, warning=warning)
        if card:
            self._say_some((card, reason), told)
        elif self._is_news(self.node, text):
            self._say(told)

    def _is_news(self, uid: str, text: str) -> bool:
        if (uid, text) in self._told:
            return False
        self._told[uid, text] = None
        while len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]
        return True

    def _event(
        self, about: dict[str, str], namespace: str, reason: str, text: str, *, warning: bool = True
    ) -> dict[str, Any]:
        return event(about, reason, text, component=COMPONENT, namespace=namespace, host=self.node, warning=warning)

    # ---------------------------------------------------------------- not too often

    def _say_some(self, key: tuple[str, str], told: dict[str, Any]) -> None:
        """Say it, or count it until its minute is over."""
        alike = self._alike.get(key)
        if alike is None:
            alike = self._alike[key] = _Alike()
            asyncio.get_running_loop().call_later(self.alike_s, self._sum_up, key)
        if alike.said < MOST_ALIKE:
            alike.said += 1
            self._say(told)
        else:
            alike.held, alike.last = alike.held + 1, told

    def _sum_up(self, key: tuple[str, str]) -> None:
        """The minute of these events is over: say how many were held back."""
        alike = self._alike.pop(key)
        if alike.held:
            more = f"; so or alike {alike.held} times more within {self.alike_s:.0f} s"
            text = alike.last["message"][: MOST_TEXT - len(more)] + more
            self._say({**alike.last, "message": text, "count": alike.held})

    # ---------------------------------------------------------------- writing

    def _say(self, told: dict[str, Any]) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.lost += 1
            if self._said.is_news(told["reason"], None):
                log.warning("no room for an event", reason=told["reason"], text=told["message"], lost=self.lost)
            return
        self._waiting.append(told)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        while self._waiting:
            told = self._waiting.popleft()
            await post(self.port, told, reason=told["reason"])
