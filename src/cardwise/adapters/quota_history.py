"""What teams asked for over time: from a history that cardwise reads, or from an export of Prometheus.

A pod counts from its creation to its end, also while it waits: a quota that is planned from what was granted would only
ever confirm itself. Refuses to invent a time: a dump is one moment, and stretches in which nothing was measured count
for nothing. What had to be assumed is a note.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import numpy as np

from cardwise.adapters import wire
from cardwise.adapters.notes import Notes
from cardwise.adapters.quota_file import AmountsTable, CardTable, TeamTable
from cardwise.core.fleet.quota import DIMENSIONS, Amounts, Demand
from cardwise.core.history import History, PodRecord
from cardwise.core.inventory import NodeSpec
from cardwise.core.request import Shape
from cardwise.errors import InputError
from cardwise.files import decode_json, plain, read_text, seen
from cardwise.units import MILLI_PER_CARD, MILLI_PER_PCT

ALL = "all"
"""The team of pods without a namespace, as traces have them."""
WANT = "the answer of Prometheus' /api/v1/query_range as JSON (docs/howto/quota.md)"
_WHOLE_PCT = MILLI_PER_CARD // MILLI_PER_PCT
_MOMENT_S = 1.0
"""How long a history of one moment lasts: any time above 0 will do, for only shares of it count."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A history as the core reads it. notes: what was assumed."""

    cards: tuple[CardTable, ...]
    teams: tuple[TeamTable, ...]
    demands: tuple[Demand, ...]
    notes: tuple[str, ...]


# ---------------------------------------------------------------- cards


def card_tables(
    nodes: Iterable[NodeSpec], slots_per_card: int, known: Sequence[CardTable], notes: Notes
) -> tuple[CardTable, ...]:
    """Card types of these nodes, with their totals; labels and taints from those that are known."""
    told = {card.model: card for card in known}
    sizes = defaultdict[str, list[int]](list)
    for node in nodes:
        for card in node.cards:
            sizes[card.model].append(card.memory_mib)
    for model in sorted(sizes):
        if len(set(sizes[model])) > 1:
            notes.add("Cards of one model have different memory; a percent is one of the smallest's", model)
    return tuple(_card_table(model, sizes[model], slots_per_card, told.get(model)) for model in sorted(sizes))


def _card_table(model: str, sizes_mib: Sequence[int], slots_per_card: int, known: CardTable | None) -> CardTable:
    number = len(sizes_mib)
    total = AmountsTable(number * slots_per_card, sum(sizes_mib), _WHOLE_PCT * number)
    if known is not None:
        return msgspec.structs.replace(known, total=total, memory_mib=min(sizes_mib))
    return CardTable(model, min(sizes_mib), total, {wire.LABEL_PRODUCT: model})


# ---------------------------------------------------------------- teams


@dataclass(slots=True)
class _Teams:
    """Whose a pod is. Without a file, each namespace is a team."""

    known: Sequence[TeamTable]
    notes: Notes

    def of(self, namespace: str, pod: str) -> str | None:
        name = f"{namespace}/{pod}"
        for team in self.known:
            if any(fnmatchcase(name, pattern) for pattern in team.pods or [f"{each}/*" for each in team.namespaces]):
                return team.name
        if self.known:
            self.notes.add("Pods of no team of the file were left out", name)
            return None
        return namespace or ALL

    def tables(self, found: Iterable[str]) -> tuple[TeamTable, ...]:
        if self.known:
            return tuple(self.known)
        return tuple(TeamTable(name, [] if name == ALL else [name]) for name in sorted(set(found)))


# ---------------------------------------------------------------- a history of ours


