"""All checks over one snapshot: what is alike together, causes before consequences, the surest first. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cardwise.doctor.checks import CHECKS
from cardwise.doctor.facts import Facts, Served
from cardwise.doctor.findings import EVERYWHERE, Check, Finding
from cardwise.doctor.load import busy_share, spikes_of
from cardwise.doctor.measures import Spikes
from cardwise.doctor.words import some

SHOWN = 3
"""Pieces of evidence of findings that were put together."""
FEW = 5
"""So many findings of one kind are told one by one, each with its numbers; more of them are one with examples."""
MOST_NAMES = 20
"""Places of a finding whose names are looked for in its words: more are not written there."""
_NUMBERED = re.compile(r"[^\s,;:()]*\d[^\s,;:()]*")
"""A number, or a name with one in it."""
_LIST = re.compile(r"#(?:, #)*(?: and # more)?")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A finding, and the codes of causes at the same place that it follows from: none for a cause.

    alike: how many pods, nodes or services it stands for.
    """

    finding: Finding
    follows_from: tuple[str, ...] = ()
    alike: int = 1


def diagnose(facts: Facts, checks: Sequence[Check] = CHECKS) -> tuple[Ranked, ...]:
    """What all checks find, in the order in which to read it. The order of pods or nodes does not change it."""
    with np.errstate(over="ignore"):  # an exporter may say 1e308
        found = [finding for check in checks for finding in check.find(facts)]
    sure = _sureness_by_place(found)
    explains = {check.code: check.explains for check in checks}
    ranked = [Ranked(each, _causes(each, sure, explains)) for each in found]
    return tuple(sorted(_together(ranked), key=_order))


def unexplained(facts: Facts, ranked: Sequence[Ranked]) -> tuple[str, ...]:
    """Services that were slow and of which nothing was found: silence would read as health."""
    explained = frozenset().union(*(each.finding.places for each in ranked))
    found = []
    for service in facts.services:
        slow = spikes_of(facts, service)
        if slow is not None and f"service:{service.name}" not in explained:
            found.append(
                f"service {service.name} was slow for {slow.slow.mean():.0%} of the time, P99 up to "
                f"{slow.worst_s:.3f} s, and no check knows why{_figures(facts, service, slow)}"
            )
    return tuple(found)


def _figures(facts: Facts, service: Served, slow: Spikes) -> str:
    """What is known of the times at which it was slow, and of all others; empty if nothing is."""
    busy = busy_share(facts, service)
    known = [
        ("requests/s", facts.metrics.values("qps", service=service.name)),
        ("in the queue", facts.metrics.values("queue_length", service=service.name)),
        ("% of its part of the cards busy", None if busy is None else 100 * busy),
    ]
    texts = [told for name, values in known if (told := slow.told(values, name))]
    return f" ({'; '.join(texts)})" if texts else ""


def _order(ranked: Ranked) -> tuple[bool, bool, float, str, str]:
    finding = ranked.finding
    return bool(ranked.follows_from), finding.later, -finding.likelihood, finding.code, finding.subject


def _sureness_by_place(found: Iterable[Finding]) -> Mapping[str, Mapping[str, float]]:
    """By place, how sure each check is that it found something there."""
    sure = dict[str, dict[str, float]]()
    for each in found:
        for place in each.places:
            there = sure.setdefault(place, {})
            there[each.code] = max(each.likelihood, there.get(each.code, 0.0))
    return sure


def _causes(
    finding: Finding, sure: Mapping[str, Mapping[str, float]], explains: Mapping[str, frozenset[str]]
) -> tuple[str, ...]:
    """Codes that explain it here. A cause that is less sure than what it would explain explains nothing."""
    return tuple(
        sorted(
            {
                code
                for place in (*finding.places, EVERYWHERE)
                for code, likelihood in sure.get(place, {}).items()
                if finding.code in explains[code] and likelihood >= finding.likelihood / 2
            }
        )
    )


def _together(found: Iterable[Ranked]) -> Iterable[Ranked]:
    """One for all that differ in their subject alone; and, where more than a few are alike, one for those."""
    kinds = dict[tuple[object, ...], dict[tuple[str, str], list[Ranked]]]()
    for each in sorted(found, key=lambda each: (each.finding.code, each.finding.subject, each.finding.evidence)):
        kind = kinds.setdefault((each.finding.code, each.follows_from, *_alike(each.finding)), {})
        kind.setdefault(_same(each.finding), []).append(each)
    for same in kinds.values():
        groups = list(same.values())
        yield from map(_joined, groups if len(groups) <= FEW else [[each for group in groups for each in group]])


def _same(finding: Finding) -> tuple[str, str]:
    """What findings have in common that differ in their subject alone: pods of a Deployment wait for one thing."""
    told = finding.cause.replace(finding.subject, "").replace(finding.subject.partition(" ")[2], "")
    return told, finding.action


def _alike(finding: Finding) -> tuple[str, str]:
    """What findings have in common that differ in names and numbers: a thousand nodes, each with its own clock."""
    names = [finding.subject.partition(" ")[2]]
    if len(finding.places) <= MOST_NAMES:
        names += (place.partition(":")[2] for place in finding.places)
    told, action = (_masked(text, names) for text in (finding.cause, finding.action))
    return told, action


def _masked(text: str, names: Iterable[str]) -> str:
    for name in sorted(filter(None, names), key=lambda name: (-len(name), name)):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "#", text)
    return _LIST.sub("#", _NUMBERED.sub("#", text))


def _joined(group: Sequence[Ranked]) -> Ranked:
    """One finding for all of them, with the surest one's words."""
    if len(group) == 1:
        return group[0]
    findings = [each.finding for each in group]
    first = max(findings, key=lambda each: each.likelihood)
    subjects = list(dict.fromkeys(each.subject for each in findings))
    evidence = list(dict.fromkeys(line for each in (first, *findings) for line in each.evidence))
    kept = max(SHOWN, len(first.evidence))
    lost = len(evidence) - kept
    joined = replace(
        first,
        subject=some(subjects),
        places=frozenset().union(*(each.places for each in findings)),
        evidence=(*evidence[:kept], *([f"and {lost} more of this kind"] if lost > 0 else [])),
        later=all(each.later for each in findings),
    )
    return Ranked(joined, group[0].follows_from, len(subjects))
