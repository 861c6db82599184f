"""A program's settings from its TOML file; and what is wrong with them, in the words of who writes them.

msgspec says ``Invalid enum value 'plain' - at `$.services[0].kind```: right, and no help. Here the same fault names the
key, the value seen, and what to write: the accepted values, the range, or the key that was probably meant.

Refuses to guess: nothing is converted that msgspec would not. Tells one fault at a time, as msgspec finds one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from datetime import date, time
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from cardwise.errors import InputError
from cardwise.files import read_toml, seen

_ValueT = TypeVar("_ValueT")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_MOST_NAMED = 12
"""More keys than these are not listed: who knows none of them needs the page."""
_SOME = object()
"""A value that is wrong, of a table whose values have no names in msgspec's path."""
_WORDS: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.StrType: 'a text in "quotes"',
    inspect.StructType: "a table",
    inspect.DictType: "a table",
}


class MisfitError(ValueError):
    """A value that its type does not take. key: where, such as ``services[0].kind``; empty for the whole."""

    def __init__(self, key: str, fault: str) -> None:
        """Keep the key beside what is wrong with it."""
        self.key = key
        super().__init__(fault)


class _Place(NamedTuple):
    """Where a path leads."""

    kind: inspect.Type
    value: object


def read_settings_file(path: Path, want: str, kind: type[_ValueT]) -> _ValueT:
    """Settings of this type from a TOML file. Raises InputError that names the key, and says what to write."""
    try:
        return converted(read_toml(path, want), kind)
    except MisfitError as error:
        raise InputError(str(path), str(error), field=error.key or None) from error


def converted(value: object, kind: type[_ValueT], *, strict: bool = True) -> _ValueT:
    """The value as this type; not strict: from text, too. Raises MisfitError that says what to write."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise _misfit(message, path.rstrip("`"), _Place(inspect.type_info(kind), value)) from error


def _misfit(message: str, path: str, whole: _Place) -> MisfitError:
    key = path.removeprefix(".")
    place = _follow(whole, path)
    if place is None:
        return MisfitError(key, message)
    if found := _UNKNOWN.fullmatch(message):
        return MisfitError(_below(key, found[1]), _instead(found[1], place.kind))
    if found := _MISSING.fullmatch(message):
        kinds = {field.encode_name: field.type for each in _structs(place.kind) for field in each.fields}
        return MisfitError(_below(key, found[1]), f"is missing; write {_wanted(kinds[found[1]])}")
    seen_as = "one is another" if place.value is _SOME else f"is {_shown(place.value)}"
    return MisfitError(key.removesuffix("[...]"), f"{seen_as}; write {_wanted(place.kind)}")


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _follow(place: _Place, path: str) -> _Place | None:
    """Down the path; None if it is another's than ours."""
    if "".join(step[0] for step in _STEP.finditer(path)) != path:
        return None
    kind, value = place
    for name, index in _STEP.findall(path):
        found = _item_kind(kind) if index else _field_kind(kind, name)
        if found is None:
            return None
        kind = found
        is_nameless = index == "..." or value is _SOME
        value = _SOME if is_nameless else value[int(index) if index else name]  # type: ignore[index]
    return _Place(kind, value)


def _kinds(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The alternatives of a union, but for None, which TOML does not have."""
    if isinstance(kind, inspect.Metadata):
        yield from _kinds(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _kinds(each)
    elif not isinstance(kind, inspect.NoneType):
        yield kind


def _structs(kind: inspect.Type) -> list[inspect.StructType]:
    return [each for each in _kinds(kind) if isinstance(each, inspect.StructType)]


def _field_kind(kind: inspect.Type, name: str) -> inspect.Type | None:
    for each in _kinds(kind):
        if isinstance(each, inspect.StructType):
            for field in each.fields:
                if field.encode_name == name:
                    return field.type
    return None


def _item_kind(kind: inspect.Type) -> inspect.Type | None:
    for each in _kinds(kind):
        if isinstance(each, inspect.ListType | inspect.VarTupleType):
            return each.item_type
        if isinstance(each, inspect.DictType):
            return each.value_type
    return None


def _instead(name: str, kind: inspect.Type) -> str:
    """What to write in place of a key that is none."""
    known = [field.encode_name for each in _structs(kind) for field in each.fields]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.6)
    if near:
        return f"is no key; write {near[0]}"
    if len(known) <= _MOST_NAMED:
        return f"is no key; write one of {', '.join(known)}"
    return "is no key, nor like one; take it out"


def _wanted(kind: inspect.Type) -> str:
    """What a value of this type looks like in TOML."""
    return " or ".join(dict.fromkeys(map(_wanted_of_one, _kinds(kind))))


def _wanted_of_one(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.LiteralType):
        return _one_of(kind.values)
    if isinstance(kind, inspect.EnumType):
        return _one_of(tuple(each.value for each in kind.cls))
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return f"a list{_length(kind)} of {'tables' if _structs(kind.item_type) else _wanted(kind.item_type)}"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        return f"{_WORDS[type(kind)]}{_range(kind)}"
    return _WORDS.get(type(kind), "another value")


def _one_of(values: tuple[Any, ...]) -> str:
    return f"one of {', '.join(map(str, values))}" if len(values) > 1 else str(values[0])


def _range(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge:g} to {kind.le:.12g}"
    told = (("at least", kind.ge), ("above", kind.gt), ("at most", kind.le), ("below", kind.lt))
    parts = [f"{word} {bound:.12g}" for word, bound in told if bound is not None]
    return f" {' and '.join(parts)}" if parts else ""


def _length(kind: inspect.ListType | inspect.VarTupleType) -> str:
    parts = [
        f"{word} {bound}" for word, bound in (("at least", kind.min_length), ("at most", kind.max_length)) if bound
    ]
    return f" with {' and '.join(parts)}" if parts else ""


def _shown(value: object) -> str:
    """As TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date | time):
        return seen(str(value))
    if isinstance(value, dict):
        return "a table"
    return seen(value)
