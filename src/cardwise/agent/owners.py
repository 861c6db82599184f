"""Whose slots are these? Asked at every start of a container, and answered exactly or not at all.

The kubelet's pod resources API says whose; its checkpoint adds the pod's UID and knows init containers. Where both
speak they must agree; where no UID is known the API server is asked anew, for the next pod of a StatefulSet has its
predecessor's name. Refuses to fall back on order or amounts: equal asks would swap cards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from cardwise.adapters.claims import stages
from cardwise.adapters.journal import Row, State
from cardwise.adapters.kube_objects import ContainerStatus, LocalPod
from cardwise.adapters.kubelet.checkpoint import Entry, read_checkpoint
from cardwise.adapters.kubelet.device_plugin import RefusedError
from cardwise.adapters.kubelet.pod_resources import Held, PodResources
from cardwise.agent.watching import NodePods
from cardwise.core.allocation import Allocation
from cardwise.core.claim import Stage
from cardwise.errors import ClusterError, NotFoundError
from cardwise.said import Said

log = structlog.get_logger()

UNCLEAR_S, LOOK_AGAIN_S = 5.0, 0.25
"""How long to wait for a pod's status to say which of two containers starts; the kubelet waits 30 s in all."""
SANDBOX_READY = "PodReadyToStartContainers"
"""A pod's condition, of Kubernetes 1.29 on: False while it has no sandbox, thus until its first container started."""
MOST_NAMED = 4
"""Names in a text: a call may have any number of them."""
LONGEST_NAME = 63


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
    _said: Said = field(default_factory=Said)

    async def find(self, slots: Sequence[str], rows: Collection[Row] = ()) -> Owner:
        """The container that has exactly these slots and starts now. Raises RefusedError, or ClusterError.

        rows: what the journal has of these slots.
        """
        wanted = frozenset(slots)
        entries = [entry for entry in self._checkpoint() if entry.ids == wanted]
        held = await self.resources.held(self.resource)
        names = {(each.namespace, each.pod): each for each in held if each.ids == wanted}
        if len(names) > 1:
            told = few(sorted("/".join(name) for name in names))
            raise RefusedError(f"the kubelet says that several pods have the slots {few(slots)}: {told}")
        mine = next(iter(names.values()), None)
        if mine is not None and not entries:
            pod = await self._named(mine, held, rows)
        else:
            pod = await self._pod(slots, mine, entries)
        containers = {entry.container for entry in entries if entry.pod_uid == pod.metadata.uid}
        containers |= {each.container for each in names.values()}
        ran = {row.container for row in rows if row.uid == pod.metadata.uid and row.state is State.READY}
        return await self._starting(pod, containers, ran)

    async def running(self) -> list[tuple[Owner, frozenset[str]]]:
        """Containers with slots whose pods are known, and their slots. Raises ClusterError."""
        entries = self._checkpoint()
        held = await self.resources.held(self.resource)
        found = [(self._known(each, entries), each) for each in held]
        return [(Owner(pod, each.container), each.ids) for pod, each in found if pod is not None]

    def _known(self, held: Held, entries: Iterable[Entry]) -> LocalPod | None:
        uids = {each.pod_uid for each in entries if (each.ids, each.container) == (held.ids, held.container)}
        if not uids:
            return self.pods.named(held.namespace, held.pod)
        return next((self.pods.by_uid[uid] for uid in sorted(uids) if uid in self.pods.by_uid), None)

    def _checkpoint(self) -> list[Entry]:
        try:
            return read_checkpoint(self.folder, self.resource)
        except ClusterError as exc:
            if self._said.is_news("checkpoint", str(exc)):
                log.warning("the kubelet's checkpoint says nothing", why=str(exc))
            return []

    async def _pod(self, slots: Sequence[str], held: Held | None, entries: Iterable[Entry]) -> LocalPod:
        """The pod by the UID that the checkpoint has."""
        uids = {entry.pod_uid for entry in entries}
        if held is None:
            known = [self.pods.by_uid[uid] for uid in uids if uid in self.pods.by_uid]
            if len(known) != 1:
                raise RefusedError(f"the kubelet does not say yet whose the slots {few(slots)} are; it tries again")
            return known[0]
        pod = self.pods.named(held.namespace, held.pod)
        if pod is None or pod.metadata.uid not in uids or self.allocation_of(pod) is None:
            pod = await self._fetch(held.namespace, held.pod)
        if pod.metadata.uid not in uids:
            raise RefusedError(f"pod {pod.name} has UID {pod.metadata.uid}, the kubelet's has {few(sorted(uids))}")
        return pod

    async def _named(self, held: Held, all_held: Iterable[Held], rows: Iterable[Row]) -> LocalPod:
        """The pod by its name alone, as the API server has it now; a remembered one only if it had these slots."""
        name = (held.namespace, held.pod, held.container)
        if sum((each.namespace, each.pod, each.container) == name for each in all_held) > 1:
            raise RefusedError(f"the kubelet has two pods {held.namespace}/{held.pod} and does not tell them apart")
        try:
            return await self._fetch(held.namespace, held.pod)
        except ClusterError as exc:
            pod = self.pods.named(held.namespace, held.pod)
            if pod is None or not any(_was_given(row, pod, held) for row in rows):
                raise
            log.warning("a pod is taken as it is remembered", pod=pod.name, why=str(exc))
            return pod

    async def _fetch(self, namespace: str, name: str) -> LocalPod:
        try:
            return await self.pods.fetch(namespace, name)
        except NotFoundError as exc:
            raise RefusedError(f"pod {namespace}/{name} is gone from the API server") from exc

    async def _starting(self, pod: LocalPod, containers: set[str], ran: set[str]) -> Owner:
        """Which of the pod's containers with these slots starts: an app container may have an init container's.

        ran: containers that were given these slots last, also if the pod's status does not say so yet.
        """
        shares = dict(allocation.containers) if (allocation := self.allocation_of(pod)) else {}
        order = [(c.name, stage) for c, stage in stages(pod) if c.name in containers]
        left_s = UNCLEAR_S
        while True:
            unended = [name for name, stage in order if stage is not Stage.INIT or not _ended_well(pod, name)]
            if not unended:
                raise RefusedError(f"pod {pod.name} has no container that would start with these slots")
            first = unended[0]
            has_run = first in ran or (_has_run(pod, first) and not _in_new_sandbox(pod))
            unclear = has_run and len({shares.get(name) for name in unended}) > 1
            if not unclear or left_s <= 0:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
            left_s -= LOOK_AGAIN_S
            pod = await self._again(pod)
        if unclear and _status(pod, first).state.running is not None:
            raise RefusedError(f"pod {pod.name}: it is not clear yet whether {' or '.join(unended)} starts; try again")
        return Owner(pod, first)

    async def _again(self, pod: LocalPod) -> LocalPod:
        new = await self._fetch(pod.metadata.namespace, pod.metadata.name)
        if new.metadata.uid != pod.metadata.uid:
            raise RefusedError(f"pod {pod.name} with UID {pod.metadata.uid} is gone from the API server")
        return new


