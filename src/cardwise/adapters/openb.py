"""The "openb" trace as a history, and back: CSVs of a production GPU-sharing cluster of 2023.

It is the public yardstick of GPU sharing, and the plainest way to hand cardwise a history: two tables, nodes and pods.
Source: "Beware of Fragmentation" (USENIX ATC '23), hkust-adsl/kubernetes-scheduler-simulator, data/csv.
Refuses to guess: what a row does not say clearly is one error with file, line and field, and what the whole trace does
not say is a note. Refuses to write what reading back would change.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType

from cardwise.core.history import History, PodRecord
from cardwise.core.inventory import CardSpec, NodeSpec
from cardwise.core.request import PodRequest, Shape
from cardwise.errors import InputError, UserError
from cardwise.files import plain, read_text, seen, write_texts
from cardwise.units import MILLI_PER_CARD

CARD_MEMORY_MIB: Mapping[str, int] = MappingProxyType(
    {
        "A10": 22731,
        "G1": 10000,
        "G2": 20000,
        "G3": 30000,
        "P100": 16280,
        "T4": 15109,
        "V100M16": 16160,
        "V100M32": 32510,
    }
)
"""MiB of one card by model: the trace has none. Source: its own simulator, pkg/type/open-gpu-share/utils/const.go."""
UNKNOWN_CARD_MEMORY_MIB = 16000
"""For a model that is in no table; the history's notes say so."""

_MOST = 10**12
"""Above every real amount (milli CPU, MiB, seconds), far below what overflows a sum of int64."""
_MOST_CARDS = 64
"""Cards of one node. Servers hold 16 at most; more is a column mix-up."""
_NAME = "give every row a name of its own, without control characters"


def read_openb(nodes_path: Path, pods_path: Path) -> History:
    """Read a node file and a pod file of the trace, or any CSVs of the same columns.

    Pods keep the file's order and the trace's own clock. Raises InputError at the first fault.
    """
    node_rows, node_notes = _read_table(nodes_path, _NODES)
    pod_rows, pod_notes = _read_table(pods_path, _PODS)
    nodes = tuple(_node(row) for row in _unique(node_rows, "sn"))
    present = {card.model for node in nodes for card in node.cards}
    pods = tuple(_Pods(frozenset(present)).read(_unique(pod_rows, "name")))
    notes = [*node_notes, *pod_notes, *_assumptions(nodes, pods, present)]
    return History(plain(f"{pods_path} on {nodes_path}"), nodes, pods, tuple(plain(note) for note in notes))


def write_openb(history: History, nodes_path: Path, pods_path: Path) -> None:
    """Write a history so that :func:`read_openb` gives the same nodes and pods.

    Raises UserError, and writes nothing, if the format has no place for something the history says.
    """
    write_texts(openb_texts(history, nodes_path, pods_path))


def openb_texts(history: History, nodes_path: Path, pods_path: Path) -> dict[Path, str]:
    """What :func:`write_openb` writes, by file."""
    if nodes_path == pods_path:
        raise UserError(f"{nodes_path}: nodes and pods cannot share one file; give two names")
    node_rows = [_node_cells(node) for node in history.nodes]
    pod_rows = [_pod_cells(pod) for pod in history.pods]
    texts = {nodes_path: _csv(nodes_path, _NODES, node_rows), pods_path: _csv(pods_path, _PODS, pod_rows)}
    _refuse_losses(history, nodes_path, pods_path, texts)
    return texts


# ---------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class _Format:
    """Columns of one of the two files. The first required column is the rows' key."""

    what: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.required + self.optional

    @property
    def want(self) -> str:
        return f"the trace's {self.what} as CSV with the columns {','.join(self.required)}"


