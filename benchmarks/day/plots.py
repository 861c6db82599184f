"""The day's plots as SVG elements. Refuses to compute results: they come from ``findings``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from benchmarks.day.asking import Asked
from benchmarks.day.findings import Day
from benchmarks.day.load import BEGIN, DAY_S, ZONE, Load
from cardwise.drawing import INK, svg

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
"""Source: Okabe and Ito, "Color Universal Design", 2008."""
_FROM_PAGE = {colour: f"var(--line-{i})" for i, colour in enumerate(COLOURS)}
WIDTH_IN, HEIGHT_IN, PANELS_IN = 11.0, 3.4, 5.4
DOTS, DASHES = (0, (1, 2)), (0, (6, 2))
POINTS = 289


def plot_load(load: Load) -> str:
    """Requests per second of each service, of its highest in the day."""
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.subplots()
    hours = np.linspace(0, 24, POINTS)
    rates = np.array([load.at(BEGIN + timedelta(hours=float(hour))) for hour in hours])
    for i, service in enumerate(load.services):
        axes.plot(hours, rates[:, i], color=COLOURS[i], label=f"{service.name}: up to {rates[:, i].max():.0f}/s")
    axes.set_ylabel("requests/s")
    _day(axes)
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    told = ", ".join(f"{each.name} {rates[:, i].max():.0f}/s" for i, each in enumerate(load.services))
    return svg(figure, _FROM_PAGE, "load", f"Line chart of requests per second over the day. Highest: {told}.")


def plot_cards(day: Day) -> str:
    """Cards given to replicas and to batch work over the day, beside the cards that there are."""
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN + 0.6), layout="constrained")
    axes = figure.subplots()
    hours = [row.at_s / 3600 for row in day.ours.rows]
    replicas = np.array([row.sensitive_pct for row in day.ours.rows]) / 100
    batch = np.array([row.best_effort_pct for row in day.ours.rows]) / 100
    axes.fill_between(hours, 0, replicas, color=COLOURS[0], alpha=0.55, linewidth=0, label="cardwise: replicas")
    axes.fill_between(
        hours, replicas, replicas + batch, color=COLOURS[2], alpha=0.35, linewidth=0, label="cardwise: best-effort"
    )
    axes.axhline(day.ours.arm.cards, color=COLOURS[0], linestyle=DASHES, label="cardwise: cards in the cluster")
    for played in day.days:
        if played is not day.ours:
            given = [row.sensitive_pct / 100 for row in played.rows]
            colour = COLOURS[1] if played is day.base else COLOURS[3]
            axes.plot(hours[: len(given)], given, color=colour, label=f"{played.arm.name}: cards with replicas")
    axes.set_ylim(0, day.base.arm.cards * 1.08)
    axes.set_ylabel("cards")
    _day(axes)
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    told = f"{day.ours.arm.cards} cards in cardwise's cluster, {day.base.arm.cards} without"
    return svg(figure, _FROM_PAGE, "cards", f"Area chart of the cards that are given away over the day; {told}.")


def plot_p99(day: Day) -> str:
    """P99 by hour, a panel for each service, with its target."""
    figure = Figure(figsize=(WIDTH_IN, PANELS_IN), layout="constrained")
    panels = figure.subplots(2, 2).flatten()
    for axes, service in zip(panels, day.services, strict=True):
        for i, played in enumerate((day.base, day.ours)):
            mine = [each for each in day.asked(played) if each.service == service.name]
            _line(axes, mine, COLOURS[1 - i], played.arm.name)
        axes.axhline(service.target_p99_ms, color=INK, linewidth=0.8, linestyle=DOTS, label="target")
        axes.set_title(service.name, fontsize=10, loc="left")
        axes.set_ylim(0, service.target_p99_ms * 1.15)
        axes.set_ylabel("P99, ms")
        _day(axes)
    panels[0].legend(ncols=3, loc="upper right", fontsize=8)
    told = f"{day.within(day.ours)} of {len(day.asked(day.ours))} points of cardwise within their targets"
    return svg(figure, _FROM_PAGE, "p99", f"Four line charts of the P99 by hour of the day: {told}.")


def plot_replicas(day: Day) -> str:
    """Ready replicas of each service, as scaled."""
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.subplots()
    hours = [row.at_s / 3600 for row in day.ours.rows]
    for i, service in enumerate(day.services):
        ready = [row.ready[i] for row in day.ours.rows]
        axes.step(hours, ready, where="post", color=COLOURS[i], label=service.name)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_locator(MultipleLocator(1))
    axes.set_ylabel("ready replicas")
    _day(axes)
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return svg(figure, _FROM_PAGE, "replicas", "Step chart of the ready replicas of each service over the day.")


def _line(axes: Axes, asked: Sequence[Asked], colour: str, label: str) -> None:
    ordered = sorted(asked, key=lambda each: each.hour)
    hours, values = [each.hour for each in ordered], [each.p99_ms for each in ordered]
    axes.plot(hours, values, color=colour, marker="o", markersize=4, label=label)


def _day(axes: Axes) -> None:
    axes.set_xlim(0, DAY_S / 3600)
    axes.xaxis.set_major_locator(MultipleLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda hour, _at: f"{int(hour):02}:00"))
    axes.set_xlabel(f"local time, {ZONE}")
