"""The pods of this node, as the API server tells of them.

Refuses to be the last word: a pod that is not known yet is asked for, for the kubelet may hear of it first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog

from cardwise.adapters.journal import Journal
from cardwise.adapters.kube.port import All, Gone, LocalPodEvent, Lost, NodePort, Put
from cardwise.adapters.kube_objects import LocalPod
from cardwise.agent.inventory import allocation_of, pod_holds
from cardwise.core.allocation import Hold

log = structlog.get_logger()


@dataclass(slots=True)
class NodePods:
    """Pods by UID. changed: set at every news. synced: they were all told at least once."""

    port: NodePort
    node: str
    by_uid: dict[str, LocalPod] = field(default_factory=dict)
    synced: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _holds: dict[str, tuple[LocalPod, tuple[Hold, ...]]] = field(default_factory=dict)

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

    def holds_of_others(self, journal: Journal, uid: str) -> dict[str, tuple[Hold, ...]]:
        """What every other pod takes to which something was handed over: by the cluster, else as the journal has it."""
        rows = [row for row in journal.rows if row.uid != uid]
        return {f"{row.namespace}/{row.pod}": self._holds_now(row.uid, row.holds) for row in rows}

    def _holds_now(self, uid: str, stored: tuple[Hold, ...]) -> tuple[Hold, ...]:
        pod = self.by_uid.get(uid)
        if pod is None:
            self._holds.pop(uid, None)
            return stored
        known = self._holds.get(uid)
        if known is None or known[0] is not pod:  # news is another object
            known = self._holds[uid] = (pod, _holds_told(pod, stored))
        return known[1]


def _holds_told(pod: LocalPod, stored: tuple[Hold, ...]) -> tuple[Hold, ...]:
    """By the pod's allocation; nothing is an answer: its init container alone had a card, and has ended."""
    return stored if allocation_of(pod) is None else pod_holds(pod)
