"""``limiter``: how soon the gateway finds the knee of a contended card, and how well it holds it (SPEC D3).

The oracle is the best fixed limit, found by a sweep in the same run, and then measured for as long as the limiter is.
More is asked than the card can do: 1.3 times its peak, by independent callers, with a short queue. The limit begins at
50. Then the card loses half of its capacity, and gets it back, while the load stays.
"""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.serving import ours, table
from benchmarks.serving.cells import carried_out, hold, oip
from benchmarks.serving.machine import Used, watched
from benchmarks.serving.procs import Server
from cardwise.engine.model import CONTENDED_COST, CONTENTION
from cardwise.loadtest.curve import Step
from cardwise.loadtest.measure import GROWTH, LEAST_S, merged, restored
from cardwise.loadtest.plan import Load, Plan
from cardwise.loadtest.run import Listener

TARGET_MS = 200.0
FIRST_LIMIT = 50
CALLERS = 50
PEAK_PER_S = CONTENTION.speedup(5) / CONTENDED_COST.batch_time_s(1)
"""118 requests/s, at its knee."""
RATE_PER_S = 1.3 * PEAK_PER_S
BROKEN: Mapping[str, object] = {"contention-factor": 2.78, "slow-factor": 1.5}
"""The knee at 3 instead of 5, and half of the throughput."""
WHOLE_LIMITS, BROKEN_LIMITS = (2, 3, 4, 5, 6, 7, 8, 10, 14), (1, 2, 3, 4, 5, 7)
NEAR_SHARE = 0.9
STEADY_OVER = 3
"""Blocks that have to be near on average: a single one may be so by luck."""
_SERVICE: Mapping[str, object] = {
    "name": "contended",
    "kind": "pass",
    "path": "/",
    "probe-path": "/v2/health/ready",
    "target-p99-ms": TARGET_MS,
    "depth": 4,
}
_ADAPTIVE: Mapping[str, object] = {"first-limit": FIRST_LIMIT}
_COLUMNS = (
    "<card",
    "<limit",
    "found after",
    "goodput/s",
    "of oracle",
    "p50 ms",
    "p99 ms",
    "× oracle",
    "foreign",
    "stall ms",
)
_PHASES = ("whole, from cold", "loses half", "whole again")


@dataclass(frozen=True, slots=True)
class Steady:
    """What is left after the search: goodput within the target, and latencies."""

    goodput_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Oracle:
    """The best fixed limit. goodputs: of the sweep, by limit."""

    limit: int
    goodputs: Mapping[int, float]
    steady: Steady
    foreign_cores: float
    stall_ms: float


def run(*, quick: bool) -> None:
    """Measure and print."""
    cell_s, phase_s = (1.5, 10.0) if quick else (2.5, 20.0)
    with ours.engine("--device", "contended", "--faults") as engine:
        whole = _oracle(engine, WHOLE_LIMITS, cell_s, phase_s / 2)
        ours.break_engine(engine.url, BROKEN)
        broken = _oracle(engine, BROKEN_LIMITS, cell_s, phase_s / 2)
        ours.break_engine(engine.url, {})
        table.doing(
            f"the limiter, from {FIRST_LIMIT}: {phase_s:g} s, half the capacity {phase_s:g} s, again {phase_s:g} s"
        )
        steps, limits, used = _adapted(engine, phase_s)
        rows = list(_lines((whole, broken, whole), steps, limits, used, phase_s))
        workers = list(_workers(engine, whole.limit, cell_s))
    title = f"contended card, {RATE_PER_S:.0f}/s asked (1.3 × its peak), target {TARGET_MS:g} ms"
    table.show(title, _COLUMNS, rows, (*_swept("whole", whole), *_swept("at half", broken)))
    title = f"{CALLERS} callers that wait: the limit alone (reference: 50 workers to 4 cut P99 by 80 %)"
    table.show(title, ("<limit", "answers/s", "p50 ms", "p99 ms", "p99 of fixed 50", "foreign"), workers)


# ---------------------------------------------------------------- the oracle


def _oracle(engine: Server, limits: Sequence[int], cell_s: float, steady_s: float) -> Oracle:
    table.doing(f"the oracle: fixed limits {', '.join(map(str, limits))}")
    load = Load(rate_per_s=RATE_PER_S)
    goodputs = {}
    for limit in limits:
        goodputs[limit] = good_per_s(_fixed(engine, limit, load, cell_s)[0])
    best = best_limit(goodputs)
    step, used = _fixed(engine, best, load, steady_s)
    return Oracle(best, goodputs, _steady(step, 0), used.foreign_cores, step.stall_ms)


def best_limit(goodputs: Mapping[int, float]) -> int:
    """The limit with the most goodput; of equals the smaller. Raises ValueError if there is none."""
    return max(goodputs, key=lambda limit: (goodputs[limit], -limit))


def _fixed(engine: Server, limit: int, load: Load, seconds: float) -> tuple[Step, Used]:
    with ours.gateway({**_SERVICE, "limit": limit}, [engine.url]) as gateway:
        cell = hold(oip(gateway.url), load, [gateway], seconds=seconds)
    return cell.step, cell.used


# ---------------------------------------------------------------- the limiter


