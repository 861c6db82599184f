"""Real requests at some hours of the day: emulated engines behind a real gateway, the same generator for every arm.

At a moment, each arm has so many replicas of each service and the same rates. Its engines are made as slow as what is
beside them on their cards makes them: a replica's times grow by ``interference`` times the share of its card's compute
that others use then. That is a model, and a mild one: limits on compute are taken to hold (MPS), what is shared all the
same (memory bandwidth, caches) is taken to cost in proportion. Rates and replicas are those of the day, unscaled: the
engines are slow enough that a small machine serves them all.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.day.load import Service
from benchmarks.day.play import Moment
from benchmarks.day.processes import started
from benchmarks.serving.cells import carried_out
from benchmarks.serving.machine import watched
from benchmarks.serving.ours import break_engine, gateway_toml
from benchmarks.serving.procs import HOST, Server, answers, free_port
from cardwise.loadtest.curve import Step
from cardwise.loadtest.plan import Kind, Load, Plan, Target, Tensor, endpoint_of, oip_bodies, split_url

WARM_UP_S, TIMEOUT_S = 1.0, 10.0
ROW = 16
PROBE_MS = 500.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What callers saw of one service at one hour, in one arm. slow: the mean factor on its engines' times."""

    arm: str
    service: str
    hour: float
    rate_per_s: float
    replicas: int
    slow: float
    step: Step

    @property
    def p99_ms(self) -> float:
        """Of good answers."""
        return self.step.p99_ms

    @property
    def lost(self) -> int:
        """Requests that were not answered well."""
        return self.step.offered - self.step.outcomes.ok


@dataclass(frozen=True, slots=True)
class Cell:
    """One moment of one arm. foreign_cores: what others took of this machine meanwhile."""

    arm: str
    hour: float
    asked: tuple[Asked, ...]
    foreign_cores: float


class Stage:
    """Engines that are kept, and processes that ask."""

    def __init__(self, services: Sequence[Service], urls: Sequence[Sequence[str]], pool: ProcessPoolExecutor) -> None:
        """urls: of the engines of each service."""
        self._services, self._urls, self._pool = services, urls, pool

    def measure(self, arm: str, moment: Moment, interference: float, seconds: float, seed: int) -> Cell:
        """All services at once, for some seconds."""
        slows = [[1 + interference * share for share in beside] for beside in moment.beside]
        urls = [each[: len(factors)] for each, factors in zip(self._urls, slows, strict=True)]
        for each, factors in zip(urls, slows, strict=True):
            for url, factor in zip(each, factors, strict=True):
                break_engine(url, {"slow-factor": factor})
        with _gateway(self._services, urls) as gateway, watched([gateway.pid]) as used:
            waiting = [
                self._pool.submit(_ask, gateway.url, service.name, service.target_p99_ms, rate, seconds, seed + i)
                for i, (service, rate) in enumerate(zip(self._services, moment.rates, strict=True))
            ]
            steps = [each.result() for each in waiting]
        asked = tuple(
            Asked(arm, service.name, moment.hour, rate, len(factors), sum(factors) / max(len(factors), 1), step)
            for service, rate, factors, step in zip(self._services, moment.rates, slows, steps, strict=True)
        )
        return Cell(arm, moment.hour, asked, used.foreign_cores)


@contextlib.contextmanager
def stage(services: Sequence[Service], most: Sequence[int]) -> Iterator[Stage]:
    """Engines up, and one process per service that asks."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(services), context) as pool, tempfile.TemporaryDirectory(prefix="cw-day-") as folder:
        told = Path(folder) / "urls.json"
        wanted = [_engine(service) for service, number in zip(services, most, strict=True) for _ in range(number)]
        command = [sys.executable, "-m", "benchmarks.day.engines", json.dumps(wanted), str(told)]
        with started("engines", command, told.exists):
            urls = iter(json.loads(told.read_text()))
            yield Stage(services, [[next(urls) for _ in range(number)] for number in most], pool)


def _engine(service: Service) -> dict[str, object]:
    """Its settings."""
    return {
        "model": service.name,
        "t0_ms": 1000 * service.cost.t0_s,
        "t1_ms": 1000 * service.cost.t1_s,
        "max_batch": service.max_batch,
        "test_doors": True,
    }


@contextlib.contextmanager
def _gateway(services: Sequence[Service], urls: Sequence[Sequence[str]]) -> Iterator[Server]:
    """``cardwise gateway`` before these replicas: one service each."""
    port, admin = free_port(), free_port()
    told = [_settings(service, replicas) for service, replicas in zip(services, urls, strict=True)]
    with tempfile.TemporaryDirectory(prefix="cw-day-") as folder:
        config = Path(folder) / "gateway.toml"
        config.write_text(gateway_toml(port, admin, told))
        command = [sys.executable, "-m", "cardwise", "gateway", "--config", str(config)]
        with started("gateway", command, lambda: answers(f"http://{HOST}:{admin}/readyz")) as pid:
            yield Server("gateway", pid, f"http://{HOST}:{port}")


def _settings(service: Service, replicas: Sequence[str]) -> dict[str, object]:
    return {
        "name": service.name,
        "kind": "oip",
        "model": service.name,
        "target-p99-ms": service.target_p99_ms,
        "max-batch": service.max_batch,
        "one-ms": 1000 * service.cost.batch_time_s(1),
        "full-batch-ms": 1000 * service.cost.batch_time_s(service.max_batch),
        "probe-every-ms": PROBE_MS,
        "replicas": list(replicas),
    }


def _ask(url: str, model: str, target_p99_ms: float, rate_per_s: float, seconds: float, seed: int) -> Step:
    """In a process of its own: independent callers of one service."""
    headers = (("Content-Type", "application/json"),)
    bodies = oip_bodies([Tensor("x", "FP32", (1, ROW))], seed=seed)
    path = f"/v2/models/{model}/infer"
    target = Target(endpoint_of(split_url(url)), path, Kind.OIP, headers=headers, bodies=bodies)
    plan = Plan(
        seconds=seconds,
        warm_up_s=WARM_UP_S,
        timeout_s=TIMEOUT_S,
        target_p99_ms=target_p99_ms,
        seed=seed,
        steps=(Load(rate_per_s=rate_per_s),),
    )
    return carried_out(target, plan).steps[0]
