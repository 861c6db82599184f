"""What controllers and agents wrote on nodes and pods about those that had to go, have to, or should and cannot.

Kept as the events tell. Refuses to fail at one object: what cannot be read is told as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from cardwise.adapters import wire
from cardwise.adapters.kube.port import All, Gone, Listing, Lost, NodeEvent, PodEvent, Put, Resumed
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.moves import moves_of, moving_of
from cardwise.adapters.nominations import nomination_of, preemptions_of

MOST = 200
"""Evictions that are told of, newest first."""
Told = dict[str, Any]
_ObjectT = TypeVar("_ObjectT", Node, Pod)


@dataclass(slots=True)
class Marks:
    """inconsistent: nodes that the scheduler says it cannot trust, and why."""

    inconsistent: dict[str, str] = field(default_factory=dict)
    _nodes: dict[str, list[Told]] = field(default_factory=dict)
    _pods: dict[str, list[Told]] = field(default_factory=dict)

    def evictions(self) -> list[Told]:
        """Pods that have to go or cannot leave first, then what happened, newest first.

        pod: its name, or its workload's or service's where that is all that is remembered. at: UTC, empty if unknown.
        """
        told = [each for kept in (self._pods, self._nodes) for lines in kept.values() for each in lines]
        return sorted(told, key=lambda each: (not each["at"], each["at"]), reverse=True)[:MOST]

    def hear_node(self, event: NodeEvent) -> None:
        """One event of the stream of nodes."""
        if isinstance(event, All):
            self.inconsistent = {}
            self._nodes = {}
        for node, there in _objects(event):
            name = node.metadata.name
            self._nodes.pop(name, None)
            self.inconsistent.pop(name, None)
            if there:
                self._put_node(name, node)

    def hear_pod(self, event: PodEvent) -> None:
        """One event of the stream of pods."""
        if isinstance(event, All):
            self._pods = {}
        for pod, there in _objects(event):
            self._pods.pop(pod.metadata.uid, None)
            if there and not pod.ended and (lines := list(_of_pod(pod))):
                self._pods[pod.metadata.uid] = lines

    def _put_node(self, name: str, node: Node) -> None:
        for each in node.status.conditions:
            if each.type == wire.CONDITION_CONSISTENT and each.status == "False":
                self.inconsistent[name] = f"its condition {each.type} is False; see kubectl describe node {name}"
        if lines := [*_read(node, _preempted, name, name), *_read(node, _moved, name, name)]:
            self._nodes[name] = lines


def _objects(
    event: All[_ObjectT] | Put[_ObjectT] | Gone[_ObjectT] | Listing | Lost | Resumed,
) -> Iterator[tuple[_ObjectT, bool]]:
    """Objects of an event, and whether they are there."""
    match event:
        case All(objects):
            yield from ((each, True) for each in objects)
        case Put(one):
            yield one, True
        case Gone(one):
            yield one, False


def _of_pod(pod: Pod) -> Iterator[Told]:
    notes, node = pod.metadata.annotations, pod.spec.node_name
    if by := notes.get(wire.ANNOTATION_PREEMPTED_FOR):
        until = notes.get(wire.ANNOTATION_PREEMPTED_BY, "")
        yield _line(pod.name, node, "", f"has to go for {by}" + (f", until {until}" if until else ""))
    yield from _read(pod, _moving, pod.name, node)
    yield from _read(pod, _kept, pod.name, node)
    if why := notes.get(wire.ANNOTATION_STAYS):
        yield _line(pod.name, node, "", f"is on bad ground and stays: {why}")


def _moving(pod: Pod) -> Iterator[Told]:
    moving = moving_of(pod)
    if moving is not None:
        why = "makes room for a pod that waits" if moving.aside else "is on bad ground"
        text = f"{why}; another is made, and this one goes when that one is ready"
        yield _line(pod.name, pod.spec.node_name, "", text)


def _kept(pod: Pod) -> Iterator[Told]:
    kept = nomination_of(pod)
    if kept is not None and not kept.over and not pod.spec.node_name:
        yield _line(pod.name, kept.allocation.node, "", f"waits: {kept.words}")


def _preempted(node: Node) -> Iterator[Told]:
    for each in preemptions_of(node).lines:
        done = each.eviction
        yield _line(done.owner, done.node, _stamp(done.at_s), f"went for {done.by}, of higher priority")


def _moved(node: Node) -> Iterator[Told]:
    for each in moves_of(node):
        why = "was to move, and stayed in the end" if each.vain else "moved"
        yield _line(each.service, node.metadata.name, _stamp(each.at_s), why)


def _read(one: _ObjectT, read: Callable[[_ObjectT], Iterator[Told]], name: str, node: str) -> list[Told]:
    """What is told of an object; that it cannot be read, of the pod or node of this name, where it cannot."""
    try:
        return list(read(one))
    except ValueError as exc:
        return [_line(name, node, "", str(exc))]


def _line(pod: str, node: str, at: str, why: str) -> Told:
    return {"pod": pod, "node": node, "at": at, "why": why}


def _stamp(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