_NODES = _Format("node file", ("sn", "cpu_milli", "memory_mib", "gpu", "model"))
_PODS = _Format(
    "pod file",
    ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"),
    ("gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time"),
)


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a file, and the words for what is wrong with it."""

    file: str
    line: int
    cells: Mapping[str, str]

    def error(self, field: str, message: str) -> InputError:
        return InputError(self.file, message, line=self.line, field=field)

    def amount(self, field: str, most: int = _MOST) -> int:
        """A whole number from 0 to ``most``; digits only, so that nothing is rounded, scaled or negative."""
        text = self.cells[field]
        if not (text.isascii() and text.isdigit()):
            raise self.error(field, f"{seen(text)} is not a whole number; write digits only, 0 to {most}")
        if len(text) > len(str(most)) or int(text) > most:
            raise self.error(field, f"{seen(text)} is too much; write a whole number from 0 to {most}")
        return int(text)

    def seconds(self, field: str) -> float | None:
        """A time of the trace's clock; None where the column or the value is absent."""
        return float(self.amount(field)) if self.cells.get(field) else None


def _read_table(path: Path, form: _Format) -> tuple[Iterator[_Row], list[str]]:
    """The rows of a file whose header is right, and a note on columns that are not read."""
    text = read_text(path, form.want)
    if text.lstrip()[0] in "{[":
        raise InputError(str(path), f"is JSON, not CSV; a cluster's dump goes to --dump, here give {form.want}")
    lines = _csv_lines(str(path), text)
    line, header = next(lines)
    _check_header(str(path), line, header, form)
    ignored = [column for column in header if column not in form.all]
    notes = [f"{path}: columns that cardwise does not know were not read: {', '.join(ignored)}."] if ignored else []
    return _rows(str(path), header, lines, form), notes


