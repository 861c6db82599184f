"""Prometheus' HTTP API: one number now, or series over time. The only module that speaks it.

What it does not know is told as *none*: no series, no number, or a sample that is older than it may be. An answer that
came with warnings is told as *part*: a store that did not answer makes sums smaller than they are, and who scales by
them would take replicas away. Refuses to retry, and to read a dead exporter's last word as today's. Source:
prometheus.io/docs/prometheus/latest/querying/api ("Instant queries", "Range queries", "Format overview").
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
import msgspec
import numpy as np

from cardwise.core.arrays import FloatArray
from cardwise.errors import ClusterError, UserError
from cardwise.files import seen

TIMEOUT_S = 10.0
MOST_POINTS = 11_000
"""Prometheus refuses ranges of more points per series. Source: web/api/v1/api.go."""
MOST_BYTES = 64 * 2**20


class _Series(msgspec.Struct):
    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Answer(msgspec.Struct, rename="camel"):
    status: str = ""
    data: _Data | None = None
    error_type: str = ""
    error: str = ""
    warnings: list[str] = []


@dataclass(frozen=True, slots=True)
class Reading:
    """One number, or why there is none. why: for people; empty if there is a number.

    value: None if nothing is known. warnings: of the answer; with any, the number may be a part of the truth. is_nan:
    what was asked for exists and is no number, as the P99 of no requests.
    """

    value: float | None
    why: str = ""
    warnings: tuple[str, ...] = ()
    is_nan: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One series on a grid of equal steps. values: float64 [T], NaN where nothing was known."""

    labels: Mapping[str, str]
    values: FloatArray
    warnings: tuple[str, ...] = ()


