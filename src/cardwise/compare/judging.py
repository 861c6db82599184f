"""Two windows of time side by side: resources, service quality, cost per request, stability (SPEC H3).

Callers are compared at equal load, service by service. All intervals hold together. Refuses to take silence for zero:
what a window does not know is unknown, and if that is a P99, so is what it all comes to, unless something is worse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from cardwise.compare.callers import figures_of, is_idle, unlike_load, unlike_peak
from cardwise.compare.cards import busyness, cost, held, prices_of
from cardwise.compare.figures import judge
from cardwise.compare.stability import alerts, event_names, events
from cardwise.compare.window import Window, array_of
from cardwise.core.comparison.verdict import (
    MATERIAL,
    Change,
    Comparison,
    Part,
    Verdict,
    any_worse,
    joint_level,
    overall_of,
    together,
)
from cardwise.core.comparison.words import abridged, group_of
from cardwise.errors import UserError
from cardwise.files import plain

MOST_NOTES = 5
"""Of one kind."""
_MAY_BE_UNKNOWN = ("mean of ", "other 4xx of ")
"""Of what callers see, what need not be known to call it good."""
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
    services, idle = _common(before, after, names)
    unlike = {name: why for name in services if (why := unlike_load(name, before, after))}
    all_unlike = abridged([f"{plain(name)}: {why}" for name, why in unlike.items()], "services")
    changes = _changes(
        before, after, services, unlike, _unlike_cards(before, after, all_unlike, unlike), prices or {}, seed
    )
    spared = _spared(before, after, changes, unlike)
    telling = [each for each in changes if each.verdict is not Verdict.UNKNOWN or each.service not in spared]
    groups = [
        group_of(part, _verdict(part, [each for each in telling if each.part is part]), changes, otherwise)
        for part, otherwise in _OTHERWISE.items()
    ]
    return Comparison(
        before=names[0],
        after=names[1],
        overall=overall_of(*(each.verdict for each in groups)),
        groups=groups,
        changes=changes,
        not_comparable=all_unlike,
        notes=_notes(before, after, services, idle),
        seed=seed,
        left_out=_left_out(before, after, changes, spared),
    )


def _spared(before: Window, after: Window, changes: Sequence[Change], unlike: Collection[str]) -> list[str]:
    """Services of which too little is known, if few of all requests are theirs: the others have a verdict even so.

    Of fifty services one has hardly a request at all, and one is unsure by chance. unlike: services whose loads are not
    equal. These are not spared: that a service is asked no more may be the change's doing.
    """
    found = sorted({each.service for each in changes if _is_missed(each)} - {"", *unlike})
    return found if max(_share_of(found, each) for each in (before, after)) <= MATERIAL else []


def _is_missed(change: Change) -> bool:
    return change.verdict is Verdict.UNKNOWN and not change.what.startswith(_MAY_BE_UNKNOWN)


def _left_out(before: Window, after: Window, changes: Sequence[Change], spared: Collection[str]) -> str:
    if not spared:
        return ""
    share = max(_share_of(spared, each) for each in (before, after))
    missed = abridged([each.what for each in changes if each.service in spared and _is_missed(each)], "figures", ", ")
    return f"not known, of services with {100 * share:.2g} % of all requests: {missed}"


def _common(before: Window, after: Window, names: tuple[str, str]) -> tuple[list[str], list[str]]:
    """Services that both tell of: those that were asked, and those of which nothing was asked."""
    if before.bounds_s != after.bounds_s:
        raise UserError(f"{names[0]} and {names[1]} have latencies in other buckets: they cannot be compared")
    found = sorted(before.services.keys() & after.services.keys())
    if not found:
        told = "; ".join(_names(each.services) or "none" for each in (before, after))
        raise UserError(f"{names[0]} and {names[1]} have no service in common ({told})")
    idle = [name for name in found if is_idle(name, before, after)]
    asked = [name for name in found if name not in set(idle)]
    return (asked, idle) if asked else (found, [])


def _names(services: Iterable[str]) -> str:
    return abridged([plain(each) for each in sorted(services)], "services", ", ")


def _unlike_cards(before: Window, after: Window, all_unlike: str, unlike: Collection[str]) -> str:
    """Why cards and costs are not judged; empty if they are. They serve all services together, also the others.

    unlike: services whose loads are not equal. Of a thousand some are so by chance; they matter as they are asked.
    """
    alone = before.services.keys() ^ after.services.keys()
    if alone:
        return f"not comparable: other services ran ({_names(alone)}); choose by --service"
    if not any(_share_of(unlike, each) > MATERIAL for each in (before, after)):
        return ""
    return "not comparable: other loads of services; choose by --service" if len(unlike) > 1 else all_unlike


def _share_of(services: Collection[str], window: Window) -> float:
    """Of the answers."""
    counts = {name: float(np.nansum(array_of(each.answers))) for name, each in window.services.items()}
    return sum(counts[name] for name in services) / max(sum(counts.values()), 1.0)


def _changes(
    before: Window,
    after: Window,
    services: Sequence[str],
    unlike: Mapping[str, str],
    unlike_cards: str,
    prices: Mapping[str, float],
    seed: int,
) -> list[Change]:
    figures = [
        *(each for name in services for each in figures_of(name, before, after, unlike.get(name, ""))),
        *busyness(before, after, unlike_cards),
        *cost(before, after, services, prices_of(before, after, prices), unlike_cards),
    ]
    counted = event_names(before, after)
    level = joint_level(len(figures) + len(counted))
    return [
        *held(before, after, unlike_cards),
        *(judge(each, level, seed) for each in figures),
        *(events(name, before, after, level) for name in counted),
        alerts(before.alerts, after.alerts),
    ]


def _verdict(part: Part, changes: Sequence[Change]) -> Verdict:
    """A better P99 may make up for a worse mean, as with larger batches, and nothing for a worse P99."""
    verdicts = [each.verdict for each in changes]
    if part is Part.STABILITY:
        worst = any_worse(verdicts)
        unsure = any(each.verdict is Verdict.UNKNOWN and each.what.startswith("failed by ") for each in changes)
        return Verdict.UNKNOWN if unsure and worst is not Verdict.WORSE else worst
    if part is not Part.QUALITY:
        return together(verdicts)
    if any(each.verdict is Verdict.WORSE and not each.what.startswith("mean of ") for each in changes):
        return Verdict.WORSE
    return Verdict.UNKNOWN if any(map(_is_missed, changes)) else together(verdicts)


def _notes(before: Window, after: Window, services: Sequence[str], idle: Sequence[str]) -> list[str]:
    """What the two do not have in common, and what Prometheus warned of."""
    made = _of_times(before, after)
    if idle:
        made.append(f"no request in either window, and not compared: {_names(idle)}")
    for side, other, when in ((before, after, "before"), (after, before, "after")):
        if alone := sorted(side.services.keys() - other.services.keys()):
            made.append(f"only {when}, and not compared: {_names(alone)}")
        made += _few([f"{when}: Prometheus warned: {plain(each)}" for each in side.warnings])
    if before.chosen != after.chosen:
        told = (_names(each.chosen) or "all" for each in (before, after))
        made.append("other services were chosen: {} before, {} after".format(*told))
    return [*made, *_few([*filter(None, (unlike_peak(name, before, after) for name in services))])]


def _of_times(before: Window, after: Window) -> list[str]:
    """What is odd of the two times; of two Prometheus, each may have its own."""
    if before.source != after.source or before == after:
        return []
    if before.begin < after.end and after.begin < before.end:
        return ["the windows overlap: what lies in both makes them alike"]
    return ["before is later than after: exchange them, unless a change was taken back"] * (before.begin > after.begin)


def _few(notes: Sequence[str]) -> list[str]:
    left = len(notes) - MOST_NOTES
    return [*notes[:MOST_NOTES], *[f"{left} more such notes"] * (left > 0)]
