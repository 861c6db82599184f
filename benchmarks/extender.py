"""How long kube-scheduler waits for the extender, over HTTP on loopback, and what that depends on.

1,000 nodes of 8 cards with 20,000 bound slices; one filter and one prioritize per pod, as kube-scheduler sends them.
Before each, another pod is deleted and bound anew, so that nothing can be answered from the last time; one pod at a
time is on its way from filter to bind. ``echo`` is the floor: the same server and bodies, answered without looking.
Fewer pods, or fewer nodes offered, show what the time follows.

Run: ``python -m benchmarks.extender``
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, cast

import msgspec
import numpy as np
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from rich import box
from rich.console import Console
from rich.table import Table

from cardwise.adapters import wire
from cardwise.adapters.allocations import encode
from cardwise.adapters.kube.port import All, ClusterPort, Gone, Put
from cardwise.adapters.kube_objects import Node, Pod
from cardwise.adapters.listening import serve
from cardwise.adapters.node_cards import encode_cards
from cardwise.adapters.watching import Watching
from cardwise.core.allocation import Allocation, Share
from cardwise.core.inventory import CardSpec
from cardwise.core.ledger import Ledger
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.server import Parts, Server
from cardwise.scheduler.settings import Settings, policies_of

CARDS, CARD_MIB = 8, 81559
SIZES = (1024, 2048, 4096, 8192)
ROUNDS, WARM_UP = 600, 60
FILLER = "x" * 4000
"""A pod as it comes from the API server is some 8 kB; most of it is of no interest here."""
CASES = (
    ("1,000 nodes, 20,000 pods", 1000, 20_000, 1000),
    ("1,000 nodes, 2,000 pods", 1000, 2_000, 1000),
    ("1,000 nodes, 20,000 pods, 100 offered", 1000, 20_000, 100),
    ("5,000 nodes, 100,000 pods", 5000, 100_000, 5000),
)


def main() -> None:
    """Print a row per case and policy."""
    table = Table(title="milliseconds per round trip", box=box.SIMPLE_HEAD, title_justify="left")
    for name in (
        "case",
        "answered by",
        "filter p50",
        "filter p99",
        "prioritize p99",
        "both p99",
        "both / echo",
        "RSS MiB",
    ):
        table.add_column(name, justify="left" if name in {"case", "answered by"} else "right")
    for label, nodes, pods, offered in CASES:
        echo = _measure(nodes, pods, offered, "echo")
        for mode in ("echo", "balanced", "dense"):
            times = echo if mode == "echo" else _measure(nodes, pods, offered, mode)
            both = np.percentile(times["both"], 99)
            table.add_row(
                label,
                mode,
                f"{statistics.median(times['filter']):.2f}",
                f"{np.percentile(times['filter'], 99):.2f}",
                f"{np.percentile(times['prioritize'], 99):.2f}",
                f"{both:.2f}",
                f"{both / np.percentile(echo['both'], 99):.1f} ×",
                f"{times['rss'][0]:.0f}",
            )
    Console(width=130).print(table)


def _measure(nodes: int, pods: int, offered: int, mode: str) -> dict[str, list[float]]:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.Process(target=_serve, args=(theirs, nodes, pods, mode), daemon=True)
    child.start()
    port = ours.recv()
    names = [f"node-{i:05}" for i in range(nodes)][:: nodes // offered][:offered]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    times: dict[str, list[float]] = {"filter": [], "prioritize": [], "both": []}
    for i in range(WARM_UP + ROUNDS):
        pod = _pod(f"new-{i}", SIZES[i % len(SIZES)])
        started = time.perf_counter()
        answer = _post(connection, "/filter", {"Pod": pod, "Nodes": None, "NodeNames": names})
        filtered = time.perf_counter()
        _post(connection, "/prioritize", {"Pod": pod, "Nodes": None, "NodeNames": answer["NodeNames"]})
        ended = time.perf_counter()
        if i >= WARM_UP:
            times["filter"].append(1e3 * (filtered - started))
            times["prioritize"].append(1e3 * (ended - filtered))
            times["both"].append(1e3 * (ended - started))
    connection.close()
    ours.send("end")
    times["rss"] = [ours.recv()]
    child.join(10)
    return times


def _post(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())


def _pod(name: str, mib: int, node: str = "", share: Share | None = None) -> dict[str, Any]:
    annotations = {"filler": FILLER}
    if share is not None:
        annotations[wire.ANNOTATION_ALLOC] = encode(Allocation(node, (("app", (share,)),)))
    amounts = {wire.OWN_COUNT: "1", wire.OWN_MEMORY: str(mib), wire.OWN_CORES: "5"}
    container = {"name": "app", "resources": {"limits": amounts, "requests": {**amounts, "cpu": "100m"}}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": annotations},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running" if node else "Pending"},
    }


def _cluster(nodes: int, pods: int) -> tuple[list[Node], list[Pod]]:
    cards = [[CardSpec(f"GPU-{i}-{c}", "H100", CARD_MIB) for c in range(CARDS)] for i in range(nodes)]
    told = [
        {
            "metadata": {"name": f"node-{i:05}", "annotations": {wire.ANNOTATION_CARDS: encode_cards(cards[i])}},
            "status": {"allocatable": {"cpu": "128", "memory": "1024Gi"}},
        }
        for i in range(nodes)
    ]
    places = itertools.cycle((i, c) for c in range(CARDS) for i in range(nodes))
    bound = [_bound(k, *next(places)) for k in range(pods)]
    return msgspec.convert(told, list[Node]), bound


def _bound(k: int, node: int, place: int) -> Pod:
    mib = SIZES[k % len(SIZES)]
    return msgspec.convert(_pod(f"old-{k}", mib, f"node-{node:05}", Share(f"GPU-{node}-{place}", mib, 5)), Pod)


# ---------------------------------------------------------------- the server, in a process of its own


def _serve(pipe: Connection, nodes: int, pods: int, mode: str) -> None:
    asyncio.run(_serving(pipe, nodes, pods, mode))


async def _serving(pipe: Connection, nodes: int, pods: int, mode: str) -> None:
    if mode == "echo":
        app = _echo_app()
    else:
        ledger = Ledger(policies_of(Settings(policy={"latency-sensitive": mode})))
        watching = Watching(ledger)
        told, bound = _cluster(nodes, pods)
        watching.hear_node(All(tuple(told)))
        watching.hear_pod(All(tuple(bound)))
        extender = Extender(ledger, time.monotonic)
        nobody = cast(ClusterPort, None)  # nothing is written here
        binder = Binder(nobody, ledger, extender, lambda: None)
        app = Server(Parts(nobody, ledger, watching, extender, binder, lambda: None)).extender_app()
        app.middlewares.append(_changing(watching, extender, iter(itertools.cycle(bound))))
    runner, port = await serve(app, "127.0.0.1", 0, None)
    pipe.send(port)
    while not pipe.poll():
        await asyncio.sleep(0.2)
    pipe.recv()
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    await runner.cleanup()


def _echo_app() -> web.Application:
    async def echo(request: web.Request) -> web.Response:
        told = json.loads(await request.read())
        return web.json_response({"NodeNames": told["NodeNames"][:64], "FailedNodes": {}, "Error": ""})

    app = web.Application(client_max_size=2**24)
    app.add_routes([web.post("/filter", echo), web.post("/prioritize", echo)])
    return app


def _changing(watching: Watching, extender: Extender, bound: Iterator[Pod]) -> Middleware:
    """Before each filter a pod goes and another comes: two nodes' costs are stale. The pod before the last is bound."""
    count = itertools.count()

    @web.middleware
    async def change(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/filter":
            pod = next(bound)
            watching.hear_pod(Gone(pod))
            watching.hear_pod(Put(pod))
            extender.forget(f"new-{next(count) - 2}")
        return await handler(request)

    return change


if __name__ == "__main__":
    main()
