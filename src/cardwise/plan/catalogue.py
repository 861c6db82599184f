"""Models that are known by name: real configurations with the count of parameters that their makers publish.

One file per model in ``catalogue/``. A test holds every count against the shape of the configuration, to 1 %: whoever
adds a model adds a test. Refuses to fetch anything.
"""

from __future__ import annotations

import difflib
import functools
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from cardwise.adapters.models import Model, read_model, shape_from
from cardwise.errors import UserError
from cardwise.files import LONGEST_SEEN, decode_json, plain, seen

FOLDER = resources.files("cardwise.plan") / "catalogue"
SUFFIX = ".json"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model. config: its ``config.json``, without fields that say nothing of size; config_from: where that was read.

    published_parameters, published_in: how many weights it has by the word of others, and whose.
    """

    name: str
    repository: str
    published_parameters: int
    published_in: str
    config_from: str
    config: dict[str, Any]


@functools.cache
def names() -> tuple[str, ...]:
    """Names of all known models, sorted."""
    return tuple(sorted(each.name.removesuffix(SUFFIX) for each in FOLDER.iterdir() if each.name.endswith(SUFFIX)))


def entry(name: str) -> Entry:
    """A known model. Raises KeyError if it is none."""
    if name not in names():
        raise KeyError(name)
    return decode_json((FOLDER / f"{name}{SUFFIX}").read_bytes(), Entry)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no file system has a name so long
        return False


def find_model(given: str) -> Model:
    """A model by its name here, its folder, or its ``config.json``. Raises UserError with names that are near."""
    path = Path(given)
    if _is_there(path):
        return read_model(path)
    name = given.lower()
    if name in names():
        known = entry(name)
        return Model(name, shape_from(known.config, f"(built in) {name}"), repository=known.repository)
    near = difflib.get_close_matches(name, names(), 4)
    known_as = [each for each in names() if entry(each).repository.lower() == name]
    hint = f"did you mean {', '.join(known_as or near)}?" if known_as or near else "--list shows the known ones"
    shown = plain(given) if len(given) <= LONGEST_SEEN else seen(given)
    raise UserError(f"{shown}: no such folder or file, and no known model; {hint}")
