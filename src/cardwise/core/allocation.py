"""What a pod got: per container the cards and how much of each; and what that holds of each card at once.

The same function says what a new binding takes and what a bound pod holds, so a ledger that was kept and one that is
rebuilt from the cluster cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cardwise.core.claim import Claim, Stage
from cardwise.core.request import Isolation


@dataclass(frozen=True, slots=True)
class Share:
    """What a container has of one card. ``whole``: all of it, alone. ``mode``: how the card was shared at that time.

    lent_mib: how much of its memory is lent beyond the card (SPEC E1).
    """

    uuid: str
    memory_mib: int
    compute_pct: int
    whole: bool = False
    mode: Isolation = Isolation.ANY
    lent_mib: int = 0


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a pod got. ``epoch`` counts leaders, ``seq`` the allocations of one: together they order all of them."""

    node: str
    containers: tuple[tuple[str, tuple[Share, ...]], ...]
    epoch: int = 0
    seq: int = 0

    @property
    def shares(self) -> Iterable[Share]:
        """All shares of all containers."""
        return (share for _, shares in self.containers for share in shares)


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod on a node, as the cluster tells of it. ``allocation``: None if it asks for no cards, or nobody gave any."""

    claim: Claim
    node: str
    allocation: Allocation | None = None
    initialized: bool = False

    @property
    def order(self) -> tuple[int, int, str]:
        """Earlier allocations come first: where two contradict each other, the later one is in the wrong."""
        order = (self.allocation.epoch, self.allocation.seq) if self.allocation else (0, 0)
        return (*order, self.claim.uid)


@dataclass(frozen=True, slots=True)
class Hold:
    """What a pod takes of one card, as one amount. lent_mib: how much of its memory is lent beyond the card."""

    uuid: str
    memory_mib: int
    compute_pct: int
    whole: bool = False
    lent_mib: int = 0


def holds(claim: Claim, allocation: Allocation, *, initialized: bool) -> list[Hold]:
    """What the allocation takes: a hold per share of a running container, and one per card for init containers.

    An init container's card is held for what it needs beyond the pod's running containers there: of several init
    containers the most at a time. Once ``initialized`` nothing is held for them. A container that the claim does not
    know counts as running.
    """
    stages = {ask.container: ask.stage for ask in claim.asks}
    running = [
        Hold(share.uuid, share.memory_mib, share.compute_pct, share.whole, share.lent_mib)
        for container, shares in allocation.containers
        if stages.get(container, Stage.APP) is not Stage.INIT
        for share in shares
    ]
    return running if initialized else _with(running, beyond(claim, allocation))


def _with(running: list[Hold], more: list[Hold]) -> list[Hold]:
    """Both. Compute alone goes to a hold of the same card, which has memory: a slice of its own would need some."""
    together = list(running)
    for extra in more:
        at = next((i for i, hold in enumerate(running) if hold.uuid == extra.uuid and not extra.memory_mib), None)
        if at is None:
            together.append(extra)
        else:
            together[at] = replace(together[at], compute_pct=together[at].compute_pct + extra.compute_pct)
    return together


def beyond(claim: Claim, allocation: Allocation) -> list[Hold]:
    """What init containers need of each card beyond what the running containers hold there."""
    if all(ask.stage is not Stage.INIT for ask in claim.asks):
        return []
    granted = dict(allocation.containers)
    final: dict[str, tuple[int, int]] = {}
    for ask in claim.running_asks:
        for share in granted.get(ask.container, ()):
            final[share.uuid] = _add(final.get(share.uuid), share)
    so_far: dict[str, tuple[int, int]] = {}
    most: dict[str, tuple[int, int]] = {}
    for ask in claim.asks:
        moments: dict[str, tuple[int, int]] = {}
        for share in granted.get(ask.container, ()):
            moments[share.uuid] = _add(moments.get(share.uuid, so_far.get(share.uuid)), share)
        if ask.stage is Stage.SIDECAR:
            so_far |= moments
        for uuid, moment in moments.items() if ask.stage is Stage.INIT else ():
            memory, compute = final.get(uuid, (0, 0))
            over = (max(moment[0] - memory, 0), max(moment[1] - compute, 0))
            before = most.get(uuid, (0, 0))
            most[uuid] = (max(over[0], before[0]), max(over[1], before[1]))
    return [Hold(uuid, memory, compute) for uuid, (memory, compute) in most.items() if memory or compute]


def _add(held: tuple[int, int] | None, share: Share) -> tuple[int, int]:
    memory, compute = held or (0, 0)
    return memory + share.memory_mib, compute + share.compute_pct
