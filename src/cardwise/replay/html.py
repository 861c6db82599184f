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

import msgspec

from cardwise import __version__
from cardwise.core.history import History
from cardwise.core.reasons import WORDINGS
from cardwise.errors import UserError
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

try:
    import jinja2

    from cardwise.drawing import drawing
    from cardwise.replay import plots
except ImportError as error:  # an optional extra: images that run in a cluster do without
    raise UserError(f"the HTML report needs jinja2 and matplotlib ({error}): pip install 'cardwise[tools]'") from error

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
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cardwise.replay"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_function"] = lambda value: msgspec.json.encode(value).decode()
    environment.policies["json.dumps_kwargs"] = {}
    with drawing():
        drawn = {
            "curve": plots.plot_curve(contenders, ground),
            "idle": plots.plot_idle(contenders, ground),
            "leftover": plots.plot_leftover(contenders),
            "maps": [plots.plot_free(each) for each in contenders],
            "refused": plots.plot_refused(contenders, reasons[:MOST_REASONS]) if reasons else "",
        }
    return environment.get_template("report.html").render(
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
        plots=drawn,
        look_of=plots.look_of,
        results=results,
        figures={"runs": [asdict(each.run) for each in results]},
        version=__version__,
    )
