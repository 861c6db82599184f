"""Open Inference Protocol v2: a batch of rows in, a checksum of each row out.

The emulated model takes any tensors that agree in their first dimension, and answers, row by row, with ``sum`` (of all
numbers of the row; of strings, their lengths) and ``ends`` (first and last number of the row, so that a splitter must
take whole rows of two). A tensor called ``row_id`` is not computed with but given back. No row's answer depends on
another row: whoever splits a batch wrongly gets another's numbers, and sees it.

Refuses the binary extension, shapes that do not match their data, and outputs it does not have.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cardwise.errors import UserError
from cardwise.files import decode_json, seen

ROW_ID = "row_id"
OUTPUTS = ("sum", "ends", ROW_ID)
_INTEGERS = frozenset({"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"})
_FLOATS = frozenset({"FP16", "FP32", "FP64", "BF16"})
_LEAST, _MOST = -(2**63), 2**64 - 1
_TYPES: dict[str, frozenset[type]] = {
    **dict.fromkeys(_INTEGERS, frozenset({int})),
    **dict.fromkeys(_FLOATS, frozenset({int, float})),
    "BOOL": frozenset({bool}),
    "BYTES": frozenset({str}),
}


class Tensor(msgspec.Struct, omit_defaults=True):
    """An input: row-major data, flat or nested as its shape."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class Wanted(msgspec.Struct):
    """An output that is asked for."""

    name: str


class InferRequest(msgspec.Struct):
    """The body of ``/v2/models/{model}/infer``."""

    inputs: list[Tensor]
    id: str | None = None
    outputs: list[Wanted] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What was asked, checked. sums: [rows]; ends: [rows][2]; row_ids: the tensor to give back, if there is one."""

    id: str | None
    sums: list[float]
    ends: list[tuple[float, float]]
    row_ids: Tensor | None
    wanted: tuple[str, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Whose work it is: of the rows if they say so, else of the request."""
        if self.row_ids is not None:
            return tuple(map(str, self.row_ids.data))
        return () if self.id is None else (self.id,)

    def one_short(self) -> Batch:
        """The batch without its last row: a well-formed answer of the wrong shape."""
        ids = self.row_ids
        short = ids and Tensor(ids.name, [len(self.sums) - 1], ids.datatype, ids.data[:-1])
        return replace(self, sums=self.sums[:-1], ends=self.ends[:-1], row_ids=short)


def read_infer(body: bytes) -> Batch:
    """Raises UserError that says what is wrong with the request."""
    try:
        request = decode_json(body, InferRequest)
    except msgspec.DecodeError as exc:
        raise UserError(f"not an inference request: {exc}") from exc
    if not request.inputs:
        raise UserError("inputs: at least one tensor")
    flat = [_flattened(each) for each in request.inputs]
    rows = flat[0].shape[0]
    uneven = [each.name for each in flat if each.shape[0] != rows]
    if uneven:
        raise UserError(f"inputs: {uneven[0]!r} has another first dimension than {flat[0].name!r}")
    row_ids = next((each for each in flat if each.name == ROW_ID), None)
    if row_ids is not None and len(row_ids.data) != rows:
        raise UserError(f"{ROW_ID}: one for each row, so shape [{rows}]")
    counted = [each for each in flat if each is not row_ids]
    sums, ends = _computed(counted, rows)
    return Batch(request.id, sums, ends, row_ids, _wanted(request.outputs, has_ids=row_ids is not None))


def infer_answer(batch: Batch, model: str) -> bytes:
    """The body of the answer. A sum that is no finite number is null, as JSON has no other word."""
    rows = len(batch.sums)
    outputs: list[dict[str, object]] = []
    for name in batch.wanted:
        if name == "sum":
            outputs.append({"name": name, "datatype": "FP64", "shape": [rows], "data": batch.sums})
        elif name == "ends":
            data = list(itertools.chain.from_iterable(batch.ends))
            outputs.append({"name": name, "datatype": "FP64", "shape": [rows, 2], "data": data})
        elif batch.row_ids is not None:
            ids = batch.row_ids
            outputs.append({"name": name, "datatype": ids.datatype, "shape": [rows], "data": ids.data})
    answer: dict[str, object] = {"model_name": model, "model_version": "1", "outputs": outputs}
    if batch.id is not None:
        answer["id"] = batch.id
    return msgspec.json.encode(answer)


