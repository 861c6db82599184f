"""Sums for those who look: cards and pods counted, services, the latest decisions, and the numbers of a refusal.

Works on what ``telling.state`` tells and on the ledger. Refuses to decide, and to guess what
kube-scheduler's own rules said.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cardwise.core.allocation import BoundPod
from cardwise.core.arrays import BoolArray
from cardwise.core.claim import Claim, ContainerAsk
from cardwise.core.ledger import Ledger
from cardwise.core.placement.explain import closest
from cardwise.core.placement.policy import Policy
from cardwise.core.reasons import Code
from cardwise.units import MILLI_PER_PCT

MOST_DECISIONS = 50
"""The latest bindings that are told of."""
ROUNDED_UP = frozenset({Code.CARD_IN_USE, Code.CARD_MEMORY, Code.CARD_COMPUTE})
OTHER_POLICY = "to share cards choose another policy for its class (scheduler.policy)"


def summary(told: Mapping[str, Any], placed: int) -> dict[str, Any]:
    """Counts over ``nodes``, ``pending`` and ``denied`` of the state. placed: pods that are bound."""
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


def services(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per service: pods on cards and pods that wait, and what its slices sum to, by name.

    compute_pct: of one card; 250 is two cards and a half. A pod without a service is its own.
    """
    found: dict[str, dict[str, Any]] = {}
    pods: dict[str, set[str]] = {}

    def of(name: str) -> dict[str, Any]:
        empty = {"service": name, "pods": 0, "pending": 0, "cards": 0, "memory_mib": 0, "compute_pct": 0}
        return found.setdefault(name, empty)

    for node in told["nodes"]:
        for card in node["cards"]:
            for name in {each["service"] for each in card["slices"]}:
                of(name)["cards"] += 1
            for each in card["slices"]:
                sums = of(each["service"])
                sums["memory_mib"] += each["memory_mib"]
                sums["compute_pct"] += each["compute_pct"]
                pods.setdefault(each["service"], set()).add(each["pod"])
    for name, names in pods.items():
        found[name]["pods"] = len(names)
    for each in told["pending"]:
        of(each["service"])["pending"] += 1
    return [found[name] for name in sorted(found)]


def decisions(ledger: Ledger) -> list[dict[str, Any]]:
    """The latest bindings, newest first, with what each pod got."""
    bound = (pod for pod in ledger.pods.values() if pod.allocation and pod.allocation.seq)
    return [_decision(ledger, pod) for pod in heapq.nlargest(MOST_DECISIONS, bound, key=lambda pod: pod.order)]


def _decision(ledger: Ledger, pod: BoundPod) -> dict[str, Any]:
    allocation, claim = pod.allocation, pod.claim
    return {
        "pod": claim.name,
        "service": claim.service or claim.name,
        "node": pod.node,
        "asks": ask_words(claim),
        "cards": list(dict.fromkeys(share.uuid for share in allocation.shares)) if allocation else [],
        "class": claim.latency.value,
        "policy": ledger.policy(claim).name,
    }


# ---------------------------------------------------------------- words


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


def numbers(
    policy: Policy, claim: Claim, said: Iterable[tuple[Code, BoolArray]], share: str = OTHER_POLICY
) -> dict[str, str]:
    """Where a refusal comes closest to a yes (``detail``) and what one can do (``advice``); empty if nothing has any.

    said: codes, what most nodes said first, each with the nodes that said it, bool [N]. share: the advice where the
    policy gives whole cards.
    """
    asks: Sequence[ContainerAsk] = claim.asks
    cluster = policy.cluster
    for code, nodes in said:
        for asked in (claim.lead, *(claim.request(ask.shape, host=False) for ask in asks)):
            granted = policy.granted(asked)
            found = closest(cluster, granted, code, nodes)
            if found is None:
                continue
            node_idx, place, reason = found
            where = cluster.node_names[node_idx]
            if place is not None:
                where = f"card {place} of {where}, the closest"
            if granted.shape.whole and not asked.shape.whole and code in ROUNDED_UP:
                whole = f"policy {policy.name} gives whole cards, whatever a pod asks for"
                return {"detail": f"{where}: another pod holds it, and {whole}", "advice": share}
            return {"detail": f"{where}: {reason.long}", "advice": reason.advice}
    return {"detail": "", "advice": ""}
