"""The same manifests on the same nodes under several policies: what each of them needs, and what it leaves waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from cardwise.adapters.manifests import Manifests
from cardwise.config import DEFAULT_POLICY
from cardwise.core.claim import LatencyClass
from cardwise.up.hardware import HollowNode
from cardwise.up.state import State, state_of
from cardwise.up.world import World

WHOLE_CARD = "whole-card"
CLASSES = tuple(each.value for each in LatencyClass)


def everywhere(policy: str) -> dict[str, str]:
    """One policy for both latency classes."""
    return dict.fromkeys(CLASSES, policy)


async def settled(
    manifests: Manifests,
    nodes: Sequence[HollowNode],
    policy: Mapping[str, str],
    now_s: Callable[[], float],
    now: Callable[[], datetime],
) -> State:
    """The state once every pod is placed or parked."""
    world = World.build(nodes, policy, now_s, now)
    async with world.running():
        await world.apply(manifests)
        return state_of(world)


async def compare(
    manifests: Manifests,
    nodes: Sequence[HollowNode],
    policy: Mapping[str, str],
    now_s: Callable[[], float],
    now: Callable[[], datetime],
) -> list[dict[str, Any]]:
    """A row per contender: the Kubernetes default first, then the given policy, then dense for all if that differs."""
    contenders = {"whole-card": everywhere(WHOLE_CARD), "cardwise": {**DEFAULT_POLICY, **policy}}
    if everywhere("dense") not in contenders.values():
        contenders["cardwise, dense"] = everywhere("dense")
    rows = []
    for name, chosen in contenders.items():
        state = await settled(manifests, nodes, chosen, now_s, now)
        rows.append({"name": name, "policy": chosen, **state["summary"]})
    return rows
