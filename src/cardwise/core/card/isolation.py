"""Isolation: on which step of the ladder a card can stand, and what that step holds.

A step says for memory, compute and faults whether it *binds* (against a container that tries), *asks* (holds as long as
nobody tries, or in most cases), or does nothing. A step never claims more than that; what is missing for the better
steps is told with it. What an operator demands and the node cannot do is refused: a weaker step is never taken for it.

Left out on purpose: one MPS daemon per slice. Its servers take turns on the card and cannot have it exclusively, so it
holds less than one daemon for all. Refuses to divide memory bandwidth, which only MIG does.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from cardwise.core.card.facts import CardFacts, NodeFacts
from cardwise.core.request import Isolation


class Hold(enum.Enum):
    """How firmly something is held."""

    BINDS = "binds"
    """Also against a container that tries to get around it."""
    ASKS = "asks"
    """As long as no container tries; for faults: in most cases, with no promise."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a step holds: each slice's memory, its share of compute, and faults inside the slice that had them."""

    memory: Hold
    compute: Hold
    faults: Hold


class Step(enum.Enum):
    """A step of the ladder; the value is what operators write."""

    WHOLE = "whole"
    """One container has the card."""
    MIG = "mig"
    KERNEL_MEMORY_AND_NAMESPACE = "kernel-memory-and-namespace"
    """The driver limits the container's cgroup; an MPS namespace limits its compute (R615)."""
    SM_PARTITION = "sm-partition"
    """MPS with static partitions of SMs (CUDA 13.1)."""
    MPS_ENV = "mps-env"
    """MPS with limits in the container's environment."""
    KERNEL_MEMORY_AND_TIME_SLICING = "kernel-memory-and-time-slicing"
    TIME_SLICING = "time-slicing"

    @property
    def mode(self) -> Isolation:
        """The mode that is published, and that pods may ask for."""
        return _MODES[self]


_MODES = {
    Step.WHOLE: Isolation.WHOLE,
    Step.MIG: Isolation.MIG,
    Step.KERNEL_MEMORY_AND_NAMESPACE: Isolation.MPS,
    Step.SM_PARTITION: Isolation.MPS,
    Step.MPS_ENV: Isolation.MPS,
    Step.KERNEL_MEMORY_AND_TIME_SLICING: Isolation.TIME_SLICING,
    Step.TIME_SLICING: Isolation.TIME_SLICING,
}
_SHARED = (
    Step.KERNEL_MEMORY_AND_NAMESPACE,
    Step.SM_PARTITION,
    Step.MPS_ENV,
    Step.KERNEL_MEMORY_AND_TIME_SLICING,
    Step.TIME_SLICING,
)
"""The steps that share a card without MIG, the better first."""

AUTO = "auto"
R_MEMORY_LIMITS, R_STATIC, _R_CONTAINS = 615, 590, 610
"""Driver branches: memory limits of cgroups and MPS 3; static partitions; faults kept to a partition in most cases."""
CUDA_13_1 = 13010
_VOLTA, _AMPERE = (7, 0), (8, 0)


class Mps(enum.Enum):
    """What a node's MPS control daemon can do."""

    V2 = "v2"
    STATIC = "static"
    V3 = "v3"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node was found able to do.

    can_mount: containers can be given directories, such as MPS's pipes. exclusive: cards can be set so that a process
    that misses MPS fails. host_paths_refused: admission lets no tenant mount a path of the host, MPS's pipes included.
    """

    mps: frozenset[Mps] = frozenset()
    cgroup_v2: bool = False
    memory_limits: bool = False
    can_mount: bool = False
    exclusive: bool = False
    host_paths_refused: bool = False


@dataclass(frozen=True, slots=True)
class Ground:
    """Why not a better step."""

    step: Step
    text: str


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a card stands. kernel_memory: the driver limits each container's memory, whatever the step.

    most_slots: CUDA contexts at most, of all containers together; None where the driver has no limit.
    """

    step: Step
    guarantee: Guarantee
    kernel_memory: bool = False
    most_slots: int | None = None
    grounds: tuple[Ground, ...] = ()

    @property
    def mode(self) -> Isolation:
        """The mode that is published."""
        return self.step.mode


@dataclass(frozen=True, slots=True)
class Unoffered:
    """A card that cannot do what the operator demands, and why: it is not offered."""

    grounds: tuple[Ground, ...]


# ---------------------------------------------------------------- the ladder


def stand(card: CardFacts, node: NodeFacts, offer: Offer, wish: str = AUTO) -> Standing | Unoffered:
    """The best step that a card can stand on, or exactly the step that the operator demands.

    Raises ValueError if ``wish`` names no step.
    """
    demanded = _demand(wish)
    if card.mig and demanded in {None, Step.MIG}:
        return _stand_on(Step.MIG, card, node, offer, ())
    if demanded is not None:
        missing = tuple(Ground(demanded, text) for text in _missing(demanded, card, node, offer))
        return Unoffered(missing) if missing else _stand_on(demanded, card, node, offer, ())
    grounds = [Ground(Step.MIG, text) for text in _missing(Step.MIG, card, node, offer)]
    for step in _SHARED:
        missing_here = [Ground(step, text) for text in _missing(step, card, node, offer)]
        if not missing_here:
            return _stand_on(step, card, node, offer, tuple(grounds))
        grounds += missing_here
    return Unoffered(tuple(grounds))


