"""The replay as one HTML file that a platform engineer can judge in half a minute, mail around and print.

A terminal table says which policy won; a report must also show by how much, at which load, and what is to blame, and
still be true when it is opened next year on a host without network. So everything is in the file: styles, plots as
SVG, the exact figures as JSON. The same input gives the same bytes.

Refuses to leave half a file behind, and to say anything that ``verdict`` does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cardwise.core.history import History
from cardwise.core.reasons import WORDINGS
from cardwise.files import write_texts
from cardwise.replay.need import Need
from cardwise.replay.outcome import Replayed
from cardwise.replay.verdict import (
    cell,
    columns,
    common_ground,
    free_words,
    has_winner,
    headline,
    lead,
    leftover_of,
    parts,
    rank,
    refused_of,
    refused_reasons,
)
from cardwise.report import needing_tools, render

with needing_tools():
    from cardwise.replay import plots

MOST_REASONS = 5
"""Reasons that the plot shows, and says that it does; the table has all."""


def write_report(results: Sequence[Replayed], history: History, path: Path, need: Need | None = None) -> None:
    """Write the report on runs of one cluster, regime and load, each policy over one or more seeds.

    Raises UserError, and leaves what stood at ``path`` as it was, if the file cannot be written; ValueError if there
    are no runs or they cannot be compared.
    """
    write_texts({path: render_report(results, history, need)})


def render_report(results: Sequence[Replayed], history: History, need: Need | None = None) -> str:
    """The report as text."""
    ground = common_ground(results)
    contenders = rank(results, ground)
    reasons = refused_reasons(contenders)

    def draw() -> dict[str, object]:
        return {
            "curve": plots.plot_curve(contenders, ground),
            "idle": plots.plot_idle(contenders, ground),
            "leftover": plots.plot_leftover(contenders),
            "maps": [plots.plot_free(each) for each in contenders],
            "refused": plots.plot_refused(contenders, reasons[:MOST_REASONS]) if reasons else "",
        }

    return render(
        "cardwise.replay",
        {"runs": [asdict(each.run) for each in results]},
        draw,
        ground=ground,
        contenders=contenders,
        history=history,
        has_winner=has_winner(contenders),
        headline=headline(contenders, ground),
        lead=lead(contenders, ground),
        need=need,
        columns=columns(results, ground),
        cell=cell,
        parts=parts(),
        leftover_of=leftover_of,
        reasons=reasons,
        most_reasons=MOST_REASONS,
        refused_of=refused_of,
        free_words=free_words,
        wordings=WORDINGS,
        look_of=plots.look_of,
        results=results,
    )
