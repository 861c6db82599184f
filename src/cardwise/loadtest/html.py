"""A load test, or two beside each other, as one HTML file that needs no network: plots as SVG, the figures as JSON.

Refuses to leave half a file behind, and to say anything that ``report`` and ``compare`` do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cardwise.compare.report import legend_of as legend_of_comparison
from cardwise.core.comparison.verdict import Comparison
from cardwise.core.comparison.words import overall_sentence
from cardwise.files import write_texts
from cardwise.loadtest.curve import Curve
from cardwise.loadtest.report import (
    COLUMNS,
    DETAILS,
    detail_rows,
    headline,
    legend_of,
    notes_of,
    row,
    telling,
)
from cardwise.report import needing_tools, render

with needing_tools():
    from cardwise.loadtest import plots


def write_report(path: Path, curves: Sequence[Curve], names: Sequence[str], comparison: Comparison | None) -> None:
    """Raises UserError, and leaves what stood at ``path`` as it was, if the file cannot be written."""
    write_texts({path: render_report(curves, names, comparison)})


def render_report(curves: Sequence[Curve], names: Sequence[str], comparison: Comparison | None = None) -> str:
    """The report as text. The curves are one, or the two that were compared."""

    def draw() -> dict[str, object]:
        return {
            "latency": plots.plot_latency(curves, names),
            "goodput": plots.plot_goodput(curves, names),
            "each": [(plots.plot_outcomes(curve), plots.plot_distribution(curve)) for curve in curves],
        }

    return render(
        "cardwise.loadtest",
        {"curves": list(curves), "comparison": comparison},
        draw,
        curves=list(zip(names, curves, strict=True)),
        comparison=comparison,
        legend=None if comparison is None else legend_of_comparison(comparison),
        title=headline(curves[0]) if comparison is None else overall_sentence(comparison),
        columns=COLUMNS,
        details=DETAILS,
        detail_rows=detail_rows,
        rows=lambda curve: [row(step) for step in curve.steps],
        telling=telling,
        headline=headline,
        legend_of=legend_of,
        notes_of=notes_of,
    )
