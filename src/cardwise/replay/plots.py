"""The plots of a replay as SVG elements. Refuses to compute results: they come from ``verdict``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter

from cardwise.core.arrays import FloatArray, IntArray
from cardwise.core.reasons import WORDINGS, Code
from cardwise.drawing import INK, svg
from cardwise.replay.outcome import Replayed
from cardwise.replay.verdict import Contender, Ground, allocated, leftover_of, parts, percent, refused_of, unallocated
from cardwise.units import MILLI_PER_CARD

POLICY_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#010101", "#f0e442")
"""Best policy first. Source: Okabe and Ito, "Color Universal Design", 2008; but matplotlib writes no pure black."""
PART_COLOURS = ("#332288", "#cc6677", "#882255", "#ddcc77", "#44aa99", "#88ccee", "#999933")
"""For the parts of the leftover, apart from the policies' colours. Source: Paul Tol's "muted" scheme, 2021."""
USABLE_COLOUR = "#bbbbbb"
FREE_COLOURS = "viridis"
"""Perceptually uniform, and in order of lightness for the colour-blind and on grey prints."""
DOTS = (0, (1, 2))
DASHES = ("solid", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 2, 2)))
_FROM_PAGE = {
    **{colour: f"var(--policy-{i})" for i, colour in enumerate(POLICY_COLOURS)},
    **{colour: f"var(--part-{i})" for i, colour in enumerate(PART_COLOURS)},
}

WIDTH_IN, HALF_IN, MAP_IN = 11.0, 5.6, 3.9
CURVE_GRID = 300
LABEL_GAP = 0.055
"""Height of a label beside a curve, over the height of the plot."""
TIME_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
FREE_BINS = 11
"""Tenths of a card, and one bin for cards that are free as a whole."""


def look_of(contender: Contender) -> int:
    """Index of the policy's colour: beyond eight policies they come again, under other names."""
    return contender.rank % len(POLICY_COLOURS)


def colour_of(contender: Contender) -> str:
    """Colour of the policy in every plot, which the page may swap for one that suits its background."""
    return POLICY_COLOURS[look_of(contender)]


def plot_curve(contenders: Sequence[Contender], ground: Ground) -> str:
    """Allocation against what has arrived, or against time under ``trace``."""
    figure = Figure(figsize=(HALF_IN, 3.9), layout="constrained")
    axes = figure.subplots()
    over_time = ground.regime == "trace"
    at, curves = _curves(contenders, steps=over_time)
    scale, unit = _time_unit(float(np.ptp(at))) if over_time else (1.0, "")
    _draw_curves(axes, contenders, at / scale, curves, steps=over_time)
    ends = [float(curve[:, -1].mean()) for curve in curves]
    if ground.regime == "fill":
        axes.plot([0, 1, max(1.0, at[-1])], [0, 1, 1], color=INK, linewidth=0.8, linestyle=DOTS)
        _start_below(axes, ends, at[-1])
    _label_ends(axes, contenders, ends, at[-1] / scale)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, None if over_time else 0, symbol=" %"))
    axes.set_ylabel("allocated, of the cluster's GPU")
    axes.set_xlabel(f"{unit} since the first pod" if over_time else "asked for so far, of the cluster's GPU")
    if not over_time:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, 0, symbol=" %"))
    told = ", ".join(f"{each.name} {percent(each.mean(allocated))}" for each in contenders)
    return svg(figure, _FROM_PAGE, "curve", f"Line chart of the allocated share. The figure of the table: {told}.")


def _curves(contenders: Sequence[Contender], *, steps: bool) -> tuple[FloatArray, list[FloatArray]]:
    """All curves over one axis: its points, from 0 under ``steps``, and per policy float64 [seeds, points]."""
    results = [result for each in contenders for result in each.results]
    start = min(float(each.arrived_share[0]) for each in results)
    at = np.linspace(start, min(float(each.arrived_share[-1]) for each in results), CURVE_GRID)
    curves = [np.array([_read_off(result, at, steps=steps) for result in each.results]) for each in contenders]
    return at - start if steps else at, curves


def _read_off(result: Replayed, at: FloatArray, *, steps: bool) -> FloatArray:
    """The curve at these points; with steps it holds its value until the next change, as allocation in time does."""
    if not steps:
        return np.interp(at, result.arrived_share, result.allocated_share)
    last_change = np.searchsorted(result.arrived_share, at, side="right") - 1
    return result.allocated_share[np.maximum(last_change, 0)]


def _draw_curves(
    axes: Axes, contenders: Sequence[Contender], at: FloatArray, curves: Sequence[FloatArray], *, steps: bool
) -> None:
    """A line per policy, the mean over its seeds, in a band that is their range."""
    for each, curve in zip(contenders, curves, strict=True):
        axes.plot(
            at,
            curve.mean(axis=0),
            color=colour_of(each),
            linestyle=DASHES[each.rank % len(DASHES)],
            linewidth=1.8,
            drawstyle="steps-post" if steps else "default",
        )
        if len(curve) > 1:
            low, high = curve.min(axis=0), curve.max(axis=0)
            axes.fill_between(
                at, low, high, color=colour_of(each), alpha=0.2, linewidth=0, step="post" if steps else None
            )


