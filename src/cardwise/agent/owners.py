"""Whose slots are these? Asked at every start of a container, and answered exactly or not at all.

The kubelet's pod resources API says whose; its checkpoint adds the pod's UID and knows init containers. Where both
speak they must agree. Refuses to fall back on order or amounts: equal asks would swap cards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from cardwise.adapters.claims import stages
from cardwise.adapters.kube_objects import ContainerStatus, LocalPod
from cardwise.adapters.kubelet.checkpoint import Entry, read_checkpoint
from cardwise.adapters.kubelet.device_plugin import RefusedError
from cardwise.adapters.kubelet.pod_resources import PodResources
from cardwise.agent.watching import NodePods
from cardwise.core.allocation import Allocation
from cardwise.core.claim import Stage
from cardwise.errors import ClusterError, NotFoundError

log = structlog.get_logger()

UNCLEAR_S, LOOK_AGAIN_S = 5.0, 0.25
"""How long to wait for a pod's status to say which of two containers starts; the kubelet waits 30 s in all."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A container that is about to start."""

    pod: LocalPod
    container: str


@dataclass(slots=True)
class Owners:
    """Asks the kubelet. folder: of its device plugins, where the checkpoint lies. allocation_of: of a pod."""

    resources: PodResources
    folder: Path
    resource: str
    pods: NodePods
    allocation_of: Callable[[LocalPod], Allocation | None]

    async def find(self, slots: Sequence[str]) -> Owner:
        """The container that has exactly these slots and starts now. Raises RefusedError, or ClusterError."""
        wanted = frozenset(slots)
        entries = [entry for entry in self._checkpoint() if entry.ids == wanted]
        names = {(h.namespace, h.pod): h.container for h in await self.resources.held(self.resource) if h.ids == wanted}
        if len(names) > 1:
            told = ", ".join(sorted("/".join(name) for name in names))
            raise RefusedError(f"the kubelet says that several pods have the slots {_list(slots)}: {told}")
        pod = await self._pod(slots, next(iter(names), None), entries)
        containers = {entry.container for entry in entries if entry.pod_uid == pod.metadata.uid} | set(names.values())
        return await self._starting(pod, containers, UNCLEAR_S)

    def _checkpoint(self) -> list[Entry]:
        try:
            return read_checkpoint(self.folder, self.resource)
        except ClusterError as exc:
            log.warning("the kubelet's checkpoint says nothing", why=str(exc))
            return []

    async def _pod(self, slots: Sequence[str], name: tuple[str, str] | None, entries: Iterable[Entry]) -> LocalPod:
        uids = {entry.pod_uid for entry in entries}
        if name is None:
            known = [self.pods.by_uid[uid] for uid in uids if uid in self.pods.by_uid]
            if len(known) != 1:
                raise RefusedError(f"the kubelet does not say yet whose the slots {_list(slots)} are; it tries again")
            return known[0]
        pod = self.pods.named(*name)
        if pod is None or (uids and pod.metadata.uid not in uids) or self.allocation_of(pod) is None:
            pod = await self._fetch(*name)
        if uids and pod.metadata.uid not in uids:
            raise RefusedError(f"pod {pod.name} has UID {pod.metadata.uid}, the kubelet's has {_list(sorted(uids))}")
        return pod

    async def _fetch(self, namespace: str, name: str) -> LocalPod:
        try:
            return await self.pods.fetch(namespace, name)
        except NotFoundError as exc:
            raise RefusedError(f"pod {namespace}/{name} is gone from the API server") from exc

    async def _starting(self, pod: LocalPod, containers: set[str], wait_s: float) -> Owner:
        """Which of the pod's containers with these slots starts: an app container may have an init container's."""
        shares = dict(allocation.containers) if (allocation := self.allocation_of(pod)) else {}
        order = [(c.name, stage) for c, stage in stages(pod) if c.name in containers]
        while True:
            unended = [name for name, stage in order if stage is not Stage.INIT or not _ended_well(pod, name)]
            if not unended:
                raise RefusedError(f"pod {pod.name} has no container that would start with these slots")
            first = unended[0]
            unclear = len({shares.get(name) for name in unended}) > 1 and _has_run(pod, first)
            if not unclear or wait_s <= 0:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
            wait_s -= LOOK_AGAIN_S
            pod = await self._fetch(pod.metadata.namespace, pod.metadata.name)
        if unclear and not _failed(pod, first):
            raise RefusedError(f"pod {pod.name}: it is not clear yet whether {' or '.join(unended)} starts; try again")
        return Owner(pod, first)


def _ended_well(pod: LocalPod, container: str) -> bool:
    ended = _status(pod, container).state.terminated
    return ended is not None and ended.exit_code == 0


def _failed(pod: LocalPod, container: str) -> bool:
    """It ended badly, or waits to be started again: whatever starts now is it."""
    return _has_run(pod, container) and _status(pod, container).state.running is None


def _has_run(pod: LocalPod, container: str) -> bool:
    told = _status(pod, container)
    return told.restart_count > 0 or told.state.running is not None or told.state.terminated is not None


def _status(pod: LocalPod, container: str) -> ContainerStatus:
    """Of an init container; an empty one if nothing is known."""
    return next((each for each in pod.status.init_container_statuses if each.name == container), ContainerStatus())


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
