"""One cell of a table: a load held against a server for some seconds, by the load generator that users have.

The generator runs in this process, so that what it cannot do is seen beside what it measures: its own longest stall.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.serving import table
from benchmarks.serving.machine import Used, watched
from benchmarks.serving.procs import Server
from cardwise.loadtest.curve import Curve, Step
from cardwise.loadtest.measure import Quantiles
from cardwise.loadtest.plan import Kind, Load, Plan, Target, Tensor, endpoint_of, oip_bodies, split_url
from cardwise.loadtest.run import Listener, run

TARGET_MS = 250.0
"""The P99 that the emulated service promises: what counts as in time."""
WARM_UP_S = 0.5
ROW = 16
"""Numbers in a request: a body of some hundred bytes."""
VARIANTS = 16
MOST_UNFINISHED = 4000
_JSON = (("Content-Type", "application/json"),)


@dataclass(frozen=True, slots=True)
class Cell:
    """A step, and whose CPU time it took."""

    step: Step
    used: Used

    @property
    def p50_ms(self) -> float:
        """Of good answers; nan if there was none."""
        return _of(self.step.latency_ms).p50

    @property
    def p99_ms(self) -> float:
        """Of good answers; nan if there was none."""
        return _of(self.step.latency_ms).p99

    @property
    def rejection_p99_ms(self) -> float:
        """After which time the slowest of the refused heard it; nan if none was."""
        return _of(self.step.rejection_ms).p99

    @property
    def cpu_us(self) -> float:
        """Microseconds of the servers' CPU per request, warm-up included."""
        return 1e6 * self.used.server_cores * self.used.seconds / max(self.step.issued + self.step.warm_up_issued, 1)


def _of(quantiles: Quantiles | None) -> Quantiles:
    nan = math.nan
    return quantiles or Quantiles(0, nan, nan, nan, nan, nan, nan)


def hold(target: Target, load: Load, servers: Sequence[Server], *, seconds: float, timeout_s: float = 10.0) -> Cell:
    """Hold a load. Raises UserError if the server cannot be asked, KeyboardInterrupt on Ctrl-C."""
    plan = Plan(
        seconds=seconds,
        warm_up_s=WARM_UP_S,
        timeout_s=timeout_s,
        most_unfinished=MOST_UNFINISHED,
        target_p99_ms=TARGET_MS,
        steps=(load,),
    )
    with watched([each.pid for each in servers]) as used:
        curve = carried_out(target, plan)
    step = curve.steps[0]
    if step.errors:  # in no table's figures but in what is missing there
        told = ", ".join(f"{count} × {reason}" for reason, count in step.errors.items())
        table.doing(f"{step.name}: errors at {target.url}: {told}")
    return Cell(step, used)


def carried_out(target: Target, plan: Plan, listener: Listener | None = None) -> Curve:
    """A whole plan. The generator hears Ctrl-C itself and ends with what it has; here that ends everything."""
    curve = run(target, plan, listener or Listener())
    if curve.ended == "interrupt":
        raise KeyboardInterrupt
    return curve


def oip(url: str) -> Target:
    """The emulated model by Open Inference Protocol: what cardwise and MLServer speak."""
    bodies = oip_bodies([Tensor("x", "FP32", (1, ROW))], seed=1)
    return Target(endpoint_of(split_url(url)), "/v2/models/emulated/infer", Kind.OIP, headers=_JSON, bodies=bodies)


def plain_json(url: str, *, listed: bool) -> Target:
    """The same numbers as an object; listed: as a batch of one row, for who joins batches."""
    draw = random.Random(1)  # noqa: S311 - not for secrets
    rows = [[round(draw.random(), 4) for _ in range(ROW)] for _ in range(VARIANTS)]
    bodies = tuple(json.dumps({"x": [row] if listed else row}).encode() for row in rows)
    return Target(endpoint_of(split_url(url)), "/predict", Kind.PLAIN, headers=_JSON, bodies=bodies)


def get(url: str) -> Target:
    """GET of the root, for a static upstream."""
    return Target(endpoint_of(split_url(url)), "/", Kind.PLAIN, method="GET")
