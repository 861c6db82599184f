"""How long one decision takes, and how that grows with the cluster: kept costs against working every node out afresh.

Synthetic clusters of 100 to 10,000 nodes are filled to nine tenths by ``best-fit``; then pods of the mix arrive and the
oldest leave, and every decision is timed. ``afresh`` is the same policy with nothing kept between decisions: the ratio
is what keeping costs per shape brings.

Run: ``python -m benchmarks.decision``
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from cardwise.core.cluster import Cluster
from cardwise.core.placement.choose import choose, tie_ranks
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policies import make_policy
from cardwise.core.placement.policy import Policy
from cardwise.core.request import PodRequest
from cardwise.replay.synth import synthesize

SIZES = (100, 300, 1000, 3000, 10_000)
POLICIES = ("dense", "fgd", "best-fit", "balanced")
WARM_UP, TIMED, TIMED_AFRESH = 600, 1500, 40
FILLED = 0.9
SEED = 1


def main() -> None:
    """Print a row per size and policy."""
    table = Table(title="microseconds per decision", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("nodes", "cards", "policy", "p50", "p99", "afresh p50", "afresh / kept"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for nodes in SIZES:
        for name in POLICIES:
            cluster, mix, requests = _filled(nodes)
            kept = _timed(cluster, make_policy(name, cluster, mix), requests, WARM_UP, TIMED)
            afresh = _timed_afresh(cluster, make_policy(name, cluster, mix), requests)
            p50 = float(np.median(kept))
            table.add_row(
                f"{nodes:,}",
                f"{cluster.cards_total:,}",
                name,
                f"{p50:.0f}",
                f"{np.percentile(kept, 99):.0f}",
                f"{np.median(afresh):.0f}",
                f"{np.median(afresh) / p50:.1f} ×",
            )
    Console().print(table)


def _filled(nodes: int) -> tuple[Cluster, Mix, list[PodRequest]]:
    """A cluster nine tenths full, its mix, and requests to go on with."""
    history = synthesize(nodes, SEED)
    cluster = Cluster.build(history.nodes)
    requests = [pod.request for pod in history.pods]
    policy, ranks = make_policy("best-fit", cluster, Mix.of([])), tie_ranks(cluster, SEED)
    total = cluster.compute_free_milli.sum()
    for request in requests:
        if cluster.compute_free_milli.sum() < (1 - FILLED) * total:
            break
        placement = choose(policy, request, ranks)
        if placement is not None:
            cluster.reserve(request, placement.node_idx, placement.places)
    drawn = np.random.default_rng(SEED).integers(len(requests), size=WARM_UP + TIMED)
    again = [replace(requests[i], name=f"new-{step}") for step, i in enumerate(drawn)]
    return cluster, Mix.of(request.shape for request in requests), again


def _timed(cluster: Cluster, policy: Policy, requests: list[PodRequest], warm_up: int, timed: int) -> list[float]:
    """Microseconds per decision while pods come and the oldest go."""
    ranks, oldest, times = tie_ranks(cluster, SEED), deque(cluster.slices), list[float]()
    policy.warm(Mix.of(request.shape for request in requests))
    for step, request in enumerate(requests[: warm_up + timed]):
        started = time.perf_counter_ns()
        placement = choose(policy, request, ranks)
        if step >= warm_up:
            times.append((time.perf_counter_ns() - started) / 1e3)
        if placement is not None:
            cluster.reserve(placement.granted, placement.node_idx, placement.places)
            oldest.append(request.name)
        cluster.release(oldest.popleft())
    return times


def _timed_afresh(cluster: Cluster, policy: Policy, requests: list[PodRequest]) -> list[float]:
    ranks, times = tie_ranks(cluster, SEED), list[float]()
    for request in requests[:TIMED_AFRESH]:
        policy.tables.forget()
        started = time.perf_counter_ns()
        choose(policy, request, ranks)
        times.append((time.perf_counter_ns() - started) / 1e3)
    return times


if __name__ == "__main__":
    main()
