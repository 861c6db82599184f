"""CW405: latency spikes while the card idles, and the network loses packets then: work does not arrive."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import LIKELY, POSSIBLE, Check, Finding
from cardwise.doctor.load import cpu_is_short, idle_while_slow, network_is_short


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each service whose cards idle while it is slow and packets are lost."""
    for service in facts.services:
        idle = idle_while_slow(facts, service)
        if idle is None:
            continue
        lost = network_is_short(facts, service, idle.spikes)
        if lost is None:
            continue
        yield Finding(
            "CW405",
            f"service {service.name}",
            service.places,
            f"service {service.name}: the network loses packets of its replicas, and its card waits for work",
            (
                f"P99 up to {idle.spikes.worst_s:.3f} s; {idle.told}",
                f"{lost[0]:.1f} packets/s dropped then, {lost[1]:.1f} otherwise",
            ),
            "see the node's links and the CNI's queues (ethtool -S, tc -s qdisc); move the replica to another node: "
            "kubectl delete pod",
            POSSIBLE if cpu_is_short(facts, service, idle.spikes) else LIKELY,
        )


CHECK = Check("CW405", "The network starves the card", find, frozenset({"CW403"}), frozenset({"metrics"}))
