"""The day's load: four services whose peaks do not coincide, and what came before it, as curves of known shape.

Synthetic, and said to be so: a base, bumps around hours of the local day, weekends, and noise of some minutes. Requests
per second on a grid of five minutes, 30 days of history and the day itself; the same seed gives the same load. Peaks
that shift against each other are an assumption about services of different use; ``--same-peak`` takes it away. Refuses
to know cards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from cardwise.core.arrays import FloatArray
from cardwise.engine.model import Cost

ZONE = ZoneInfo("Europe/Berlin")
BEGIN = datetime(2026, 3, 18, tzinfo=ZONE)
"""A Wednesday, midnight of the local clock; no clock is set in the four weeks before."""
HISTORY_DAYS, DAY_S, GRID_S = 30, 86_400, 300
WEEKEND = 0.6
"""Of a weekday's load."""
NOISE, NOISE_KEPT = 0.05, 0.8
"""Log-normal, of each five minutes; the share of it that stays from one to the next."""
SAME_PEAK_HOUR = 14.0


@dataclass(frozen=True, slots=True)
class Bump:
    """More load around an hour of the local day. width_h: standard deviation; height: beside the highest, 1."""

    hour: float
    width_h: float
    height: float = 1.0


@dataclass(frozen=True, slots=True)
class Service:
    """One model behind one Deployment.

    model: of the planner's catalogue, for its memory. cost, max_batch: of its engine alone on a card. compute_pct: the
    share of a card's compute that the engine fills at full batches; more of a card does not make it faster. An
    assumption, as a load test would find it. peak_per_s: requests at the shape's top. base: load at night.
    """

    name: str
    model: str
    cost: Cost
    max_batch: int
    target_p99_ms: float
    compute_pct: int
    peak_per_s: float
    base: float
    bumps: tuple[Bump, ...]

    @property
    def replica_per_s(self) -> float:
        """What a replica carries in full batches."""
        return self.cost.capacity(self.max_batch)

    def shape(self, hour: float) -> float:
        """Load at an hour of a weekday, of its peak before it is scaled to 1."""
        return self.base + sum(each.height * _bell(hour, each) for each in self.bumps)


def _bell(hour: float, bump: Bump) -> float:
    away = (hour - bump.hour + 12) % 24 - 12
    return math.exp(-0.5 * (away / bump.width_h) ** 2)


SERVICES = (
    Service(
        "extract", "llama-3.2-3b", Cost(0.100, 0.040), 8, 1400.0, 45, 70.0, 0.12,
        (Bump(10.5, 1.8), Bump(15.0, 2.0, 0.6)),
    ),
    Service(
        "rank", "modernbert-base", Cost(0.025, 0.010), 8, 400.0, 25, 250.0, 0.15,
        (Bump(12.5, 1.5), Bump(18.0, 2.0, 0.7)),
    ),
    Service("speech", "whisper-large-v3-turbo", Cost(0.080, 0.040), 4, 900.0, 35, 60.0, 0.10, (Bump(16.0, 2.2),)),
    Service(
        "search", "bge-m3", Cost(0.030, 0.010), 8, 400.0, 30, 280.0, 0.20,
        (Bump(20.5, 2.0), Bump(8.0, 1.2, 0.5)),
    ),
)  # fmt: skip


def with_same_peak(services: Sequence[Service]) -> tuple[Service, ...]:
    """The same services, all with their highest hour at once."""
    return tuple(
        replace(each, bumps=tuple(replace(b, hour=b.hour + SAME_PEAK_HOUR - each.bumps[0].hour) for b in each.bumps))
        for each in services
    )


@dataclass(frozen=True, slots=True)
class Load:
    """Requests per second of each service. rates: float64 [services, grid]; the first is ``begin`` less the history."""

    services: tuple[Service, ...]
    rates: FloatArray

    @classmethod
    def made(cls, services: Sequence[Service], seed: int) -> Load:
        """History and day."""
        draw = np.random.default_rng(seed)
        steps = (HISTORY_DAYS + 1) * DAY_S // GRID_S + 1
        return cls(tuple(services), np.stack([_rates(each, steps, draw) for each in services]))

    def at(self, now: datetime) -> FloatArray:
        """Of each service at an instant: float64 [services]."""
        place = self._place(now)
        low = min(max(int(place), 0), self.rates.shape[1] - 2)
        part = place - low
        return (1 - part) * self.rates[:, low] + part * self.rates[:, low + 1]

    def hourly(self, service: int, begin: datetime, hours: int) -> FloatArray:
        """The most of each of so many hours, the first one the hour before ``begin``: float64 [hours]."""
        each = 3600 // GRID_S
        first = round(self._place(begin)) - each
        return np.array([self.rates[service, first + i * each : first + (i + 1) * each].max() for i in range(hours)])

    def peaks(self) -> FloatArray:
        """The most of each service within the history: what a static number of replicas is made for."""
        return self.rates[:, : HISTORY_DAYS * DAY_S // GRID_S].max(axis=1)

    @staticmethod
    def _place(now: datetime) -> float:
        return (now - BEGIN + timedelta(days=HISTORY_DAYS)).total_seconds() / GRID_S


def _rates(service: Service, steps: int, draw: np.random.Generator) -> FloatArray:
    hours = np.arange(steps) * GRID_S / 3600
    day = np.array([service.shape(i * GRID_S / 3600) for i in range(DAY_S // GRID_S)])
    shape = np.resize(day / day.max(), steps)
    weekdays = ((hours // 24).astype(int) - HISTORY_DAYS + BEGIN.weekday()) % 7
    noise = np.empty(steps)
    kept = 0.0
    for i, fresh in enumerate(draw.normal(0.0, NOISE * math.sqrt(1 - NOISE_KEPT**2), steps)):
        noise[i] = kept = NOISE_KEPT * kept + fresh
    rates: FloatArray = service.peak_per_s * shape * np.where(weekdays >= 5, WEEKEND, 1.0) * np.exp(noise)
    return rates
