"""All checks over one snapshot: equal findings together, causes before consequences, the surest first. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cardwise.doctor.checks import CHECKS
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import EVERYWHERE, Check, Finding
from cardwise.doctor.load import spikes_of

SHOWN = 3
"""Subjects, and pieces of evidence, of findings that were put together."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A finding, and the codes of causes at the same place that it follows from: none for a cause."""

    finding: Finding
    follows_from: tuple[str, ...] = ()


def diagnose(facts: Facts, checks: Sequence[Check] = CHECKS) -> tuple[Ranked, ...]:
    """What all checks find, in the order in which to read it. The order of pods or nodes does not change it."""
    found = _together([finding for check in checks for finding in check.find(facts)])
    explains = {check.code: check.explains for check in checks}
    ranked = [Ranked(each, _causes(each, found, explains)) for each in found]
    return tuple(sorted(ranked, key=_order))


def unexplained(facts: Facts, ranked: Sequence[Ranked]) -> tuple[str, ...]:
    """Services that were slow and of which nothing was found: silence would read as health."""
    explained = frozenset().union(*(each.finding.places for each in ranked))
    found = []
    for service in facts.services:
        slow = spikes_of(facts, service)
        if slow is not None and f"service:{service.name}" not in explained:
            found.append(
                f"service {service.name} was slow for {slow.slow.mean():.0%} of the time, P99 up to "
                f"{slow.worst_s:.3f} s, and no check knows why: its card, neighbours, CPU and network are as usual"
            )
    return tuple(found)


def _order(ranked: Ranked) -> tuple[bool, float, str, str]:
    finding = ranked.finding
    return bool(ranked.follows_from), -finding.likelihood, finding.code, finding.subject


def _causes(finding: Finding, found: Iterable[Finding], explains: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    """Codes that explain it here. A cause that is less sure than what it would explain explains nothing."""
    return tuple(
        sorted(
            {
                other.code
                for other in found
                if finding.code in explains[other.code]
                and (other.places & finding.places or EVERYWHERE in other.places)
                and other.likelihood >= finding.likelihood / 2
            }
        )
    )


def _together(found: Iterable[Finding]) -> list[Finding]:
    """Findings that differ in their subject alone become one: fifty pods of a Deployment wait for one thing."""
    groups = dict[tuple[str, str, str], list[Finding]]()
    for each in sorted(found, key=lambda each: (each.code, each.subject, each.evidence)):
        told = each.cause.replace(each.subject, "").replace(each.subject.partition(" ")[2], "")
        groups.setdefault((each.code, told, each.action), []).append(each)
    return [_joined(each) for each in groups.values()]


def _joined(group: Sequence[Finding]) -> Finding:
    first = group[0]
    if len(group) == 1:
        return first
    subjects = list(dict.fromkeys(each.subject for each in group))
    evidence = list(dict.fromkeys(line for each in group for line in each.evidence))
    more = f" and {len(subjects) - SHOWN} more" if len(subjects) > SHOWN else ""
    kept = max(SHOWN, len(first.evidence))
    lost = len(evidence) - kept
    return replace(
        first,
        subject=", ".join(subjects[:SHOWN]) + more,
        places=frozenset().union(*(each.places for each in group)),
        evidence=(*evidence[:kept], *([f"and {lost} more of this kind"] if lost > 0 else [])),
        likelihood=max(each.likelihood for each in group),
    )
