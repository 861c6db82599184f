"""The feed of nodes and pods into the ledger. Refuses to decide, and to forget a pod that still holds a card.

Objects come again with every heartbeat: of one that cannot be read the log says so once, and when that is another.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog

from cardwise.adapters import wire
from cardwise.adapters.allocations import bound_pod
from cardwise.adapters.claims import read_claim
from cardwise.adapters.kube.feed import backoff_s
from cardwise.adapters.kube.port import All, ClusterPort, Gone, Listing, Lost, NodeEvent, PodEvent, Put
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.node_cards import node_load, node_spec
from cardwise.adapters.nominations import Nomination, nomination_of
from cardwise.core.allocation import Allocation, BoundPod, Share
from cardwise.core.claim import Claim
from cardwise.core.inventory import NodeSpec
from cardwise.core.ledger import Ledger
from cardwise.errors import ClusterError, NotFoundError
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()

_ObjectT = TypeVar("_ObjectT", bound=Node | Pod)
_T = TypeVar("_T")


class Hearer(Protocol):
    """Who hears the same events, after the ledger."""

    def hear_pod(self, event: PodEvent) -> None:
        """One event of the stream of pods."""

    def hear_node(self, event: NodeEvent) -> None:
        """One event of the stream of nodes."""


@dataclass(slots=True)
class Watching:
    """What the cluster said last.

    now_s: a clock that never goes back: what is kept for a pod that waits has a deadline, counted from when it was
    first heard of, for clocks of two machines differ (case C15). also: who else hears.
    pending: pods that are not bound, by UID. uids: UID by "namespace/name", of all pods.
    pods_synced, nodes_synced: everything was told at least once, and nothing is known to be missed.
    """

    ledger: Ledger
    now_s: Callable[[], float] = time.monotonic
    also: tuple[Hearer, ...] = ()
    pending: dict[str, Claim] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)
    inconsistent: set[str] = field(default_factory=set)
    pods_synced: bool = False
    nodes_synced: bool = False
    lists: int = 0
    _missed: asyncio.Event = field(default_factory=asyncio.Event)
    _reading: asyncio.Task[None] | None = None
    _afresh: asyncio.Future[None] | None = None
    _said: Said = field(init=False)

    def __post_init__(self) -> None:
        """Nothing was said yet."""
        self._said = Said(self.now_s, most=MOST_REMEMBERED)

    @property
    def synced(self) -> bool:
        """True once nodes and pods are known."""
        return self.pods_synced and self.nodes_synced

    async def follow(self, port: ClusterPort) -> None:
        """Read both streams until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_nodes(port))
            tasks.create_task(self._follow_pods(port))
            tasks.create_task(self._follow_unlisted(port))

    async def _follow_nodes(self, port: ClusterPort) -> None:
        async for event in port.follow_nodes():
            self.hear_node(event)
            for each in self.also:
                each.hear_node(event)

    async def _follow_pods(self, port: ClusterPort) -> None:
        """One stream at a time: two would tell what is old after what is new."""
        while True:
            self._reading = asyncio.create_task(self._read_pods(port))
            try:
                await self._reading
            except asyncio.CancelledError:
                self._reading.cancel()
                if _is_cancelled():
                    raise

    async def _read_pods(self, port: ClusterPort) -> None:
        async with contextlib.aclosing(port.follow_pods()) as events:  # type: ignore[type-var]
            async for event in events:
                self.hear_pod(event)
                for each in self.also:
                    each.hear_pod(event)

    async def _follow_unlisted(self, port: ClusterPort) -> None:
        while True:
            await self._missed.wait()
            self._missed.clear()
            failures = 0
            while not await self.read_back(port):
                failures += 1
                await asyncio.sleep(backoff_s(failures))

    async def read_back(self, port: ClusterPort) -> bool:
        """Ask for each pod that the last list did not have: one that went before it is told by no event.

        One that is there came after the list, so the stream will tell of it. False if some could not be asked for.
        """
        failed = False
        for uid in sorted(self.ledger.unlisted):
            name, lists = self.ledger.name_of(uid), self.lists
            try:
                there = name is not None and await _is_there(port, name, uid)
            except ClusterError as exc:
                if self._said.is_news(("unlisted", uid), str(exc)):
                    log.warning("a pod that was in no list could not be read, it stays counted", pod=name, why=str(exc))
                failed = True
                continue
            if not there:
                self.ledger.disown(uid)
            elif lists == self.lists:  # else the answer may be older than the list that does not have the pod
                self.ledger.unlisted.discard(uid)
        return not failed

    async def hear_afresh(self) -> None:
        """Have all pods listed again, and wait until they were. Raises ClusterError if that fails at once."""
        self._afresh = asyncio.get_running_loop().create_future()
        try:
            if self._reading is not None:
                self._reading.cancel()
            await self._afresh
        finally:
            self._afresh = None

    def _answer(self, error: ClusterError | None = None) -> None:
        """To who waits for a list."""
        if self._afresh is None or self._afresh.done():
            return
        if error is None:
            self._afresh.set_result(None)
        else:
            self._afresh.set_exception(error)

    def hear_all(self, nodes: Sequence[Node], pods: Sequence[Pod]) -> None:
        """Everything at once, as from a dump."""
        self.hear_node(All(tuple(nodes)))
        self.hear_pod(All(tuple(pods)))

    # ---------------------------------------------------------------- pods

    def hear_pod(self, event: PodEvent) -> None:
        """One event of the stream of pods."""
        match event:
            case Listing():
                self.ledger.begin_list()
            case All(pods):
                self._hear_all_pods(pods)
                self._answer()
            case Put(pod):
                self._put_pod(pod)
            case Gone(pod):
                self._drop_pod(pod)
            case Lost(why):
                if self._said.is_news("pods", why):
                    log.warning("the watch of pods broke", why=why)
                self._answer(ClusterError(why, retry=True))

    def _hear_all_pods(self, pods: Iterable[Pod]) -> None:
        living = [pod for pod in pods if not pod.ended]
        self.uids = {pod.name: pod.metadata.uid for pod in living}
        self.ledger.take_list(self.uids.values(), [self._bound(pod) for pod in living if pod.spec.node_name])
        self.pending = {
            pod.metadata.uid: self._claim(pod)
            for pod in living
            if not pod.spec.node_name and pod.metadata.uid not in self.ledger.pods
        }
        for uid in self.ledger.nominated.keys() - self.pending.keys():
            self.ledger.withdraw(uid)
        for pod in living:
            if pod.metadata.uid in self.pending:
                self._nominate(pod)
        self.pods_synced = True
        self.lists += 1
        if self.ledger.unlisted:
            self._missed.set()

    def _put_pod(self, pod: Pod) -> None:
        if pod.ended:
            self._drop_pod(pod)
            return
        self.uids[pod.name] = pod.metadata.uid
        if pod.spec.node_name:
            self.pending.pop(pod.metadata.uid, None)
            self.ledger.withdraw(pod.metadata.uid)
            self.ledger.put_pod(self._bound(pod))
        elif pod.metadata.uid not in self.ledger.pods:  # else it is news from before the binding
            self.pending[pod.metadata.uid] = self._claim(pod)
            self._nominate(pod)

    def _drop_pod(self, pod: Pod) -> None:
        self.pending.pop(pod.metadata.uid, None)
        if self.uids.get(pod.name) == pod.metadata.uid:
            del self.uids[pod.name]
        self.ledger.withdraw(pod.metadata.uid)
        self.ledger.drop_pod(pod.metadata.uid)

    def _nominate(self, pod: Pod) -> None:
        """What is kept for a pod that waits."""
        told = self._nomination(pod)
        if told is None or told.over:
            self.ledger.withdraw(pod.metadata.uid)
            return
        kept = BoundPod(self.pending[pod.metadata.uid], told.allocation.node, told.allocation)
        self.ledger.nominate(kept, self.now_s() + told.keep_s)

    # ---------------------------------------------------------------- nodes

    def hear_node(self, event: NodeEvent) -> None:
        """One event of the stream of nodes."""
        match event:
            case All(nodes):
                self.inconsistent = set()
                specs = [self._spec(node) for node in nodes]
                self.ledger.loads = {node.metadata.name: self._load(node) for node in nodes}
                self.ledger.reset(specs, list(self.ledger.pods.values()))
                self.nodes_synced = True
            case Put(node):
                self.ledger.put_node(self._spec(node))
                if (load := self._load(node)) != self.ledger.loads.get(node.metadata.name, {}):
                    self.ledger.report_load(node.metadata.name, load)
            case Gone(node):
                self.ledger.drop_node(node.metadata.name)
                self.ledger.loads.pop(node.metadata.name, None)
                self.inconsistent.discard(node.metadata.name)
            case Lost(why):
                if self._said.is_news("nodes", why):
                    log.warning("the watch of nodes broke", why=why)

    def _spec(self, node: Node) -> NodeSpec:
        name = node.metadata.name
        self.inconsistent.discard(name)
        if any(each.type == wire.CONDITION_CONSISTENT and each.status == "False" for each in node.status.conditions):
            self.inconsistent.add(name)
        said = "a node's inventory is unreadable, it takes no slices"
        return self._read(node_spec, node, lambda: NodeSpec(name, 0, 0, schedulable=False), said)

    # ---------------------------------------------------------------- one object

    def _claim(self, pod: Pod) -> Claim:
        """What a pod that is not bound asks for, as far as it can be read."""
        return self._read(_asks, pod, lambda: _nothing(pod), "a pod's asks are unreadable")

    def _nomination(self, pod: Pod) -> Nomination | None:
        return self._read(nomination_of, pod, lambda: None, "what is kept for a pod is unreadable, nothing is")

    def _load(self, node: Node) -> dict[str, float]:
        said = "a node's load is unreadable, its cards count as not measured"
        return self._read(node_load, node, dict[str, float], said)

    def _bound(self, pod: Pod) -> BoundPod:
        """An allocation that cannot be read holds a card that no node has: it fences the node, for it is not none."""
        return self._read(bound_pod, pod, lambda: _nowhere(pod), "a pod's allocation is unreadable, its node is fenced")

    def _read(self, read: Callable[[_ObjectT], _T], told: _ObjectT, otherwise: Callable[[], _T], said: str) -> _T:
        """What ``read`` makes of an object, or ``otherwise``: whatever it does to its reader, the others are read."""
        key = said, told.metadata.uid or told.metadata.name
        try:
            found = read(told)
        except Exception as exc:  # noqa: BLE001 - see above
            # our own errors say it all; of others the kind may be all that there is
            why = str(exc) if isinstance(exc, ValueError) else repr(exc)
            if self._said.is_news(key, why):
                about = {"pod": told.name} if isinstance(told, Pod) else {"node": told.metadata.name}
                log.error(said, **about, why=why)
            return otherwise()
        self._said.forget(key)
        return found


def _asks(pod: Pod) -> Claim:
    return read_claim(pod)[0]


def _nothing(pod: Pod) -> Claim:
    return Claim(pod.metadata.uid, pod.name)


def _nowhere(pod: Pod) -> BoundPod:
    allocation = Allocation(pod.spec.node_name, (("", (Share("(unreadable allocation)", 0, 0),)),))
    return BoundPod(_nothing(pod), pod.spec.node_name, allocation)


def _is_cancelled() -> bool:
    """True if who runs is to end, and not only what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _is_there(port: ClusterPort, name: str, uid: str) -> bool:
    """Whether this very pod, not the next of its name, is there and has not ended."""
    try:
        pod = await port.get_pod(*name.split("/", 1))
    except NotFoundError:
        return False
    return pod.metadata.uid == uid and not pod.ended
