"""Load profiles: what services used over time, from a CSV file or from Prometheus, on one grid of equal steps.

::

    time,chat,translate
    2026-06-01T00:00:00Z,3.5,9
    2026-06-01T01:00:00Z,3.1,11

The first column is a time (ISO 8601 with a zone, or seconds since 1970), each other one a service; an empty field was
not measured. Refuses to guess a zone, and to fill gaps: those stay what they are.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from cardwise.adapters.prometheus import Prometheus
from cardwise.core.fleet.complement import Profiles
from cardwise.errors import InputError, UserError
from cardwise.files import plain, read_text, seen

WANT = "a CSV file: time,SERVICE,SERVICE,... and a line per hour"
DAY_S = 86400
MOST_STEPS = 200_000
FEWEST_ROWS = 2


def read_profiles(path: Path) -> Profiles:
    """Profiles from a file. Raises InputError that names the line and the column."""
    rows = csv.reader(io.StringIO(read_text(path, WANT)), strict=True)
    try:
        names = _names(path, next(rows, []))
        lines = [(rows.line_num, row) for row in rows if any(field.strip() for field in row)]
    except csv.Error as exc:
        raise InputError(str(path), f"is not CSV: {exc}; give {WANT}", line=rows.line_num) from exc
    if len(lines) < FEWEST_ROWS:
        raise InputError(str(path), f"has {len(lines)} lines with numbers; give {WANT}")
    times, numbers = zip(*(_row(path, line, row, names) for line, row in lines), strict=True)
    return _on_grid(path, names, times, numbers, [line for line, _ in lines])


def _names(path: Path, head: Sequence[str]) -> tuple[str, ...]:
    names = tuple(each.strip() for each in head[1:])
    if len(names) < 2 or not all(names) or len(set(names)) < len(names):
        raise InputError(str(path), f"columns {seen(list(head))}: name at least two services, each once", line=1)
    return tuple(map(plain, names))


def _row(path: Path, line: int, row: Sequence[str], names: Sequence[str]) -> tuple[float, list[float]]:
    if len(row) != 1 + len(names):
        raise InputError(str(path), f"has {len(row)} fields, not {1 + len(names)}", line=line)
    try:
        at_s = _seconds(row[0].strip())
    except (ValueError, OverflowError) as exc:
        text = f"{seen(row[0])} is no time with a zone; write 2026-06-01T00:00:00Z, or seconds since 1970"
        raise InputError(str(path), text, line=line, field="time") from exc
    return at_s, [_number(path, line, name, text.strip()) for name, text in zip(names, row[1:], strict=True)]


def _seconds(text: str) -> float:
    """Raises ValueError for a text that is no instant."""
    try:
        found = float(text)
    except ValueError:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None:
            raise ValueError("no zone") from None
        return at.timestamp()
    if not math.isfinite(found):
        raise ValueError("not finite")
    return found


def _number(path: Path, line: int, name: str, text: str) -> float:
    if not text:
        return math.nan
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < math.inf:
        text = f"{seen(text)} is no load; write a number of 0 or more, or nothing where it was not measured"
        raise InputError(str(path), text, line=line, field=name)
    return found


def _on_grid(
    path: Path, names: tuple[str, ...], times: Sequence[float], numbers: Sequence[list[float]], lines: Sequence[int]
) -> Profiles:
    at = np.array(times)
    steps = np.diff(at)
    if (steps <= 0).any():
        raise InputError(str(path), "is not later than the line before", line=lines[int(np.argmax(steps <= 0)) + 1])
    step_s = float(steps.min())
    if DAY_S % step_s:
        raise InputError(
            str(path), f"its lines are {step_s:g} s apart, which does not divide a day; take an hour's means"
        )
    places = (at - at[0]) / step_s
    off = np.abs(places - np.round(places)) > 1e-6
    if off.any():
        raise InputError(
            str(path), f"is not a multiple of {step_s:g} s after the first", line=lines[int(np.argmax(off))]
        )
    total = round(float(places[-1])) + 1
    if total > MOST_STEPS:
        raise InputError(
            str(path), f"is {total} steps of {step_s:g} s long, {MOST_STEPS} at most; take an hour's means"
        )
    values = np.full((len(names), total), math.nan)
    values[:, np.round(places).astype(int)] = np.array(numbers).T
    return Profiles(names, values, int(DAY_S / step_s))


async def ask_profiles(
    prometheus: Prometheus, query: str, label: str, days: int, step_s: float, now: datetime
) -> tuple[Profiles, tuple[str, ...]]:
    """Profiles of the last days from a query that gives a series per service, named by a label; and its warnings.

    Raises UserError if it does not, ClusterError if Prometheus cannot be asked.
    """
    if DAY_S % step_s:
        raise UserError(f"a step of {step_s:g} s does not divide a day; take 3600")
    end = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    found = await prometheus.range(query, end - timedelta(days=days) + timedelta(seconds=step_s), end, step_s)
    named = [each.labels.get(label, "") for each in found]
    if len(set(named)) < len(named) or not all(named):
        raise UserError(f"the query's series are not told apart by the label {label}: write sum by ({label}) (...)")
    if len(named) < 2:
        raise UserError(f"the query has {len(named)} series; two services are the fewest that can be compared")
    warnings = tuple(dict.fromkeys(_all(each.warnings for each in found)))
    return Profiles(tuple(map(plain, named)), np.array([each.values for each in found]), int(DAY_S / step_s)), warnings


def _all(parts: Iterator[tuple[str, ...]]) -> Iterator[str]:
    for part in parts:
        yield from part