def _csv_lines(file: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every line that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as exc:
        message = f"is not readable as CSV ({exc}); put a value that holds a comma or a quote in double quotes"
        raise InputError(file, message, line=line) from exc


def _check_header(file: str, line: int, header: Sequence[str], form: _Format) -> None:
    twice = [column for column in header if header.count(column) > 1]
    if twice:
        raise InputError(file, "the header names this column twice; keep one", line=line, field=twice[0])
    missing = [column for column in form.required if column not in header]
    if not missing:
        return
    other = _PODS if form is _NODES else _NODES
    swapped = f" (this looks like the {other.what})" if set(other.required) <= set(header) else ""
    message = f"missing in the header {seen(','.join(header))}{swapped}; give {form.want}"
    raise InputError(file, message, line=line, field=", ".join(missing))


def _rows(file: str, header: list[str], lines: Iterator[tuple[int, list[str]]], form: _Format) -> Iterator[_Row]:
    rows = 0
    for line, cells in lines:
        if len(cells) != len(header):
            raise _wrong_length(file, line, header, cells)
        rows += 1
        yield _Row(file, line, dict(zip(header, cells, strict=True)))
    if not rows:
        raise InputError(file, f"has a header and no rows; give {form.want}")


def _wrong_length(file: str, line: int, header: Sequence[str], cells: Sequence[str]) -> InputError:
    message = f"{len(cells)} values for {len(header)} columns, {seen(','.join(cells))}; write one value for each of "
    field = header[len(cells)] if len(cells) < len(header) else None
    return InputError(file, message + ",".join(header), line=line, field=field)


def _unique(rows: Iterable[_Row], key: str) -> Iterator[_Row]:
    """The rows, each with a name of its own."""
    first: dict[str, int] = {}
    for row in rows:
        name = row.cells[key]
        if not (name and name.isprintable()):
            raise row.error(key, f"{seen(name)} is no name; {_NAME}")
        if name in first:
            raise row.error(key, f"{seen(name)} is already the name of line {first[name]}; {_NAME}")
        first[name] = row.line
        yield row


# ---------------------------------------------------------------- nodes


def _node(row: _Row) -> NodeSpec:
    name, count = row.cells["sn"], row.amount("gpu", _MOST_CARDS)
    model = row.cells["model"].upper()
    if bool(model) != bool(count):
        wanted = "write the model of its cards" if count else "leave it empty, or write the number of cards in gpu"
        raise row.error("model", f"{seen(row.cells['model'])} for {count} cards; {wanted}")
    if "|" in model:
        raise row.error("model", f"{seen(row.cells['model'])} is more than one model; write one model per node")
    memory_mib = CARD_MEMORY_MIB.get(model, UNKNOWN_CARD_MEMORY_MIB)
    cards = tuple(CardSpec(f"{name}-{i}", model, memory_mib) for i in range(count))
    return NodeSpec(name, row.amount("cpu_milli"), row.amount("memory_mib"), cards)


def _node_cells(node: NodeSpec) -> tuple[str, ...]:
    model = node.cards[0].model if node.cards else ""
    return (node.name, str(node.cpu_milli), str(node.memory_mib), str(len(node.cards)), model)


# ---------------------------------------------------------------- pods


class _Pods:
    """Rows into pods. Shapes are parsed once per distinct text: a trace has few of them, and many pods."""

    def __init__(self, present: frozenset[str]) -> None:
        """present: models of the node file; a model that is neither there nor in the table is a misspelling."""
        self._present = present
        self._shapes: dict[tuple[str, ...], Shape] = {}

    def read(self, rows: Iterable[_Row]) -> Iterator[PodRecord]:
        for row in rows:
            created_s, deleted_s = row.seconds("creation_time"), row.seconds("deletion_time")
            if created_s is not None and deleted_s is not None and deleted_s < created_s:
                message = f"{seen(row.cells['deletion_time'])} is before creation_time {created_s:.0f}; "
                raise row.error("deletion_time", message + "write a later time, or leave it empty if unknown")
            yield PodRecord(PodRequest(row.cells["name"], self._shape(row)), created_s, deleted_s)

    def _shape(self, row: _Row) -> Shape:
        cells = row.cells
        key = (*(cells[column] for column in _PODS.required[1:]), cells.get("gpu_spec", ""))
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._parse_shape(row)
        return shape

    def _parse_shape(self, row: _Row) -> Shape:
        cards, milli = row.amount("num_gpu", _MOST_CARDS), row.amount("gpu_milli", MILLI_PER_CARD)
        if cards and not milli:
            raise row.error("gpu_milli", f"'0' for {cards} cards; write 1 to 999, or {MILLI_PER_CARD} for whole cards")
        if milli and not cards:
            raise row.error("gpu_milli", f"'{milli}' for 0 cards; write 0 here, or the number of cards in num_gpu")
        whole = milli == MILLI_PER_CARD
        return Shape(
            cards=cards,
            memory_milli=0 if whole else milli,
            compute_milli=0 if whole else milli,
            whole=whole,
            models=self._models(row, cards),
            cpu_milli=row.amount("cpu_milli"),
            host_memory_mib=row.amount("memory_mib"),
        )

    def _models(self, row: _Row, cards: int) -> frozenset[str]:
        spec = row.cells.get("gpu_spec", "")
        if not spec:
            return frozenset()
        if not cards:
            raise row.error("gpu_spec", f"{seen(spec)} for 0 cards; leave it empty, or write the number of cards")
        models = frozenset(spec.upper().split("|"))
        known = self._present | CARD_MEMORY_MIB.keys()
        for model in sorted(models - known):
            message = f"unknown GPU model {seen(model)} in {seen(spec)}; write models of the node file "
            others = f"({_listed(self._present)}) or known ones ({_listed(CARD_MEMORY_MIB.keys())}), separated by |"
            raise row.error("gpu_spec", message + others)
        return models


def _pod_cells(pod: PodRecord) -> tuple[str, ...]:
    shape = pod.request.shape
    milli = MILLI_PER_CARD if shape.whole else shape.memory_milli
    asked = (str(shape.cpu_milli), str(shape.host_memory_mib), str(shape.cards), str(milli))
    times = (_seconds(pod.created_s), _seconds(pod.deleted_s))
    # qos, pod_phase and scheduled_time stay empty: a history does not know them
    return (pod.request.name, *asked, "|".join(sorted(shape.models)), "", "", *times, "")


def _seconds(time_s: float | None) -> str:
    if time_s is None:
        return ""
    return str(int(time_s)) if math.isfinite(time_s) and time_s == int(time_s) else str(time_s)


# ---------------------------------------------------------------- notes


def _assumptions(nodes: Sequence[NodeSpec], pods: Sequence[PodRecord], present: set[str]) -> Iterator[str]:
    """What had to be assumed to make a history of the trace, in words for the report."""
    known = sorted(present & CARD_MEMORY_MIB.keys())
    if known:
        table = ", ".join(f"{model} {CARD_MEMORY_MIB[model]}" for model in known)
        yield f"The trace tells no card memory; MiB per card from the table of its own simulator: {table}."
    unknown = present - CARD_MEMORY_MIB.keys()
    if unknown:
        yield f"Card memory of {_listed(unknown)} is unknown: {UNKNOWN_CARD_MEMORY_MIB} MiB per card were assumed."
    if any(pod.request.shape.is_slice for pod in pods):
        yield "The trace knows thousandths of a card only: a slice takes the same share of memory and of compute."
    yield from _fit_notes(pods, present)
    untimed = sum(pod.created_s is None for pod in pods)
    if untimed:
        yield f"Pods without a creation time: {untimed} of {len(pods)}."
    if not any(node.cards for node in nodes):
        yield "No node has a card."


def _fit_notes(pods: Sequence[PodRecord], present: set[str]) -> Iterator[str]:
    absent = [pod for pod in pods if pod.request.shape.models and not any(map(pod.request.shape.takes, present))]
    if absent:
        models = frozenset[str]().union(*(pod.request.shape.models for pod in absent))
        share = f"{len(absent)} of {len(pods)}"
        yield f"Pods that name only card models no node has ({_listed(models)}) and never fit: {share}."


def _listed(models: Iterable[str]) -> str:
    return ", ".join(sorted(models)) or "none"


# ---------------------------------------------------------------- writing


def _csv(path: Path, form: _Format, rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(form.all)
    for row in rows:
        for cell in row:
            if not cell.isprintable():  # csv leaves a carriage return unquoted: read back, it would cut the row in two
                raise UserError(f"{path}: {seen(cell)} cannot be written; use names without control characters")
        writer.writerow(row)
    return out.getvalue()


def _refuse_losses(history: History, nodes_path: Path, pods_path: Path, texts: Mapping[Path, str]) -> None:
    """Read back what would be written: the reader is the one who knows what the format can say."""
    node_rows = _rows(str(nodes_path), list(_NODES.all), _body(nodes_path, texts), _NODES)
    for node, row in zip(history.nodes, _unique(node_rows, "sn"), strict=True):
        _refuse_loss(row, node, _node(row))
    pod_rows = _unique(_rows(str(pods_path), list(_PODS.all), _body(pods_path, texts), _PODS), "name")
    reader = _Pods(frozenset(card.model for node in history.nodes for card in node.cards))
    for pod, row in zip(history.pods, pod_rows, strict=True):
        _refuse_loss(row, pod, next(reader.read([row])))


def _body(path: Path, texts: Mapping[Path, str]) -> Iterator[tuple[int, list[str]]]:
    lines = _csv_lines(str(path), texts[path])
    next(lines)
    return lines


def _refuse_loss(row: _Row, told: object, read_back: object) -> None:
    if told == read_back:
        return
    name = next(iter(row.cells.values()))
    lost = ", ".join(_differences("", told, read_back))
    raise UserError(f"{row.file}: {seen(name)} cannot be written: the openb format has no place for its {lost}")


def _differences(prefix: str, told: object, read_back: object) -> Iterator[str]:
    """Names of the fields in which two values differ, with the value that would be lost."""
    for field in fields(told) if is_dataclass(told) else ():
        before, after = getattr(told, field.name), getattr(read_back, field.name)
        if before != after and is_dataclass(before):
            yield from _differences(f"{prefix}{field.name}.", before, after)
        elif before != after:
            yield f"{prefix}{field.name} {seen(before)}"
