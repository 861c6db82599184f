"""What stands in objects of a pod that is moved, both ways: on the pod, and on the node that it leaves.

A controller that is killed at any step and started again reads here what it had begun (SPEC G1). Refuses what it does
not understand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from cardwise.adapters import wire
from cardwise.adapters.kube_objects import Moment, Node, Pod, since_epoch_s
from cardwise.core.fleet.rescue import Moved
from cardwise.files import decode_json

VERSION = 1
MOST_LINES = 200
"""Remembered of a node: an annotation may take 256 KiB in all."""
_ToldT = TypeVar("_ToldT")


@dataclass(frozen=True, slots=True)
class Moving:
    """A pod that was released: when (seconds since 1970), how many of its service were ready then, and whose it was.

    owner_uid: of the ReplicaSet; pod_hash: the label that made it that one's. aside: nothing was wrong where it was, it
    makes room for another.
    """

    at_s: float
    ready: int
    service: str
    owner_uid: str
    pod_hash: str
    aside: bool = False


class _Told(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    v: int
    at: Moment
    ready: int
    service: str
    owner: str
    hash: str
    aside: bool = False


class _Line(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    at: Moment
    uid: str
    service: str
    vain: bool = False


def encode_moving(moving: Moving) -> str:
    """The annotation's text."""
    at = datetime.fromtimestamp(moving.at_s, UTC)
    told = _Told(VERSION, at, moving.ready, moving.service, moving.owner_uid, moving.pod_hash, moving.aside)
    return msgspec.json.encode(told).decode()


def moving_of(pod: Pod) -> Moving | None:
    """What the pod's annotation says, None without one. Raises ValueError if it is not one of ours."""
    told = _read(pod.metadata.annotations, wire.ANNOTATION_MOVING, _Told)
    if told is None:
        return None
    if told.v != VERSION:
        raise ValueError(f"{wire.ANNOTATION_MOVING} has version {told.v}, this program reads {VERSION}")
    return Moving(since_epoch_s(told.at), told.ready, told.service, told.owner, told.hash, told.aside)


def encode_moves(moves: Iterable[Moved]) -> str:
    """The annotation's text; the newest where there are too many."""
    newest = sorted(moves, key=lambda each: (each.at_s, each.uid))[-MOST_LINES:]
    lines = [_Line(datetime.fromtimestamp(m.at_s, UTC), m.uid, m.service, m.vain) for m in newest]
    return msgspec.json.encode(lines).decode()


def moves_of(node: Node) -> tuple[Moved, ...]:
    """What the node's annotation says, nothing without one. Raises ValueError if it is not one of ours."""
    lines = _read(node.metadata.annotations, wire.ANNOTATION_MOVES, list[_Line])
    return tuple(Moved(since_epoch_s(each.at), each.uid, each.service, each.vain) for each in lines or ())


def _read(notes: Mapping[str, str], key: str, kind: type[_ToldT]) -> _ToldT | None:
    if key not in notes:
        return None
    try:
        return decode_json(notes[key], kind)
    except msgspec.DecodeError as exc:
        raise ValueError(f"{key} is not readable: {exc}") from exc
