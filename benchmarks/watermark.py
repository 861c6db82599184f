"""Whether memory comes back in time: how soon a nearly full card is acted on, and who runs out of memory.

The real agent over a fake driver; tenants are real processes whose memory on an A100 of 80 GB is a script. In each
scenario a latency-sensitive tenant asks for more while best-effort ones take what they get. ``off`` is the same without
reclaim. What
is counted: milliseconds from the high mark to the decision and to the low mark, the card's peak, tenants that asked for
memory that was not there, and evictions without an event that says why.

Run: ``python -m benchmarks.watermark`` (needs a C compiler for the fake driver, see CONTRIBUTING)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import structlog
from rich import box
from rich.console import Console
from rich.table import Table
from tests.agent.a_node import GpuNode
from tests.agent.memory import Tenants

CARD_MIB = 81_278
"""What may be handed out of it."""
HIGH, LOW = 0.90, 0.85
POLL_S = 0.005
FOR_S = 7.0
GRACE_S = 2
Act = Callable[["Scene"], Awaitable[None]]


@dataclass(slots=True)
class Seen:
    """One run. Seconds on the loop's clock; None: it did not happen."""

    high_s: float | None = None
    decided_s: float | None = None
    low_s: float | None = None
    peak_share: float = 0.0
    ooms: list[str] = field(default_factory=list)
    evicted: int = 0
    unexplained: int = 0


@dataclass(slots=True)
class Scene:
    """What a scenario moves: the node, its tenants, and who they are."""

    node: Any
    tenants: Any
    latency: Any = None
    be: list[Any] = field(default_factory=list)

    async def people(self, latency_mib: int, *be_mib: int, stubborn: bool = False) -> None:
        """A latency-sensitive tenant and best-effort ones; all were given more than they use by now."""
        self.latency = await self.tenants.add("latency", latency_mib, granted_mib=46_000)
        for i, mib in enumerate(be_mib):
            more = {"granted_mib": 40_000, "lent_mib": 8000, "best_effort": True, "stubborn": stubborn}
            self.be.append(await self.tenants.add(f"be-{i}", mib, **(more if len(be_mib) == 1 else _half(more))))
            self.be[-1].greedy = True


