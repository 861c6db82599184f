"""What one sees of the world: the scheduler's own ``/state``, with services, sums and reasons that have numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from cardwise.adapters.kube_objects import Pod
from cardwise.core.claim import Claim, ContainerAsk
from cardwise.core.ledger import Ledger
from cardwise.core.placement.filter import card_reason, node_reason
from cardwise.scheduler import telling
from cardwise.units import MILLI_PER_PCT
from cardwise.up.world import World

State = dict[str, Any]


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
    """In the order of the queue. Pods that ask alike are refused alike: the numbers are worked out once."""
    known: dict[object, dict[str, str]] = {}
    pending = []
    for pod in world.cycle.pending:
        claim = world.watching.pending.get(pod.metadata.uid)
        if claim is None:
            continue
        key = (claim.asks, claim.cpu_milli, claim.host_memory_mib, claim.exclusive, claim.workload, claim.tenant)
        if key not in known:
            known[key] = _closest(world.ledger, claim)
        pending.append({**_pod(world, pod, claim), **known[key]})
    return pending


def _pod(world: World, pod: Pod, claim: Claim) -> dict[str, Any]:
    return {
        "pod": claim.name,
        "service": claim.service or claim.name,
        "asks": ask_words(claim),
        "why": world.cycle.parked.get(pod.metadata.uid, "is about to be scheduled"),
    }


def _closest(ledger: Ledger, claim: Claim) -> dict[str, str]:
    """The card with the most memory left, why it will not do, and what one can do; empty if that says nothing."""
    cluster = ledger.cluster
    if not claim.asks or not cluster.card_exists.any():
        return {"detail": "", "advice": ""}
    granted = ledger.policy(claim).granted(claim.lead)
    free_mib = np.where(cluster.card_exists, cluster.memory_free_mib, -1)
    node_idx, place = (int(i) for i in np.unravel_index(int(np.argmax(free_mib)), free_mib.shape))
    reason = card_reason(cluster, granted, node_idx, place) or node_reason(cluster, granted, node_idx)
    if reason is None:
        return {"detail": "", "advice": ""}
    where = f"card {place} of {cluster.node_names[node_idx]}, the one with the most memory free"
    return {"detail": f"{where}: {reason.long}", "advice": reason.advice}


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
