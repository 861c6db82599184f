"""Prefetch: on which nodes a model's weights should lie before its next replicas come, and which to load now.

Where they would come is asked of placement itself, one replica after the other. A node that has the weights is
preferred there (SPEC B2), so what was loaded is what will be used, and nothing more is loaded once it is. Loading takes
bandwidth from those who serve: only so many loads run at a time, and each has a deadline by its size. Refuses nodes
whose disk is short, to load what is there, and to try again at once where it failed.

Source: SPEC F1.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Wish:
    """A model that should lie on nodes. key: who wishes. nodes: on how many. size_mib: on disk, 0 if nobody said."""

    key: str
    model: str
    nodes: int
    size_mib: int = 0


@dataclass(frozen=True, slots=True)
class Disk:
    """A node's disk. free_mib: what may be asked for, None if not told. pressed: the kubelet says that it is full."""

    cached: frozenset[str]
    free_mib: int | None = None
    pressed: bool = False


class Because(enum.Enum):
    """Why a wish is not carried out further now; the value is how it reads."""

    DONE = "the weights lie where the next replicas will go"
    LOADING = "they are being loaded"
    TURN = "as many loads run as may at a time"
    NO_NODE = "no node takes another replica, or none of those has the disk or may be tried again yet"


@dataclass(frozen=True, slots=True)
class PrefetchPolicy:
    """Numbers. at_once: loads at a time in the cluster; mib_s: what one of them gets at least, of the network.

    patience: times that a load may take what it should. least_s: no load is given less. disk_share: of a node's free
    disk that a model may take.
    """

    at_once: int = 2
    mib_s: float = 50.0
    patience: float = 3.0
    least_s: float = 600.0
    disk_share: float = 0.8

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise ValueError(f"at_once {self.at_once} must be at least 1")
        for name in ("mib_s", "patience", "least_s", "disk_share"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be more than 0")

    def deadline_s(self, size_mib: int) -> int:
        """How long a load of so much may take."""
        return math.ceil(max(self.patience * size_mib / self.mib_s, self.least_s))


DEFAULT = PrefetchPolicy()


@dataclass(frozen=True, slots=True)
class Load:
    """A load: begin it, or it runs. deadline_s: from its start."""

    key: str
    node: str
    deadline_s: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to begin now; and how each wish stands after that."""

    loads: tuple[Load, ...]
    standing: Mapping[str, Because] = field(default_factory=dict)


Next = Callable[[Wish, Collection[str]], list[str]]
"""Where the next replicas of a wish would go, so many as it wishes nodes; none of the second argument's nodes."""


def prefetch(
    wishes: Iterable[Wish],
    nodes: Mapping[str, Disk],
    next_nodes: Next,
    running: Collection[Load] = (),
    rests: Collection[tuple[str, str]] = (),
    policy: PrefetchPolicy = DEFAULT,
) -> Plan:
    """What to load where. running: loads that were begun and are not over; rests: (key, node) where one failed of late.

    Wishes are served in the order of their keys.
    """
    begun, standing = list[Load](), dict[str, Because]()
    left = policy.at_once - len(running)
    for wish in sorted(wishes, key=lambda each: each.key):
        shut = {name for name, disk in nodes.items() if not _takes(wish, disk, policy) or (wish.key, name) in rests}
        wanted = dict.fromkeys(next_nodes(wish, shut))
        under_way = {each.node for each in running if each.key == wish.key}
        there = sum(wish.model in nodes[name].cached for name in wanted if name not in under_way)
        lacking = [name for name in wanted if name not in under_way and wish.model not in nodes[name].cached]
        missing = lacking[: max(wish.nodes - there - len(under_way), 0)]
        for node in missing[: max(left, 0)]:
            begun.append(Load(wish.key, node, policy.deadline_s(wish.size_mib)))
            left -= 1
        started = any(each.key == wish.key for each in begun) or bool(under_way)
        standing[wish.key] = _standing(bool(wanted), started=started, missing=bool(missing))
    return Plan(tuple(begun), standing)


def _takes(wish: Wish, disk: Disk, policy: PrefetchPolicy) -> bool:
    """Whether the weights are on a disk or may be put there."""
    if wish.model in disk.cached:
        return True
    return not disk.pressed and (disk.free_mib is None or wish.size_mib <= policy.disk_share * disk.free_mib)


def _standing(wanted: bool, *, started: bool, missing: bool) -> Because:
    if not wanted:
        return Because.NO_NODE
    if started:
        return Because.LOADING
    return Because.TURN if missing else Because.DONE