def _half(more: dict[str, Any]) -> dict[str, Any]:
    return {**more, "granted_mib": more["granted_mib"] // 2, "lent_mib": more["lent_mib"] // 2}


async def ramp(scene: Scene) -> None:
    """The best-effort tenant grows by 3 % of the card each second; the other by 1 %."""
    await scene.people(40_000, 26_000)
    scene.be[0].per_s, scene.latency.per_s, scene.latency.most_mib = 2400, 800, 45_000


async def spike(scene: Scene) -> None:
    """It takes 12 % of the card at once, less than a sample apart, and goes on."""
    await scene.people(40_000, 26_000)
    await asyncio.sleep(1.5)
    scene.be[0].mib += 9750
    scene.be[0].per_s, scene.latency.per_s, scene.latency.most_mib = 3000, 800, 45_000


async def piece(scene: Scene) -> None:
    """It takes 10 % at once and no more: there is time to be graceful."""
    await scene.people(40_000, 26_000)
    await asyncio.sleep(1.5)
    scene.be[0].mib += 8200
    scene.latency.per_s, scene.latency.most_mib = 800, 45_000


async def two(scene: Scene) -> None:
    """Two grow at once."""
    await scene.people(40_000, 13_000, 13_000)
    for each in scene.be:
        each.per_s, each.most_mib = 1600, 20_000
    scene.latency.per_s, scene.latency.most_mib = 800, 45_000


async def restarted(scene: Scene) -> None:
    """The agent is restarted at 89 % while it grows."""
    await scene.people(40_000, 32_300)
    await scene.node.stop_agent()
    scene.be[0].per_s, scene.be[0].most_mib = 400, 33_600
    await scene.node.start_agent()
    scene.be[0].per_s, scene.be[0].most_mib = 2400, 10**6
    scene.latency.per_s, scene.latency.most_mib = 800, 45_000


async def alone(scene: Scene) -> None:
    """The API server is gone."""
    await ramp(scene)
    scene.node.port.down = True


async def stubborn(scene: Scene) -> None:
    """The API server is gone, and the tenant does not heed SIGTERM."""
    await scene.people(40_000, 26_000, stubborn=True)
    scene.node.port.down = True
    scene.be[0].per_s, scene.latency.per_s, scene.latency.most_mib = 2400, 800, 45_000


async def between(scene: Scene) -> None:
    """Up and down between the marks: nobody has to go."""
    await scene.people(40_000, 29_800)
    for _ in range(12):
        scene.be[0].mib = 32_600 if scene.be[0].mib < 31_000 else 29_800
        await asyncio.sleep(0.6)


SCENARIOS: dict[str, Act] = {
    "a ramp": ramp,
    "a spike between two samples": spike,
    "one large piece": piece,
    "two at once": two,
    "agent restarted at 89 %": restarted,
    "API server gone": alone,
    "API server gone, SIGTERM ignored": stubborn,
    "between the marks": between,
}


def main() -> None:
    """Run all scenarios with and without reclaim, and print."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("scenario", "decided ms", "low ms", "peak %", "evicted", "unexplained", "OOM latency", "OOM other"):
        table.add_column(name, justify="left" if name == "scenario" else "right")
    table.add_column("off: OOM latency", justify="right")
    for name, act in SCENARIOS.items():
        seen, off = (asyncio.run(_run(act, mode)) for mode in ("best-effort", "off"))
        table.add_row(name, *_row(seen), str(off.ooms.count("latency")))
    Console(width=140).print(table)


def _row(seen: Seen) -> list[str]:
    latency = seen.ooms.count("latency")
    since = [_ms(seen.high_s, seen.decided_s), _ms(seen.decided_s and seen.high_s, seen.low_s)]
    counts = (seen.evicted, seen.unexplained, latency, len(seen.ooms) - latency)
    return [*since, f"{100 * seen.peak_share:.1f}", *map(str, counts)]


def _ms(from_s: float | None, to_s: float | None) -> str:
    return "-" if from_s is None or to_s is None else f"{1000 * (to_s - from_s):.0f}"


async def _run(act: Act, mode: str) -> Seen:
    settings = {"reclaim": mode, "memory_every_s": 0.25, "reclaim_grace_s": GRACE_S}
    machine: Any = GpuNode  # of the tests, which are not typed
    people: Any = Tenants
    async with machine("A100-80", settings=settings) as node, people(node) as tenants:
        seen = Seen()
        watching = asyncio.create_task(_watch(node, tenants, seen))
        await act(Scene(node, tenants))
        await asyncio.sleep(FOR_S)
        watching.cancel()
        seen.ooms = list(tenants.ooms)
        seen.peak_share = tenants.peak_mib[0] / CARD_MIB
        node.port.down = False
        await asyncio.sleep(2 * node.agent.reclaiming.evicting.again_s + 0.5)
        told = {each["involvedObject"].get("name") for each in node.port.events if "to come down to" in each["message"]}
        evicted = {each.pod for each in node.agent.journal.evictions.values()}
        seen.evicted, seen.unexplained = len(evicted), len(evicted - told)
        return seen


async def _watch(node: Any, tenants: Any, seen: Seen) -> None:  # noqa: ANN401 - of the tests, which are not typed
    """When the marks were passed, and when it was decided."""
    loop = asyncio.get_running_loop()
    while True:
        share, now_s = tenants.used_mib() / CARD_MIB, loop.time()
        if seen.high_s is None and share >= HIGH:
            seen.high_s = now_s
        if seen.decided_s is None and node.agent is not None and node.agent.journal.evictions:
            seen.decided_s = now_s
        if seen.decided_s is not None and seen.low_s is None and share <= LOW:
            seen.low_s = now_s
        await asyncio.sleep(POLL_S)


if __name__ == "__main__":
    main()