def asked_in(
    history: History, slots_per_card: int, cards: Sequence[CardTable] = (), teams: Sequence[TeamTable] = ()
) -> Asked:
    """Demand in a history: a trace with times, or a dump, which is one moment."""
    notes = Notes()
    tables = card_tables(history.nodes, slots_per_card, cards, notes)
    models = {node.name: node.cards[0].model for node in history.nodes if node.cards}
    whose, reader = _Teams(teams, notes), _Reader(tables, models, notes)
    timed = any(pod.deleted_s is not None for pod in history.pods)
    end_s = max((max(pod.created_s or 0.0, pod.deleted_s or 0.0) for pod in history.pods), default=0.0) + _MOMENT_S
    spans = defaultdict[tuple[str, str], list[_Span]](list)
    for pod in history.pods:
        if not pod.request.shape.cards:
            continue
        namespace, _, name = pod.request.name.rpartition("/")
        team, card = whose.of(namespace, name), reader.card_of(pod)
        if team is None or card is None:
            continue
        begin_s, until_s = (pod.created_s or 0.0, pod.deleted_s) if timed else (0.0, None)
        spans[team, card].append(
            _Span(begin_s, end_s if until_s is None else until_s, reader.amounts(pod.request.shape, card))
        )
    if not timed:
        notes.add("The history is one moment: what is asked for now is taken for usual level and peak", history.source)
    demands = tuple(_demand(team, card, found, end_s) for (team, card), found in sorted(spans.items()))
    found_teams = whose.tables(team for team, _ in spans)
    return Asked(tables, found_teams, demands, (*history.notes, *notes.lines()))


@dataclass(frozen=True, slots=True)
class _Span:
    begin_s: float
    end_s: float
    amounts: Amounts


def _demand(team: str, card: str, spans: Sequence[_Span], end_s: float) -> Demand:
    """Sums over time: a line for each stretch between two changes."""
    times = sorted({0.0, end_s, *(each.begin_s for each in spans), *(each.end_s for each in spans)})
    changes = np.zeros((len(times), len(DIMENSIONS)), np.int64)
    at = {time: i for i, time in enumerate(times)}
    for each in spans:
        changes[at[each.begin_s]] += each.amounts
        changes[at[each.end_s]] -= each.amounts
    return Demand(team, card, np.cumsum(changes, axis=0)[:-1], np.diff(np.array(times)))


