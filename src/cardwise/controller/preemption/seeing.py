"""What loops need of pods and nodes beside the ledger: labels, who owns a pod, and since when it is as it is.

Hears what :class:`~cardwise.adapters.watching.Watching` hears. How long a pod is ready is measured here, by this
machine's steady clock: clocks of two machines differ (case C15). So after a start every pod is new, and is left alone
for a while. Refuses to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from cardwise.adapters import wire
from cardwise.adapters.dump import service_of
from cardwise.adapters.kube.port import All, Gone, NodeEvent, PodEvent, Put
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.moves import moves_of, moving_of
from cardwise.adapters.nominations import Preempted, preemptions_of
from cardwise.said import MOST_REMEMBERED, Said

log = structlog.get_logger()
_ObjectT = TypeVar("_ObjectT")


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a pod is ready, and since when, as seen from here. seen_s: when it was seen first."""

    ready: bool
    since_s: float
    seen_s: float


@dataclass(slots=True)
class Seen:
    """Pods that have not ended, by UID, and nodes by name, as they were told last.

    told: UIDs of pods that carry the mark of one who has to go.
    """

    now_s: Callable[[], float]
    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    standing: dict[str, Standing] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    _unreadable: Said = field(init=False)

    def __post_init__(self) -> None:
        """Remember what was said."""
        self._unreadable = Said(self.now_s, most=MOST_REMEMBERED)

    def hear_pod(self, event: PodEvent) -> None:
        """One event of the stream of pods."""
        match event:
            case All(pods):
                living = {pod.metadata.uid: pod for pod in pods if not pod.ended}
                for uid in self.pods.keys() - living.keys():
                    self._drop(uid)
                for pod in living.values():
                    self._put(pod)
            case Put(pod) if not pod.ended:
                self._put(pod)
            case Put(pod) | Gone(pod):
                self._drop(pod.metadata.uid)

    def hear_node(self, event: NodeEvent) -> None:
        """One event of the stream of nodes."""
        match event:
            case All(nodes):
                self.nodes = {node.metadata.name: node for node in nodes}
                self._check_nodes(nodes)
            case Put(node):
                self.nodes[node.metadata.name] = node
                self._check_nodes([node])
            case Gone(node):
                self.nodes.pop(node.metadata.name, None)

    def _put(self, pod: Pod) -> None:
        uid, now_s = pod.metadata.uid, self.now_s()
        self.pods[uid] = pod
        before = self.standing.get(uid)
        if before is None:
            self.standing[uid] = Standing(pod.ready, now_s, now_s)
        elif before.ready != pod.ready:
            self.standing[uid] = Standing(pod.ready, now_s, before.seen_s)
        marked = wire.ANNOTATION_PREEMPTED_FOR in pod.metadata.annotations
        (self.told.add if marked else self.told.discard)(uid)

        self._check("the mark of a pod that was released is unreadable", pod, moving_of, pod.name)

    def _check_nodes(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            name = node.metadata.name
            self._check("who was evicted there cannot be read, nobody is", node, preemptions_of, name)
            self._check("who left a node is unreadable, it counts as nobody", node, moves_of, name)

    def _check(self, said: str, one: _ObjectT, read: Callable[[_ObjectT], object], name: str) -> None:
        """Say what cannot be read, once: whoever reads it later takes it for nothing, and is silent."""
        try:
            read(one)
        except ValueError as exc:
            if self._unreadable.is_news((said, name), str(exc)):
                log.error(said, of=name, why=str(exc))

    def _drop(self, uid: str) -> None:
        self.pods.pop(uid, None)
        self.standing.pop(uid, None)
        self.told.discard(uid)


def remembered(node: Node) -> tuple[Preempted, ...] | None:
    """Who was evicted on a node of late; None if that cannot be read, as :class:`Seen` has said."""
    try:
        return preemptions_of(node).lines
    except ValueError:
        return None


def condition(node: Node, kind: str) -> str | None:
    """The status of a condition of a node; None if it does not say."""
    return next((each.status for each in node.status.conditions if each.type == kind), None)


def is_well(node: Node) -> bool:
    """Whether a pod that comes to a node would start there, as far as the node's conditions say."""
    return condition(node, "Ready") in {"True", None} and condition(node, wire.CONDITION_MPS) != "False"


def owner_of(pod: Pod) -> str:
    """Its workload; of a pod of its own, its name."""
    return service_of(pod) or pod.name


def queue_of(pod: Pod) -> str:
    """Kueue's queue that it is in, empty if Kueue does not manage it. One that is not told is nobody else's."""
    labels = pod.metadata.labels
    if queue := labels.get(wire.LABEL_KUEUE_CLUSTER_QUEUE):
        return queue
    if queue := labels.get(wire.LABEL_KUEUE_QUEUE):
        return f"{pod.metadata.namespace}/{queue}"
    return f"of {pod.metadata.uid}" if labels.get(wire.LABEL_KUEUE_MANAGED) == "true" else ""
