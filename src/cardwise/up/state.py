"""What one sees of the world: the scheduler's own ``/state``, with services, sums and reasons that have numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cardwise.adapters.kube_objects import Pod
from cardwise.core.claim import Claim, ContainerAsk
from cardwise.core.placement.explain import closest
from cardwise.core.reasons import Code, Reason
from cardwise.scheduler import telling
from cardwise.units import MILLI_PER_PCT
from cardwise.up.kube_cycle import NO_CPU, NO_MEMORY, Parked
from cardwise.up.world import World

State = dict[str, Any]
KUBE_CODES = {NO_CPU: Code.NODE_CPU, NO_MEMORY: Code.NODE_MEMORY}
CODES = {Reason(code).short: code for code in Code} | KUBE_CODES
"""What nodes say, in the words that are counted."""
ROUNDED_UP = frozenset({Code.CARD_IN_USE, Code.CARD_MEMORY, Code.CARD_COMPUTE})
SHARE = "to share cards leave out --whole-card, or choose another --policy"


def state_of(world: World) -> State:
    """One JSON object: docs/howto/try-it.md describes it."""
    ledger = world.ledger
    told = telling.state(ledger, world.watching.pending, world.extender.waiting)
    holders = {pod.claim.name: pod.claim for pod in ledger.pods.values()}
    for node in told["nodes"]:
        for card in node["cards"]:
            card["slices"] = [_slice(each, holders, card["memory_total_mib"]) for each in card["slices"]]
    told["pending"] = _pending(world)
    told["denied"] = [asdict(each) for each in world.denied]
    told["notes"] = list(world.notes)
    return {"policy": world.policy, "summary": _summary(told, len(ledger.pods)), **told}


def _slice(told: Mapping[str, Any], holders: Mapping[str, Claim], total_mib: int) -> dict[str, Any]:
    service = holders[told["pod"]].service if told["pod"] in holders else ""
    whole = told["memory_mib"] == total_mib and told["compute_pct"] == 100
    return {**told, "service": service or told["pod"], "whole": whole}


def _summary(told: State, placed: int) -> dict[str, Any]:
    cards = [card for node in told["nodes"] for card in node["cards"]]
    total_mib = sum(card["memory_total_mib"] for card in cards)
    free_mib = sum(card["memory_free_mib"] for card in cards)
    return {
        "nodes": len(told["nodes"]),
        "cards": len(cards),
        "cards_used": sum(bool(card["slices"]) for card in cards),
        "slices": sum(not each["whole"] for card in cards for each in card["slices"]),
        "cards_whole": sum(each["whole"] for card in cards for each in card["slices"]),
        "memory_allocated_mib": total_mib - free_mib,
        "memory_total_mib": total_mib,
        "pods_placed": placed,
        "pods_pending": len(told["pending"]),
        "pods_denied": sum(each["pods"] for each in told["denied"]),
    }


# ---------------------------------------------------------------- pods that wait


def _pending(world: World) -> list[dict[str, Any]]:
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
            known[key] = _numbers(world, pod, claim, parked.said)
        told = {"pod": claim.name, "service": claim.service or claim.name, "asks": ask_words(claim), "why": parked.why}
        pending.append({**told, **known[key]})
    return pending


def _numbers(world: World, pod: Pod, claim: Claim, said: Sequence[str]) -> dict[str, str]:
    """Numbers of what most nodes said, where it comes closest to a yes, and what one can do; empty if none has any."""
    policy = world.ledger.policy(claim)
    cluster = policy.cluster
    refused = {name: room.refusal(pod, claim) for name, room in world.cycle.rooms.items()} if claim.asks else {}
    for word in said if claim.asks else ():
        code = _code(word)
        own = word if word in KUBE_CODES else ""  # kube-scheduler's word; else the extender's, of nodes that were left
        nodes = np.array([refused.get(name) == own for name in cluster.node_names], np.bool_)
        for asked in (claim.lead, *(claim.request(ask.shape, host=False) for ask in claim.asks)):
            granted = policy.granted(asked)
            found = closest(cluster, granted, code, nodes) if code else None
            if found is None:
                continue
            node_idx, place, reason = found
            where = cluster.node_names[node_idx]
            if place is not None:
                where = f"card {place} of {where}, the closest"
            if granted.shape.whole and not asked.shape.whole and code in ROUNDED_UP:
                whole = f"policy {policy.name} gives whole cards, whatever a pod asks for"
                return {"detail": f"{where}: another pod holds it, and {whole}", "advice": SHARE}
            return {"detail": f"{where}: {reason.long}", "advice": reason.advice}
    return {"detail": "", "advice": ""}


def _code(word: str) -> Code | None:
    """The code of a word that nodes said; the extender has longer words where no card at all is of the model."""
    return Code.CARD_MODEL if word.startswith("no card here is of model") else CODES.get(word)


def ask_words(claim: Claim) -> str:
    """What a pod asks of cards, as a person says it."""
    return " + ".join(_words(ask) for ask in claim.asks) or "no card"


def _words(ask: ContainerAsk) -> str:
    shape = ask.shape
    if shape.whole:
        text = "a whole card" if shape.cards == 1 else f"{shape.cards} whole cards"
    else:
        memory = (
            f"{shape.memory_mib:,} MiB" if shape.memory_mib else f"{shape.memory_milli // MILLI_PER_PCT} % of memory"
        )
        compute = f" and {shape.compute_milli // MILLI_PER_PCT} %" if shape.compute_milli else ""
        text = f"{memory}{compute}" + (f" on each of {shape.cards} cards" if shape.cards > 1 else "")
    return text + (f" on {' or '.join(sorted(shape.models))}" if shape.models else "")
