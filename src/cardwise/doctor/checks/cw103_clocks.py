"""CW103: clocks that differ, or are not in UTC: deadlines, certificates and logs of two machines disagree (A9)."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters.symptoms import Lease
from cardwise.adapters.wire import LEASE_AGENT_PREFIX
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, EVERYWHERE, LIKELY, Check, Finding

KUBELET_NAMESPACE = "kube-node-lease"
MOST_AHEAD_S, MOST_BEHIND_S = 5.0, 60.0
"""A Lease cannot have been renewed in the future; and one that is renewed every 10 to 20 s cannot be a minute old while
its node is Ready, for the node controller goes by when it *saw* a renewal, not by the time in it."""
MOST_OFF_S = 1.0
"""By which a clock may differ where it is measured: NTP keeps milliseconds."""
SEVERAL = 3
"""Nodes whose clocks are not all wrong by chance."""
ACTION = "run a time service on the node (chrony or systemd-timesyncd), see that it is synchronized: timedatectl"


def find(facts: Facts) -> Iterable[Finding]:
    """Nodes by their Leases, machines by node_exporter, this machine by the API server's answer and its zone."""
    ready = {
        node.metadata.name
        for node in facts.capture.nodes
        if any(each.type == "Ready" and each.status == "True" for each in node.status.conditions)
    }
    ages = _ages(facts, ready)
    if (off_s := _all_off_s(ages, ready)) is not None:
        yield _of_api_server(ages, off_s)
        ages = {}
    for node, seconds in sorted(ages.items()):
        how = f"{-seconds:.0f} s ahead" if seconds < 0 else f"{seconds:.0f} s behind"
        yield Finding(
            "CW103",
            f"node {node}",
            frozenset({f"node:{node}"}),
            f"the clock of node {node} is {how}",
            (f"its Lease was renewed {seconds:.0f} s before the API server's own time, and the node is Ready",),
            ACTION,
            CERTAIN if seconds < 0 else LIKELY,
        )
    yield from _measured(facts)
    yield from _here(facts)


def _all_off_s(ages: dict[str, float], ready: set[str]) -> float | None:
    """By how much all nodes are off to the same side, if there are several: it is the one clock then, not the many."""
    if len(ages) < SEVERAL or len(ages) < len(ready) or min(ages.values()) < 0 < max(ages.values()):
        return None
    return sorted(ages.values())[len(ages) // 2]


def _of_api_server(ages: dict[str, float], off_s: float) -> Finding:
    how = f"{-off_s:.0f} s behind" if off_s < 0 else f"{off_s:.0f} s ahead of"
    return Finding(
        "CW103",
        "the API server",
        frozenset({EVERYWHERE}),
        f"the API server's clock is {how} those of all {len(ages)} nodes",
        (f"each node's Lease was renewed {min(ages.values()):.0f} to {max(ages.values()):.0f} s before its time",),
        ACTION.replace("on the node", "on the control plane's machines"),
        LIKELY,
    )


def _ages(facts: Facts, ready: set[str]) -> dict[str, float]:
    """By node that is Ready, the age of its kubelet's or agent's Lease that is impossible."""
    found = dict[str, float]()
    for lease in facts.capture.of(Lease) if facts.capture.beside.taken else ():
        name = lease.metadata.name
        kubelets = lease.metadata.namespace == KUBELET_NAMESPACE
        node = (
            name if kubelets else name.removeprefix(LEASE_AGENT_PREFIX) if name.startswith(LEASE_AGENT_PREFIX) else ""
        )
        age = facts.age_s(lease.spec.renew_time)
        if age is None or node not in ready:
            continue
        if age < -MOST_AHEAD_S or (kubelets and age > MOST_BEHIND_S):
            found[node] = age
    return found


def _measured(facts: Facts) -> Iterable[Finding]:
    for line in facts.metrics.of("clock_off_s"):
        if line.last > MOST_OFF_S:
            who = line.labels.get("instance", "?")
            seen = f"node_timex_offset_seconds of {who} is {line.last:.1f} s"
            yield Finding(
                "CW103",
                f"machine {who}",
                frozenset({f"machine:{who}"}),
                f"the clock of {who} is off by {line.last:.1f} s",
                (seen,),
                ACTION,
                CERTAIN,
            )


def _here(facts: Facts) -> Iterable[Finding]:
    off = facts.capture.beside.clock_off_s
    if off is not None and abs(off) > MOST_AHEAD_S:
        yield Finding(
            "CW103",
            "this machine",
            frozenset({EVERYWHERE}),
            f"this machine's clock and the API server's differ by {abs(off):.0f} s",
            (f"this machine is {off:+.0f} s from the Date of the API server's answer",),
            ACTION,
        )
    nearby = facts.nearby
    if nearby is not None and nearby.off_utc_s:
        yield Finding(
            "CW103",
            f"node {nearby.node}",
            frozenset({nearby.place}),
            f"node {nearby.node} does not keep UTC: its logs differ from cardwise's by {nearby.off_utc_s / 3600:+g} h",
            (f"its local time is UTC{nearby.off_utc_s / 3600:+g} h",),
            "set it to UTC: timedatectl set-timezone UTC",
        )


CHECK = Check("CW103", "Clocks differ, or are not in UTC", find, needs=frozenset({"objects", "metrics", "node"}))
