"""Isolation: on which step of the ladder a card can stand, what that step holds, and which mode a workload needs.

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
from cardwise.core.card.mig import Match, Profile, knows_mig, match, table_of
from cardwise.core.claim import LatencyClass
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
_R_MEMORY_LIMITS, _R_STATIC, _R_CONTAINS = 615, 590, 610
"""Driver branches: memory limits of cgroups and MPS 3; static partitions; faults kept to a partition in most cases."""
_CUDA_13_1 = 13010
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
    return 60 if cuda_version >= _CUDA_13_1 else 48


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
    if node.driver_branch < _R_MEMORY_LIMITS:
        yield f"driver {node.driver_branch} is older than {_R_MEMORY_LIMITS}, the first to limit a container's memory"
    elif not (node.memory_limits and offer.memory_limits):
        yield f"driver {node.driver_branch} refuses to limit a container's memory on this node"
    if not offer.cgroup_v2:
        yield "the node has cgroup v1; memory limits need v2"


def _no_static(card: CardFacts, node: NodeFacts) -> Iterator[str]:
    if node.cuda_version < _CUDA_13_1:
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


# ---------------------------------------------------------------- advice

FLAT, RARE = 1.5, 8.0
"""Peak over mean: up to FLAT a fixed part of a card is used all day; from RARE on two services are seldom busy at once.
Ours, to be replaced by measured load."""
_BANDWIDTH = "memory bandwidth and L2 are shared: watch P99, limits do not hold it"
_DRIVERLESS = "no driver version was given: the oldest is assumed"


@dataclass(frozen=True, slots=True)
class Workload:
    """What is known of the services that are to share a card.

    services: how many on one card; memory_mib: of each, 0 if unknown; peak_over_mean: of the load, None if unknown.
    contained: a fault of one must not reach another. tenants: their code is not the operator's own.
    model, card_memory_mib, mig, driver_branch: the card and its driver, as far as known; mig: None: see the model.
    host_paths_refused: pods cannot mount paths of the host.
    """

    latency: LatencyClass = LatencyClass.SENSITIVE
    services: int = 2
    memory_mib: int = 0
    peak_over_mean: float | None = None
    contained: bool = False
    tenants: bool = False
    model: str = ""
    card_memory_mib: int = 0
    mig: bool | None = None
    driver_branch: int = 0
    host_paths_refused: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """A mode for a workload. services: so many on one card. warnings: what it does not do, and what was assumed."""

    step: Step
    guarantee: Guarantee
    services: int
    grounds: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def mode(self) -> Isolation:
        """The mode to ask for."""
        return self.step.mode


def advise(load: Workload) -> Advice:
    """The mode for a workload: the first rule that applies decides (SPEC A3). Raises ValueError on odd numbers."""
    _check(load)
    for rule in (_too_large, _alone, _contained, _of_tenants, _in_turns, _steady):
        if (advice := rule(load)) is not None:
            return advice
    return _together(load)


def _check(load: Workload) -> None:
    amounts = {"services": load.services - 1, "memory_mib": load.memory_mib, "card_memory_mib": load.card_memory_mib}
    for name, value in amounts.items():
        if value < 0:
            raise ValueError(f"{name} is too small: {getattr(load, name)}")
    if load.peak_over_mean is not None and not load.peak_over_mean >= 1:
        raise ValueError(f"peak over mean is {load.peak_over_mean}, must be 1 or more")


def _fitting(load: Workload) -> int:
    """So many of the services fit one card by memory; all of them if that is not known."""
    if not (load.memory_mib and load.card_memory_mib):
        return load.services
    return min(load.services, load.card_memory_mib // load.memory_mib)


def _too_large(load: Workload) -> Advice | None:
    if not load.card_memory_mib or load.memory_mib <= load.card_memory_mib:
        return None
    cards = -(-load.memory_mib // load.card_memory_mib)
    why = f"a service of {load.memory_mib} MiB does not fit a card of {load.card_memory_mib} MiB"
    return _whole(load, f"{why}: it needs {cards} whole cards")


def _alone(load: Workload) -> Advice | None:
    if load.services == 1:
        return _whole(load, "one service per card: there is nobody to be kept apart from")
    if _fitting(load) < 2:
        why = f"two services of {load.memory_mib} MiB do not fit a card of {load.card_memory_mib} MiB"
        return _whole(load, why)
    return None


def _contained(load: Workload) -> Advice | None:
    if not load.contained:
        return None
    why = "faults must stay with the service that had them, which of the modes that share a card only MIG promises"
    divided = _mig(load, why)
    return divided or _whole(load, why, _why_no_mig(load))


def _of_tenants(load: Workload) -> Advice | None:
    if not load.tenants:
        return None
    why = "the code is not your own: a limit must hold against a container that tries to get around it"
    if divided := _mig(load, why):
        return divided
    if load.driver_branch >= _R_MEMORY_LIMITS:
        return _mps(load, why, _why_no_mig(load), "from R615 the driver itself limits a container's memory")
    old = f"driver {load.driver_branch} is older than 615, so" if load.driver_branch else f"{_DRIVERLESS}, and"
    return _whole(load, why, _why_no_mig(load), f"{old} MPS limits are in the container's hands")


def _in_turns(load: Workload) -> Advice | None:
    rare = load.peak_over_mean is not None and load.peak_over_mean >= RARE
    if load.latency is LatencyClass.SENSITIVE or not rare:
        return None
    why = (
        f"best-effort, and the peak is {load.peak_over_mean:g} times the mean: two are seldom busy at once, each then "
        "has the whole card, and a crash mostly stays in its process"
    )
    step = Step.TIME_SLICING if load.driver_branch < _R_MEMORY_LIMITS else Step.KERNEL_MEMORY_AND_TIME_SLICING
    warnings = ["busy at the same time, services take turns: each waits for the others"]
    if step is Step.TIME_SLICING:
        warnings.append("nothing limits memory: a container that takes more than its slice makes the others fail")
    return _advice(load, step, _fitting(load), (why,), tuple(warnings))


def _steady(load: Workload) -> Advice | None:
    flat = load.peak_over_mean is not None and load.peak_over_mean <= FLAT
    if load.latency is LatencyClass.BEST_EFFORT or not flat:
        return None
    why = (
        f"latency-sensitive, and the peak is only {load.peak_over_mean:g} times the mean: a fixed part of the card is "
        "used all day, and MIG alone divides memory bandwidth too"
    )
    divided = _mig(load, why)
    return divided if divided and divided.services == load.services else None


def _together(load: Workload) -> Advice:
    if load.latency is LatencyClass.SENSITIVE:
        why = "latency-sensitive: under MPS services run at once, with time-slicing each would wait for the others"
    else:
        why = "best-effort: under MPS small services fill the card together, with time-slicing one at a time"
    if load.peak_over_mean is None:
        shape = "the load's shape was not given: a mode that lends idle compute loses the least"
    else:
        shape = (
            f"the peak is {load.peak_over_mean:g} times the mean: what one leaves idle another can use, unlike with MIG"
        )
    return _mps(load, why, shape)


# ---------------------------------------------------------------- advice: the modes


def _whole(load: Workload, *grounds: str) -> Advice:
    return _advice(load, Step.WHOLE, 1, grounds, ())


def _mps(load: Workload, *grounds: str) -> Advice:
    step = _mps_step(load.driver_branch)
    most = most_clients(_CUDA_13_1 if load.driver_branch >= _R_STATIC else 0)
    fit = min(_fitting(load), most)
    warnings = [_BANDWIDTH, "a fatal fault of one container can end all others on the card"]
    if step is not Step.KERNEL_MEMORY_AND_NAMESPACE:
        warnings.append("limits are in the container's environment, and its code can lift them")
    elif not load.host_paths_refused:
        warnings.append("compute binds only where pods cannot mount host paths (Pod Security: baseline or restricted)")
    if fit < load.services and fit == most:
        warnings.append(f"MPS takes {most} clients per card, and each process of a service is one")
    if not load.driver_branch:
        warnings.append(_DRIVERLESS)
    if load.memory_mib and not load.card_memory_mib:
        warnings.append(f"the card's memory was not given: whether {fit} x {load.memory_mib} MiB fit was not looked at")
    warnings.append("the card is taken to have compute capability 7.0 or newer: MPS of older ones has no limits")
    return _advice(load, step, fit, grounds, tuple(warnings))


def _mps_step(driver_branch: int) -> Step:
    """Static partitions are left out: the agent does not make them yet."""
    return Step.KERNEL_MEMORY_AND_NAMESPACE if driver_branch >= _R_MEMORY_LIMITS else Step.MPS_ENV


def _mig(load: Workload, *grounds: str) -> Advice | None:
    """MIG, if the card has it and at least two instances hold a service each."""
    if not _has_mig(load):
        return None
    profiles = table_of(load.model)
    found = match(load.memory_mib, 0, profiles) if profiles else None
    fit = min(load.services, _instances(load, profiles, found))
    if fit < 2:
        return None
    warnings = ["sizes are fixed: what an instance leaves idle nobody else can use", "PCIe and power are shared"]
    if isinstance(found, Match) and load.memory_mib:
        grounds = (*grounds, f"{found.profile.name} holds a service and leaves {found.waste_mib} MiB of it unused")
    if not load.memory_mib:
        warnings.append("the memory of a service was not given: whether an instance holds it was not looked at")
    if not profiles:
        warnings.append("no profiles of this card are known here: nvidia-smi mig -lgip tells them")
    return _advice(load, Step.MIG, fit, grounds, tuple(warnings))


def _has_mig(load: Workload) -> bool:
    return knows_mig(load.model) if load.mig is None else load.mig


def _instances(load: Workload, profiles: tuple[Profile, ...], found: object) -> int:
    """So many instances on one card that each hold a service; without a table by memory, seven at most."""
    if isinstance(found, Match):
        return found.profile.most
    return 0 if profiles else min(7, _fitting(load))


def _why_no_mig(load: Workload) -> str:
    card = load.model or "the card"
    if _has_mig(load):
        return f"{card} has MIG, but not two instances that hold {load.memory_mib} MiB each"
    if not load.model and load.mig is None:
        return "no card model was given: MIG is not counted on"
    return f"{card} has no MIG"


def _advice(load: Workload, step: Step, services: int, grounds: tuple[str, ...], warnings: tuple[str, ...]) -> Advice:
    if step is not Step.WHOLE and services < load.services:
        warnings = (*warnings, f"only {services} of {load.services} services fit one card this way")
    held = guarantee(step, closed=load.host_paths_refused, driver_branch=load.driver_branch)
    return Advice(step, held, services, grounds, warnings)
