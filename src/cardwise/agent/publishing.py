"""What the cluster is told of this node: cards, their load, what may be lent, models on disk, and that the agent lives.

Writes are few: cards when they change, load when it moved and not more often than some seconds, a heartbeat that is one
small Lease. A change of a node's annotations also wakes pods that wait. Refuses to write what has not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from cardwise.adapters import wire
from cardwise.adapters.kube.conditions import node_condition
from cardwise.adapters.kube.instants import lease_stamp_now, stamp_now
from cardwise.adapters.kube.port import LeaseRecord, NodePort
from cardwise.adapters.node_cards import encode_cards, encode_load
from cardwise.agent.inventory import Inventory
from cardwise.errors import ClusterError, ConflictError, NotFoundError
from cardwise.said import Said

log = structlog.get_logger()

PERIOD_S = 1.0
LOAD_EVERY_S, LOAD_MOVED = 15.0, 0.05
HEARTBEAT_S, LEASE_S = 20.0, 60
REPEAT_S = 600.0
"""What someone removed, or a node that was made anew does not have, is written again within this time."""


@dataclass(slots=True)
class Publishing:
    """load: utilization of each card in [0, 1], recently. models: what weights are on disk.

    lending: the annotations about memory that may be lent.
    """

    port: NodePort
    node: str
    namespace: str
    inventory: Inventory
    load: Callable[[], Mapping[str, float]]
    models: Callable[[], frozenset[str]]
    now_s: Callable[[], float]
    lending: Callable[[], Mapping[str, str]] = dict
    writes: int = 0
    failures: int = 0
    _told: dict[str, str] = field(default_factory=dict)
    _load: dict[str, float] = field(default_factory=dict)
    _load_s: float = field(default=float("-inf"))
    _repeat_s: float = field(default=float("-inf"))
    _beat_s: float = field(default=float("-inf"))
    _conditions: dict[str, tuple[str, str]] = field(default_factory=dict)
    _since: dict[str, tuple[str, str]] = field(default_factory=dict)
    _wanted: dict[str, tuple[bool, str]] = field(default_factory=dict)
    _said: Said = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was said yet."""
        self._said = Said(self.now_s)

    async def run(self) -> None:
        """Publish what changed, and the heartbeat, until cancelled."""
        while True:
            for step in (self.publish, self.tell_conditions, self.beat):
                try:
                    await step()
                except ClusterError as exc:
                    self.failures += 1
                    if self._said.is_news(step.__name__, str(exc)):
                        log.warning("could not publish", what=step.__name__, why=str(exc))
            await asyncio.sleep(PERIOD_S)

    async def publish(self) -> None:
        """Write the annotations that changed. Raises ClusterError; then they are written the next time."""
        if self.now_s() - self._repeat_s >= REPEAT_S:
            self._forget()
        wanted = {
            wire.ANNOTATION_CARDS: encode_cards(self.inventory.specs()),
            wire.ANNOTATION_CACHED_MODELS: ",".join(sorted(self.models())),
            **self.lending(),
        }
        load = dict(self.load())
        if self._load_is_news(load):
            wanted[wire.ANNOTATION_LOAD] = encode_load(load)
        news = {key: text for key, text in wanted.items() if self._told.get(key) != text}
        if not news:
            return
        await self.port.annotate_node(self.node, news)
        self.writes += 1
        self._told |= news
        if wire.ANNOTATION_LOAD in news:
            self._load, self._load_s = load, self.now_s()

    def _forget(self) -> None:
        """Write everything anew."""
        self._told, self._conditions, self._load, self._load_s = {}, {}, {}, float("-inf")
        self._repeat_s = self.now_s()

    def _load_is_news(self, load: Mapping[str, float]) -> bool:
        if self.now_s() - self._load_s < LOAD_EVERY_S:
            return False
        moved = any(abs(share - self._load.get(uuid, -1.0)) > LOAD_MOVED for uuid, share in load.items())
        return moved or load.keys() != self._load.keys()

    def tell_ready(self, condition: str, ready: bool, text: str) -> None:
        """Have a condition of the node say this from now on."""
        self._wanted[condition] = (ready, text)

    async def tell_conditions(self) -> None:
        """Write the conditions that changed. Raises ClusterError; then they are written the next time."""
        for kind, (ready, text) in self._wanted.items():
            status, reason = ("True", "Ready") if ready else ("False", "NotReady")
            if self._conditions.get(kind) == (status, text):
                continue
            now = stamp_now()
            since = await self._status_since(kind, status, now)
            await self.port.set_node_condition(self.node, node_condition(kind, status, reason, text, now, since))
            self._conditions[kind] = (status, text)

    async def _status_since(self, kind: str, status: str, now: str) -> str | None:
        """When the condition came to this status; None where the node has it so from an agent before: that stays."""
        if kind not in self._since:
            node = await self.port.get_node(self.node)
            if any((each.type, each.status) == (kind, status) for each in node.status.conditions):
                return None
        if self._since.get(kind, ("", ""))[0] != status:
            self._since[kind] = (status, now)
        return self._since[kind][1]

    async def beat(self) -> None:
        """Renew the Lease, if it is time. Raises ClusterError."""
        if self.now_s() - self._beat_s < HEARTBEAT_S:
            return
        name = lease_name(self.node)
        try:
            record = await self.port.read_lease(self.namespace, name)
        except NotFoundError:
            record = LeaseRecord()
        wanted = replace(record, holder=self.node, duration_s=LEASE_S, renewed=lease_stamp_now())
        try:
            await self.port.write_lease(self.namespace, name, wanted)
        except ConflictError:
            return  # an older process of ours is still ending; the next beat is ours
        self._beat_s = self.now_s()


def lease_name(node: str) -> str:
    """The Lease that a node's agent renews."""
    return f"{wire.LEASE_AGENT_PREFIX}{node}"
