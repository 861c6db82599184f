"""Conditions of a node's status, as the API server takes them."""

from __future__ import annotations

from cardwise.adapters.kube.events import MOST_TEXT


def node_condition(kind: str, status: str, reason: str, text: str, now: str, since: str | None) -> dict[str, str]:
    """A condition as it is found ``now``. since: when it came to this status; None: what the node says of it stays."""
    told = {"type": kind, "status": status, "reason": reason, "message": text[:MOST_TEXT], "lastHeartbeatTime": now}
    return told if since is None else {**told, "lastTransitionTime": since}
