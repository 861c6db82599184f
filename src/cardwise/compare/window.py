"""What Prometheus knows of a window of time, cut into equal parts: the file that ``--save-before`` writes.

A file, because Prometheus forgets: the week before a change is gone when the month after it is judged. Refuses files of
another schema, and parts that do not belong together. Times are UTC; what was not known in a part is null.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from cardwise.core.arrays import FloatArray
from cardwise.errors import InputError, UserError
from cardwise.files import decode_json, read_text, seen

SCHEMA = "cardwise.dev/window/v1"
MOST = 1e15
"""Of anything in a part: what is more was not counted by anyone."""
Known = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Parts = list[Known | None]
_WANT = "a file that `cardwise compare --save-before` or `cardwise loadtest --out` wrote"
_AGO = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_EXAMPLE = "write 2026-11-30T10:00Z..2026-11-30T11:00Z, or -2h..-1h"
_SLACK = 1.001
"""Of the window's length: its parts are as long as PromQL writes exactly."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One service of the gateway, per part."""

    latency_counts: list[list[Known] | None]
    """Answers by latency: of each part a number per bucket, not cumulated; the last has no upper bound."""
    latency_sum_s: Parts
    answers: Parts
    """All, refusals among them."""
    good: Parts
    """2xx and 3xx."""
    refused: Parts
    """429 and 503."""
    failed: Parts
    """Other 5xx."""
    hung_up: Parts | None = None
    """Requests whose callers left before their answer, which are in no other number; None if nothing is known."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    schema: str = SCHEMA
    source: str
    """Address of the Prometheus."""
    begin: datetime
    end: datetime
    step_s: float
    """Length of a part."""
    scrape_s: float
    """Between two samples, as they were found."""
    chosen: list[str]
    """Services that were asked for; empty for all."""
    bounds_s: list[float]
    """Upper bounds of the latencies' buckets but the last."""
    services: dict[str, Service]
    cards: dict[str, Parts]
    """By model: cards with slices; where services were chosen, what their slices hold of cards."""
    memory_granted_mib: Parts
    busy_cards: Parts
    """Cards with slices, each by the share of time in which it was busy."""
    cards_with_slices: Parts
    events: dict[str, Parts]
    """Restarts and failed scheduling, where they are known."""
    alerts: list[str] | None
    """Names of those that fired; None if nothing is known of any."""
    warnings: list[str] = []

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.begin).total_seconds()

    @property
    def name(self) -> str:
        """As reports call it."""
        begin, end = (each.astimezone(UTC) for each in (self.begin, self.end))
        later = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
        return f"{begin:%Y-%m-%d %H:%M:%S}–{later}"


def parse_span(text: str, option: str, now: datetime) -> tuple[datetime, datetime]:
    """``START..END``, each an ISO 8601 time with its zone, ``now``, or ``-90m`` for so long ago.

    Raises UserError if it is none, or has not ended.
    """
    begin_text, dots, end_text = text.partition("..")
    if not dots:
        raise UserError(f"{option} {seen(text)} is no window of time; {_EXAMPLE}")
    begin, end = (_instant(each.strip(), option, now) for each in (begin_text, end_text))
    if begin >= end:
        raise UserError(f"{option} {seen(text)} ends before it begins; {_EXAMPLE}")
    if end > now:
        raise UserError(f"{option} {seen(text)} has not ended yet: it is {now:%Y-%m-%dT%H:%M:%SZ}")
    return begin, end


def _instant(text: str, option: str, now: datetime) -> datetime:
    if text == "now":
        return now
    try:
        if ago := _AGO.fullmatch(text):
            return now - timedelta(seconds=float(ago[1]) * _UNITS_S[ago[2]])
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise UserError(
                f"{option}: {seen(text)} has no time zone; write {found:%Y-%m-%dT%H:%M}Z for UTC, or +01:00"
            )
        return found.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UserError(f"{option}: {seen(text)} is no time; {_EXAMPLE}") from error


def window_text(window: Window) -> str:
    """What is written."""
    return msgspec.json.format(msgspec.json.encode(window)).decode() + "\n"


def schema_of(path: Path) -> str:
    """Which of our files it is; empty for none. Raises InputError if it cannot be read."""

    class _Head(msgspec.Struct):
        schema: str = ""

    try:
        return decode_json(read_text(path, _WANT), _Head).schema
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"{error}; give {_WANT}, or one that `cardwise loadtest --out` wrote") from error


def read_window(path: Path) -> Window:
    """Raises InputError if it is none, one of another version, or one whose parts do not belong together."""
    try:
        window = decode_json(read_text(path, _WANT), Window)
    except (msgspec.DecodeError, ValueError) as error:
        raise InputError(str(path), f"{error}; give {_WANT}") from error
    if window.schema != SCHEMA:
        raise InputError(str(path), f"schema is {seen(window.schema)}, not {SCHEMA!r}; give {_WANT}")
    if window.begin.tzinfo is None or window.end.tzinfo is None or window.end <= window.begin or window.step_s <= 0:
        raise InputError(str(path), f"its times are no window; give {_WANT}")
    if not _belongs_together(window):
        raise InputError(str(path), f"its parts do not belong together; give {_WANT}")
    return window


def _belongs_together(window: Window) -> bool:
    lengths = {len(each) for each in _all_parts(window)}
    buckets = {len(part) for each in window.services.values() for part in each.latency_counts if part is not None}
    bounds_s = [0.0, *window.bounds_s]
    return (
        len(lengths) == 1
        and max(lengths) * window.step_s <= window.seconds * _SLACK
        and buckets <= {len(window.bounds_s) + 1}
        and len(bounds_s) > 1
        and all(one < other for one, other in itertools.pairwise(bounds_s))
    )


def _all_parts(window: Window) -> list[Sequence[object]]:
    parts: list[Sequence[object]] = [window.memory_granted_mib, window.busy_cards, window.cards_with_slices]
    parts += [*window.cards.values(), *window.events.values()]
    for each in window.services.values():
        parts += [each.latency_counts, each.latency_sum_s, each.answers, each.good, each.refused, each.failed]
        parts += [] if each.hung_up is None else [each.hung_up]
    return parts


def array_of(parts: Parts) -> FloatArray:
    """float64 [T]; nan where nothing was known."""
    return np.array([math.nan if each is None else each for each in parts], np.float64)


def parts_of(values: FloatArray) -> Parts:
    """The same, for a file. What is no amount, as a number below zero, is not known."""
    return [float(each) if 0 <= each <= MOST else None for each in values]
