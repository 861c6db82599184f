"""A change in one line, and an overall verdict in one sentence: the terminal, the page and the JSON say the same."""

from __future__ import annotations

from collections.abc import Sequence

from cardwise.core.comparison.verdict import Change, Comparison, Group, Part, Verdict

SHARE = "share"
"""The unit of figures in [0, 1], which are shown in percent and whose changes are points."""


def text_of(change: Change) -> str:
    """Such as ``P99 at 100/s: 80.0 → 96.0 ms (+20.0 %, +10.1 to +30.2): worse``."""
    if change.before is None and change.after is None:
        return f"{change.what}: {change.note or 'not known'}"
    values = f"{value_text(change.before, change.unit)} → {value_text(change.after, change.unit)}{_unit(change.unit)}"
    note = f"; {change.note}" if change.note else ""
    return f"{change.what}: {values}{_changed(change)}: {change.verdict.value}{note}"


def value_text(value: float | None, unit: str = "") -> str:
    """Three digits or more, without the unit."""
    if value is None:
        return "?"
    if unit == SHARE:
        return f"{100 * value:.2f}"
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def _unit(unit: str) -> str:
    return " %" if unit == SHARE else f" {unit}" if unit else ""


def _changed(change: Change) -> str:
    if change.change is None:
        return ""
    between = "" if change.low is None or change.high is None else f", {_bound(change.low)} to {_bound(change.high)}"
    return f" ({100 * change.change:+.1f} {'points' if change.unit == SHARE else '%'}{between})"


def _bound(share: float) -> str:
    return f"{100 * share:+.1f}"


def group_of(part: Part, verdict: Verdict, changes: Sequence[Change], otherwise: str) -> Group:
    """A group that tells its changes; of none, ``otherwise``: what would make it known."""
    return Group(part.value, verdict, [text_of(each) for each in changes if each.part is part] or [otherwise])


def overall_sentence(comparison: Comparison) -> str:
    """The verdict on the second measurement."""
    names = f"{comparison.after} against {comparison.before}"
    worse = [each.name for each in comparison.groups if each.verdict is Verdict.WORSE]
    because = f": worse {' and '.join(worse)}" if worse else ""
    if comparison.not_comparable and not worse:
        because = f": {comparison.not_comparable}"
    return f"{names}: {comparison.overall.value}{because}."
