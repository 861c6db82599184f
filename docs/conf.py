"""Sphinx: the documentation site. `make docs` fails on any warning, so a broken reference does not go out."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

from cardwise import __version__
from cardwise.core.reasons import WORDINGS

project = "cardwise"
author = "The cardwise authors"
release = __version__
extensions = ["myst_parser", "sphinx_click"]
html_theme = "furo"
html_title = f"cardwise {__version__}"
exclude_patterns = ["_build"]
myst_heading_anchors = 3


def _write_reasons() -> None:
    """Generate the page of reasons from the code, so that it cannot differ from it."""
    rows = "\n".join(
        f"| `{code.value}` | {wording.short} | {wording.long} | {wording.advice} |"
        for code, wording in WORDINGS.items()
    )
    page = Path(__file__).parent / "reference" / "generated" / "reasons.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(
        '# Reasons\n\nEvery "no" of the placement core, generated from `core/reasons.py`. Codes never change their '
        "meaning.\n\n| code | short, in events | long, in explain | what to do |\n|---|---|---|---|\n" + rows + "\n"
    )


_write_reasons()


def setup(app: Sphinx) -> None:
    """Show the asterisks of help texts as they are: reStructuredText would take them for emphasis."""

    def _escape(_app: Sphinx, _ctx: object, lines: list[str]) -> None:
        lines[:] = [line.replace("*", r"\*") for line in lines]

    app.connect("sphinx-click-process-options", _escape)
