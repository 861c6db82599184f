"""Two windows of time beside each other as one HTML file that needs no network; the figures are in it as JSON.

Refuses to leave half a file behind, and to say anything that the comparison does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cardwise.compare.report import legend_of
from cardwise.compare.window import Window
from cardwise.core.comparison.verdict import Comparison
from cardwise.core.comparison.words import overall_sentence
from cardwise.files import write_texts
from cardwise.report import needing_tools, render

with needing_tools():
    from cardwise.compare import plots

MOST_SERVICES = 8
"""That are drawn; all are in the table and in the figures."""


def write_report(path: Path, comparison: Comparison, windows: Sequence[Window]) -> None:
    """Raises UserError, and leaves what stood at ``path`` as it was, if the file cannot be written."""
    write_texts({path: render_report(comparison, windows)})


def render_report(comparison: Comparison, windows: Sequence[Window]) -> str:
    """The report as text. windows: the two that were compared."""
    services = sorted(windows[0].services.keys() & windows[1].services.keys())

    def draw() -> dict[str, object]:
        return {
            "changes": plots.plot_changes(comparison),
            "services": [
                (name, plots.plot_p99(name, windows, i), plots.plot_load(name, windows, i))
                for i, name in enumerate(services[:MOST_SERVICES])
            ],
        }

    return render(
        "cardwise.compare",
        {"comparison": comparison, "windows": list(windows)},
        draw,
        comparison=comparison,
        windows=list(zip(("before", "after"), windows, strict=True)),
        title=overall_sentence(comparison),
        legend=legend_of(comparison),
        not_drawn=len(services[MOST_SERVICES:]),
        drawn_changes=plots.MOST_DRAWN,
    )
