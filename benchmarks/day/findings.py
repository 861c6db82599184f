"""What the day shows, in numbers and sentences: for the table, the page and the exit code alike.

Claims of correctness hold or fail: no latency-sensitive slice was harmed, every replica had a place, and who had to go
was told why. Cards and P99 are reported as they are, goals met or missed. Refuses to draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

from benchmarks.day.asking import Asked, Cell
from benchmarks.day.load import Service
from benchmarks.day.play import Played
from cardwise.loadtest.measure import merged

CARD_PCT_H = 100 * 3600
"""Percent of a card times seconds in a card-hour."""


@dataclass(frozen=True, slots=True)
class Usage:
    """One arm's cluster over the day. In cards: what replicas and batch work were given, on average and at most."""

    arm: str
    cards: int
    sensitive_mean: float
    sensitive_most: float
    best_effort_mean: float
    done_card_h: float
    lost_card_h: float
    jobs: int
    evicted: int
    waits_s: float
    short_min: float
    memory_share: float
    lent_mib: float


def usage(played: Played, tick_s: float) -> Usage:
    """Of a day. waits_s: the longest that a replica waited for its place; short_min: service-minutes of too few."""
    rows, told = played.rows, played.told
    short = sum(share > 0 for row in rows for share in row.short_share)
    return Usage(
        played.arm.name,
        played.arm.cards,
        fmean(row.sensitive_pct for row in rows) / 100,
        max(row.sensitive_pct for row in rows) / 100,
        fmean(row.best_effort_pct for row in rows) / 100,
        told.done_pct_s.total() / CARD_PCT_H,
        told.lost_pct_s.total() / CARD_PCT_H,
        told.jobs.total(),
        len(told.evictions),
        max(told.waits_s, default=0.0),
        short * tick_s / 60,
        fmean(row.used_mib_share for row in rows),
        fmean(row.lent_mib for row in rows),
    )


@dataclass(frozen=True, slots=True)
class Day:
    """All that was played and asked. base, ours: of ``days`` the arms that were asked, whole cards and cardwise."""

    services: tuple[Service, ...]
    days: tuple[Played, ...]
    cells: tuple[Cell, ...]
    base: Played
    ours: Played
    tick_s: float
    seed: int
    interference: float
    seconds: float

    def asked(self, played: Played) -> list[Asked]:
        """Of an arm."""
        return [each for cell in self.cells if cell.arm == played.arm.name for each in cell.asked]

    def pairs(self) -> list[tuple[Asked, Asked]]:
        """The same service and hour, before and after."""
        theirs = {(each.service, each.hour): each for each in self.asked(self.base)}
        return [(theirs[each.service, each.hour], each) for each in self.asked(self.ours)]

    def target_ms(self, service: str) -> float:
        """Of the service's P99."""
        return next(each.target_p99_ms for each in self.services if each.name == service)

    def within(self, played: Played) -> int:
        """Services and hours with a P99 within the target and no answer lost."""
        return sum(each.p99_ms <= self.target_ms(each.service) and each.lost == 0 for each in self.asked(played))

    def day_p99_ms(self, played: Played, service: str) -> float:
        """Over all that was asked of a service in the sampled hours."""
        steps = [each.step.judged for each in self.asked(played) if each.service == service]
        return 1000 * merged(steps).quantile_s(0.99)

    def worst_p99_ms(self, played: Played, service: str) -> float:
        """Of the sampled hours."""
        return max(each.p99_ms for each in self.asked(played) if each.service == service)

    @property
    def card_share(self) -> float:
        """Cards of ours over those of whole cards."""
        return self.ours.arm.cards / self.base.arm.cards


def faults(day: Day) -> Iterator[str]:
    """Claims of correctness that do not hold."""
    for played in day.days:
        name, told = played.arm.name, played.told
        if played.harmed:
            yield f"{name}: {len(played.harmed)} × harm to latency-sensitive slices: {'; '.join(played.harmed[:3])}"
        if told.unplaced or played.left_waiting:
            yield f"{name}: {len(told.unplaced)} replicas had no place for too long: {', '.join(told.unplaced[:5])}"
        if mute := [each.pod for each in told.evictions if not each.text]:
            yield f"{name}: {len(mute)} evictions without an event that says why: {', '.join(mute[:5])}"


def headline(day: Day) -> str:
    """The promise, and what became of it here."""
    within, of = day.within(day.ours), len(day.asked(day.ours))
    cards = f"{day.ours.arm.cards} cards instead of {day.base.arm.cards}"
    if broken := list(faults(day)):
        return f"Not held: {broken[0]}"
    return f"The same day on {cards}: P99 within its target in {within} of {of} services and hours"