def _time_unit(lasts_s: float) -> tuple[float, str]:
    """Seconds in the unit that suits so long a time, and its name."""
    return next(((long_s, name) for long_s, name in TIME_UNITS if lasts_s > 3 * long_s), (1.0, "seconds"))


def _start_below(axes: Axes, ends: Sequence[float], last: float) -> None:
    """Leave out the part where every policy still places nearly all that arrives: there is nothing to see."""
    start = math.floor(10 * min(ends) - 1.5) / 10
    if 0 < start < last:
        axes.set_xlim(left=start)
        axes.set_ylim(bottom=start)


def _label_ends(axes: Axes, contenders: Sequence[Contender], ends: Sequence[float], last: float) -> None:
    """Name each curve at its end, in the margin, with a line to it."""
    low, high = axes.get_ylim()
    heights = spread_out([(end - low) / (high - low) for end in ends], LABEL_GAP)
    for each, end, height in zip(contenders, ends, heights, strict=True):
        axes.annotate(
            each.name,
            (last, end),
            xytext=(1.06, height),
            textcoords="axes fraction",
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour_of(each), "linewidth": 1, "shrinkB": 0, "relpos": (0, 0.5)},
        )


def spread_out(wanted: Sequence[float], gap: float) -> list[float]:
    """Places near the wanted ones, in their order and at least ``gap`` apart.

    Pushed apart upwards, and downwards, and then the middle of both: either keeps the gaps, so their mean does.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    up, down = list(wanted), list(wanted)
    for lower, upper in pairwise(order):
        up[upper] = max(up[upper], up[lower] + gap)
    for upper, lower in pairwise(reversed(order)):
        down[lower] = min(down[lower], down[upper] - gap)
    return [(above + below) / 2 for above, below in zip(up, down, strict=True)]


def plot_idle(contenders: Sequence[Contender], ground: Ground) -> str:
    """Cards left over per policy, best on top."""
    figure, axes = _bars(contenders, HALF_IN, least_in=3.9)
    means = [each.mean(unallocated) for each in contenders]
    spans = np.array(
        [
            [each.mean(unallocated) - min(each.values(unallocated)) for each in contenders],
            [max(each.values(unallocated)) - each.mean(unallocated) for each in contenders],
        ]
    )
    axes.barh(
        [each.rank for each in contenders],
        means,
        color=[colour_of(each) for each in contenders],
        xerr=spans if spans.any() else None,
        error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 3},
        height=min(0.62, 0.15 * len(contenders)),
    )
    for each, mean in zip(contenders, means, strict=True):
        _end_label(axes, mean, each.rank, max(each.values(unallocated)))
    idle = ground.cards_total * max(1.0 - ground.load, 0.0)
    if ground.regime != "trace" and idle > 0:
        axes.axvline(idle, color=INK, linewidth=0.8, linestyle=DOTS)
    axes.set_xlabel(f"cards {ground.idle_word}, of {ground.cards_total:,}")
    _cards_axis(axes, max(max(each.values(unallocated)) for each in contenders))
    told = ", ".join(f"{each.name} {mean:,.0f}" for each, mean in zip(contenders, means, strict=True))
    return svg(figure, _FROM_PAGE, "idle", f"Bar chart of cards {ground.idle_word}: {told}.")


def plot_leftover(contenders: Sequence[Contender]) -> str:
    """What is left at the end of the run, stacked by what keeps it from being used."""
    figure, axes = _bars(contenders, WIDTH_IN)
    totals = np.zeros(len(contenders))
    amounts = {part: np.array([leftover_of(each, part) for each in contenders]) for part in parts()}
    most = float(sum(amounts.values(), totals).max())
    ranks = np.arange(len(contenders))
    for i, (part, cards) in enumerate(amounts.items()):
        if cards.max() < 0.5:
            continue  # no reader would find it; the table has it
        colour = USABLE_COLOUR if part.name == "usable" else PART_COLOURS[i % len(PART_COLOURS)]
        axes.barh(ranks, cards, left=totals, color=colour, height=0.62, label=part.label)
        _inner_labels(axes, cards, totals, colour, most)
        totals = totals + cards
    for at, total in enumerate(totals):
        _end_label(axes, total, at, total)
    axes.set_xlabel("cards, at the end of the run")
    _cards_axis(axes, most)
    if totals.any():
        figure.legend(loc="outside upper left", ncols=6)
    told = "; ".join(
        f"{each.name}: " + ", ".join(f"{part.label} {leftover_of(each, part):,.0f}" for part in amounts)
        for each in contenders
    )
    return svg(figure, _FROM_PAGE, "leftover", f"Stacked bar chart of cards that no pod uses. {told}.")


def _inner_labels(axes: Axes, cards: FloatArray, left: FloatArray, colour: str, most: float) -> None:
    """Amounts inside the bars that are wide enough for them."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    ink = "#000000" if 0.3 * red + 0.59 * green + 0.11 * blue > 120 else "#ffffff"
    for at, amount in enumerate(cards):
        if amount > 0.05 * most:
            middle = left[at] + amount / 2
            axes.text(middle, at, f"{amount:,.0f}", color=ink, ha="center", va="center", fontsize=8.5)


