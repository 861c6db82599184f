"""Advice: which mode of isolation a workload needs, and on which grounds.

Refuses to look at a card that is there: :func:`~cardwise.core.card.isolation.stand` says what can be had of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from cardwise.core.card.isolation import CUDA_13_1, R_MEMORY_LIMITS, R_STATIC, Guarantee, Step, guarantee, most_clients
from cardwise.core.card.mig import Match, Profile, knows_mig, match, table_of
from cardwise.core.claim import LatencyClass
from cardwise.core.request import Isolation

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
    if load.driver_branch >= R_MEMORY_LIMITS:
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
    step = Step.TIME_SLICING if load.driver_branch < R_MEMORY_LIMITS else Step.KERNEL_MEMORY_AND_TIME_SLICING
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


# ---------------------------------------------------------------- the modes


def _whole(load: Workload, *grounds: str) -> Advice:
    return _advice(load, Step.WHOLE, 1, grounds, ())


def _mps(load: Workload, *grounds: str) -> Advice:
    step = _mps_step(load.driver_branch)
    most = most_clients(CUDA_13_1 if load.driver_branch >= R_STATIC else 0)
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
    return Step.KERNEL_MEMORY_AND_NAMESPACE if driver_branch >= R_MEMORY_LIMITS else Step.MPS_ENV


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
