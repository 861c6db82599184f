"""What runs say, before anyone draws it: who is best, by how much, and what is to blame.

The terminal table and the HTML page say the same because both ask here. Refuses to compare runs of different clusters,
regimes or loads, and to call a card unusable where too little was asked for to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean

import numpy as np

from cardwise.core.reasons import Code
from cardwise.replay.outcome import Leftover, Replayed, Run
from cardwise.units import MILLI_PER_CARD

MOST_NAMED = 4
"""Policies that the headline can name and still be read."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the leftover in the reader's words."""

    name: str
    label: str
    meaning: str


PARTS = {
    "rounded_up": (
        "held beyond what was asked",
        "Pods hold it without having asked for it: their cards were rounded up.",
    ),
    "cpu": ("node out of CPU", "The node has too little CPU left for the pods that could use the card."),
    "memory": ("node out of host memory", "The node has too little host memory left for them."),
    "fragments": (
        "pieces too small",
        "What is free on the card, or on the node's cards together, is too small a piece.",
    ),
    "model": ("other card model", "The pods ask for another model of card."),
    "usable": ("still usable", "Pods like those that arrived could still use it."),
}
"""Label and meaning of each part. A part that is not here yet is shown under its field's name."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy with its runs, one per seed."""

    rank: int
    name: str
    results: tuple[Replayed, ...]

    def values(self, read: Callable[[Run], float]) -> list[float]:
        """One figure of each run."""
        return [float(read(each.run)) for each in self.results]

    def mean(self, read: Callable[[Run], float]) -> float:
        """Mean of a figure over the seeds."""
        return fmean(self.values(read))


@dataclass(frozen=True, slots=True)
class Ground:
    """What all runs have in common, and what that allows to say."""

    regime: str
    load: float
    cards_total: int
    seeds: tuple[int, ...]

    @property
    def is_full(self) -> bool:
        """Whether so much was asked for, with no pod leaving, that what is not allocated could not be used."""
        return self.regime == "fill" and self.load >= 1.0

    @property
    def idle_word(self) -> str:
        """What to call a card that no pod asked for."""
        return "unusable" if self.is_full else "not allocated"


def common_ground(results: Sequence[Replayed]) -> Ground:
    """What the runs share. Raises ValueError if they do not: side by side, their figures would mean nothing."""
    grounds = {(each.run.regime, each.run.load, each.run.cards_total) for each in results}
    if len(grounds) != 1:
        raise ValueError(f"runs of one regime, load and cluster are needed, not of {sorted(grounds) or 'none'}")
    return Ground(*grounds.pop(), seeds=tuple(sorted({each.run.seed for each in results})))


def rank(results: Sequence[Replayed], ground: Ground) -> list[Contender]:
    """Policies, best first: fewest cards left over under ``fill``, least demand refused where pods leave again."""
    unranked = [Contender(0, name, tuple(runs)) for name, runs in by_policy(results).items()]
    merits = (unallocated, refused) if ground.regime == "fill" else (refused, unallocated)
    ranked = sorted(unranked, key=lambda each: tuple(each.mean(merit) for merit in merits))
    return [Contender(i, each.name, each.results) for i, each in enumerate(ranked)]


def unallocated(run: Run) -> float:
    """Cards that are not allocated."""
    return run.unallocated_cards


def allocated(run: Run) -> float:
    """Share of the cluster's GPU that is allocated."""
    return run.allocated_share


def refused(run: Run) -> float:
    """Share of the GPU demand that was refused."""
    return run.refused_share


def has_winner(contenders: Sequence[Contender]) -> bool:
    """Whether the first is better than the second, in what the policies are ranked by or in cards."""
    return len(contenders) > 1 and any(
        contenders[0].mean(merit) != contenders[1].mean(merit) for merit in (unallocated, refused)
    )


def headline(contenders: Sequence[Contender], ground: Ground) -> str:
    """The result in one sentence."""
    best = contenders[0]
    if ground.regime == "fill":
        left = f"{best.mean(unallocated):,.0f} of {ground.cards_total:,} cards {ground.idle_word}"
        if len(contenders) > 1 and len({f"{each.mean(unallocated):,.0f}" for each in contenders}) == 1:
            return f"{'Both' if len(contenders) == 2 else 'All'} policies leave {left}."
        leaves = f"{best.name} leaves {left}"
        return _beside(leaves, contenders, lambda each: f"{each.mean(unallocated):,.0f}")
    if any(any(each.values(refused)) for each in contenders):
        refuses = f"{best.name} refuses {percent(best.mean(refused))} of the GPU asked for"
        return _beside(refuses, contenders, lambda each: percent(each.mean(refused)))
    if len(contenders) == 1:
        return f"{best.name} places all that is asked for."
    return f"Every policy places all that is asked for: a load of {ground.load:.2f} does not tell them apart."


