"""The frame of our HTML reports: one file that needs no network, with plots as SVG and the exact figures as JSON.

Each room has its ``report.html`` and ``report.css`` within the frame's. The same input gives the same bytes. Needs
jinja2 and matplotlib, an optional extra: images that run in a cluster do without.

Refuses undefined names in a template, and unescaped text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from cardwise import __version__
from cardwise.errors import UserError


@contextmanager
def needing_tools() -> Iterator[None]:
    """Import the optional libraries inside. Raises UserError that says how to install them."""
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"the HTML report needs jinja2 and matplotlib ({error}): pip install 'cardwise[tools]'"
        ) from error


with needing_tools():
    import jinja2

    from cardwise.drawing import drawing


def render(room: str, figures: object, draw: Callable[[], dict[str, object]], **told: object) -> str:
    """The report of a room, such as ``cardwise.replay``.

    figures: what the file holds as JSON. draw: makes what the template calls ``plots``. told: all else that it names.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(room), jinja2.PackageLoader("cardwise")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_function"] = lambda value: msgspec.json.encode(value).decode()
    environment.policies["json.dumps_kwargs"] = {}
    with drawing():
        plots = draw()
    return environment.get_template("report.html").render(figures=figures, plots=plots, version=__version__, **told)
