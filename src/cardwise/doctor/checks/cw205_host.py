"""CW205: cards are free and their nodes have too little CPU or host memory left: the cards are stranded."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters.symptoms import ToldPod
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, Check, Finding
from cardwise.doctor.room import Cause, cause_of, hosts_in_the_way
from cardwise.doctor.words import some


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each pod, with pods without a card that take the most there."""
    for each in facts.waiting:
        if cause_of(facts, each) is not Cause.HOST:
            continue
        nodes = hosts_in_the_way(facts, each)
        others = sorted(
            pod.name
            for pod in facts.capture.pods
            if pod.spec.node_name in nodes and not pod.ended and facts.pod(pod.name) is None and _asks_host(pod)
        )
        yield Finding(
            "CW205",
            f"pod {each.name}",
            frozenset({each.place, *(f"node:{node}" for node in nodes)}),
            f"pod {each.name}: {len(nodes)} nodes have a card for it, and too little CPU or host memory",
            (
                *(f"node {node}: {each.long[node]}" for node in nodes if node in each.long),
                f"pods without a card on them: {some(others) or 'none'}",
            ),
            "lower the pod's CPU and memory requests, or keep pods without a card off GPU nodes with a taint",
            CERTAIN,
        )


def _asks_host(pod: ToldPod) -> bool:
    return any(each.resources.requests for each in pod.spec.containers)


CHECK = Check("CW205", "Cards are free, but their nodes lack CPU or host memory", find)
