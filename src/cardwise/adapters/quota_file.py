"""The quota file: what teams are guaranteed and may borrow, and at which hours something else holds.

::

    cohort = "cardwise"

    [[cards]]
    model = "A10"
    memory-mib = 24576       # of one card
    total = { slots = 64, memory-mib = 98304, compute-pct = 400 }
    labels = { "nvidia.com/gpu.product" = "NVIDIA-A10" }

    [[teams]]
    name = "search"
    namespaces = ["search"]
    class = "latency-sensitive"

    [[teams.limits]]
    card = "A10"
    guaranteed = { slots = 6, memory-mib = 24576, compute-pct = 120 }

    [[windows]]
    name = "night"
    timezone = "Europe/Berlin"
    begin = "22:00"
    end = "06:00"

    [[windows.limits]]
    team = "batch"
    card = "A10"
    guaranteed = { slots = 32, memory-mib = 49152, compute-pct = 200 }

`cardwise quota plan` writes it, people review it, `quota apply` and the controller make it hold: none of them keeps
anything else. Refuses, with the key, what guarantees more of a card type than there is, at any hour.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from cardwise.core.claim import LatencyClass
from cardwise.core.fleet import windows
from cardwise.core.fleet.quota import Amounts, Limits, QuotaRule, Team, TeamLimits, too_much
from cardwise.core.fleet.windows import DAY_MIN, DAYS, Cron, Hours, Window
from cardwise.files import seen
from cardwise.program_settings import read_checked

WANT = "a quota file, as `cardwise quota plan -o toml` writes it"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Names of queues: what Kubernetes takes as the name of an object, and as a label's value."""
_TIME = re.compile(r"(?:([01]\d|2[0-3]):([0-5]\d))|24:00")

Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Weight = Annotated[float, msgspec.Meta(gt=1e-9, le=10**6)]


class _Table(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True, omit_defaults=True):
    """A table of the file."""


class AmountsTable(_Table, frozen=True):
    """Amounts of one card type, over all its cards."""

    slots: Count = 0
    memory_mib: Count = 0
    compute_pct: Count = 0

    @property
    def amounts(self) -> Amounts:
        """As the core has it."""
        return Amounts(self.slots, self.memory_mib, self.compute_pct)


NO_AMOUNTS = AmountsTable()


class TaintTable(_Table, frozen=True):
    """A taint of the nodes that have these cards."""

    key: str
    effect: str
    value: str = ""


class CardTable(_Table, frozen=True):
    """A card type. memory_mib: of one card. labels, taints: of its nodes.

    tolerate: pods that are admitted get what the taints ask for.
    """

    model: str
    memory_mib: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    total: AmountsTable
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: list[TaintTable] = msgspec.field(default_factory=list)
    tolerate: bool = False

    @property
    def flavor(self) -> str:
        """Name of its ResourceFlavor."""
        return re.sub(r"[^a-z0-9]+", "-", self.model.lower()).strip("-") or "card"


class LimitsTable(_Table, frozen=True):
    """Limits of a team and a card type."""

    card: str
    guaranteed: AmountsTable
    borrowable: AmountsTable = NO_AMOUNTS


class TeamTable(_Table, frozen=True):
    """A team and its queue. namespaces: where that is.

    pods: patterns on namespace/name of the pods that are its history; without, all of its namespaces.
    """

    name: str
    namespaces: list[str] = msgspec.field(default_factory=list)
    pods: list[str] = msgspec.field(default_factory=list)
    latency: LatencyClass = msgspec.field(name="class", default=LatencyClass.SENSITIVE)
    critical: bool = False
    weight: Weight = 1.0
    limits: list[LimitsTable] = msgspec.field(default_factory=list)

    @property
    def team(self) -> Team:
        """As the core has it."""
        return Team(self.name, self.latency, self.critical, self.weight)


class WindowLimits(LimitsTable, frozen=True, kw_only=True):
    """What a team has instead while a window holds."""

    team: str


