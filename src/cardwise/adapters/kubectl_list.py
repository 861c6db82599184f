"""The file that ``kubectl get nodes,pods -A -o json`` writes: decoded, or refused with line and remedy.

Refuses to interpret: ``inventory.py`` and ``asks.py`` give meaning. Items of other kinds are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from cardwise.adapters.kube_objects import Node, Pod
from cardwise.errors import InputError
from cardwise.files import decode_json, read_text, seen

COMMAND = "kubectl get nodes,pods -A -o json"
WANT = f"the output of `{COMMAND}`"


NAME_MAX = 253
"""Characters of a name. Source: Kubernetes, "Object Names and IDs", DNS subdomain names."""


class _Top(msgspec.Struct):
    kind: str = ""
    items: msgspec.Raw = msgspec.Raw()


class _Kind(msgspec.Struct):
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """The file, for messages."""

    file: str
    data: bytes

    def error(self, message: str, *, start: int | None = None, field: str | None = None) -> InputError:
        """An error at the line in which byte ``start`` stands."""
        line = None if start is None else self.data.count(b"\n", 0, start) + 1
        return InputError(self.file, message, line=line, field=field)


_ObjectT = TypeVar("_ObjectT")


@dataclass(frozen=True, slots=True)
class Found(Generic[_ObjectT]):
    """An object, and where in the file it begins."""

    object: _ObjectT
    start: int
    source: Source

    def error(self, field: str, message: str) -> InputError:
        """An error at the object's first line."""
        return self.source.error(message, start=self.start, field=field)


@dataclass(frozen=True, slots=True)
class Listing:
    """Nodes and pods of one dump, in its order, each with a name of its own."""

    nodes: tuple[Found[Node], ...]
    pods: tuple[Found[Pod], ...]


def read_listing(path: Path) -> Listing:
    """Decode a dump. Raises InputError if it is not a complete List with nodes and pods."""
    source = Source(str(path), read_text(path, WANT).encode())
    _check_first_character(source)
    nodes: dict[str, Found[Node]] = {}
    pods: dict[str, Found[Pod]] = {}
    for start, raw in _items(source):
        kind = _decode(source, start, raw, _Kind).kind
        if kind == "Node":
            node = _decode(source, start, raw, Node)
            _add(nodes, "node", node.metadata.name, Found(node, start, source))
        elif kind == "Pod":
            pod = _decode(source, start, raw, Pod)
            _add(pods, "pod", pod.name, Found(pod, start, source))
    _check_complete(source, nodes=len(nodes), pods=len(pods))
    return Listing(tuple(nodes.values()), tuple(pods.values()))


def _check_first_character(source: Source) -> None:
    if re.match(rb"\s*[{\[]", source.data):
        return
    text = source.data.decode()
    what = "is YAML" if re.search(r"^(---|apiVersion:|kind:|items:)", text, re.MULTILINE) else "is not JSON"
    raise source.error(f"{what}, it begins with {seen(text.lstrip()[:20])}; give {WANT}")


def _items(source: Source) -> Iterator[tuple[int, bytes]]:
    """First byte and text of every item of the list."""
    top = _decode(source, None, source.data, _Top)
    if top.kind != "List":
        raise source.error(f"is {seen(top.kind)}, not a List; give {WANT}", field="kind")
    if not bytes(top.items):
        raise source.error(f"missing; give {WANT}", field="items")
    end = 0
    for raw in _decode(source, None, top.items, list[msgspec.Raw]):
        item = bytes(raw)
        start = source.data.find(item, end)
        end = start + len(item)
        yield start, item


_DecodedT = TypeVar("_DecodedT")


def _decode(source: Source, start: int | None, data: bytes | msgspec.Raw, kind: type[_DecodedT]) -> _DecodedT:
    try:
        return decode_json(data, kind)
    except msgspec.ValidationError as exc:
        raise _not_as_expected(source, start, str(exc)) from exc
    except msgspec.DecodeError as exc:
        raise _malformed(source, str(exc)) from exc


def _not_as_expected(source: Source, start: int | None, told: str) -> InputError:
    """From msgspec's "Expected `str`, got `int` - at `$.spec.nodeName`"."""
    message, _, where = told.partition(" - at `$")
    field = where.strip("`.").removesuffix("[...]") or None
    return source.error(f"{message}; give {WANT} as kubectl wrote it", start=start, field=field)


def _malformed(source: Source, told: str) -> InputError:
    """From msgspec's "JSON is malformed: ... (byte 17)" or "Input data was truncated"."""
    if "truncated" in told:
        message = f"the JSON ends in the middle: kubectl or the copy was cut off; write {WANT} again"
        return source.error(message, start=len(source.data.rstrip()))
    at = re.search(r" \(byte (\d+)\)", told)
    if not at:
        return source.error(f"{told}; give {WANT} as kubectl wrote it")
    byte = int(at[1]) - ("trailing" in told)  # of what follows the end, msgspec tells the second byte
    column = byte - source.data.rfind(b"\n", 0, byte)
    what = told.replace(at[0], "")
    return source.error(f"column {column}: {what}; give {WANT} as kubectl wrote it", start=byte)


def _add(found: dict[str, Found[_ObjectT]], kind: str, name: str, item: Found[_ObjectT]) -> None:
    if not name.isprintable() or any(len(part) > NAME_MAX for part in name.split("/")):
        message = f"{seen(name)} is no name; at most {NAME_MAX} printable characters, give {WANT} as kubectl wrote it"
        raise item.error(f"{kind}, metadata.name", message)
    if name in found:
        line = item.source.data.count(b"\n", 0, found[name].start) + 1
        raise item.error(f"{kind} {name}", f"is already at line {line}; give one dump, not several joined")
    found[name] = item


def _check_complete(source: Source, *, nodes: int, pods: int) -> None:
    for what, count in (("Node", nodes), ("Pod", pods)):
        if not count:
            raise source.error(f"has no item of kind {what}; give {WANT}", field="items")
