"""Two windows of time side by side: resources, service quality, cost per request, stability (SPEC H3).

Callers are compared at equal load, service by service. All intervals hold together. Refuses to take silence for zero:
what a window does not know is unknown, and if that is a P99, so is what it all comes to, unless something is worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cardwise.compare.callers import figures_of, unlike_load, unlike_peak
from cardwise.compare.cards import busyness, cost, held, prices_of
from cardwise.compare.figures import judge
from cardwise.compare.stability import alerts, event_names, events
from cardwise.compare.window import Window
from cardwise.core.comparison.verdict import (
    Change,
    Comparison,
    Part,
    Verdict,
    any_worse,
    joint_level,
    overall_of,
    together,
)
from cardwise.core.comparison.words import group_of
from cardwise.errors import UserError

_OTHERWISE = {
    Part.RESOURCES: "no series of agents: what is held is not known",
    Part.QUALITY: "nothing is known",
    Part.COST: "no series of agents, or cards of several models: then give --card-price MODEL=N for each",
    Part.STABILITY: "nothing is known",
}


def compare(
    before: Window, after: Window, names: tuple[str, str], *, prices: Mapping[str, float] | None = None, seed: int = 1
) -> Comparison:
    """Judge ``after``. prices: of a card per hour, by model.

    Raises UserError if the two have no service in common, or buckets of other bounds, or if a price is missing.
    """
    services = _common(before, after, names)
    unlike = {name: why for name in services if (why := unlike_load(name, before, after))}
    all_unlike = "; ".join(f"{name}: {why}" for name, why in unlike.items())
    changes = _changes(before, after, services, unlike, all_unlike, prices or {}, seed)
    groups = [
        group_of(part, _verdict(part, [each for each in changes if each.part is part]), changes, otherwise)
        for part, otherwise in _OTHERWISE.items()
    ]
    return Comparison(
        before=names[0],
        after=names[1],
        overall=overall_of(*(each.verdict for each in groups)),
        groups=groups,
        changes=changes,
        not_comparable=all_unlike,
        notes=_notes(before, after, services),
        seed=seed,
    )


def _common(before: Window, after: Window, names: tuple[str, str]) -> list[str]:
    if before.bounds_s != after.bounds_s:
        raise UserError(f"{names[0]} and {names[1]} have latencies in other buckets: they cannot be compared")
    found = sorted(before.services.keys() & after.services.keys())
    if not found:
        told = "; ".join(", ".join(sorted(each.services)) or "none" for each in (before, after))
        raise UserError(f"{names[0]} and {names[1]} have no service in common ({told})")
    return found


def _changes(
    before: Window,
    after: Window,
    services: Sequence[str],
    unlike: Mapping[str, str],
    all_unlike: str,
    prices: Mapping[str, float],
    seed: int,
) -> list[Change]:
    figures = [
        *(each for name in services for each in figures_of(name, before, after, unlike.get(name, ""))),
        *busyness(before, after, all_unlike),
        *cost(before, after, services, prices_of(before, after, prices), all_unlike),
    ]
    counted = event_names(before, after)
    level = joint_level(len(figures) + len(counted))
    return [
        *held(before, after, all_unlike),
        *(judge(each, level, seed + i) for i, each in enumerate(figures)),
        *(events(name, before, after, level) for name in counted),
        alerts(before.alerts, after.alerts),
    ]


def _verdict(part: Part, changes: Sequence[Change]) -> Verdict:
    """A better P99 may make up for a worse mean, as with larger batches, and nothing for a worse P99."""
    verdicts = [each.verdict for each in changes]
    if part is Part.STABILITY:
        return any_worse(verdicts)
    if part is not Part.QUALITY:
        return together(verdicts)
    if any(each.verdict is Verdict.WORSE and not each.what.startswith("mean") for each in changes):
        return Verdict.WORSE
    if any(each.verdict is Verdict.UNKNOWN and each.what.startswith("P99") for each in changes):
        return Verdict.UNKNOWN
    return together(verdicts)


def _notes(before: Window, after: Window, services: Sequence[str]) -> list[str]:
    """What the two do not have in common, and what Prometheus warned of."""
    made = []
    for side, other, when in ((before, after, "before"), (after, before, "after")):
        if alone := sorted(side.services.keys() - other.services.keys()):
            made.append(f"only {when}, and not compared: {', '.join(alone)}")
        made += [f"{when}: Prometheus warned: {each}" for each in side.warnings]
    if before.chosen != after.chosen:
        told = (", ".join(each.chosen) or "all" for each in (before, after))
        made.append("other services were chosen: {} before, {} after".format(*told))
    return [*made, *filter(None, (unlike_peak(name, before, after) for name in services))]