class WindowTable(_Table, frozen=True):
    """Hours, or two cron expressions (start, stop). The first window that holds counts."""

    name: str
    timezone: str
    limits: list[WindowLimits]
    begin: str = ""
    end: str = ""
    days: list[str] = msgspec.field(default_factory=lambda: list(DAYS))
    start: str = ""
    stop: str = ""

    @property
    def when(self) -> Hours | Cron:
        """As the core has it. Raises ValueError that says what to write."""
        if bool(self.begin and self.end) == bool(self.start and self.stop):
            raise ValueError("write either begin and end (times of the day), or start and stop (cron expressions)")
        if self.start:
            return Cron(self.start, self.stop)
        wrong = [day for day in self.days if day not in DAYS]
        if wrong:
            raise ValueError(f"days: {seen(wrong[0])} is none; write some of {', '.join(DAYS)}")
        return Hours(_minute(self.begin), _minute(self.end), frozenset(map(DAYS.index, self.days)))

    @property
    def window(self) -> Window:
        """As the core has it. Raises ValueError, too, if there is no such time zone."""
        try:
            zone = ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            raise ValueError(
                f"timezone: {seen(self.timezone)} is none; write one such as Europe/Berlin or UTC"
            ) from exc
        return Window(self.name, zone, self.when)


class QuotaFile(_Table, frozen=True):
    """All of it."""

    cohort: str = "cardwise"
    headroom: Annotated[float, msgspec.Meta(ge=1, le=10)] = 1.2
    usual_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.95
    band_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1
    cards: list[CardTable] = msgspec.field(default_factory=list)
    teams: list[TeamTable] = msgspec.field(default_factory=list)
    windows: list[WindowTable] = msgspec.field(default_factory=list)

    @property
    def rule(self) -> QuotaRule:
        """As the core has it."""
        return QuotaRule(self.headroom, self.usual_share, self.band_share)

    @property
    def capacity(self) -> dict[str, Amounts]:
        """By card type."""
        return {card.model: card.total.amounts for card in self.cards}

    @property
    def schedule(self) -> tuple[Window, ...]:
        """Windows in the order of the file."""
        return tuple(each.window for each in self.windows)

    def limits_in(self, window: int | None) -> dict[str, dict[str, Limits]]:
        """What holds while a window does, by its number; None: outside of all."""
        found = {team.name: {each.card: _limits(team, each) for each in team.limits} for team in self.teams}
        by_name = {team.name: team for team in self.teams}
        for each in () if window is None else self.windows[window].limits:
            found[each.team][each.card] = _limits(by_name[each.team], each)
        return found


def _limits(team: TeamTable, told: LimitsTable) -> Limits:
    guaranteed = told.guaranteed.amounts
    return Limits(guaranteed, told.borrowable.amounts, Amounts() if team.critical else guaranteed)


