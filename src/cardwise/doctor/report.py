"""A diagnosis as text and as JSON. Refuses to hide what was not looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cardwise.doctor.checks import CHECKS
from cardwise.doctor.ranking import Ranked
from cardwise.files import plain

PAGE = "docs/troubleshooting/{}.md"
_TITLES = {check.code: check.title for check in CHECKS}
_SURE = ((0.9, "certain"), (0.7, "likely"), (0.0, "possible"))


def sureness(likelihood: float) -> str:
    """A word for it."""
    return next(word for least, word in _SURE if likelihood >= least)


def as_json(
    ranked: Sequence[Ranked], unexplained: Sequence[str], gaps: Iterable[str], *, blind: bool
) -> dict[str, Any]:
    """One object. Keys and codes stay; texts may change. blind: what the user asked for could not be looked at."""
    return {
        "healthy": not (ranked or unexplained or blind),
        "findings": [
            {
                "code": each.finding.code,
                "title": _TITLES[each.finding.code],
                "subject": each.finding.subject,
                "places": sorted(each.finding.places),
                "likelihood": each.finding.likelihood,
                "cause": each.finding.cause,
                "evidence": list(each.finding.evidence),
                "action": each.finding.action,
                "follows_from": list(each.follows_from),
                "alike": each.alike,
                "page": PAGE.format(each.finding.code.lower()),
            }
            for each in ranked
        ],
        "unexplained": list(unexplained),
        "gaps": list(gaps),
    }


def lines(ranked: Sequence[Ranked], unexplained: Sequence[str], gaps: Sequence[str]) -> Iterable[str]:
    """What a person reads, the cause first."""
    for each in ranked:
        finding = each.finding
        after = f", follows from {', '.join(each.follows_from)}" if each.follows_from else ""
        alike = f", {each.alike} alike" if each.alike > 1 else ""
        yield plain(f"{finding.code} {sureness(finding.likelihood)}{alike}{after}: {finding.cause}")
        if finding.subject not in finding.cause:
            yield plain(f"  who: {finding.subject}")
        for text in finding.evidence:
            yield plain(f"  seen: {text}")
        yield plain(f"  do: {finding.action}")
        yield ""
    causes = sum(not each.follows_from for each in ranked)
    if ranked:
        yield f"{_many(causes, 'cause')}, {_many(len(ranked) - causes, 'consequence')}; pages: {PAGE.format('cwNNN')}"
    else:
        yield f"nothing found by {len(CHECKS)} checks"
    for text in unexplained:
        yield plain(f"unexplained: {text}")
    for gap in gaps:
        yield plain(f"not looked at: {gap}")


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
