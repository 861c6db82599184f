"""A change in one line, and an overall verdict in one sentence: the terminal, the page and the JSON say the same."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from cardwise.core.comparison.verdict import Change, Comparison, Group, Overall, Part, Verdict

SHARE = "share"
"""The unit of figures in [0, 1], which are shown in percent and whose changes are points."""
MOST_NAMED, MOST_TOLD = 3, 40
"""Of a list within a sentence; of figures of a group, which the JSON has all."""
LARGEST = 10.0
"""Of a change that is told as it is: what is more says only that little is known."""
_FIRST = (Verdict.WORSE, Verdict.MIXED, Verdict.BETTER, Verdict.UNKNOWN, Verdict.SAME)


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
    bounds = [_signed(each, change.unit) for each in (change.low, change.high) if each is not None]
    between = f", {' to '.join(bounds)}" if len(bounds) == 2 else ""
    return f" ({_signed(change.change, change.unit)} {'points' if change.unit == SHARE else '%'}{between})"


def alone_text(low: float, high: float, unit: str) -> str:
    """Where a change lies if no other figure is looked at: what "no difference" goes by."""
    return f"looked at alone, {_signed(low, unit)} to {_signed(high, unit)}"


def _signed(share: float, unit: str) -> str:
    """In percent. Of points those below one too, for a tenth of one matters."""
    if share > LARGEST:
        return f"more than {100 * LARGEST:+,.0f}"
    return f"{100 * share:+.2f}" if unit == SHARE and 0 < abs(share) < 0.01 else f"{100 * share:+.1f}"


def abridged(each: Sequence[str], what: str, between: str = "; ") -> str:
    """The first of them, and how many more there are."""
    left = len(each) - MOST_NAMED
    if left <= 0:
        return between.join(each)
    return f"{between.join(each[:MOST_NAMED])} and {left:,} more {what}"


def by_weight(changes: Sequence[Change]) -> list[Change]:
    """What is worse first, and the largest of it."""
    return sorted(changes, key=lambda it: (_FIRST.index(it.verdict), -_size(it)))


def _size(change: Change) -> float:
    return abs(change.change) if change.change is not None and math.isfinite(change.change) else 0.0


def group_of(part: Part, verdict: Verdict, changes: Sequence[Change], otherwise: str) -> Group:
    """A group that tells its changes; of none, ``otherwise``: what would make it known."""
    found = [each for each in changes if each.part is part]
    if len(found) <= MOST_TOLD:
        return Group(part.value, verdict, [text_of(each) for each in found] or [otherwise])
    told = [each for each in by_weight(found) if each.verdict is not Verdict.SAME][:MOST_TOLD]
    left = Counter(each.verdict for each in found) - Counter(each.verdict for each in told)
    more = ", ".join(f"{left[each]:,} {each.value}" for each in _FIRST if left[each])
    return Group(part.value, verdict, [*map(text_of, told), f"and more figures, which --json tells: {more}"])


def overall_sentence(comparison: Comparison) -> str:
    """The verdict on the second measurement."""
    names = f"{comparison.after} against {comparison.before}"
    worse = [each.name for each in comparison.groups if each.verdict is Verdict.WORSE]
    because = f": worse {' and '.join(worse)}" if worse else ""
    if comparison.not_comparable and not worse:
        because = f": {comparison.not_comparable}"
    elif comparison.overall is Overall.UNKNOWN:
        because = _not_known(comparison)
    left_out = f" ({comparison.left_out})" if comparison.left_out else ""
    return f"{names}: {comparison.overall.value}{because}{left_out}."


def _not_known(comparison: Comparison) -> str:
    """Which figures would have to be known, of the groups that are not."""
    groups = {each.name for each in comparison.groups if each.verdict is Verdict.UNKNOWN}
    parts = [part for part in (Part.QUALITY, Part.STABILITY) if part.value in groups]
    found = [each for each in comparison.changes if each.verdict is Verdict.UNKNOWN and each.part in parts]
    told = abridged([f"{each.what}: {each.note}" if each.note else each.what for each in found], "figures")
    return f": {told}" if told else ""
