"""One run: an arm, a seed. In a module of its own, for other processes must find it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import structlog

from benchmarks.consolidation.cluster import Emulation, Told
from benchmarks.consolidation.demand import draw_demand
from cardwise.config import DEFAULT_POLICY
from cardwise.controller.consolidation.settings import ConsolidationSettings
from cardwise.core.claim import LatencyClass
from cardwise.core.fleet.rescue import Step
from cardwise.scheduler.settings import Settings

WARM_UP_S = 900
"""At first nothing is counted: all replicas start."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run. size: nodes, and cards of each. filled: whether preemptible jobs take what is left."""

    policy: str
    moving: ConsolidationSettings
    seed: int
    hours: float
    size: tuple[int, int]
    filled: bool


@dataclass(frozen=True, slots=True)
class Result:
    """begun, done, vain: moves; served: pods for which replicas were chosen to move."""

    cards: int
    told: Told
    served: int
    begun: int
    done: int
    vain: int

    @property
    def used_pct(self) -> float:
        """Of the cluster's compute, at the moments when somebody waited; not a number if nobody did."""
        waiting_s = self.told.waiting_s
        return 100 * self.told.used_card_s / (self.cards * waiting_s) if waiting_s else math.nan


def play(job: Job) -> Result:
    """One run, in a process of its own or here."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return asyncio.run(_play(job))


async def _play(job: Job) -> Result:
    cards, end_s = job.size[0] * job.size[1], WARM_UP_S + 3600 * job.hours
    demand = draw_demand(cards, end_s, job.seed)
    scheduling = Settings(policy={**DEFAULT_POLICY, LatencyClass.SENSITIVE.value: job.policy})
    services = {each.name: each for each in demand.services}
    world = Emulation(*job.size, services, cards if job.filled else 0, scheduling, job.moving)
    async with world.running():
        for change in demand.changes:
            await _until(world, change.at_s)
            world.wanted[change.service] = change.replicas
        await _until(world, end_s)
    world.told.waits_s += [world.now_s - each.made_s for each in world.lives.values() if world.waits(each)]
    counts = (after - before for after, before in zip(_counted(world), world.told.before, strict=True))
    return Result(cards, world.told, *counts)


async def _until(world: Emulation, end_s: float) -> None:
    """Go on; from the end of the warm-up on it is counted."""
    if world.now_s < WARM_UP_S <= end_s:
        await world.until(WARM_UP_S)
        told, before = world.told, _counted(world)  # what must not be must not be at any time
        world.told = Told(before, missed=told.missed, early=told.early, oversold=told.oversold, gathered=told.gathered)
    await world.until(end_s)


def _counted(world: Emulation) -> tuple[int, ...]:
    """Pods for which others were chosen to move; moves begun, done and taken back; as the programs' metrics say."""
    preempting, rescuing = world.programs.preempting.registry, world.programs.rescuing.registry
    chosen = preempting.get_sample_value("cardwise_consolidation_nominations_total")
    steps = (Step.RELEASE, Step.EVICT, Step.RETURN)
    told = (rescuing.get_sample_value("cardwise_rescue_steps_total", {"step": each.value}) for each in steps)
    return tuple(int(each or 0) for each in (chosen, *told))
