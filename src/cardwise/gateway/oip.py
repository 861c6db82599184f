"""Open Inference Protocol v2, JSON: many requests as one along the first dimension, its answer as many.

Bodies are spliced, not parsed: the data of each tensor stays the bytes that the client wrote. Only its outline is
checked, that it holds as many values of its kind as its shape says: with one value too many, all others in the batch
would get another's rows. Of the answer each output must have a row for each row that was sent, else it is for nobody.

Refuses to batch what it does not understand (the binary extension, sequences, tensors without a first dimension, fields
that the protocol does not have): such a request goes alone, as it came.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from cardwise.files import seen

_SPACE = b" \t\r\n"
_OPENING = re.compile(rb"(?:\[[ \t\r\n]*)+")
_INTEGER, _FLOAT, _BOOL = b"-0123456789", b"-+.eE0123456789", b"truefals"
_SIGNS = {
    **dict.fromkeys(("INT8", "INT16", "INT32", "INT64"), _INTEGER),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32", "UINT64"), _INTEGER),
    **dict.fromkeys(("FP16", "FP32", "FP64", "BF16"), _FLOAT),
    "BOOL": _BOOL,
}
"""Bytes that a value of each type may consist of, besides brackets, commas and space."""
_TEXT = "BYTES"
_LARGEST = 2**31


class WrongError(Exception):
    """A request that no replica could answer, or an answer that is none to what was asked. The message says why."""


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


class _Request(msgspec.Struct):
    inputs: list[_Input]
    id: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")
    outputs: msgspec.Raw = msgspec.Raw(b"")


class _ExactInput(_Input, forbid_unknown_fields=True):
    pass


class _ExactRequest(_Request, forbid_unknown_fields=True):
    inputs: list[_ExactInput]  # type: ignore[assignment]  # one that has more is read as a _Request


class _Output(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: msgspec.Raw
    parameters: msgspec.Raw = msgspec.Raw(b"")


class _Answer(msgspec.Struct):
    outputs: list[_Output]
    model_name: msgspec.Raw = msgspec.Raw(b"")
    model_version: msgspec.Raw = msgspec.Raw(b"")
    parameters: msgspec.Raw = msgspec.Raw(b"")


@dataclass(frozen=True, slots=True)
class Item:
    """One request. key: requests of equal keys may share a batch, None: goes alone. id: as it was written.

    datas: of each input, the inside of its list.
    """

    rows: int
    key: tuple[object, ...] | None
    id: bytes
    datas: tuple[bytes, ...]


_decode_exact = msgspec.json.Decoder(_ExactRequest).decode
_decode_request = msgspec.json.Decoder(_Request).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


def read(body: bytes) -> Item:
    """The request, checked. Raises WrongError."""
    request, is_exact = _decoded(body)
    inputs = request.inputs
    if not inputs:
        raise WrongError("inputs: at least one tensor")
    rows, identity = _rows_of(inputs), _id_of(request)
    if rows is None or not is_exact or _goes_alone(request):
        return Item(rows or 1, None, b"", ())
    kinds = tuple((each.name, each.datatype, *each.shape[1:], _depth(each), bytes(each.parameters)) for each in inputs)
    key = (*kinds, bytes(request.parameters), bytes(request.outputs))
    return Item(rows, key, identity, tuple(_inside(each) for each in inputs))


def _decoded(body: bytes) -> tuple[_Request, bool]:
    """The request, and whether it has no fields but those that are spliced."""
    try:
        return _decode_exact(body), True
    except msgspec.ValidationError:
        pass  # what is wrong with it, if it is not only a field too many, is found below
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise WrongError(f"not an inference request: {exc}") from exc
    try:
        return _decode_request(body), False
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise WrongError(f"not an inference request: {exc}") from exc


def _id_of(request: _Request) -> bytes:
    """As it was written; nothing if there is none. A replica does not see it where several share a batch."""
    written = bytes(request.id)
    if written in {b"", b"null"}:
        return b""
    if not written.startswith(b'"'):
        raise WrongError(f"id: {seen(written.decode(errors='replace'))} is no text")
    return written


def _rows_of(inputs: Sequence[_Input]) -> int | None:
    """The first dimension that all share; None if they do not."""
    firsts = set()
    for each in inputs:
        if any(not 0 <= size < _LARGEST for size in each.shape):
            raise WrongError(f"{seen(each.name)}: {seen(each.shape)} is no shape")
        firsts.add(each.shape[0] if each.shape else 0)
    rows = firsts.pop()
    return None if firsts or rows < 1 else rows


def _goes_alone(request: _Request) -> bool:
    if b'"sequence_' in bytes(request.parameters) or b"binary" in bytes(request.parameters):
        return True
    if b"binary" in bytes(request.outputs) or b"classification" in bytes(request.outputs):
        return True
    return any(not each.data or b"shared_memory" in bytes(each.parameters) for each in request.inputs)


def _depth(tensor: _Input) -> int:
    """How deep its lists are nested: 1 for flat data."""
    opening = _OPENING.match(memoryview(tensor.data))
    return 0 if opening is None else opening[0].count(b"[")


def _inside(tensor: _Input) -> bytes:
    """Its data without the outer brackets. Raises WrongError if it does not hold what its shape says."""
    data, depth = bytes(tensor.data), _depth(tensor)
    if depth not in {1, len(tensor.shape)}:
        raise WrongError(f"{seen(tensor.name)}: data is neither flat nor nested as its shape {seen(tensor.shape)}")
    if tensor.datatype == _TEXT:
        _check_texts(tensor, data, depth)
    elif (signs := _SIGNS.get(tensor.datatype)) is not None:
        _check_numbers(tensor, data, depth, signs)
    else:
        raise WrongError(f"{seen(tensor.name)}: no datatype is called {seen(tensor.datatype)}")
    return data[1:-1]


def _check_numbers(tensor: _Input, data: bytes, depth: int, signs: bytes) -> None:
    """By its outline: what is left of it without numbers and space. The decoder has seen that it is JSON."""
    tight = data.translate(None, _SPACE)
    if b"[]" in tight or not _has_outline(tight.translate(None, signs), tensor.shape, depth):
        raise WrongError(f"{seen(tensor.name)}: data is not {tensor.datatype} of shape {seen(tensor.shape)}")


def _has_outline(outline: bytes, shape: Sequence[int], depth: int) -> bool:
    values = math.prod(shape)
    if values < 1 or len(outline) < values:  # a comma or a bracket for each: no need to build what is far larger
        return False
    if depth == 1:
        return outline == b"[" + b"," * (values - 1) + b"]"
    row = _outline_of_row(tuple(shape[1:]))
    return len(outline) == (len(row) + 1) * shape[0] + 1 and outline == b"[" + b",".join([row] * shape[0]) + b"]"


@lru_cache(maxsize=256)
def _outline_of_row(shape: tuple[int, ...]) -> bytes:
    outline = b""
    for size in reversed(shape):
        outline = b"[" + b",".join([outline] * size) + b"]"
    return outline


def _check_texts(tensor: _Input, data: bytes, depth: int) -> None:
    try:
        found: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise WrongError(f"{seen(tensor.name)}: {exc}") from exc
    values = math.prod(tensor.shape)
    if values < 1 or not _is_nested(found, [values] if depth == 1 else tensor.shape):
        raise WrongError(f"{seen(tensor.name)}: data is not {_TEXT} of shape {seen(tensor.shape)}")


def _is_nested(found: object, shape: Sequence[int]) -> bool:
    if not shape:
        return isinstance(found, str)
    return isinstance(found, list) and len(found) == shape[0] and all(_is_nested(each, shape[1:]) for each in found)


# ---------------------------------------------------------------- together, and apart


def join(first: bytes, items: Sequence[Item]) -> bytes:
    """One request of all rows. first: the body of the first request, which says what they have in common."""
    request = _decode_request(first)
    rows = sum(item.rows for item in items)
    inputs = []
    for idx, each in enumerate(request.inputs):
        head = msgspec.json.encode({"name": each.name, "shape": [rows, *each.shape[1:]], "datatype": each.datatype})
        more = _field(b"parameters", each.parameters)
        data = b",".join([item.datas[idx] for item in items])
        inputs.append(b'%b%b,"data":[%b]}' % (head[:-1], more, data))
    common = _field(b"parameters", request.parameters) + _field(b"outputs", request.outputs)
    return b'{"inputs":[%b]%b}' % (b",".join(inputs), common)


def split(body: bytes, items: Sequence[Item]) -> list[bytes]:
    """The answer to each request, in order. Raises WrongError if it is not an answer to all of their rows."""
    try:
        answer = _decode_answer(body)
        cut = [_cut(output, items) for output in answer.outputs]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise WrongError(f"not an answer of the inference protocol: {exc}") from exc
    common = b"".join(
        _field(name, value)
        for name, value in (
            (b"model_name", answer.model_name),
            (b"model_version", answer.model_version),
            (b"parameters", answer.parameters),
        )
    )
    answers = []
    for idx, item in enumerate(items):
        outputs = b",".join([parts[idx] for parts in cut])
        answers.append(b'{"outputs":[%b]%b%b}' % (outputs, common, _field(b"id", item.id)))
    return answers


def _cut(output: _Output, items: Sequence[Item]) -> list[bytes]:
    rows = sum(item.rows for item in items)
    if not output.shape or output.shape[0] != rows:
        raise WrongError(f"output {seen(output.name)} has shape {seen(output.shape)} for {rows} rows")
    width = math.prod(output.shape[1:])
    values = _decode_list(output.data)
    step = _step(output, values, rows, width)
    head = msgspec.json.encode({"name": output.name, "datatype": output.datatype})[:-1]
    more = _field(b"parameters", output.parameters)
    tail = b"".join(b",%d" % size for size in output.shape[1:])
    parts, start = [], 0
    for item in items:
        end = start + item.rows * step
        data = b",".join(values[start:end])
        parts.append(b'%b%b,"shape":[%d%b],"data":[%b]}' % (head, more, item.rows, tail, data))
        start = end
    return parts


def _step(output: _Output, values: Sequence[msgspec.Raw], rows: int, width: int) -> int:
    """Values of its outer list for each row. Raises WrongError if there are not as many as its shape says."""
    nested = bool(values) and bytes(values[0]).startswith(b"[")
    if nested and len(output.shape) > 1 and len(values) == rows:
        return 1
    if not nested and len(values) == rows * width:
        return width
    raise WrongError(f"output {seen(output.name)} has {len(values)} values for shape {seen(output.shape)}")


def _field(name: bytes, value: msgspec.Raw | bytes) -> bytes:
    return b',"%b":%b' % (name, bytes(value)) if value else b""