def verdicts(day: Day) -> Iterator[str]:
    """Sentences about each goal, met or missed."""
    share, base, ours = day.card_share, day.base, day.ours
    met = "met" if share <= 0.5 else f"missed by {day.ours.arm.cards - math.floor(day.base.arm.cards / 2)} cards"
    yield f"Half the cards: {met} ({ours.arm.cards} of {base.arm.cards}, {share:.0%})."
    within, of = day.within(ours), len(day.asked(ours))
    theirs = day.within(base)
    yield f"P99 within its target: {within} of {of} services and hours; on whole cards {theirs} of {of}."
    yield from _p99(day)
    harmed = len(ours.harmed)
    yield f"Latency-sensitive slices harmed: {harmed}. Replicas without a place: {len(ours.told.unplaced)}."
    used = usage(ours, day.tick_s)
    yield (
        f"Best-effort work on the same cards: {used.done_card_h:.0f} card-hours done, {used.lost_card_h:.1f} begun and "
        f"lost to evictions."
    )


def _p99(day: Day) -> Iterator[str]:
    """Against whole cards: in each service's worst hour, of all that was asked, and hour by hour."""
    if not day.cells:
        return
    yield _against("in each service's worst hour", day, day.worst_p99_ms)
    yield _against("over all sampled hours", day, day.day_p99_ms)
    pairs = day.pairs()
    worse = sum(ours.p99_ms > theirs.p99_ms for theirs, ours in pairs)
    yield (
        f"Hour by hour it is higher in {worse} of {len(pairs)} services and hours: whole cards hold as many replicas "
        f"at night as at noon, and nobody else is on them."
    )


def _against(words: str, day: Day, of: Callable[[Played, str], float]) -> str:
    rows = [(each.name, of(day.base, each.name), of(day.ours, each.name)) for each in day.services]
    higher = [name for name, theirs, ours in rows if ours > theirs]
    met = f"higher for {', '.join(higher)}" if higher else "no worse for any service"
    told = ", ".join(f"{name} {theirs:.0f} → {ours:.0f} ms ({ours / theirs - 1:+.0%})" for name, theirs, ours in rows)
    return f"P99 {words} against whole cards: {met}: {told}."


@dataclass(frozen=True, slots=True)
class Grounds:
    """Evictions of one kind. text: of one of them."""

    why: str
    group: str
    count: int
    text: str


def grounds(played: Played) -> list[Grounds]:
    """Who had to go, by why, with the reason of one of them."""
    kinds = sorted({(each.why, each.group) for each in played.told.evictions})
    found = []
    for why, group in kinds:
        mine = [each for each in played.told.evictions if (each.why, each.group) == (why, group)]
        found.append(Grounds(why, group, len(mine), mine[0].text))
    return found


ASSUMED = (
    (
        "The load is synthetic: bumps of known shape whose highest hours do not coincide, noise, weekends. With "
        "--same-peak they coincide."
    ),
    (
        "An engine fills only a part of a card's compute (25 to 45 %) and is no faster on a whole one. This is what "
        "makes slices worth having: engines that fill a card by themselves would gain nothing but the hours of the "
        "day. Measure yours with cardwise loadtest."
    ),
    (
        "Limits on compute hold, as MPS has them. What is shared all the same (memory bandwidth, caches) slows a "
        "replica in proportion to the compute that others use on its card at that hour: times × (1 + interference "
        "× their share). The factor is assumed, not measured on a card; --interference takes another. Slices are "
        "derated by it."
    ),
    (
        "Whole cards have as many replicas as the highest load of the history needs, all day, by the same planner, "
        'curve and targets. That is a Deployment without an autoscaler. The row "whole cards, scaled" shows what '
        "scaling alone would free."
    ),
    (
        "Best-effort jobs have no checkpoints: what is evicted has done nothing. Borrowers have lent memory alone, no "
        "compute of their own, and are counted with 10 % of a card's compute in the contention; their work is in no "
        "card-hours."
    ),
    (
        "The cluster is emulated and its time too: weights load in 90 s, an agent looks at memory every tick and not "
        "every quarter of a second. Scheduler, preemption, scaling, lending and reclaim are the code that runs in a "
        "cluster. No real card was in it."
    ),
    (
        "Some seconds of an hour stand for the hour: a P99 of some hundred requests is rough. The generator, the "
        "gateway and all engines share one machine."
    ),
)
"""What has to be said of the model."""
