"""A plain JSON route: a list in, a list of as many out, as a hand-written model server has it.

An item is a number, a text, a list of them, or an object with ``x`` and perhaps an ``id``. Its answer depends on it
alone: ``{"sum": ..., "ends": [first, last]}`` as in :mod:`cardwise.engine.oip`, with its ``id`` if it has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from cardwise.engine.oip import checksum
from cardwise.errors import UserError
from cardwise.files import decode_json, seen


@dataclass(frozen=True, slots=True)
class Items:
    """What was asked: an answer for each item, and the identities of those that have one."""

    answers: list[dict[str, object]]
    ids: tuple[str, ...]


def read_items(body: bytes) -> Items:
    """Raises UserError that says what is wrong with the request."""
    try:
        items = decode_json(body, list[Any])
    except msgspec.DecodeError as exc:
        raise UserError(f"not a list of items: {exc}") from exc
    if not items:
        raise UserError("an empty list: at least one item")
    answers = [_answer(each) for each in items]
    return Items(answers, tuple(str(each["id"]) for each in answers if "id" in each))


def _answer(item: object) -> dict[str, object]:
    values = item.get("x") if isinstance(item, dict) else item
    row = values if isinstance(values, list) else [values]
    if not all(isinstance(each, int | float | str) for each in row):
        raise UserError(f'{seen(item)}: an item is a number, a text, a list of them, or {{"id": ..., "x": ...}}')
    total, ends = checksum(row)
    answer: dict[str, object] = {"sum": total, "ends": ends}
    if isinstance(item, dict) and "id" in item:
        answer["id"] = item["id"]
    return answer
