"""CW108: slices share a card and their limits are set but not in force (SPEC A4): one can take all of it."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters import wire
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, LIKELY, Check, Finding
from cardwise.doctor.words import denied

SHARED = 2
"""Slices of a card from which on a limit matters."""


def find(facts: Facts) -> Iterable[Finding]:
    """By node: its condition, and its agent's alarms; by card: what it holds slices to; here: the daemon itself."""
    for node in facts.gpu_nodes:
        if (seen := denied(node, wire.CONDITION_MPS)) and not facts.settling(node):
            yield _finding(node.metadata.name, _on(facts, node.metadata.name), (seen,), CERTAIN)
    yield from _unheld(facts)
    yield from _bypasses(facts)
    nearby = facts.nearby
    if nearby is None:
        return
    for daemon in nearby.mps:
        if daemon.why:
            yield _finding(nearby.node, (), (f"{daemon.folder}: {daemon.why}",), CERTAIN)


def _unheld(facts: Facts) -> Iterable[Finding]:
    """Cards that several slices share, and that hold none of them to its compute or memory."""
    for card in facts.cards:
        if card.slices < SHARED or card.time_sliced:
            continue
        loose = [
            what for what in ("compute", "memory") if facts.metrics.last(f"card_holds_{what}", uuid=card.uuid) == 0
        ]
        if loose:
            seen = tuple(f"cardwise_card_holds_{what} of {card.uuid} is 0 with {card.slices} slices" for what in loose)
            yield _finding(card.node, (card.uuid,), seen, LIKELY)


def _bypasses(facts: Facts) -> Iterable[Finding]:
    """Processes beside MPS, and alarms of late, by the agent that counts them."""
    for query, what in (("bypasses", "processes run beside MPS"), ("mps_alarms", "alarms of MPS in 10 minutes")):
        for line in facts.metrics.of(query):
            if line.last >= 1:
                who = line.labels.get("instance", "?")
                kind = f" ({line.labels['kind']})" if "kind" in line.labels else ""
                node = line.labels.get("node") or _node_of(facts, who)
                yield _finding(node, _on(facts, node), (f"{who}: {line.last:.0f} {what}{kind}",), LIKELY)


def _node_of(facts: Facts, instance: str) -> str:
    """The node whose agent has this address, or the address."""
    host = instance.rpartition(":")[0]
    return next((node.metadata.name for node in facts.gpu_nodes if node.metadata.name == host), host)


def _on(facts: Facts, node: str) -> tuple[str, ...]:
    return tuple(card.uuid for card in facts.cards if card.node == node and card.slices >= SHARED)


def _finding(node: str, uuids: tuple[str, ...], evidence: tuple[str, ...], likelihood: float) -> Finding:
    return Finding(
        "CW108",
        f"node {node}",
        frozenset({f"node:{node}", *(f"card:{uuid}" for uuid in uuids)}),
        f"limits of slices on node {node} are set and not in force: a slice can take what is its neighbours'",
        evidence,
        "see the condition CardwiseMPSReady and the agent's log; restart containers that started while it was False, "
        "for they run without limits: kubectl delete pod",
        likelihood,
    )


CHECK = Check(
    "CW108",
    "Limits are set, and not in force",
    find,
    frozenset({"CW406", "CW409"}),
    frozenset({"objects", "metrics", "node"}),
)
