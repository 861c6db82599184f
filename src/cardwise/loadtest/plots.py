"""The plots of a load test as SVG elements. Refuses to compute results: they come from the curve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from cardwise.drawing import INK, svg
from cardwise.loadtest.curve import Curve, Step
from cardwise.loadtest.measure import GROWTH, LEAST_S
from cardwise.loadtest.report import judged_of, milliseconds

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
"""Source: Okabe and Ito, "Color Universal Design", 2008."""
OUTCOME_COLOURS = {
    "ok": "#009e73",
    "rejected": "#e69f00",
    "error": "#d55e00",
    "timeout": "#cc79a7",
    "held back": "#999999",
}
_FROM_PAGE = {colour: f"var(--line-{i})" for i, colour in enumerate(COLOURS)}
WIDTH_IN, HALF_IN, HEIGHT_IN = 11.0, 5.6, 3.6
DOTS = (0, (1, 2))
MOST_DISTRIBUTIONS = len(COLOURS)


def ordered(curve: Curve) -> list[Step]:
    """By load, as axes need it."""
    return sorted(curve.steps, key=lambda step: (step.load, step.batch_window_ms or 0.0))


def axis_of(curve: Curve) -> tuple[str, list[float]]:
    """What varies between the steps: its name, and a value per ordered step."""
    steps = ordered(curve)
    if len({step.load for step in steps}) == 1 and any(step.batch_window_ms is not None for step in steps):
        return "batch window, ms", [step.batch_window_ms or 0.0 for step in steps]
    name = "offered, requests/s" if steps and steps[0].rate_per_s is not None else "callers"
    return name, [step.load for step in steps]


def plot_latency(curves: Sequence[Curve], names: Sequence[str]) -> str:
    """Quantiles over the load: three of one curve, the P99 of two."""
    figure, axes = _axes()
    for i, curve in enumerate(curves):
        _, at = axis_of(curve)
        quantiles = [judged_of(step) for step in ordered(curve)]
        for j, which in enumerate(("p50", "p90", "p99") if len(curves) == 1 else ("p99",)):
            values = [np.nan if each is None else float(getattr(each, which)) for each in quantiles]
            label = which.upper() if len(curves) == 1 else f"P99 {names[i]}"
            axes.plot(at, values, color=COLOURS[(i + j) % len(COLOURS)], marker="o", markersize=4, label=label)
    axes.axhline(curves[0].settings.target_p99_ms, color=INK, linewidth=0.8, linestyle=DOTS)
    _log(axes, curves)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _at: milliseconds(value)))
    axes.set_ylabel(f"{curves[0].settings.judged}, ms")
    axes.legend(loc="upper left")
    told = "; ".join(_told(curve, name) for curve, name in zip(curves, names, strict=True))
    return svg(figure, _FROM_PAGE, "latency", f"Line chart of latency over load. {told}.")


def plot_goodput(curves: Sequence[Curve], names: Sequence[str]) -> str:
    """Answers in time per second over the load."""
    figure, axes = _axes()
    for i, (curve, name) in enumerate(zip(curves, names, strict=True)):
        _, at = axis_of(curve)
        good = [step.goodput_per_s for step in ordered(curve)]
        axes.plot(at, good, color=COLOURS[i], marker="o", markersize=4, label=name)
        if curve.knee is not None and curve.knee.load is not None:
            axes.axvline(curve.knee.load, color=COLOURS[i], linewidth=0.8, linestyle=DOTS)
    _log(axes, curves)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("answers in time, per second")
    if len(curves) > 1:
        axes.legend(loc="upper left")
    told = "; ".join(_told(curve, name) for curve, name in zip(curves, names, strict=True))
    return svg(figure, _FROM_PAGE, "goodput", f"Line chart of goodput over load. {told}.")


def plot_outcomes(curve: Curve) -> str:
    """What became of what was due, as shares."""
    steps = ordered(curve)
    figure = Figure(figsize=(WIDTH_IN, 1.3 + 0.34 * len(steps)), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(steps))
    for name, colour in OUTCOME_COLOURS.items():
        shares = np.array([_share(step, name) for step in steps])
        if shares.any():
            axes.barh(range(len(steps)), shares, left=left, color=colour, height=0.62, label=name)
            left = left + shares
    axes.set_yticks(range(len(steps)), [step.name for step in steps])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("of what was due, in %")
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside upper left", ncols=5)
    told = "; ".join(f"{step.name}: {_share(step, 'ok'):.1f} % ok" for step in steps)
    return svg(figure, _FROM_PAGE, "outcomes", f"Stacked bars of outcomes. {told}.")


def _share(step: Step, name: str) -> float:
    count = step.held_back if name == "held back" else int(getattr(step.outcomes, name))
    return 100 * count / step.offered if step.offered else 0.0


def plot_distribution(curve: Curve) -> str:
    """How many answers took longer than what, of a few steps around the knee: the tail is where services differ."""
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.subplots()
    steps = _few(curve)
    for i, step in enumerate(steps):
        counts = step.judged.counts
        last = int(np.flatnonzero(counts)[-1])
        first = int(np.flatnonzero(counts)[0])
        beyond = 1 - np.cumsum(counts[first:last]) / counts.sum()
        at_ms = 1000 * LEAST_S * GROWTH ** np.arange(first + 1, last + 1)
        axes.step(at_ms, 100 * beyond, where="post", color=COLOURS[i], label=step.name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _at: milliseconds(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:g}"))
    axes.set_xlabel(f"{curve.settings.judged}, ms")
    axes.set_ylabel("answers that took longer, in %")
    if steps:
        axes.legend(loc="lower left")
    told = ", ".join(f"{step.name} {milliseconds(step.p99_ms)} ms" for step in steps)
    return svg(figure, _FROM_PAGE, "distribution", f"Share of answers that took longer than a time. P99: {told}.")


def _few(curve: Curve) -> list[Step]:
    """Steps with answers of more than one time, the highest loads that hold first."""
    told = [step for step in ordered(curve) if np.count_nonzero(step.judged.counts) > 1]
    preferred = sorted(told, key=lambda step: (not step.holds, -step.load))[:MOST_DISTRIBUTIONS]
    return sorted(preferred, key=lambda step: step.load)


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(HALF_IN, HEIGHT_IN), layout="constrained")
    return figure, figure.subplots()


def _log(axes: Axes, curves: Sequence[Curve]) -> None:
    """Loads double from step to step; a batch window may be zero."""
    name, at = axis_of(curves[0])
    axes.set_xlabel(name)
    if min(at, default=0.0) > 0 and max(at) > 4 * min(at):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:,g}"))
        axes.xaxis.set_minor_formatter(FuncFormatter(lambda _value, _at: ""))


def _told(curve: Curve, name: str) -> str:
    def _p99(step: Step) -> str:
        quantiles = judged_of(step)
        return "no answer" if quantiles is None else f"P99 {milliseconds(quantiles.p99)} ms"

    steps = ", ".join(f"{step.name}: {step.goodput_per_s:,.0f}/s, {_p99(step)}" for step in ordered(curve))
    return f"{name}: {steps}"
