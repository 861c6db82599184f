"""What serves a load: cards and memory that are held, how busy cards are, and what a good answer costs in them.

Refuses to add up cards of different models without their prices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cardwise.compare.figures import Figure, over
from cardwise.compare.window import Window, array_of
from cardwise.core.arrays import FloatArray
from cardwise.core.comparison.bootstrap import Scale
from cardwise.core.comparison.verdict import Change, Part, Verdict, compared_counts
from cardwise.core.comparison.words import SHARE
from cardwise.errors import UserError

UTILIZATION_TELLING = 0.1
"""Which difference of utilization an interval has to exclude."""


def held(before: Window, after: Window, unlike: str) -> list[Change]:
    """Cards and memory. They are known and not sampled: no interval. unlike: why they are not judged, or empty."""
    sides = (before, after)
    cards = [_weighted(each, dict.fromkeys(each.cards, 1.0)) for each in sides]
    memory = [array_of(each.memory_granted_mib) for each in sides]
    made = []
    for what, unit, values in (("cards", "", cards), ("memory granted", "MiB", memory)):
        if any(not np.nansum(each) for each in values):
            continue
        one, other = (float(np.nanmean(each)) for each in values)
        made.append(
            Change(
                part=Part.RESOURCES,
                what=what,
                unit=unit,
                before=one,
                after=other,
                change=other / one - 1,
                verdict=Verdict.UNKNOWN if unlike else compared_counts(one, other),
                note=unlike,
            )
        )
    return made


def busyness(before: Window, after: Window, unlike: str) -> list[Figure]:
    """Work: less is better, for the load is equal. Utilization: more is better, for the cards are there anyway."""
    busy = [np.column_stack([array_of(each.busy_cards), array_of(each.cards_with_slices)]) for each in (before, after)]
    if not all(np.isfinite(each).all(axis=1).any() for each in busy):
        return []
    work = [np.column_stack([each[:, 0], np.where(np.isfinite(each[:, 0]), 1.0, np.nan)]) for each in busy]
    return [
        Figure(
            part=Part.RESOURCES,
            what="work",
            unit="busy cards",
            before=work[0],
            after=work[1],
            statistic=over,
            unlike=unlike,
        ),
        Figure(
            part=Part.RESOURCES,
            what="utilization",
            unit=SHARE,
            before=busy[0],
            after=busy[1],
            statistic=over,
            scale=Scale.DIFFERENCE,
            less_is_better=False,
            telling=UTILIZATION_TELLING,
            unlike=unlike,
        ),
    ]


def cost(
    before: Window, after: Window, services: Sequence[str], prices: Mapping[str, float] | None, unlike: str
) -> list[Figure]:
    """Card-hours, or money, per million good answers of these services. prices: see :func:`prices_of`."""
    if not prices:
        return []
    sums = []
    for side in (before, after):
        hours = _weighted(side, prices) * side.step_s / 3600
        good = np.sum([array_of(side.services[name].good) for name in services], axis=0)
        sums.append(np.column_stack([1e6 * hours, good]))
    if not all(np.isfinite(each).all(axis=1).any() for each in sums):
        return []
    return [
        Figure(
            part=Part.COST,
            what="per million good answers",
            unit="card-hours" if set(prices.values()) == {1.0} else "",
            before=sums[0],
            after=sums[1],
            statistic=over,
            unlike=unlike,
        )
    ]


def prices_of(before: Window, after: Window, given: Mapping[str, float]) -> dict[str, float] | None:
    """Of a card-hour by model; None if models differ and are not priced. Raises UserError if some are priced only."""
    models = before.cards.keys() | after.cards.keys()
    if given and (missing := sorted(models - given.keys())):
        raise UserError(f"no price of {', '.join(missing)}; give --card-price '{missing[0]}=N' as well")
    if given:
        return {model: given[model] for model in models}
    return dict.fromkeys(models, 1.0) if len(models) == 1 else None


def _weighted(window: Window, weights: Mapping[str, float]) -> FloatArray:
    """Cards by weight, float64 [T]. Of a model not told of in a part there was none, unless nothing is told of any."""
    rows = np.array([weights[model] * array_of(each) for model, each in window.cards.items()])
    if not len(rows):
        return array_of([None] * len(window.memory_granted_mib))
    return np.where(np.isfinite(rows).any(axis=0), np.nansum(rows, axis=0), np.nan)
