"""The page: what a state costs the server, and how soon a browser shows it, beside the same page of two nodes.

1. *Server*: a ledger of 1,000 nodes of 8 cards with 24,000 slices, and 500 pods of 200 services that wait: time to work
   the state out, to encode it and to find what changed; its size, plain and deflated.
2. *Browser*: time from the navigation to the first contentful paint, and until the state is drawn; and from a change
   until it is drawn. On this machine, over loopback, beside a page of 16 cards in the same run.

Needs Chromium. Run: ``python -m benchmarks.page [--nodes 1000]``
"""

from __future__ import annotations

import asyncio
import statistics
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec
from tests.e2e.browser import browser

from cardwise.config import DEFAULT_POLICY, policies_by_class
from cardwise.core.allocation import Allocation, BoundPod, Share
from cardwise.core.claim import Claim, ContainerAsk, Stage
from cardwise.core.inventory import CardSpec, NodeSpec
from cardwise.core.ledger import Ledger
from cardwise.core.request import Shape
from cardwise.scheduler import telling
from cardwise.web.changes import changes
from cardwise.web.page import Frame, serve_page

CARDS, CARD_MIB, SLICES, SERVICES, WAITING = 8, 24576, 3, 200, 500
REPEATS = 5
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
DRAWN = "document.querySelector('#sums div') && performance.now()"
CHANGED = "document.getElementById('notes').innerText.includes('new')"


class Shown:
    """A source that shows one state after the other."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.latest: Mapping[str, Any] = state

    def explain(self, _name: str) -> None:
        """Nothing is asked for."""


def claim(number: int, mib: int) -> Claim:
    """A pod of one of the services."""
    shape = Shape(1, memory_mib=mib, compute_milli=200)
    service = f"ns/service-{number % SERVICES}"
    asks = (ContainerAsk("app", Stage.APP, shape),)
    return Claim(f"uid-{number}", f"{service}-{number}", asks, service=service)


def filled(nodes: int) -> Ledger:
    """Nodes whose cards have three slices each."""
    specs = [
        NodeSpec(f"n{i:04}", 64_000, 262_144, tuple(CardSpec(f"GPU-{i}-{c}", "A10", CARD_MIB) for c in range(CARDS)))
        for i in range(nodes)
    ]
    places = [(spec, card) for spec in specs for card in spec.cards for _ in range(SLICES)]
    pods = [
        BoundPod(
            claim(i, 4096),
            spec.name,
            Allocation(spec.name, (("app", (Share(card.uuid, 4096, 20),)),), epoch=1, seq=i + 1),
        )
        for i, (spec, card) in enumerate(places)
    ]
    ledger = Ledger(policies_by_class(dict(DEFAULT_POLICY), 0))
    ledger.reset(specs, pods)
    return ledger


def timed_ms(work: Callable[[], object]) -> float:
    """The median of some runs."""
    took = []
    for _ in range(REPEATS):
        start_s = time.perf_counter()
        work()
        took.append(1000 * (time.perf_counter() - start_s))
    return statistics.median(took)


async def seen_ms(state: Mapping[str, Any]) -> tuple[float, float, float]:
    """First contentful paint, the state drawn, and a change of one node until it is drawn. Medians, in ms."""
    paints, draws, news = [], [], []
    for _ in range(REPEATS):
        source = Shown(state)
        async with serve_page(source, 0, Frame("cardwise", "benchmark")) as url, browser() as page:
            await page.tab.set_viewport_size({"width": 1200, "height": 900})
            await page.tab.goto(url)
            draws.append(await page.until(DRAWN))
            paints.append(await page.until(PAINTED))
            await page.until("document.getElementById('live').textContent === 'live'")
            first = state["nodes"][0]
            fenced = {**first, "fenced": True}
            start_s = time.perf_counter()
            source.latest = {**state, "version": 2, "notes": ["new"], "nodes": [fenced, *state["nodes"][1:]]}
            await page.until(CHANGED)
            news.append(1000 * (time.perf_counter() - start_s))
    return statistics.median(paints), statistics.median(draws), statistics.median(news)


def measure(nodes: int, waiting: Mapping[str, Claim]) -> None:
    """Measure one size and print it."""
    ledger = filled(nodes)
    state = {"version": 1, "problem": "", **telling.state(ledger, waiting, ())}
    body = msgspec.json.encode(state)
    later = {**state, "version": 2, "nodes": telling.state(ledger, {}, ())["nodes"]}
    print(
        f"\n{nodes:,} nodes, {nodes * CARDS:,} cards, {nodes * CARDS * SLICES:,} slices, {len(waiting)} pods that wait"
    )
    print(f"  state worked out in  {timed_ms(lambda: telling.state(ledger, waiting, ())):8.1f} ms")
    print(f"  without pods waiting {timed_ms(lambda: telling.state(ledger, {}, ())):8.1f} ms")
    print(f"  encoded in           {timed_ms(lambda: msgspec.json.encode(state)):8.1f} ms")
    print(f"  compared in          {timed_ms(lambda: changes(state, later)):8.1f} ms")
    print(f"  size                 {len(body) / 1e6:8.2f} MB, deflated {len(zlib.compress(body)) / 1e6:.2f} MB")
    painted, drawn, changed = asyncio.run(seen_ms(state))
    print(f"  first paint          {painted:8.1f} ms")
    print(f"  state drawn          {drawn:8.1f} ms")
    print(f"  a change drawn after {changed:8.1f} ms, of which it waits up to 500 for its turn")


@click.command()
@click.option("--nodes", default=1000, show_default=True, help="Nodes of eight cards.")
def main(nodes: int) -> None:
    """Measure and print."""
    waiting = {each.uid: each for each in (claim(10**6 + i, 20_000) for i in range(WAITING))}
    for count in (2, nodes):
        measure(count, waiting)


if __name__ == "__main__":
    main()