def _beside(best_does: str, contenders: Sequence[Contender], figure_of: Callable[[Contender], str]) -> str:
    """A sentence on the best, with the figures of its rivals: of all, or of many those of the next and the last."""
    rivals = [(each.name, each) for each in contenders[1:]]
    if len(contenders) > MOST_NAMED:
        rivals = [(f"{rivals[0][0]}, the next,", contenders[1]), (f"{rivals[-1][0]}, the last,", contenders[-1])]
    return "; ".join([best_does, *(f"{name} {figure_of(each)}" for name, each in rivals)]) + "."


def lead(contenders: Sequence[Contender], ground: Ground) -> str:
    """What the headline means for the cluster; empty if there is nothing to compare."""
    best, worst = contenders[0], contenders[-1]
    saved = worst.mean(unallocated) - best.mean(unallocated)
    if round(saved) < 1:
        return ""
    share = percent(saved / ground.cards_total, digits=1)
    return f"{best.name} puts {saved:,.0f} more cards to work than {worst.name}: {share} of the cluster."


def percent(share: float, *, digits: int = 2) -> str:
    """A share in [0, 1] as the page writes it."""
    return f"{100 * share:.{digits}f} %"


def refused_of(contender: Contender, code: Code) -> float:
    """Refused demand in cards for one reason, mean over the seeds."""
    return fmean(each.refused_for.get(code, 0.0) for each in contender.results)


def refused_reasons(contenders: Sequence[Contender]) -> list[Code]:
    """Reasons that were given at all, the costliest first."""
    cost = {code: sum(refused_of(each, code) for each in contenders) for code in Code}
    return sorted((code for code in Code if cost[code] > 0), key=lambda code: -cost[code])


def parts() -> list[Part]:
    """Every part of the leftover, in the order of its fields."""
    return [Part(each.name, *PARTS.get(each.name, (each.name.replace("_", " "), ""))) for each in fields(Leftover)]


def leftover_of(contender: Contender, part: Part) -> float:
    """One part of the leftover in cards, mean over the seeds."""
    return fmean(float(getattr(each.leftover, part.name)) for each in contender.results)


def free_words(contender: Contender) -> str:
    """How much is free on how many cards, in the run that the map shows."""
    free = contender.results[0].free_milli
    return f"{free.sum() / MILLI_PER_CARD:,.0f} cards' worth is free, on {np.count_nonzero(free):,} cards"


def by_policy(results: Sequence[Replayed]) -> dict[str, list[Replayed]]:
    """Results grouped by policy, in the order they come."""
    groups: dict[str, list[Replayed]] = {}
    for result in results:
        groups.setdefault(result.run.policy, []).append(result)
    return groups


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table: what it is called, which figure it shows, and how that is written."""

    heading: str
    note: str
    read: Callable[[Run], float]
    text: Callable[[float], str]


def columns(results: Sequence[Replayed], ground: Ground) -> list[Column]:
    """Columns in the order in which they decide."""
    arrived = fmean(each.run.pods_arrived for each in results)
    differs = any(each.run.pods_arrived != arrived for each in results)
    return [
        Column(f"cards {ground.idle_word}", f"of {ground.cards_total:,}", unallocated, "{:,.0f}".format),
        Column("allocated", "of the GPU there is", allocated, percent),
        Column("refused", "of the GPU asked for", refused, percent),
        Column("pods placed", f"of {arrived:,.0f}{', mean' * differs}", lambda run: run.pods_placed, "{:,.0f}".format),
        Column("decision", "p50", lambda run: run.decision_us_p50, duration),
        Column("decision", "p99", lambda run: run.decision_us_p99, duration),
    ]


def duration(time_us: float) -> str:
    """A short time as people say it."""
    return f"{time_us:,.0f} µs" if time_us < 1000 else f"{time_us / 1000:,.1f} ms"


def cell(contender: Contender, column: Column) -> tuple[str, str]:
    """Mean over the seeds, and the range they span; the range is empty if it has no width as written."""
    values = contender.values(column.read)
    low, high = column.text(min(values)), column.text(max(values))
    unit = high.partition(" ")[2]
    return column.text(fmean(values)), "" if low == high else f"{low.removesuffix(unit).strip()} – {high}"