def plot_free(contender: Contender) -> str:
    """One cell per card, freest first, over a histogram in the same colours; of the first seed."""
    free = np.sort(contender.results[0].free_milli)[::-1]
    figure = Figure(figsize=(MAP_IN, 2.7), layout="constrained")
    above, below = figure.subplots(2, height_ratios=(1, 1.25))
    _draw_map(above, free)
    counts = _draw_histogram(below, free)
    full = f"{np.count_nonzero(free == 0):,} of {len(free):,} cards are full, {counts[-1]:,} are free as a whole"
    told = f"Map and histogram of the free share of each card under {contender.name}: {full}."
    return svg(figure, _FROM_PAGE, f"free-{contender.rank}", told)


def _draw_map(axes: Axes, free: IntArray) -> None:
    """Cards as cells of a grid, column by column, so that the horizontal axis counts cards."""
    rows = max(1, round(math.sqrt(len(free) / 5)))
    cells = np.full(rows * math.ceil(len(free) / rows), np.nan)
    cells[: len(free)] = free / MILLI_PER_CARD
    axes.imshow(
        cells.reshape(rows, -1, order="F"),
        extent=(0.0, float(len(cells)), float(rows), 0.0),
        cmap=FREE_COLOURS,
        vmin=0.0,
        vmax=1.0,
        interpolation="none",
        aspect="auto",
    )
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("cards, the freest first")


def _draw_histogram(axes: Axes, free: IntArray) -> list[int]:
    """Cards with something free by how much; full cards are left out, there are too many of them."""
    bins = free[free > 0] * (FREE_BINS - 1) // MILLI_PER_CARD
    counts = [int(count) for count in np.bincount(bins, minlength=FREE_BINS)]
    shades = colormaps[FREE_COLOURS](np.linspace(0.05, 1.0, FREE_BINS))
    axes.bar(range(FREE_BINS), counts, color=shades, edgecolor=INK, linewidth=0.4, width=0.9)
    axes.set_xticks(range(0, FREE_BINS, 2), ["< 10", *(f"{10 * i}" for i in range(2, FREE_BINS - 1, 2)), "all"])
    axes.set_xlabel("free on the card, in %; full cards left out")
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel("cards")
    if not any(counts):
        axes.set_ylim(0, 1)
    return counts


def plot_refused(contenders: Sequence[Contender], reasons: Sequence[Code]) -> str:
    """Refused demand in cards: a group of bars per reason, in it a bar per policy."""
    figure = Figure(figsize=(WIDTH_IN, 1.0 + len(reasons) * (0.25 + 0.2 * len(contenders))), layout="constrained")
    axes = figure.subplots()
    thick = 0.8 / len(contenders)
    for each in contenders:
        cards = [refused_of(each, code) for code in reasons]
        places = [i + (each.rank - (len(contenders) - 1) / 2) * thick for i in range(len(reasons))]
        axes.barh(places, cards, color=colour_of(each), height=0.9 * thick, label=each.name)
        for amount, place in zip(cards, places, strict=True):
            if amount:
                _end_label(axes, amount, place, amount)
    axes.set_yticks(range(len(reasons)), [WORDINGS[code].short for code in reasons])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("refused demand, in cards")
    _cards_axis(axes, max(refused_of(each, code) for each in contenders for code in reasons))
    figure.legend(loc="outside upper left", ncols=8)
    told = "; ".join(
        f"{WORDINGS[code].short}: " + ", ".join(f"{each.name} {refused_of(each, code):,.0f}" for each in contenders)
        for code in reasons
    )
    return svg(figure, _FROM_PAGE, "refused", f"Bar chart of refused demand in cards by reason. {told}.")


def _bars(contenders: Sequence[Contender], width_in: float, *, least_in: float = 0.0) -> tuple[Figure, Axes]:
    """An empty chart of horizontal bars with a line per policy."""
    figure = Figure(figsize=(width_in, max(1.3 + 0.38 * len(contenders), least_in)), layout="constrained")
    axes = figure.subplots()
    axes.set_yticks(range(len(contenders)), [each.name for each in contenders])
    axes.set_ylim(len(contenders) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    return figure, axes


def _end_label(axes: Axes, amount: float, at: float, beyond: float) -> None:
    """Write the amount just past the end of its bar, or past the whisker that sticks out of it."""
    text = f"{amount:,.0f}" if amount >= 10 or amount == 0 else f"{amount:.1f}"
    axes.annotate(text, (beyond, at), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)


def _cards_axis(axes: Axes, most: float) -> None:
    """From zero to a little beyond the longest bar, so that its label has room."""
    axes.set_xlim(0, 1.12 * most if most > 0 else 1.0)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
