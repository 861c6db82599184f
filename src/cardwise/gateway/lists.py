"""Plain JSON lists: many as one, its answer as many. For routes that take a list and answer one of the same length.

The list is the whole body, or stands under a key beside fields that all requests of a batch share.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cardwise.files import seen
from cardwise.gateway.oip import Item, WrongError

_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_FAULTS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Lists:
    """How one route's lists are joined and split. items_key, answers_key: "" where the body is the list itself."""

    def __init__(self, items_key: str = "", answers_key: str = "") -> None:
        """By the route's settings."""
        self._items_key = items_key
        self._answers_key = answers_key

    def read(self, body: bytes) -> Item:
        """The request, checked. Raises WrongError."""
        try:
            rest, items = self._opened(body, self._items_key)
        except _FAULTS as exc:
            raise WrongError(f"not a list of items: {exc}") from exc
        if not items:
            raise WrongError("an empty list: at least one item")
        return Item(len(items), rest, b"", (b",".join(items),))

    def join(self, first: bytes, items: Sequence[Item]) -> bytes:
        """One request of all items. first: the body of the first request, which says what they have in common."""
        joined = b"[%b]" % b",".join([item.datas[0] for item in items])
        if not self._items_key:
            return joined
        return msgspec.json.encode({**_decode_object(first), self._items_key: msgspec.Raw(joined)})

    def split(self, body: bytes, items: Sequence[Item]) -> list[bytes]:
        """The answer to each request, in order. Raises WrongError if there is not one answer for each item."""
        try:
            _, answers = self._opened(body, self._answers_key)
            whole = _decode_object(body) if self._answers_key else {}
        except _FAULTS as exc:
            raise WrongError(f"not a list of answers: {exc}") from exc
        wanted = sum(item.rows for item in items)
        if len(answers) != wanted:
            raise WrongError(f"{len(answers)} answers for {wanted} items")
        found, start = [], 0
        for item in items:
            part = b"[%b]" % b",".join(answers[start : start + item.rows])
            start += item.rows
            if self._answers_key:
                part = msgspec.json.encode({**whole, self._answers_key: msgspec.Raw(part)})
            found.append(part)
        return found

    def _opened(self, body: bytes, key: str) -> tuple[tuple[object, ...], list[msgspec.Raw]]:
        """What stands beside the list, and the list."""
        if not key:
            return (), _decode_list(body)
        fields = _decode_object(body)
        if key not in fields:
            raise WrongError(f"there is no {seen(key)}")
        items = _decode_list(fields.pop(key))
        return tuple(sorted((name, bytes(value)) for name, value in fields.items())), items
