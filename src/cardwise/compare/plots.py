"""The plots of an A/B report as SVG elements. Refuses to compute results: they come from the comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from cardwise.compare.callers import counts_of
from cardwise.compare.figures import p99_of
from cardwise.compare.window import Window, array_of
from cardwise.core.comparison.verdict import Change, Comparison, Verdict
from cardwise.core.comparison.words import SHARE, by_weight, text_of, value_text
from cardwise.drawing import INK, svg

COLOURS = ("#0072b2", "#d55e00")
"""Before and after. Source: Okabe and Ito, "Color Universal Design", 2008."""
VERDICTS = {Verdict.WORSE: "#d55e01", Verdict.BETTER: "#009e73", Verdict.SAME: "#0072b3"}
UNKNOWN = "#999998"
_FROM_PAGE = {
    "#0072b2": "var(--before)",
    "#d55e00": "var(--after)",
    "#d55e01": "var(--worse)",
    "#009e73": "var(--better)",
    "#0072b3": "var(--same)",
    "#999998": "var(--soft)",
}
MOST_DRAWN = 40
LEAST_FARTHEST, MOST_FARTHEST = 0.25, 10.0
"""Of the axis, as a change: an interval that says nothing may be a thousand times as long as the others."""
WIDTH_IN, HALF_IN, HEIGHT_IN = 11.0, 5.6, 3.2


def plot_changes(comparison: Comparison) -> str:
    """Changes that have an interval, as a line from its low to its high end; the weightiest if they are many."""
    drawn = [each for each in comparison.changes if each.low is not None and each.high is not None]
    if len(drawn) > MOST_DRAWN:
        drawn = by_weight(drawn)[:MOST_DRAWN]
    farthest = _farthest(drawn)
    figure = Figure(figsize=(WIDTH_IN, 0.9 + 0.36 * max(len(drawn), 1)), layout="constrained")
    axes = figure.subplots()
    for i, change in enumerate(drawn):
        low, at, high = (
            100 * min(max(each or 0.0, -farthest), farthest) for each in (change.low, change.change, change.high)
        )
        colour = VERDICTS.get(change.verdict, UNKNOWN)
        axes.plot([low, high], [i, i], color=colour, linewidth=2.2, solid_capstyle="butt")
        for end, sign in ((change.low, "<"), (change.high, ">")):
            if abs(end or 0.0) > farthest:
                axes.plot([100 * math.copysign(farthest, end or 0.0)], [i], color=colour, marker=sign, markersize=7)
        axes.plot([at], [i], color=colour, marker="o", markersize=6)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(drawn)), [_label(each) for each in drawn])
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.set_xlabel("change, in % or points")
    axes.grid(visible=False, axis="y")
    told = "; ".join(text_of(each) for each in drawn)
    return svg(figure, _FROM_PAGE, "changes", f"Changes with their intervals. {told}.")


def _farthest(drawn: Sequence[Change]) -> float:
    """To where the axis goes: to the end of every interval that tells something, and somewhat beyond every change."""
    ends = [abs(end or 0.0) for each in drawn if each.verdict is not Verdict.UNKNOWN for end in (each.low, each.high)]
    changes = [1.2 * abs(each.change or 0.0) for each in drawn]
    return min(max([LEAST_FARTHEST, *ends, *changes]), MOST_FARTHEST)


def _label(change: Change) -> str:
    return f"{change.what}, points" if change.unit == SHARE else change.what


def plot_p99(name: str, windows: Sequence[Window], number: int) -> str:
    """P99 of one service, part by part of both windows."""
    figure, told = Figure(figsize=(HALF_IN, HEIGHT_IN), layout="constrained"), []
    axes = figure.subplots()
    for window, colour, when in zip(windows, COLOURS, ("before", "after"), strict=True):
        p99s = p99_of(window.bounds_s)(np.nan_to_num(counts_of(window.services[name], len(window.bounds_s) + 1)))
        minutes = window.step_s / 60 * np.arange(1, len(p99s) + 1)
        axes.plot(minutes, 1000 * p99s, color=colour, marker="o", markersize=3, label=when)
        known = p99s[np.isfinite(p99s)]
        told.append(f"{when} {value_text(1000 * float(np.median(known)))} ms" if len(known) else f"{when} not known")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("P99, ms")
    axes.set_xlabel("minutes of the window")
    axes.legend(loc="lower left")
    return svg(figure, _FROM_PAGE, f"p99-{number}", f"P99 of {name} over time. Medians of parts: {'; '.join(told)}.")


def plot_load(name: str, windows: Sequence[Window], number: int) -> str:
    """Its requests per second."""
    figure, told = Figure(figsize=(HALF_IN, HEIGHT_IN), layout="constrained"), []
    axes = figure.subplots()
    for window, colour, when in zip(windows, COLOURS, ("before", "after"), strict=True):
        rates = array_of(window.services[name].answers) / window.step_s
        axes.plot(window.step_s / 60 * np.arange(1, len(rates) + 1), rates, color=colour, label=when)
        known = rates[np.isfinite(rates)]
        told.append(f"{when} {value_text(float(known.mean()))}/s" if len(known) else f"{when} not known")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("requests/s")
    axes.set_xlabel("minutes of the window")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:g}"))
    axes.legend(loc="lower left")
    return svg(figure, _FROM_PAGE, f"load-{number}", f"Requests per second of {name}. Means: {'; '.join(told)}.")