def _adapted(engine: Server, phase_s: float) -> tuple[list[Step], list[int], Used]:
    """A step per phase, and the limit at the end of each. The card changes between two steps, at once."""
    scripts = iter((BROKEN, {}))
    limits: list[int] = []
    with ours.gateway({**_SERVICE, **_ADAPTIVE}, [engine.url]) as gateway:

        def _next(_step: Step) -> None:
            limits.append(_limit_now(gateway))
            if (script := next(scripts, None)) is not None:
                ours.break_engine(engine.url, script)

        load = Load(rate_per_s=RATE_PER_S)
        plan = Plan(seconds=phase_s, warm_up_s=0.0, target_p99_ms=TARGET_MS, steps=(load,) * len(_PHASES))
        with watched([gateway.pid]) as used:
            curve = carried_out(oip(gateway.url), plan, Listener(on_step=_next))
    return curve.steps, limits, used


def _limit_now(gateway: Server) -> int:
    with urllib.request.urlopen(f"{gateway.admin_url}/metrics", timeout=5) as answer:  # noqa: S310 - loopback
        found = re.search(r"^cardwise_gateway_limit\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
    return int(float(found[1])) if found else 0


def good_per_s(step: Step) -> float:
    """Answers within the target, by when they were asked for, per second."""
    return step.good / step.seconds


def good_by_block(step: Step) -> list[float]:
    """The same, of each part of the time."""
    most = int(np.log(TARGET_MS / 1000 / LEAST_S) / np.log(GROWTH))
    seconds = step.seconds / len(step.blocks)
    return [float(restored(block).counts[:most].sum()) / seconds for block in step.blocks]


def found_after(series: Sequence[float], goal: float, over: int = STEADY_OVER) -> int | None:
    """The first place from which on ``over`` values reach the goal on average; None if there is none."""
    for i in range(len(series) - over + 1):
        if sum(series[i : i + over]) >= over * goal:
            return i
    return None


def _steady(step: Step, first: int) -> Steady:
    """Of the blocks from ``first`` on."""
    late = merged(map(restored, step.blocks[first:]))
    goodputs = good_by_block(step)[first:]
    return Steady(sum(goodputs) / len(goodputs), 1000 * late.quantile_s(0.5), 1000 * late.quantile_s(0.99))


# ---------------------------------------------------------------- what is shown


def _lines(
    oracles: Sequence[Oracle], steps: Sequence[Step], limits: Sequence[int], used: Used, phase_s: float
) -> Iterator[Sequence[str]]:
    for phase, oracle, step, limit in zip(_PHASES, oracles, steps, limits, strict=True):
        best = oracle.steady
        fixed = f"oracle: {oracle.limit}"
        yield (phase, fixed, "", *_figures(best, best), f"{oracle.foreign_cores:.2f}", table.ms(oracle.stall_ms))
        block_s = phase_s / len(step.blocks)
        found = found_after(good_by_block(step), NEAR_SHARE * best.goodput_per_s)
        after = "not" if found is None else f"{found * block_s:.1f} s"
        figures = _figures(_steady(step, len(step.blocks) // 2), best)
        yield (
            "",
            f"limiter, {limit} at the end",
            after,
            *figures,
            f"{used.foreign_cores:.2f}",
            table.ms(step.stall_ms),
        )


def _figures(steady: Steady, best: Steady) -> Iterator[str]:
    yield table.number(steady.goodput_per_s, 1)
    yield table.percent(steady.goodput_per_s, best.goodput_per_s)
    yield table.ms(steady.p50_ms)
    yield table.ms(steady.p99_ms)
    yield table.times(steady.p99_ms, best.p99_ms)


def _swept(what: str, oracle: Oracle) -> Iterator[str]:
    told = ", ".join(f"{limit}: {goodput:.0f}" for limit, goodput in oracle.goodputs.items())
    yield f"goodput/s by fixed limit, {what}: {told}"


def _workers(engine: Server, best: int, cell_s: float) -> Iterator[Sequence[str]]:
    """Nobody is refused here: what the limit holds back waits in the gateway."""
    table.doing(f"{CALLERS} callers: fixed {CALLERS}, fixed {best}, the limiter")
    load, base_ms = Load(concurrency=CALLERS), 0.0
    room: Mapping[str, object] = {**_SERVICE, "depth": 2 * CALLERS, "target-p99-ms": 0.0}
    settings = ((f"fixed {CALLERS}", {"limit": CALLERS}), (f"fixed {best}", {"limit": best}), ("limiter", _ADAPTIVE))
    for name, setting in settings:
        with ours.gateway({**room, **setting}, [engine.url]) as gateway:
            if setting is _ADAPTIVE:  # what it needs to find the knee is in the table above
                hold(oip(gateway.url), load, [gateway], seconds=4 * cell_s)
            cell = hold(oip(gateway.url), load, [gateway], seconds=2 * cell_s)
            limit = f", at last {_limit_now(gateway)}" if setting is _ADAPTIVE else ""
        base_ms = base_ms or cell.p99_ms
        yield (
            f"{name}{limit}",
            table.number(cell.step.ok_per_s, 1),
            table.ms(cell.p50_ms),
            table.ms(cell.p99_ms),
            table.percent(cell.p99_ms, base_ms),
            f"{cell.used.foreign_cores:.2f}",
        )
