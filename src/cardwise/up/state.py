"""What one sees of the world: the scheduler's own ``/state``, with the emulated kube-scheduler's words on who waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cardwise.adapters.kube_objects import Pod
from cardwise.core.arrays import BoolArray
from cardwise.core.claim import Claim
from cardwise.core.reasons import Code, Reason
from cardwise.scheduler import telling
from cardwise.scheduler.overview import ask_words, numbers
from cardwise.up.kube_cycle import NO_CPU, NO_MEMORY, Parked
from cardwise.up.world import World

State = dict[str, Any]
KUBE_CODES = {NO_CPU: Code.NODE_CPU, NO_MEMORY: Code.NODE_MEMORY}
CODES = {Reason(code).short: code for code in Code} | KUBE_CODES
"""What nodes say, in the words that are counted."""
SHARE = "to share cards leave out --whole-card, or choose another --policy"


def state_of(world: World) -> State:
    """One JSON object: docs/reference/state.md describes it."""
    ledger = world.ledger
    told = telling.state(ledger, {}, ())
    told["policy"] = world.policy
    told["pending"] = _pending(world)
    told["denied"] = [asdict(each) for each in world.denied]
    told["notes"] = list(world.notes)
    return told | telling.sums(told, len(ledger.pods))


def explanation_of(world: World, name: str) -> State | None:
    """Why the pod "namespace/name" is where it is, or nowhere; None if no pod that asks for cards is called so."""
    claim = telling.claim_named(world.watching, name)
    return telling.explain(world.ledger, claim) if claim and claim.asks else None


# ---------------------------------------------------------------- pods that wait


def _pending(world: World) -> list[State]:
    """In the order of the queue. Pods that ask alike and are refused alike: the numbers are worked out once."""
    known: dict[object, dict[str, str]] = {}
    pending = []
    for pod in world.cycle.pending:
        claim = world.watching.pending.get(pod.metadata.uid)
        if claim is None:
            continue
        parked = world.cycle.parked.get(pod.metadata.uid, Parked("is about to be scheduled"))
        key = (
            (claim.asks, claim.cpu_milli, claim.host_memory_mib, claim.exclusive, claim.workload, claim.tenant),
            (claim.latency, parked.said, repr((pod.spec.node_selector, pod.spec.affinity))),
        )
        if key not in known:
            said = _said(world, pod, claim, parked.said)
            known[key] = numbers(world.ledger.policy(claim), claim, said, SHARE)
        told = {"pod": claim.name, "service": claim.service or claim.name, "asks": ask_words(claim), "why": parked.why}
        pending.append({**told, **known[key]})
    return pending


def _said(world: World, pod: Pod, claim: Claim, words: Sequence[str]) -> Iterator[tuple[Code, BoolArray]]:
    """Codes of what nodes said, and which nodes; what most of them said comes first."""
    refused = {name: room.refusal(pod, claim) for name, room in world.cycle.rooms.items()} if claim.asks else {}
    for word in words if claim.asks else ():
        code = _code(word)
        own = word if word in KUBE_CODES else ""  # kube-scheduler's word; else the extender's, of nodes that were left
        if code:
            names = world.ledger.cluster.node_names
            yield code, np.array([refused.get(name) == own for name in names], np.bool_)


def _code(word: str) -> Code | None:
    """The code of a word that nodes said; the extender has longer words where no card at all is of the model."""
    return Code.CARD_MODEL if word.startswith("no card here is of model") else CODES.get(word)