def _was_given(row: Row, pod: LocalPod, held: Held) -> bool:
    """Whether the pod's container was made ready with exactly these slots: then it is the pod that has them."""
    same = (row.uid, row.container) == (pod.metadata.uid, held.container)
    return same and row.state is State.READY and held.ids == set(row.slots)


def _ended_well(pod: LocalPod, container: str) -> bool:
    ended = _status(pod, container).state.terminated
    return ended is not None and ended.exit_code == 0 and not _in_new_sandbox(pod)


def _in_new_sandbox(pod: LocalPod) -> bool:
    """After a reboot: what the status says of init containers is of the old sandbox, and all of them run once more."""
    return any(each.type == SANDBOX_READY and each.status == "False" for each in pod.status.conditions)


def _has_run(pod: LocalPod, container: str) -> bool:
    told = _status(pod, container)
    return told.restart_count > 0 or told.state.running is not None or told.state.terminated is not None


def _status(pod: LocalPod, container: str) -> ContainerStatus:
    """Of an init container; an empty one if nothing is known."""
    return next((each for each in pod.status.init_container_statuses if each.name == container), ContainerStatus())


def few(names: Collection[str]) -> str:
    """Names as a text has them: the first ones, each cut if it is long, and how many more there are."""
    told = ", ".join(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…" for name in [*names][:MOST_NAMED])
    return told if len(names) <= MOST_NAMED else f"{told} and {len(names) - MOST_NAMED:,} more"
