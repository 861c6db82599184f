"""The pods of this node, as the API server tells of them.

Refuses to be the last word: a pod that is not known yet is asked for, for the kubelet may hear of it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import structlog

from cardwise.adapters.claims import read_claim
from cardwise.adapters.journal import Journal, Row
from cardwise.adapters.kube.port import All, Gone, LocalPodEvent, Lost, NodePort, Put
from cardwise.adapters.kube_objects import LocalPod
from cardwise.agent.inventory import allocation_of
from cardwise.core.allocation import Hold, Share, holds
from cardwise.core.card.handover import Grant, Holder, most
from cardwise.said import Said

log = structlog.get_logger()


@dataclass(slots=True)
class NodePods:
    """Pods by UID. changed: set at every news. synced: they were all told at least once."""

    port: NodePort
    node: str
    by_uid: dict[str, LocalPod] = field(default_factory=dict)
    synced: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _holds: dict[str, tuple[LocalPod, tuple[Row, ...], tuple[Hold, ...]]] = field(default_factory=dict)
    _said: Said = field(default_factory=Said)

    async def follow(self) -> None:
        """Read the stream until cancelled."""
        async for event in self.port.follow_pods_on(self.node):
            self.hear(event)

    def hear(self, event: LocalPodEvent) -> None:
        """One event of the stream."""
        match event:
            case All(pods):
                self.by_uid = {pod.metadata.uid: pod for pod in pods if not pod.ended}
                self.synced = True
            case Put(pod) if not pod.ended:
                self.by_uid[pod.metadata.uid] = pod
            case Put(pod) | Gone(pod):
                self.by_uid.pop(pod.metadata.uid, None)
            case Lost(why):
                if self._said.is_news("pods", why):
                    log.warning("the watch of this node's pods broke", why=why)
        self._holds = {uid: known for uid, known in self._holds.items() if uid in self.by_uid}
        self.changed.set()

    def named(self, namespace: str, name: str) -> LocalPod | None:
        """The pod of that name; if an old one is still ending beside a new one, the new one."""
        found = [
            pod for pod in self.by_uid.values() if pod.metadata.namespace == namespace and pod.metadata.name == name
        ]
        return max(found, key=lambda pod: str(pod.metadata.creation_timestamp), default=None)

    async def fetch(self, namespace: str, name: str) -> LocalPod:
        """The pod as the API server has it now. Raises ClusterError or NotFoundError."""
        pod = await self.port.get_local_pod(namespace, name)
        if pod.spec.node_name == self.node and not pod.ended:
            self.by_uid[pod.metadata.uid] = pod
        return pod

    def holds_of_others(self, journal: Journal, uid: str) -> dict[Holder, tuple[Hold, ...]]:
        """What every other pod takes to which something was handed over."""
        rows: dict[str, list[Row]] = {}
        for row in journal.rows:
            if row.uid != uid:
                rows.setdefault(row.uid, []).append(row)
        return {
            Holder(other, f"{theirs[0].namespace}/{theirs[0].pod}"): self._holds_now(other, tuple(theirs))
            for other, theirs in rows.items()
        }

    def _holds_now(self, uid: str, rows: tuple[Row, ...]) -> tuple[Hold, ...]:
        pod = self.by_uid.get(uid)
        if pod is None:
            self._holds.pop(uid, None)
            return most(*(row.holds for row in rows))
        known = self._holds.get(uid)
        if known is None or known[0] is not pod or known[1] != rows:  # news is another object
            known = self._holds[uid] = (pod, rows, holds_with(pod, rows))
        return known[2]


def holds_with(pod: LocalPod, rows: Iterable[Row]) -> tuple[Hold, ...]:
    """What a pod takes; of each card the larger of what its allocation says now and what was handed over.

    A container keeps what it started with, whatever is written afterwards. Nothing is an answer: a pod's init container
    alone had a card, and has ended. An allocation that says nothing any more changes nothing.
    """
    given, told = tuple(rows), allocation_of(pod)
    if told is None:
        return most(*(row.holds for row in given))
    containers = dict(told.containers) | {row.container: tuple(map(_share, row.grants)) for row in given}
    handed = replace(told, containers=tuple(containers.items()))
    claim, _faults = read_claim(pod)  # whatever is wrong with it, it runs
    return most(*(holds(claim, each, initialized=pod.initialized) for each in (told, handed)))


def _share(grant: Grant) -> Share:
    return Share(grant.uuid, grant.memory_mib, grant.compute_pct, grant.whole, lent_mib=grant.lent_mib)
