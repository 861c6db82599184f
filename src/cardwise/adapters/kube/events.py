"""Events as Kubernetes keeps them: what happened to a node or a pod, and who says so.

Refuses to be long: the API server takes 1,024 characters.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

MOST_TEXT = 1000


def about_node(name: str) -> dict[str, str]:
    """Whom an event of a node is about. Its UID is its name, as for the kubelet's own: so ``describe`` finds it."""
    return {"kind": "Node", "name": name, "uid": name, "apiVersion": "v1"}


def event(
    about: dict[str, str],
    reason: str,
    text: str,
    *,
    component: str,
    namespace: str = "default",
    host: str = "",
    warning: bool = True,
) -> dict[str, Any]:
    """An event that happens now, once. host: the node on which ``component`` runs, if it matters."""
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{component}-", "namespace": namespace},
        "involvedObject": about,
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": text[:MOST_TEXT],
        "source": {"component": component, "host": host} if host else {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
