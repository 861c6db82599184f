"""What stands in objects of a preemption, both ways: on who waits, and on the node where others went.

A controller that is killed at any step and started again reads here what it had begun (SPEC E3). Refuses what it does
not understand: a nomination of another version keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.allocations import ToldAllocation, read_allocation, told_allocation
from cardwise.adapters.kube_objects import Moment, Node, Pod, since_epoch_s
from cardwise.core.allocation import Allocation
from cardwise.core.fleet.guard import Eviction, age_s
from cardwise.files import decode_json

VERSION = 1
MOST_KEPT_S = 3600.0
"""Nothing is kept longer for a pod that waits, whatever its annotation says."""
MOST_LINES = 400
"""Remembered of a node: all annotations of an object may take 256 KiB together."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Who has to go, or to move."""

    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class Nomination:
    """What is kept for a pod that waits, and who has to go for it.

    at_s: when it was decided, seconds since 1970. keep_s: how long it is kept, counted by each reader from when it
    first heard of it. tries: of this pod so far, this one included. over: it came to nothing, and keeps nothing now.
    moves: nobody is evicted for it: those in its way move, each once its successor is ready.
    """

    allocation: Allocation
    victims: tuple[Victim, ...]
    at_s: float
    keep_s: float
    tries: int = 1
    over: bool = False
    moves: bool = False

    @property
    def words(self) -> str:
        """What is kept, and who makes room."""
        names = ", ".join(victim.name for victim in self.victims)
        how = "move, each once its successor is ready" if self.moves else "have gone"
        return f"a place on {self.allocation.node} is kept for it until these {how}: {names}"


class _Told(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    v: int
    at: Moment
    keep: float
    alloc: ToldAllocation
    victims: list[tuple[str, str]]
    tries: int = 1
    over: bool = False
    moves: bool = False


def encode_nomination(nomination: Nomination) -> str:
    """The annotation's text."""
    told = _Told(
        VERSION,
        datetime.fromtimestamp(nomination.at_s, UTC),
        nomination.keep_s,
        told_allocation(nomination.allocation),
        [(victim.uid, victim.name) for victim in nomination.victims],
        nomination.tries,
        nomination.over,
        nomination.moves,
    )
    return msgspec.json.encode(told).decode()


def nomination_of(pod: Pod) -> Nomination | None:
    """What the pod's annotation says, None without one. Raises ValueError if it is not one of ours."""
    text = pod.metadata.annotations.get(wire.ANNOTATION_NOMINATED)
    if text is None:
        return None
    try:
        told = decode_json(text, _Told)
    except msgspec.DecodeError as exc:
        raise ValueError(f"{wire.ANNOTATION_NOMINATED} is not readable: {exc}") from exc
    if told.v != VERSION:
        raise ValueError(f"{wire.ANNOTATION_NOMINATED} has version {told.v}, this program reads {VERSION}")
    if not 0 <= told.keep <= MOST_KEPT_S:
        raise ValueError(f"{wire.ANNOTATION_NOMINATED} keeps {told.keep} s, and at most {MOST_KEPT_S:g} are kept")
    victims = tuple(Victim(uid, name) for uid, name in told.victims)
    at_s = since_epoch_s(told.at)
    return Nomination(read_allocation(told.alloc), victims, at_s, told.keep, told.tries, told.over, told.moves)


# ---------------------------------------------------------------- on nodes


@dataclass(frozen=True, slots=True)
class Preempted:
    """One eviction, as its node remembers it. uid: of the pod that went, so that it is counted once."""

    uid: str
    eviction: Eviction


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    at: Moment
    uid: str
    owner: str
    by: str


@dataclass(frozen=True, slots=True)
class Preemptions:
    """What a node remembers."""

    lines: tuple[Preempted, ...] = field(default=())

    def with_more(self, more: Iterable[Preempted], now_s: float, oldest_s: float) -> Preemptions:
        """These and more, each pod once; what is older than ``oldest_s`` is forgotten, and all but the newest."""
        by_uid = {line.uid: line for line in (*more, *self.lines)}
        kept = [line for line in by_uid.values() if age_s(line.eviction.at_s, now_s) <= oldest_s]
        newest = sorted(kept, key=lambda line: (-age_s(line.eviction.at_s, now_s), line.uid))[-MOST_LINES:]
        return Preemptions(tuple(sorted(newest, key=lambda line: (line.eviction.at_s, line.uid))))

    def without(self, uids: Iterable[str]) -> Preemptions:
        """All but those of these pods: they did not have to go in the end."""
        gone = set(uids)
        return Preemptions(tuple(line for line in self.lines if line.uid not in gone))


def encode_preemptions(preemptions: Preemptions) -> str:
    """The annotation's text."""
    lines = [
        _Line(datetime.fromtimestamp(each.eviction.at_s, UTC), each.uid, each.eviction.owner, each.eviction.by)
        for each in preemptions.lines
    ]
    return msgspec.json.encode(lines).decode()


def preemptions_of(node: Node) -> Preemptions:
    """What the node's annotation says, nothing without one. Raises ValueError if it is not one of ours."""
    text = node.metadata.annotations.get(wire.ANNOTATION_PREEMPTIONS)
    if text is None:
        return Preemptions()
    try:
        lines = decode_json(text, list[_Line])
    except msgspec.DecodeError as exc:
        raise ValueError(f"{wire.ANNOTATION_PREEMPTIONS} is not readable: {exc}") from exc
    name = node.metadata.name
    return Preemptions(
        tuple(Preempted(each.uid, Eviction(since_epoch_s(each.at), name, each.owner, each.by)) for each in lines)
    )
