"""One day of one arm: the controller's scaling on the cluster, second by second, and what was seen of it.

What is kept of the day are rows of the cluster's books, and at some moments what each replica has beside it on its
card: that is all that the part with real requests (``asking.py``) takes from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.day.cluster import BATCH, BORROWER, Arm, Emulation, Life, Told, given_pct
from benchmarks.day.load import DAY_S, Load
from benchmarks.day.policies import Fits, Objects, Traced
from benchmarks.day.sizing import Sized, card_mib
from cardwise.adapters.policies import Policies
from cardwise.controller.forecasting import Forecasting
from cardwise.controller.scaling import Scaling
from cardwise.core.arrays import FloatArray

PATIENCE_S = 1800.0
"""A replica that waits longer for its place is unplaced: half of the hour by which the forecast has it come early. Some
minutes are no fault: evictions for it are braked, two of a node in five minutes."""
WARM_UP_S = 1800.0
"""Before midnight: replicas start, and cards are calm for the first time."""
BORROWER_PCT = 10
"""Of a card's compute that a borrower is taken to use: it is given none, and takes what is idle."""


@dataclass(frozen=True, slots=True)
class Row:
    """The cluster at a moment. By service: ready, wanted, short_share: of what is asked, more than ready ones carry."""

    at_s: float
    sensitive_pct: int
    best_effort_pct: int
    cards_sensitive: int
    cards_any: int
    used_mib_share: float
    lent_mib: int
    ready: tuple[int, ...]
    wanted: tuple[int, ...]
    short_share: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """A sampled hour. rates: by service; beside: of each ready replica, the share of its card that others use then."""

    hour: float
    rates: tuple[float, ...]
    beside: tuple[tuple[float, ...], ...]


@dataclass(slots=True)
class Played:
    """A day."""

    arm: Arm
    sizes: tuple[Sized, ...]
    rows: list[Row] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    told: Told = field(default_factory=Told)
    overfull: list[tuple[float, str]] = field(default_factory=list)
    left_waiting: int = 0

    @property
    def harmed(self) -> list[str]:
        """What was done to latency-sensitive slices that never may be."""
        evicted = [
            f"{each.pod} was evicted: {each.why}" for each in self.told.evictions if each.sensitive and each.missed
        ]
        full = [f"{uuid} was overfull at {at_s:.0f} s" for at_s, uuid in self.overfull]
        return [*evicted, *full, *self.told.oversold]


async def play(arm: Arm, load: Load, sizes: Sequence[Sized], fits: Fits, hours: Sequence[float], pace: Pace) -> Played:
    """A day, after a while of warming up. hours: of the local day, at which moments are kept."""
    jobs = {BATCH: pace.batch, **({} if arm.whole else {BORROWER: pace.borrowers})}
    world = Emulation(arm, sizes, jobs, card_mib(), pace.tick_s, PATIENCE_S, now_s=-WARM_UP_S)
    replicas = {each.service.name: each.for_peak for each in sizes}
    objects, prometheus = Objects(sizes, replicas), Traced(load)
    forecasting = Forecasting(prometheus, lambda: world.clock() / pace.refit_h, fits.fit)
    async with world.running(), prometheus:
        scaling = Scaling(world.cluster, Policies(objects), prometheus, forecasting, world.clock, _always, world.utc)
        played, left = Played(arm, tuple(sizes)), sorted(hours)
        while world.now_s < DAY_S:
            if arm.scales:
                await scaling.turn()
                await forecasting.make_wanted()
            rates = load.at(world.utc())
            carried = _carried(world, sizes, rates)
            wanted = {each.service.name: objects.wanted(each.service.name) for each in sizes}
            await world.until(world.now_s + pace.tick_s, wanted, carried)
            if world.now_s < 0:
                world.told = Told()
                continue
            played.rows.append(_row(world, sizes, wanted, load))
            if left and world.now_s >= left[0] * 3600:
                played.moments.append(_moment(world, sizes, load, left.pop(0)))
        played.told, played.overfull = world.told, [each for each in world.cards.overfull if each[0] >= 0]
        played.left_waiting = sum(
            each.bound_s is None and each.made_s < world.now_s - PATIENCE_S and each.group not in jobs
            for each in world.lives.values()
        )
    return played


@dataclass(frozen=True, slots=True)
class Pace:
    """How finely. tick_s: between two looks and turns; refit_h: between two forecasts; jobs at a time."""

    tick_s: float = 30.0
    refit_h: float = 4.0
    batch: int = 32
    borrowers: int = 4


def _always() -> bool:
    return True


def _ready(world: Emulation, name: str) -> int:
    return sum(each.group == name and each.ready(world.now_s) for each in world.lives.values())


def _carried(world: Emulation, sizes: Sequence[Sized], rates: FloatArray) -> dict[str, float]:
    """Of what ready replicas carry, so much is asked of them."""
    return {
        each.service.name: float(rate) / max(_ready(world, each.service.name) * each.each_per_s, 1e-9)
        for each, rate in zip(sizes, rates, strict=True)
    }


def _row(world: Emulation, sizes: Sequence[Sized], wanted: dict[str, int], load: Load) -> Row:
    rates = load.at(world.utc())
    cards, carried = world.on_cards(), _carried(world, sizes, rates)
    sensitive = [each for each in world.lives.values() if each.group not in world.jobs]
    others = [each for each in world.lives.values() if each.group in world.jobs]
    shares = [each.share for each in world.lives.values() if each.share is not None]
    used = sum(world.used_mib(lives, carried) for lives in cards.values())
    return Row(
        world.now_s,
        given_pct(world, sensitive),
        given_pct(world, others),
        sum(any(each.group not in world.jobs for each in lives) for lives in cards.values()),
        len(cards),
        used / (world.card_mib * world.arm.cards),
        sum(each.lent_mib for each in shares),
        tuple(_ready(world, each.service.name) for each in sizes),
        tuple(wanted[each.service.name] for each in sizes),
        tuple(max(1 - 1 / max(carried[each.service.name], 1e-9), 0.0) for each in sizes),
    )


def _moment(world: Emulation, sizes: Sequence[Sized], load: Load, hour: float) -> Moment:
    rates = load.at(world.utc())
    carried = _carried(world, sizes, rates)
    busy = {
        uuid: {each.name: _busy_share(world, each, carried) for each in lives}
        for uuid, lives in world.on_cards().items()
    }
    beside = []
    for each in sizes:
        mine = [life for life in world.lives.values() if life.group == each.service.name and life.ready(world.now_s)]
        shares = [
            sum(share for name, share in busy[life.share.uuid].items() if name != life.name)
            for life in mine
            if life.share is not None
        ]
        beside.append(tuple(sorted(shares)))
    return Moment(hour, tuple(float(rate) for rate in rates), tuple(beside))


def _busy_share(world: Emulation, life: Life, carried: dict[str, float]) -> float:
    """Of a card's compute that a pod uses now: of what it was given, as much as it is asked; a job uses all of it."""
    if not life.ready(world.now_s):
        return 0.0
    if life.group in world.jobs:
        return (BORROWER_PCT if life.group == BORROWER else world.compute_pct(life)) / 100
    return world.compute_pct(life) / 100 * min(carried[life.group], 1.0)
