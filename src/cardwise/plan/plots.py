"""A plan as a picture, an SVG file: what the slice is made of, and how it grows with context and concurrency."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from cardwise.core.capacity.memory import MIB
from cardwise.drawing import INK, drawing, svg
from cardwise.plan.planner import Plan
from cardwise.plan.report import mib

COLOURS = ("#0072b2", "#009e73", "#e69f00", "#cc79a7", "#d55e00", "#56b4e9", "#f0e442", "#999999")
"""Source: Okabe and Ito, "Color Universal Design", 2008."""
WIDTH_IN, HEIGHT_IN = 11.0, 4.6
STYLE = "<style>svg { color: #222; --rule: #bbb; background: #fff }</style>"


def plot(plan: Plan) -> str:
    """The picture, with its figures told in words for who does not see it."""
    with drawing():
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        left, right = figure.subplots(1, 2)
        _parts(left, plan)
        _growth(right, plan)
        parts = ", ".join(f"{each.name} {mib(each.likely)} MiB" for each in plan.memory.components)
        told = f"Slice of {plan.ask.memory_mib:,} MiB for {plan.model.name}: {parts}."
        drawn = svg(figure, {}, "plan", told)
    head, end, rest = drawn.partition(">")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}{end}{STYLE}{rest}'


def _parts(axes: Axes, plan: Plan) -> None:
    """One bar of all components, with the slice that is asked for."""
    left = 0.0
    for i, each in enumerate(plan.memory.components):
        amount = each.likely / MIB
        axes.barh(
            0, amount, left=left, color=COLOURS[i % len(COLOURS)], height=0.5, label=f"{each.name} {mib(each.likely)}"
        )
        left += amount
    axes.axvline(plan.ask.memory_mib, color=INK, linewidth=1.0, linestyle=(0, (1, 2)))
    axes.annotate(f"asked for: {plan.ask.memory_mib:,}", (plan.ask.memory_mib, 0.36), ha="right", color=INK)
    axes.set_yticks([])
    axes.set_ylim(-0.6, 1.6)
    axes.set_xlabel("MiB of each card")
    axes.legend(loc="upper left", ncols=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:,.0f}"))


def _growth(axes: Axes, plan: Plan) -> None:
    """A line per number of sequences."""
    for i, count in enumerate(sorted({cell.sequences for cell in plan.grid})):
        line = [(cell.context, cell.slice_mib) for cell in plan.grid if cell.sequences == count]
        at, values = zip(*line, strict=True)
        axes.plot(at, values, color=COLOURS[i % len(COLOURS)], marker="o", markersize=4, label=f"{count} at a time")
    axes.axhline(plan.ask.memory_mib, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("slice, MiB")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:,.0f}"))
    axes.legend(loc="upper left")