def _minute(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{seen(text)} is no time of the day; write one such as 22:00")
    return 60 * int(found[1]) + int(found[2]) if found[1] else DAY_MIN


# ---------------------------------------------------------------- reading


def read_quota_file(path: Path) -> QuotaFile:
    """Read and check it. Raises InputError that names the key and says what to write."""
    return read_checked(path, WANT, QuotaFile, faults_of)


class _Named(NamedTuple):
    key: str
    name: str


def faults_of(told: QuotaFile) -> Iterator[tuple[str, str]]:
    """What is wrong with it, key and words; what comes later counts only where nothing came before."""
    yield from _name_faults(told)
    yield from _queue_faults(told)
    for i, window in enumerate(told.windows):
        yield from _window_faults(f"windows[{i}]", window, told)
    yield from _sums(told)


def _name_faults(told: QuotaFile) -> Iterator[tuple[str, str]]:
    named = [
        _Named("cohort", told.cohort),
        *(_Named(f"teams[{i}].name", team.name) for i, team in enumerate(told.teams)),
        *(
            _Named(f"teams[{i}].namespaces[{k}]", each)
            for i, team in enumerate(told.teams)
            for k, each in enumerate(team.namespaces)
        ),
    ]
    for each in named:
        if not _NAME.fullmatch(each.name):
            yield each.key, f"is {seen(each.name)}; write lower-case letters, digits and dashes, at most 63"
    if not told.cards:
        yield "cards", "is missing; write one [[cards]] for each card type"
    yield from _twice("teams[{}].name", [team.name for team in told.teams])
    yield from _twice("cards[{}].model", [card.model for card in told.cards])
    yield from _twice("cards[{}].model", [card.flavor for card in told.cards])
    yield from _twice("windows[{}].name", [window.name for window in told.windows])


def _twice(key: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for i, name in enumerate(names):
        if name in names[:i]:
            yield key.format(i), f"is {seen(name)}, as an earlier one; write another"


def _queue_faults(told: QuotaFile) -> Iterator[tuple[str, str]]:
    for i, team in enumerate(told.teams):
        where = f"teams[{i}]"
        yield from _twice(f"{where}.limits[{{}}].card", [each.card for each in team.limits])
        for k, each in enumerate(team.limits):
            yield from _limit_faults(f"{where}.limits[{k}]", each, team, told)


def _limit_faults(where: str, told: LimitsTable, team: TeamTable, file: QuotaFile) -> Iterator[tuple[str, str]]:
    known = [card.model for card in file.cards]
    if told.card not in known:
        yield f"{where}.card", f"is {seen(told.card)}; write one of {', '.join(known)}"
    if told.borrowable != NO_AMOUNTS and (team.critical or team.latency is not LatencyClass.BEST_EFFORT):
        fault = (
            f"is told for {team.name}, which does not borrow: what is lent is taken back, and its pods are nobody's "
            "victims; guarantee it more, or give best-effort work a team of its own"
        )
        yield f"{where}.borrowable", fault


def _window_faults(where: str, window: WindowTable, told: QuotaFile) -> Iterator[tuple[str, str]]:
    try:
        faults = windows.check(window.window.when)
    except ValueError as exc:
        faults = [str(exc)]
    for fault in faults:
        yield where, fault
    by_name = {team.name: team for team in told.teams}
    for k, each in enumerate(window.limits):
        if each.team not in by_name:
            yield (
                f"{where}.limits[{k}].team",
                f"is {seen(each.team)}; write one of {', '.join(by_name) or '(no teams)'}",
            )
        else:
            yield from _limit_faults(f"{where}.limits[{k}]", each, by_name[each.team], told)


def _sums(told: QuotaFile) -> Iterator[tuple[str, str]]:
    for window in (None, *range(len(told.windows))):
        for short in too_much(told.limits_in(window), told.capacity):
            where = "teams" if window is None else f"windows[{window}].limits"
            fault = (
                f"guarantee {short.wanted} {short.dimension.replace('_', '-')} of {short.card} to "
                f"{', '.join(short.teams)}, and there are {short.has}; guarantee less, or correct cards.total"
            )
            yield where, fault


# ---------------------------------------------------------------- writing


def with_limits(told: QuotaFile, limits: TeamLimits) -> QuotaFile:
    """The file with other limits outside of windows; all else as it was."""
    teams = [
        msgspec.structs.replace(
            team,
            limits=[
                LimitsTable(card.model, _table(found.guaranteed), _table(found.borrowable))
                for card in told.cards
                if (found := limits.get(team.name, {}).get(card.model)) is not None
            ],
        )
        for team in told.teams
    ]
    return msgspec.structs.replace(told, teams=teams)


def _table(amounts: Amounts) -> AmountsTable:
    return AmountsTable(*amounts)


def quota_file_text(told: QuotaFile, comments: Sequence[str] = ()) -> str:
    """The file's text; :func:`read_quota_file` reads the same from it. Comments go on top, a line each."""
    tables = msgspec.to_builtins(told, str_keys=True)
    lines = [f"# {comment}" for comment in comments]
    return "\n".join([*lines, *_written("", tables)]).strip() + "\n"


def _written(path: str, table: Mapping[str, Any]) -> Iterator[str]:
    nested = {key: value for key, value in table.items() if _is_tables(value)}
    for key, value in table.items():
        if key not in nested:
            yield f"{_key(key)} = {_value(value)}"
    for key, tables in nested.items():
        below = f"{path}.{key}" if path else key
        for each in tables:
            yield ""
            yield f"[[{below}]]"
            yield from _written(below, each)


def _is_tables(value: object) -> bool:
    """Lists of tables get headings of their own; but for taints, which are short."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "effect" not in value[0]


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(key)} = {_value(each)}' for key, each in value.items())} }}" if value else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return _quoted(value) if isinstance(value, str) else repr(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quoted(key)


def _quoted(text: str) -> str:
    """A basic string of TOML: JSON's escapes are a part of TOML's."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