@dataclass(slots=True)
class _Reader:
    """What a pod asks for of which card type."""

    tables: Sequence[CardTable]
    models: Mapping[str, str]
    notes: Notes

    def card_of(self, pod: PodRecord) -> str | None:
        """By its node, else by what it takes; the most frequent type where several will do."""
        if pod.node in self.models:
            return self.models[pod.node]
        fitting = [card for card in self.tables if pod.request.shape.takes(card.model)]
        if not fitting:
            self.notes.add("Pods that take none of these card types were left out", pod.request.name)
            return None
        if len(fitting) > 1:
            self.notes.add("Pods that ran nowhere count for the most frequent card type they take", pod.request.name)
        return max(fitting, key=lambda card: (card.total.compute_pct, card.model)).model

    def amounts(self, shape: Shape, model: str) -> Amounts:
        """Over all cards of the pod."""
        card_mib = next(card.memory_mib for card in self.tables if card.model == model)
        if shape.whole:
            return Amounts(shape.cards, shape.cards * card_mib, shape.cards * _WHOLE_PCT)
        memory_mib = shape.memory_mib or math.ceil(card_mib * shape.memory_milli / MILLI_PER_CARD)
        compute_pct = -(-shape.cards * shape.compute_milli // MILLI_PER_PCT)
        return Amounts(shape.cards, shape.cards * memory_mib, compute_pct)


# ---------------------------------------------------------------- Prometheus


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


class _Matrix(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[_Series]


class _Answer(msgspec.Struct):
    status: str
    data: _Matrix | None = None


_COLUMNS = {
    wire.OWN_COUNT: "slots",
    wire.OWN_MEMORY: "memory_mib",
    wire.OWN_CORES: "compute_pct",
}


def _exported(resource: str) -> str:
    """How kube-state-metrics writes a resource's name."""
    return "".join(sign if sign.isalnum() else "_" for sign in resource)


def asked_by_prometheus(
    path: Path,
    nodes: Sequence[NodeSpec],
    slots_per_card: int,
    cards: Sequence[CardTable] = (),
    teams: Sequence[TeamTable] = (),
) -> Asked:
    """Demand in an export: series with the labels namespace and resource, and node (empty for pods that wait).

    A label pod is used where it is there. Raises InputError if the file is no such export, or holds nothing of ours.
    """
    notes = Notes()
    tables = card_tables(nodes, slots_per_card, cards, notes)
    matrix = _read_matrix(path)
    times = sorted({time for series in matrix.result for time, _ in series.values})
    if not times:
        raise InputError(str(path), f"has no values; give {WANT}")
    whose, at = _Teams(teams, notes), {time: i for i, time in enumerate(times)}
    models = {node.name: node.cards[0].model for node in nodes if node.cards}
    rows = defaultdict[tuple[str, str], "np.ndarray[tuple[int, int], np.dtype[np.float64]]"](
        lambda: np.zeros((len(times), len(DIMENSIONS)))
    )
    usual_card = _usual_card(matrix, models, tables)
    for series in matrix.result:
        labels = series.metric
        place = _column(labels.get("resource", ""), notes)
        team = whose.of(labels.get("namespace", ""), labels.get("pod", ""))
        if place is None or team is None:
            continue
        node = labels.get("node", "")
        card = models.get(node, usual_card)
        if node not in models:
            notes.add(f"Pods on no node, or one that is not told, count for {usual_card}", labels.get("namespace", ""))
        card_mib = next(each.memory_mib for each in tables if each.model == card)
        scale = card_mib / 100 if place.percent else 1.0
        for time, text in series.values:
            rows[team, card][at[time], place.column] += scale * _number(path, text)
    if not rows:
        raise InputError(str(path), f"has no series of cardwise's resources and of these teams; give {WANT}")
    lasts_s = _lasts_s(times)
    demands = tuple(
        Demand(team, card, np.ceil(amounts - 1e-6).astype(np.int64), lasts_s)
        for (team, card), amounts in sorted(rows.items())
    )
    return Asked(tables, whose.tables(team for team, _ in rows), demands, notes.lines())


@dataclass(frozen=True, slots=True)
class _Place:
    column: int
    percent: bool = False


def _column(resource: str, notes: Notes) -> _Place | None:
    if resource == _exported(wire.OWN_MEMORY_PCT):
        return _Place(DIMENSIONS.index("memory_mib"), percent=True)
    for name, dimension in _COLUMNS.items():
        if resource == _exported(name):
            return _Place(DIMENSIONS.index(dimension))
    notes.add("Series of other resources were left out", resource or "(no label resource)")
    return None


def _usual_card(matrix: _Matrix, models: Mapping[str, str], tables: Sequence[CardTable]) -> str:
    """The type that is asked for most, else the most frequent one."""
    counted = Counter(models[node] for series in matrix.result if (node := series.metric.get("node", "")) in models)
    if counted:
        return max(counted, key=lambda model: (counted[model], model))
    return max(tables, key=lambda card: (card.total.compute_pct, card.model)).model


def _lasts_s(times: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """How long each sample counts: to the next one, but no longer than usual, so that a gap counts for nothing."""
    steps = np.diff(np.array(times, np.float64))
    if not len(steps):
        return np.array([_MOMENT_S])
    step = float(np.median(steps))
    return np.minimum(np.append(steps, step), step)


def _number(path: Path, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 2**53:
        raise InputError(str(path), f"a value is {seen(text)}, which is no amount; give {WANT}")
    return number


def _read_matrix(path: Path) -> _Matrix:
    try:
        answer = decode_json(read_text(path, WANT), _Answer)
    except msgspec.DecodeError as exc:
        raise InputError(str(path), f"is not readable: {exc}; give {WANT}") from exc
    if answer.status != "success" or answer.data is None:
        raise InputError(str(path), f"has status {seen(plain(answer.status))}; give {WANT}", field="status")
    if answer.data.result_type != "matrix":
        told = seen(plain(answer.data.result_type))
        raise InputError(str(path), f"is a {told}, of one moment; give {WANT}", field="data.resultType")
    return answer.data
