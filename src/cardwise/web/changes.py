"""What of one state differs from another, small enough to send a thousand nodes' news every second. Pure.

Only who knows the very state that a change is from may apply it: what went and came back between two states is in no
change from a third. Everyone else fetches the whole state again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

State = Mapping[str, Any]
OWN = frozenset({"nodes", "version"})
"""Keys with a way of their own."""


def changes(before: State, after: State) -> dict[str, Any]:
    """From one state to a later one.

    base, version: of the two. set: other keys, whole. nodes: those that are new or differ. names: all, in order, where
    nodes came, went or moved; else absent.
    """
    known = {node["name"]: node for node in before["nodes"]}
    told: dict[str, Any] = {
        "base": before["version"],
        "version": after["version"],
        "set": {key: after[key] for key in after.keys() - OWN if key not in before or before[key] != after[key]},
        "nodes": [node for node in after["nodes"] if known.get(node["name"]) != node],
    }
    names = [node["name"] for node in after["nodes"]]
    if names != list(known):
        told["names"] = names
    return told


def applied(state: State, change: State) -> dict[str, Any]:
    """The state after a change, as the page's script works it out: the reference for its tests."""
    known = {node["name"]: node for node in (*state["nodes"], *change["nodes"])}
    names = change.get("names", [node["name"] for node in state["nodes"]])
    nodes = [known[name] for name in names]
    return {**state, **change["set"], "nodes": nodes, "version": change["version"]}