def _demand(wish: str) -> Step | None:
    if wish == AUTO:
        return None
    names = [step.value for step in Step]
    if wish not in names:
        raise ValueError(f"no isolation is called {wish!r}; write one of {AUTO}, {', '.join(names)}")
    return Step(wish)


def _stand_on(step: Step, card: CardFacts, node: NodeFacts, offer: Offer, grounds: tuple[Ground, ...]) -> Standing:
    kernel = step in _SHARED and not any(_no_kernel_memory(node, offer)) and step is not Step.TIME_SLICING
    return Standing(
        step,
        guarantee(
            step,
            kernel_memory=kernel,
            closed=offer.exclusive and offer.host_paths_refused,
            driver_branch=node.driver_branch,
        ),
        kernel,
        _most_slots(step, card, node.cuda_version),
        grounds,
    )


def guarantee(step: Step, *, kernel_memory: bool = False, closed: bool = False, driver_branch: int = 0) -> Guarantee:
    """What a step holds. closed: no container can miss MPS or take another's namespace.

    Sources: NVIDIA, MPS 615 (limits by environment are the client's to change; a fatal fault reaches every client of
    the card; since R610 static partitions keep faults of SMs "partially"); MIG guide.
    """
    if step in {Step.WHOLE, Step.MIG}:
        return Guarantee(Hold.BINDS, Hold.BINDS, Hold.BINDS)
    by_kernel = kernel_memory or step in {Step.KERNEL_MEMORY_AND_NAMESPACE, Step.KERNEL_MEMORY_AND_TIME_SLICING}
    if step.mode is Isolation.TIME_SLICING:
        return Guarantee(Hold.BINDS if by_kernel else Hold.NONE, Hold.NONE, Hold.ASKS)
    memory = Hold.BINDS if by_kernel else Hold.ASKS
    compute = Hold.BINDS if step is Step.KERNEL_MEMORY_AND_NAMESPACE and closed else Hold.ASKS
    partial = step is Step.SM_PARTITION and driver_branch >= _R_CONTAINS
    return Guarantee(memory, compute, Hold.ASKS if partial else Hold.NONE)


def most_clients(cuda_version: int) -> int:
    """CUDA contexts per card under MPS. A container with several processes takes several. Source: NVIDIA, MPS."""
    return 60 if cuda_version >= CUDA_13_1 else 48


def _most_slots(step: Step, card: CardFacts, cuda_version: int) -> int | None:
    match step.mode:
        case Isolation.WHOLE:
            return 1
        case Isolation.MIG:
            return len(card.instances)
        case Isolation.MPS:
            return most_clients(cuda_version)
        case _:
            return None


# ---------------------------------------------------------------- what is missing for a step


def _missing(step: Step, card: CardFacts, node: NodeFacts, offer: Offer) -> Iterator[str]:
    """What a card lacks for a step, each with its number; empty if it can stand there."""
    if step is Step.MIG:
        yield from _no_mig(card)
        return
    if card.mig:
        yield "MIG is on: the card can be shared by its instances only, and turning MIG off empties it"
    match step:
        case Step.KERNEL_MEMORY_AND_NAMESPACE:
            yield from _no_kernel_memory(node, offer)
            yield from _no_mps(Mps.V3, card, offer)
        case Step.SM_PARTITION:
            yield from _no_static(card, node)
            yield from _no_mps(Mps.STATIC, card, offer)
        case Step.MPS_ENV:
            yield from _no_mps(Mps.V2, card, offer)
        case Step.KERNEL_MEMORY_AND_TIME_SLICING:
            yield from _no_kernel_memory(node, offer)


def _no_mig(card: CardFacts) -> Iterator[str]:
    if card.mig is None:
        yield f"{card.model} has no MIG"
    elif not card.mig:
        yield "MIG is off; turning it on empties the card, so it is the operator's to do"


def _no_kernel_memory(node: NodeFacts, offer: Offer) -> Iterator[str]:
    if node.driver_branch < R_MEMORY_LIMITS:
        yield f"driver {node.driver_branch} is older than {R_MEMORY_LIMITS}, the first to limit a container's memory"
    elif not (node.memory_limits and offer.memory_limits):
        yield f"driver {node.driver_branch} refuses to limit a container's memory on this node"
    if not offer.cgroup_v2:
        yield "the node has cgroup v1; memory limits need v2"


def _no_static(card: CardFacts, node: NodeFacts) -> Iterator[str]:
    if node.cuda_version < CUDA_13_1:
        yield f"CUDA {_version(node.cuda_version)} is older than 13.1, the first with static partitions"
    if card.compute_capability < _AMPERE:
        yield f"compute capability {_dotted(card)} is below 8.0, the first with static partitions"


def _no_mps(needed: Mps, card: CardFacts, offer: Offer) -> Iterator[str]:
    if card.compute_capability < _VOLTA:
        yield f"compute capability {_dotted(card)} is below 7.0, the first whose MPS has limits"
    if needed not in offer.mps:
        there = ", ".join(sorted(each.value for each in offer.mps)) or "none"
        yield f"MPS {needed.value} is not there ({there})"
    if not offer.can_mount:
        yield "containers cannot be given MPS's directory: neither by CDI nor by mount"


def _version(cuda_version: int) -> str:
    return f"{cuda_version // 1000}.{cuda_version % 1000 // 10}"


def _dotted(card: CardFacts) -> str:
    return ".".join(map(str, card.compute_capability))
