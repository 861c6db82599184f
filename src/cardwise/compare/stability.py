"""What happens now and then: restarts, failed scheduling, alerts.

Refuses to call one more of a rare event worse: it is told, as not known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cardwise.compare.window import Window, array_of
from cardwise.core.arrays import FloatArray
from cardwise.core.comparison.bootstrap import events_p_value
from cardwise.core.comparison.verdict import Change, Part, Verdict


def event_names(before: Window, after: Window) -> list[str]:
    """Of all that either window knows of."""
    return sorted(before.events.keys() | after.events.keys())


def events(name: str, before: Window, after: Window, level: float) -> Change:
    """Counts of one kind. One that comes in bursts is taken for as many as it has bursts.

    Source of that: quasi-Poisson, McCullagh and Nelder 1989, chapter 6: counts over their variance-to-mean ratio.
    """
    what = name.replace("-", " ")
    for side, when in ((before, "before"), (after, "after")):
        if not np.isfinite(array_of(side.events.get(name, []))).any():
            return Change(part=Part.STABILITY, what=what, before=None, after=None, note=f"not known {when}")
    one, other = (_known(each, name) for each in (before, after))
    counts = round(float(one.sum())), round(float(other.sum()))
    seconds = len(one) * before.step_s, len(other) * after.step_s
    burst = max(_burst(one), _burst(other))
    alike = events_p_value(round(counts[0] / burst), round(counts[1] / burst), *seconds)
    verdict = Verdict.SAME if counts[0] == counts[1] else Verdict.UNKNOWN
    if alike <= 1 - level:
        verdict = Verdict.WORSE if counts[1] / seconds[1] > counts[0] / seconds[0] else Verdict.BETTER
    return Change(
        part=Part.STABILITY,
        what=what,
        before=counts[0],
        after=counts[1],
        verdict=verdict,
        note="too few to tell from chance: look at them" if verdict is Verdict.UNKNOWN else "",
        blocks=(len(one), len(other)),
    )


def _known(window: Window, name: str) -> FloatArray:
    values = array_of(window.events[name])
    return values[np.isfinite(values)]


def _burst(counts: FloatArray) -> float:
    """How many come together; 1 for what comes singly."""
    return max(1.0, float(counts.var() / counts.mean())) if counts.sum() > 0 else 1.0


def alerts(before: Sequence[str] | None, after: Sequence[str] | None) -> Change:
    """By name and not by count: a rule has its own patience (``for``), so one that fired only after is no chance."""
    if before is None and after is None:
        note = "none in either window, or no rules are loaded"
        return Change(part=Part.STABILITY, what="alerts", before=None, after=None, note=note)
    one, other = set(before or ()), set(after or ())
    new, gone = sorted(other - one), sorted(one - other)
    told = [f"only after: {', '.join(new)}"] * bool(new) + [f"only before: {', '.join(gone)}"] * bool(gone)
    verdict = Verdict.MIXED if new and gone else Verdict.WORSE if new else Verdict.BETTER if gone else Verdict.SAME
    return Change(
        part=Part.STABILITY, what="alerts", before=len(one), after=len(other), verdict=verdict, note="; ".join(told)
    )