class Prometheus:
    """One server."""

    def __init__(self, url: str, *, token_file: Path | None = None, timeout_s: float = TIMEOUT_S) -> None:
        """url: with the path under which its API lies, without ``/api/v1``. Raises UserError if it is none.

        token_file: of a bearer token; read for each question, for tokens of service accounts change every hour.
        """
        self._base, self._timeout_s = checked_url(url), timeout_s
        self._token_file = token_file
        self._http = httpx2.AsyncClient(timeout=timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give connections back."""
        await self._http.aclose()

    async def instant(self, query: str, at: datetime, *, max_age_s: float | None = None) -> Reading:
        """The one number that a query has at an instant. None if it has none, or more than one.

        max_age_s: samples that are older count as none; without it Prometheus' own five minutes. It is sent as the
        query's lookback, which Prometheus knows since 2.43 and older ones ignore. An expression such as
        ``rate(x[5m])`` looks back by itself besides. A target that is gone is silent at once, whatever the age.
        Raises ClusterError if Prometheus cannot be asked, UserError if it refuses the query.
        """
        params: dict[str, str] = {"query": query, "time": _stamp(at)}
        if max_age_s is not None:
            params["lookback_delta"] = f"{max_age_s:g}s"
        answer = await self._ask("query", params)
        data = answer.data or _Data()
        warnings = tuple(answer.warnings)
        if data.result_type == "scalar":
            found = [_decode(data.result, tuple[float, str])]
        elif data.result_type == "vector":
            found = [each.value for each in _decode(data.result, list[_Series]) if each.value is not None]
        else:
            raise UserError(f"query {seen(query)} gives a {data.result_type}; write one that gives one number")
        if not found:
            return Reading(None, "it has no series, or no sample that is new enough", warnings)
        if len(found) > 1:
            return Reading(None, f"it has {len(found)} series: wrap it in sum(...) or max(...)", warnings)
        value = _number(found[0][1])
        if not math.isfinite(value):
            return Reading(None, f"it is {found[0][1]}", warnings, is_nan=math.isnan(value))
        return Reading(value, "", warnings)

    async def range(self, query: str, begin: datetime, end: datetime, step_s: float) -> list[Series]:
        """All series of a query, every ``step_s`` from ``begin`` to ``end``, both included.

        Raises as :meth:`instant`.
        """
        points = math.floor((end - begin).total_seconds() / step_s) + 1
        if not 0 < points <= MOST_POINTS:
            raise UserError(f"{points} points from {begin} to {end}: 1 to {MOST_POINTS} can be; take another step")
        params = {"query": query, "start": _stamp(begin), "end": _stamp(end), "step": f"{step_s:g}"}
        answer = await self._ask("query_range", params)
        # one after the other: the numbers of some ten thousand series are a hundred times larger as objects
        found = (_decode(raw, _Series) for raw in _decode((answer.data or _Data()).result, list[msgspec.Raw]))
        warnings = tuple(answer.warnings)
        return [Series(each.metric, _on_grid(each.values, begin, step_s, points), warnings) for each in found]

    async def _ask(self, path: str, params: Mapping[str, str]) -> _Answer:
        url = f"{self._base}/api/v1/{path}"
        try:
            async with asyncio.timeout(self._timeout_s):
                status, content = await self._post(url, params)
        except (httpx2.TimeoutException, TimeoutError) as exc:
            raise ClusterError(f"Prometheus at {self._base}: no answer in {self._timeout_s:g} s", retry=True) from exc
        except httpx2.ConnectError as exc:
            why = f"cannot be reached: {exc}; from outside its cluster: kubectl port-forward, and http://127.0.0.1:PORT"
            raise ClusterError(f"Prometheus at {self._base}: {why}", retry=True) from exc
        except httpx2.HTTPError as exc:
            raise ClusterError(f"Prometheus at {self._base}: {str(exc) or type(exc).__name__}", retry=True) from exc
        try:
            answer = msgspec.json.decode(content, type=_Answer)
        except (msgspec.DecodeError, RecursionError) as exc:
            told = content[:100].decode(errors="replace")
            raise ClusterError(f"Prometheus at {self._base}: {status}: not its API: {seen(told)}", retry=True) from exc
        if answer.status != "success":
            text = f"Prometheus at {self._base}: {answer.error_type or status}: {answer.error}"
            if answer.error_type == "bad_data":
                raise UserError(f"{text}; query: {seen(params['query'])}")
            raise ClusterError(text, retry=answer.error_type != "execution")
        return answer

    async def _post(self, url: str, params: Mapping[str, str]) -> tuple[int, bytes]:
        """By POST, for queries may be longer than a URL. What is larger than can be meant is not read to its end."""
        async with self._http.stream("POST", url, data=dict(params), headers=self._headers()) as answer:
            content = bytearray()
            async for chunk in answer.aiter_bytes():
                content += chunk
                if len(content) > MOST_BYTES:
                    raise ClusterError(f"{url}: more than {MOST_BYTES} bytes; narrow the query", retry=False)
        return answer.status_code, bytes(content)

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = self._token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ClusterError(f"the token for Prometheus, {self._token_file}: {exc}", retry=True) from exc
        return {"Authorization": f"Bearer {token}"}


def checked_url(url: str) -> str:
    """An address without its last slash. Raises UserError if it is none."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and not parts.query
    except ValueError:
        fine = False
    if not fine or not url.isprintable() or " " in url:
        raise UserError(f"{seen(url)} is no address of a Prometheus; write http://prometheus:9090")
    return url.rstrip("/")


def _stamp(at: datetime) -> str:
    return f"{at.timestamp():.3f}"


def _on_grid(values: list[tuple[float, str]], begin: datetime, step_s: float, points: int) -> FloatArray:
    made = np.full(points, math.nan)
    if not values:
        return made
    times, texts = zip(*values, strict=True)
    places = np.rint((np.array(times, np.float64) - begin.timestamp()) / step_s)
    there = (places >= 0) & (places < points)
    made[places[there].astype(np.int64)] = _numbers(texts)[there]
    made[~np.isfinite(made)] = math.nan
    return made


def _numbers(texts: Iterable[str]) -> FloatArray:
    """Samples', float64; raises as :func:`_number`."""
    try:
        return np.array(list(map(float, texts)), np.float64)
    except ValueError:
        return np.array([_number(text) for text in texts], np.float64)  # which names the one


def _number(text: str) -> float:
    """A sample's. Raises ClusterError."""
    try:
        return float(text)
    except ValueError as exc:
        raise ClusterError(f"Prometheus' answer cannot be read: {seen(text)} is no number", retry=True) from exc


def _decode(raw: msgspec.Raw, kind: Any) -> Any:  # noqa: ANN401 - one of three shapes
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as exc:
        raise ClusterError(f"Prometheus' answer cannot be read: {exc}", retry=True) from exc
