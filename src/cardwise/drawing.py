"""Plots as SVG elements that take their colours from the page around them, for the reports of our tools.

matplotlib draws, the page decides: text and rules are drawn in stand-in colours that become ``currentColor`` and CSS
variables, so that one plot suits light, dark and paper. Needs matplotlib, an optional extra.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape

from matplotlib import style
from matplotlib.figure import Figure

INK, FAINT = "#010203", "#040506"
"""Stand for the page's text and rule colours: matplotlib must be given a colour, the page decides which."""
_STYLE = {
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9.5,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "cardwise",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in the page's style, whatever the user's own matplotlib settings are."""
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has more fonts than we do
        yield


def svg(figure: Figure, from_page: Mapping[str, str], name: str, told: str) -> str:
    """The figure as an element of the page: ids are its own, ``told`` is read for it, colours follow the page.

    from_page: for colours drawn with, such as "#0072b2", what the page calls them.
    """
    colours = {INK: "currentColor", FAINT: "var(--rule)", **from_page}
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"((?:fill|stroke): )(#[0-9a-f]{6})", lambda it: it[1] + colours.get(it[2], it[2]), text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(told)}" ', 1)
