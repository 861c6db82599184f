"""Keeps a forecast for each policy that asks for one: one fit at a time, in a process of its own, once an hour.

Until there is one, and whenever there is none, the service is scaled without it, and a condition says why. Refuses to
keep a forecast whose query, history or hours are over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import numpy as np
import structlog

from cardwise.adapters.prometheus import Prometheus
from cardwise.adapters.service_policy import LoadSpec
from cardwise.core.arrays import FloatArray
from cardwise.core.fleet.forecast import Forecast, NoForecast, Refusal
from cardwise.errors import ClusterError, UserError

log = structlog.get_logger()

HOUR_S, EVERY_S, AGAIN_S = 3600.0, 3600.0, 300.0
"""A forecast is made anew each hour; one that failed, or that there could not be, is tried again sooner."""
STEPS_AHEAD = 24
"""Hours: more than the longest horizon, 12, and two hours of delay."""
Fit: TypeAlias = Callable[[FloatArray, int], Awaitable[Forecast | Refusal]]


@dataclass(frozen=True, slots=True)
class _Made:
    """A forecast, or why there is none. begin: the hour after the history; made_s: by the steady clock."""

    load: LoadSpec
    begin: datetime
    made_s: float
    found: Forecast | Refusal


@dataclass(slots=True)
class Forecasting:
    """Forecasts by the policy's key.

    now_s: a steady clock. fit: see :func:`~cardwise.adapters.seasonal.forecast_aside`.
    """

    prometheus: Prometheus | None
    now_s: Callable[[], float]
    fit: Fit
    _made: dict[str, _Made] = field(default_factory=dict)
    _wanted: dict[str, tuple[LoadSpec, datetime]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def highest(self, key: str, load: LoadSpec, now: datetime) -> float | Refusal | None:
        """The most demand within the policy's horizon, or why it is not known; None while it is being made.

        Asks for a new one where it is due.
        """
        told, made = load.forecast, self._made.get(key)
        if told is None:
            return None
        if made is None or made.load != load or not 0 <= (now - made.begin).total_seconds() < STEPS_AHEAD * HOUR_S:
            self._made.pop(key, None)
            self._ask(key, load, now)
            return None
        failed = isinstance(made.found, Refusal)
        if self.now_s() - made.made_s >= (AGAIN_S if failed else EVERY_S):
            self._ask(key, load, now)
        if isinstance(made.found, Refusal):
            return made.found
        ahead = (now - made.begin).total_seconds() / HOUR_S
        highest = made.found.highest(ahead, ahead + told.horizon_minutes / 60)
        return Refusal(NoForecast.FAILED, "the last forecast is over") if highest is None else highest

    def forget(self, keep: set[str]) -> None:
        """Only these policies are left."""
        for gone in self._made.keys() - keep:
            del self._made[gone]
        for gone in self._wanted.keys() - keep:
            del self._wanted[gone]

    def _ask(self, key: str, load: LoadSpec, now: datetime) -> None:
        self._wanted[key] = load, now
        self._news.set()

    async def run(self) -> None:
        """Make what is asked for, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.make_wanted()

    async def make_wanted(self) -> None:
        """Make all that is asked for now, one after another."""
        while self._wanted:
            key = next(iter(self._wanted))
            load, now = self._wanted.pop(key)
            begin = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            found = await self._make(load, begin)
            if isinstance(found, Refusal):
                log.info("no forecast", policy=key, reason=found.why.value, why=found.text)
            self._made[key] = _Made(load, begin, self.now_s(), found)
            if key in self._wanted and self._wanted[key][0] == load:  # a turn asked for it while it was being made
                del self._wanted[key]

    async def _make(self, load: LoadSpec, begin: datetime) -> Forecast | Refusal:
        if self.prometheus is None or load.forecast is None:
            return Refusal(NoForecast.FAILED, "the controller has no Prometheus")
        try:
            history = await self._history(
                self.prometheus, load, begin - timedelta(days=load.forecast.history_days), begin
            )
        except (ClusterError, UserError) as exc:
            return Refusal(NoForecast.FAILED, str(exc))
        if isinstance(history, Refusal):
            return history
        return await self.fit(history, STEPS_AHEAD)

    async def _history(
        self, prometheus: Prometheus, load: LoadSpec, begin: datetime, end: datetime
    ) -> FloatArray | Refusal:
        """The most of each hour, the last one the hour before ``end``."""
        query = f"max_over_time(({load.query})[1h:5m])"
        found = await prometheus.range(query, begin + timedelta(hours=1), end, HOUR_S)
        if len(found) > 1:
            return Refusal(NoForecast.FAILED, f"the query has {len(found)} series in its history, not one")
        if not found:
            return Refusal(NoForecast.SHORT, "Prometheus knows no history of it")
        if found[0].warnings:
            return Refusal(NoForecast.GAPS, f"only a part of it is known: {found[0].warnings[0]}")
        return np.asarray(found[0].values, dtype=np.float64)
