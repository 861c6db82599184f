"""A load test, or two beside each other, as one HTML file that needs no network: plots as SVG, the figures as JSON.

Refuses to leave half a file behind, and to say anything that ``report`` and ``compare`` do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cardwise import __version__
from cardwise.errors import UserError
from cardwise.files import write_texts
from cardwise.loadtest.compare import Comparison
from cardwise.loadtest.curve import Curve
from cardwise.loadtest.report import (
    COLUMNS,
    DETAILS,
    detail_rows,
    headline,
    legend_of,
    notes_of,
    overall_sentence,
    row,
    telling,
)

try:
    import jinja2

    from cardwise.drawing import drawing
    from cardwise.loadtest import plots
except ImportError as error:  # an optional extra: images that run in a cluster do without
    raise UserError(f"the HTML report needs jinja2 and matplotlib ({error}): pip install 'cardwise[tools]'") from error


def write_report(path: Path, curves: Sequence[Curve], names: Sequence[str], comparison: Comparison | None) -> None:
    """Raises UserError, and leaves what stood at ``path`` as it was, if the file cannot be written."""
    write_texts({path: render_report(curves, names, comparison)})


def render_report(curves: Sequence[Curve], names: Sequence[str], comparison: Comparison | None = None) -> str:
    """The report as text. The curves are one, or the two that were compared."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cardwise.loadtest"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_function"] = lambda value: msgspec.json.encode(value).decode()
    environment.policies["json.dumps_kwargs"] = {}
    with drawing():
        drawn = {
            "latency": plots.plot_latency(curves, names),
            "goodput": plots.plot_goodput(curves, names),
            "each": [(plots.plot_outcomes(curve), plots.plot_distribution(curve)) for curve in curves],
        }
    return environment.get_template("report.html").render(
        curves=list(zip(names, curves, drawn["each"], strict=True)),
        comparison=comparison,
        title=headline(curves[0]) if comparison is None else overall_sentence(comparison),
        plots=drawn,
        columns=COLUMNS,
        details=DETAILS,
        detail_rows=detail_rows,
        rows=lambda curve: [row(step) for step in curve.steps],
        telling=telling,
        headline=headline,
        legend_of=legend_of,
        notes_of=notes_of,
        figures={"curves": list(curves), "comparison": comparison},
        version=__version__,
    )
