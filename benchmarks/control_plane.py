"""cardwise on a real control plane: how fast it knows a cluster, and how many pods it binds per second.

1. *Cold sync*: 1,200 nodes of 8 cards and 8,000 bound pods are created; then a process of its own lists them into a
   ledger. Time until it is synced, and its largest memory.
2. *Throughput*: the same pods, bound by the same kube-scheduler on the same nodes, once with the extender and once
   without (slots alone, any card): pods per second, and the ratio. Everything shares this machine's cores.

Takes some minutes. Run: ``python -m benchmarks.control_plane [--nodes 1200] [--pods 8000] [--burst 400]``
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
from tests.e2e.cardwise_plane import Cardwise, wait_for

from cardwise.adapters import wire
from cardwise.adapters.allocations import encode
from cardwise.adapters.node_cards import encode_cards
from cardwise.core.allocation import Allocation, Share
from cardwise.core.inventory import CardSpec

CARDS, CARD_MIB, SLICE_MIB, SLICE_PCT = 8, 81559, 4096, 5
WRITERS = 4
FILLER = "x" * 6000

SYNC = """
import asyncio, json, resource, sys, time
from pathlib import Path
from cardwise.adapters.kube.client import connect
from cardwise.core.ledger import Ledger
from cardwise.scheduler.settings import Settings, policies_of
from cardwise.adapters.watching import Watching

async def main():
    watching = Watching(Ledger(policies_of(Settings())))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    async with connect(Path(sys.argv[1])) as client:
        task = asyncio.create_task(watching.follow(client))
        while not watching.synced:
            await asyncio.sleep(0.01)
        seconds = time.perf_counter() - start
        task.cancel()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([seconds, after, before, len(watching.ledger.pods), len(watching.ledger.nodes)]))

asyncio.run(main())
"""


@click.command()
@click.option("--nodes", default=1200, show_default=True)
@click.option("--pods", default=8000, show_default=True)
@click.option("--burst", default=400, show_default=True, help="Pods whose binding is timed.")
def main(nodes: int, pods: int, burst: int) -> None:
    """Print both results."""
    with tempfile.TemporaryDirectory() as folder, Cardwise(Path(folder)) as cardwise:
        _make_nodes(cardwise, nodes)
        _make_bound_pods(cardwise, nodes, pods)
        runs = [_cold_sync(cardwise) for _ in range(3)]
        seconds, rss, before, seen_pods, seen_nodes = min(runs)
        print(
            f"cold sync of {seen_pods:,.0f} pods and {seen_nodes:,.0f} nodes: {seconds:.2f} s (best of 3), "
            f"{rss:.0f} MiB RSS, of which {before:.0f} before the first request",
            flush=True,
        )
        wait_for(lambda: len(cardwise.leader.state()["nodes"]) == nodes, 60)
        rates: dict[str, list[float]] = {"with": [], "without": []}
        for i in range(3):
            rates["with"].append(_burst(cardwise, f"with-{i}", burst, extended=True))
            rates["without"].append(_burst(cardwise, f"without-{i}", burst, extended=False))
        best = {name: max(seen) for name, seen in rates.items()}
        print(
            f"{burst} pods on {nodes:,} nodes: {best['with']:.1f} pods/s with cardwise, {best['without']:.1f} without "
            f"(best of 3 each): {100 * best['with'] / best['without']:.0f} %"
        )


def _make_nodes(cardwise: Cardwise, count: int) -> None:
    def make(i: int) -> None:
        cards = [CardSpec(f"GPU-{i}-{c}", "H100", CARD_MIB) for c in range(CARDS)]
        cardwise.plane.fake_node(
            f"node-{i:04}",
            cpu="128",
            memory="1024Gi",
            extended={wire.OWN_COUNT: 16 * CARDS},
            annotations={wire.ANNOTATION_CARDS: encode_cards(cards)},
        )

    with ThreadPoolExecutor(WRITERS) as many:
        list(many.map(make, range(count)))


def _make_bound_pods(cardwise: Cardwise, nodes: int, count: int) -> None:
    places = itertools.islice(itertools.cycle((i, c) for c in range(CARDS) for i in range(nodes)), count)

    def make(k_place: tuple[int, tuple[int, int]]) -> None:
        k, (i, c) = k_place
        node, share = f"node-{i:04}", Share(f"GPU-{i}-{c}", SLICE_MIB, SLICE_PCT)
        amounts = {wire.OWN_COUNT: "1", wire.OWN_MEMORY: str(SLICE_MIB), wire.OWN_CORES: str(SLICE_PCT)}
        container = {"name": "app", "image": "none", "resources": {"limits": amounts, "requests": amounts}}
        body = {
            "metadata": {"name": f"old-{k}", "annotations": {"benchmark": FILLER}},
            "spec": {"schedulerName": "nobody", "containers": [container]},
        }
        path = "/api/v1/namespaces/bench/pods"
        cardwise.plane.api("POST", path, body)
        annotations = {wire.ANNOTATION_ALLOC: encode(Allocation(node, (("app", (share,)),), 0, k))}
        target = {"kind": "Node", "name": node}
        binding = {"metadata": {"name": f"old-{k}", "annotations": annotations}, "target": target}
        cardwise.plane.api("POST", f"{path}/old-{k}/binding", binding)

    cardwise.plane.namespace("bench")
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/cardwise"
    cardwise.plane.api("DELETE", hooks)  # what is timed here is the scheduler, and these pods are canonical already
    with ThreadPoolExecutor(WRITERS) as many:
        list(many.map(make, enumerate(places)))


def _cold_sync(cardwise: Cardwise) -> list[float]:
    command = [sys.executable, "-c", SYNC, str(cardwise.plane.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    seen: list[float] = json.loads(done.stdout)
    return seen


def _burst(cardwise: Cardwise, name: str, count: int, *, extended: bool) -> float:
    """Pods per second from the first creation to the last binding."""
    amounts = {wire.OWN_COUNT: 1}
    if extended:
        amounts |= {wire.OWN_MEMORY: SLICE_MIB, wire.OWN_CORES: SLICE_PCT}
    scheduler = "cardwise" if extended else "plain"

    def make(i: int) -> None:
        cardwise.pod(f"{name}-{i}", amounts, "bench", spec={"schedulerName": scheduler}, labels={"burst": name})

    path = f"/api/v1/namespaces/bench/pods?labelSelector=burst%3D{name}&fieldSelector=spec.nodeName%3D"
    if not extended:
        cardwise.start_plain_scheduler()
    started = time.perf_counter()
    with ThreadPoolExecutor(WRITERS) as many:
        list(many.map(make, range(count)))
    wait_for(lambda: not cardwise.plane.api("GET", path)["items"], 300, 0.2)
    seconds = time.perf_counter() - started
    cardwise.plane.api(
        "DELETE", f"/api/v1/namespaces/bench/pods?labelSelector=burst%3D{name}", {"gracePeriodSeconds": 0}
    )
    if not extended:
        cardwise.start_kube_scheduler()
    return count / seconds


if __name__ == "__main__":
    main()