def model_metadata(model: str) -> dict[str, object]:
    """The answer of ``/v2/models/{model}``. -1: any."""
    return {
        "name": model,
        "versions": ["1"],
        "platform": "cardwise_emulated",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, -1]},
            {"name": ROW_ID, "datatype": "INT64", "shape": [-1], "optional": True},
        ],
        "outputs": [
            {"name": "sum", "datatype": "FP64", "shape": [-1]},
            {"name": "ends", "datatype": "FP64", "shape": [-1, 2]},
            {"name": ROW_ID, "datatype": "INT64", "shape": [-1], "optional": True},
        ],
    }


def checksum(values: list[Any]) -> tuple[float, tuple[float, float]]:
    """Sum and ends of one row. Raises UserError if its numbers are beyond floating point."""
    numbers = [len(each) if isinstance(each, str) else each for each in values]
    try:
        return float(sum(numbers)), (float(numbers[0]), float(numbers[-1])) if numbers else (0.0, 0.0)
    except OverflowError as exc:
        raise UserError("a number is too large for FP64") from exc


def _flattened(tensor: Tensor) -> Tensor:
    """The tensor with flat data, checked against its shape and type."""
    known = _TYPES.get(tensor.datatype)
    if known is None:
        raise UserError(
            f"{tensor.name}: no datatype is called {seen(tensor.datatype)}; write one of {', '.join(_TYPES)}"
        )
    if not tensor.shape or min(tensor.shape) < 1:
        raise UserError(f"{tensor.name}: shape {seen(tensor.shape)} is of nothing; every dimension is at least 1")
    if "binary_data_size" in tensor.parameters:
        raise UserError(f"{tensor.name}: binary data is not read here; send it as JSON")
    data = tensor.data
    for _ in tensor.shape[1:]:
        if data and isinstance(data[0], list):
            data = _flatter(tensor.name, data)
    if len(data) != math.prod(tensor.shape):
        raise UserError(f"{tensor.name}: {len(data)} values for shape {seen(tensor.shape)}")
    if not set(map(type, data)) <= known:
        raise UserError(f"{tensor.name}: values that are no {tensor.datatype}")
    if tensor.datatype in _INTEGERS and (min(data) < _LEAST or max(data) > _MOST):
        raise UserError(f"{tensor.name}: an integer of more than 64 bits")
    return Tensor(tensor.name, tensor.shape, tensor.datatype, data)


def _flatter(name: str, data: list[Any]) -> list[Any]:
    if not all(isinstance(each, list) for each in data):
        raise UserError(f"{name}: data is neither flat nor nested as its shape")
    return list(itertools.chain.from_iterable(data))


def _computed(tensors: list[Tensor], rows: int) -> tuple[list[float], list[tuple[float, float]]]:
    widths = [len(each.data) // rows for each in tensors]
    found = [
        checksum(
            [
                value
                for each, width in zip(tensors, widths, strict=True)
                for value in each.data[row * width : (row + 1) * width]
            ]
        )
        for row in range(rows)
    ]
    return [total for total, _ in found], [ends for _, ends in found]


def _wanted(outputs: list[Wanted] | None, *, has_ids: bool) -> tuple[str, ...]:
    there = OUTPUTS if has_ids else OUTPUTS[:2]
    if not outputs:
        return there
    names = tuple(each.name for each in outputs)
    unknown = [name for name in names if name not in there]
    if unknown:
        raise UserError(f"outputs: there is no {seen(unknown[0])}; ask for {', '.join(there)}")
    return names
